// Requests to models that compute vectors or scores of texts, and their results.
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

inline constexpr std::size_t kEmbedInputsMax = 2048;  // Texts, or documents, of one request.

// The treatment of a text that is longer than the model's limit.
enum class LongInput : std::uint8_t {
  refuse,
  truncate,  // Only the beginning is used.
  chunk,     // The parts are computed separately and their vectors averaged, weighted by tokens; not for reranking.
};

// Options of both kinds of requests.
struct TextOptions {
  std::string model;         // Empty: the default model.
  std::uint64_t client = 0;  // The client's connection, 0: none; connections of a tenant are served in turn.
  LongInput long_input = LongInput::refuse;
  RequestClass request_class = RequestClass::interactive;
  std::optional<std::int64_t> deadline_ms;  // Time limit for the whole request; nullopt: the default of its class; 0: none.
  RequestShare share{};                     // Memory of the request, shared by everything made from it.
};

using EmbedInput = std::variant<std::string, std::vector<Token>>;  // Tokens are those of the model.

struct EmbedRequest {
  TextOptions options;
  std::vector<EmbedInput> inputs;  // 1 to kEmbedInputsMax.
  // Images within the texts of inputs, in order; not read yet. InputImage::message is the index of the input.
  std::vector<InputImage> images{};
  // Once the images are read: those of each input, as in ChatMessage::extra; empty: no input has images.
  std::vector<std::string> extras{};
  std::string task;             // Task whose prefix is put before each text; empty: none.
  std::int32_t dimensions = 0;  // Length to cut each vector to; 0: all.
  bool normalize = true;        // Scales vectors to length 1.
};

struct EmbedResult {
  std::string model;
  std::int32_t dimensions = 0;
  std::vector<float> values;  // One vector after another, in the order of the inputs.
  std::int64_t tokens = 0;    // Computed tokens.

  [[nodiscard]] std::size_t count() const { return values.size() / static_cast<std::size_t>(dimensions); }
  [[nodiscard]] std::span<const float> vector(std::size_t index) const {
    const auto width = static_cast<std::size_t>(dimensions);
    return std::span(values).subspan(index * width, width);
  }
};

struct EmbedImagesRequest {
  TextOptions options;
  std::vector<ImageSource> images;  // 1 to kImagesPerRequestMax.
};

struct ImageEmbeddings {
  std::vector<std::vector<float>> embeddings;  // Vectors of length 1, in the order of the images.
  std::int64_t rows = 0;                       // Rows of images, and tokens beside them, that were computed.
};

struct RerankRequest {
  TextOptions options;
  std::string query;
  std::vector<std::string> documents;  // 1 to kEmbedInputsMax.
  std::int32_t top_n = 0;              // Number of best documents to return; 0: all.
};

// Memory of the request in bytes.
[[nodiscard]] std::size_t memory_of(const EmbedRequest& request);
[[nodiscard]] std::size_t memory_of(const RerankRequest& request);
[[nodiscard]] std::size_t memory_of(const EmbedImagesRequest& request);

struct RerankScore {
  std::size_t index = 0;  // Index of the document.
  float score = 0;        // The model's score; larger is more relevant.
  bool operator==(const RerankScore&) const = default;
};

struct RerankResult {
  std::string model;
  std::vector<RerankScore> scores;  // Best first.
  std::int64_t tokens = 0;          // Computed tokens.
};

}  // namespace uma
