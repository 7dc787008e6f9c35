// Images as clients send them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace uma {

inline constexpr std::size_t kImagesPerRequestMax = 64;

struct ImageSource {
  enum class Kind : std::uint8_t {
    path,  // of a file of the daemon's machine
    data,  // base64, alone or as a data: URI
    url,
    file,  // its bytes
  };
  Kind kind = Kind::data;
  std::string text;
};

// From where images are fetched that are named by a URL of http or https; by default from nowhere.
struct ImageUrlRules {
  bool allows_public = false;      // whatever the open internet has at the usual ports
  std::vector<std::string> hosts;  // HOST:PORT, as in a URL, lower case: these may be anywhere
  std::size_t bytes_max = 16ul << 20;
  std::chrono::milliseconds time_max{10'000};  // of an image, redirects among it

  [[nodiscard]] bool allow_any() const { return allows_public || !hosts.empty(); }
};

// An image among the messages of an input.
struct InputImage {
  std::size_t message = 0;  // its index
  std::size_t at = 0;       // the image stands before this byte of the message's content
  ImageSource source;
  std::string field{};  // of the request, with its path; empty: what is wrong with it needs no name
};

struct EmbedImagesRequest {
  std::string model;  // empty: the default model
  std::vector<ImageSource> images;
  std::optional<std::int64_t> deadline_ms;  // until all are done; absent: limits.deadline_ms; 0: none
  std::stop_token end{};                    // nobody waits for it any more
};

[[nodiscard]] std::size_t memory_of(const EmbedImagesRequest& request);

struct ImageEmbeddings {
  std::vector<std::vector<float>> embeddings;  // of length 1, in the order of the images
  std::int64_t rows = 0;                       // that they were made of
};

}  // namespace uma
