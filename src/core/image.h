// Images in requests. A clip of sound takes the same way and the same types: it becomes rows in a chain as an image does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/text.h"
#include "core/work/tenant_budget.h"

namespace uma {

inline constexpr std::size_t kImagesPerRequestMax = 64;

// The kind of content that a file must have.
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

// Files of images that were read for an answer.
struct ImageFiles {
  std::vector<Bytes> files;
  RequestShare share{};  // Memory of the files, and of their URLs and the JSON with them; null: there are none.
};

// Whether `text` is a data: URI; the case of letters does not count.
[[nodiscard]] inline bool is_data_uri(std::string_view text) {
  return lower_ascii(trim(text.substr(0, 32)).substr(0, 5)) == "data:";
}

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

// The vectors that a model's vectors of images can be compared with.
enum class ImageVectors : std::uint8_t {
  none,       // The model computes none.
  projector,  // The mean of the projector's rows: vectors of other images.
  shared,     // The language model computes them as it computes those of texts: vectors of images and of texts.
};

constexpr std::string_view image_vectors_name(ImageVectors kind) {
  switch (kind) {
    case ImageVectors::projector:
      return "projector";
    case ImageVectors::shared:
      return "shared";
    case ImageVectors::none:
      break;
  }
  return "none";
}

}  // namespace uma
