// Images and clips of sound in a request: local files, or URLs of images that the daemon fetches if its configuration allows
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "uma-cli/chat/generation_flags.h"
#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Fits a frame that carries files as base64.
inline constexpr std::size_t kFileBytesPerRequest = 11u << 20;
inline constexpr std::size_t kImagesPerRequest = 64;
// Deadline of a request with images or clips, and of a request for image embeddings.
inline constexpr int kImageDeadlineMs = 60'000;

enum class Media : std::uint8_t { image, audio };

// The attachments of a user's message, by name: files, and URLs of images.
struct Attachments {
  std::vector<std::string> images{};
  std::vector<std::string> clips{};

  [[nodiscard]] bool empty() const { return images.empty() && clips.empty(); }
};

// Returns {"data"}, {"url"} or {"path"} for each name, in order. A file is sent as its bytes, so that the daemon needs no
// permission to read it; a file that does not fit beside the others is sent by its path. A file that cannot be read, or is not
// an image, is a usage failure.
[[nodiscard]] Result<std::vector<boost::json::object>> read_images(std::span<const std::string> names);

// The parts of a message's content: the images, as above, before the clips. A clip that does not fit beside the other files is
// a usage failure, too.
[[nodiscard]] Result<boost::json::array> read_parts(const Attachments& attachments);
// The bytes of the files that parts carry, about.
[[nodiscard]] std::size_t bytes_of_parts(const boost::json::array& parts);

// The messages of a question about what the parts show.
[[nodiscard]] boost::json::array messages_with(boost::json::array parts, const std::string& text);

// Fails if the model is known not to read such files. An empty `model` means the default model.
[[nodiscard]] Result<void> check_reads(Client& client, const std::string& model, Media media);
// Fails if no model reads such files. For sessions, whose model is not known yet.
[[nodiscard]] Result<void> check_any_reads(Client& client, Media media);

struct DescribeOptions {
  std::string image;
  std::string query = "Describe this image.";
  std::string model;  // Empty: the default model.
  GenerationFlags generation;
  bool shows_usage = false;  // Prints the receipt on standard error.
};

// Prints one answer about one image. Ends as run_one_shot() does.
Result<void> run_describe(Client& client, const DescribeOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
