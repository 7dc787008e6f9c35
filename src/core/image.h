// Images in requests. A clip of sound takes the same way and the same types: it becomes rows in a chain as an image does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/tenant_budget.h"

namespace uma {

inline constexpr std::size_t kImagesPerRequestMax = 64;

// What a file must be.
enum class Media : std::uint8_t { image, audio, any };

struct ImageSource {
  enum class Kind : std::uint8_t {
    path,  // Path of a file on the daemon's machine.
    data,  // Base64, alone or as a data: URI.
    url,
    file,  // Bytes of the file.
  };
  Kind kind = Kind::data;
  std::string text;
  Media media = Media::image;
};

// The http and https URLs from which images may be fetched; none by default.
struct ImageUrlRules {
  bool allows_public = false;      // Any public address at the usual ports.
  std::vector<std::string> hosts;  // HOST:PORT as in a URL, lower case; allowed at any address.
  std::size_t bytes_max = 16ul << 20;
  std::chrono::milliseconds time_max{10'000};  // Limit for one image, including redirects.

  [[nodiscard]] bool allow_any() const { return allows_public || !hosts.empty(); }
};

// An image or a clip of a message.
struct InputImage {
  std::size_t message = 0;  // Index of the message.
  std::size_t at = 0;       // The image precedes this byte of the message's content.
  ImageSource source;
  std::string field{};  // The request's field with its path; empty: errors need no name.
};

struct EmbedImagesRequest {
  std::string model;  // Empty: the default model.
  std::vector<ImageSource> images;
  std::optional<std::int64_t> deadline_ms;  // Limit for all images; nullopt: limits.deadline_ms; 0: none.
  std::stop_token end{};                    // Requested when nobody waits any more.
  RequestShare share{};                     // Memory of the request; fetched files are charged to it.
};

[[nodiscard]] std::size_t memory_of(const EmbedImagesRequest& request);

struct ImageEmbeddings {
  std::vector<std::vector<float>> embeddings;  // Of length 1, in the order of the images.
  std::int64_t rows = 0;                       // Rows of image embeddings that were computed.
};

}  // namespace uma
