// What clients ask of models that compute vectors or scores of texts, and what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/ids.h"
#include "core/request.h"

namespace uma {

inline constexpr std::size_t kEmbedInputsMax = 2048;  // texts of one request, or documents

// What becomes of a text that is longer than the model takes.
enum class LongInput : std::uint8_t {
  refuse,
  truncate,  // its beginning counts
  chunk,     // its parts are computed apart, and their vectors averaged by tokens; not for reranking
};

// What both kinds of requests share.
struct TextOptions {
  std::string model;         // empty: the default model
  std::uint64_t client = 0;  // the connection it came by, 0: none; connections of a tenant are served in turn
  LongInput long_input = LongInput::refuse;
  RequestClass request_class = RequestClass::interactive;
  std::optional<std::int64_t> deadline_ms;  // until it is done; absent: the default of its class; 0: none
  RequestShare share{};                     // what the request holds in memory; shared by what is made of it
};

using EmbedInput = std::variant<std::string, std::vector<Token>>;  // tokens are the model's own

struct EmbedRequest {
  TextOptions options;
  std::vector<EmbedInput> inputs;  // 1 to kEmbedInputsMax
  std::string task;                // whose prefix goes before each text; empty: none
  std::int32_t dimensions = 0;     // the first so many of each vector; 0: all
  bool normalize = true;           // to length 1
};

struct EmbedResult {
  std::string model;
  std::int32_t dimensions = 0;
  std::vector<float> values;  // one vector after the other, in the order of the inputs
  std::int64_t tokens = 0;    // that were computed

  [[nodiscard]] std::size_t count() const { return values.size() / static_cast<std::size_t>(dimensions); }
  [[nodiscard]] std::span<const float> vector(std::size_t index) const {
    const auto width = static_cast<std::size_t>(dimensions);
    return std::span(values).subspan(index * width, width);
  }
};

struct RerankRequest {
  TextOptions options;
  std::string query;
  std::vector<std::string> documents;  // 1 to kEmbedInputsMax
  std::int32_t top_n = 0;              // so many of the best; 0: all
};

// What they take of memory, in bytes.
[[nodiscard]] std::size_t memory_of(const EmbedRequest& request);
[[nodiscard]] std::size_t memory_of(const RerankRequest& request);

struct RerankScore {
  std::size_t index = 0;  // of the document
  float score = 0;        // as the model gives it: larger is more relevant
  bool operator==(const RerankScore&) const = default;
};

struct RerankResult {
  std::string model;
  std::vector<RerankScore> scores;  // best first
  std::int64_t tokens = 0;          // that were computed
};

}  // namespace uma
