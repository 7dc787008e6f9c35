// What a model is for. Each takes its own requests and refuses the others with E_MODEL_003.
#pragma once

#include <cstdint>
#include <string_view>

namespace uma {

enum class Capability : std::uint8_t {
  chat,            // continues texts
  text_embedding,  // a vector of each text
  rerank,          // a score of each pair of a query and a document
  vision,          // continues texts with images in them
};

constexpr std::string_view capability_name(Capability capability) {
  switch (capability) {
    case Capability::text_embedding:
      return "text_embedding";
    case Capability::rerank:
      return "rerank";
    case Capability::vision:
      return "vision";
    case Capability::chat:
      break;
  }
  return "chat";
}

}  // namespace uma
