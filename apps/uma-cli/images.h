// Images of a request: local files, or URLs that the daemon fetches if its configuration allows that.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/generation_flags.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Fits a frame that carries images as base64.
inline constexpr std::size_t kImageBytesPerRequest = 11u << 20;
inline constexpr std::size_t kImagesPerRequest = 64;
// Deadline of a request with images, and of a request for image embeddings.
inline constexpr int kImageDeadlineMs = 60'000;

// Returns {"data"}, {"url"} or {"path"} for each name, in order. A file is sent as its bytes, so that the daemon needs no
// permission to read it; a file that does not fit beside the others is sent by its path. A file that cannot be read, or is not
// an image, is a usage failure.
[[nodiscard]] Result<std::vector<boost::json::object>> read_images(std::span<const std::string> names);

// The messages of a question about images.
[[nodiscard]] boost::json::array messages_with(std::span<const boost::json::object> images, const std::string& text);

// Fails if the model is known to read no images. An empty `model` means the default model.
[[nodiscard]] Result<void> check_reads_images(Client& client, const std::string& model);
// Fails if no model reads images. For sessions, whose model is not known yet.
[[nodiscard]] Result<void> check_any_reads_images(Client& client);

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
