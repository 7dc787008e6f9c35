// The purpose of a model. A model refuses other requests with E_MODEL_003.
#pragma once

#include <cstdint>
#include <string_view>

namespace uma {

enum class Capability : std::uint8_t {
  chat,            // Continues texts.
  text_embedding,  // Computes a vector for each text.
  rerank,          // Computes a score for each pair of a query and a document.
  vision,          // Continues texts that contain images.
  text_to_image,   // Draws pictures from captions.
};

constexpr std::string_view capability_name(Capability capability) {
  switch (capability) {
    case Capability::text_embedding:
      return "text_embedding";
    case Capability::rerank:
      return "rerank";
    case Capability::vision:
      return "vision";
    case Capability::text_to_image:
      return "text_to_image";
    case Capability::chat:
      break;
  }
  return "chat";
}

}  // namespace uma
