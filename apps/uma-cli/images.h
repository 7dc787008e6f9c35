// Images that go with a request: files of this machine, or addresses that the daemon fetches where it is configured to.
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

// Within a frame that carries images, as base64.
inline constexpr std::size_t kImageBytesPerRequest = 11u << 20;
inline constexpr std::size_t kImagesPerRequest = 64;
// Of a request that has images, and of one for vectors.
inline constexpr int kImageDeadlineMs = 60'000;

// {"data"}, {"url"} or {"path"} of each, in order. A file goes as its bytes, so that the daemon need not be allowed to read it;
// only one that does not fit beside the others is named by its path. What cannot be read, or is no image, is a usage failure.
[[nodiscard]] Result<std::vector<boost::json::object>> read_images(std::span<const std::string> names);

// The messages of a question about images.
[[nodiscard]] boost::json::array messages_with(std::span<const boost::json::object> images, const std::string& text);

// Fails where the model is known to read none. `model` is empty: the default one.
[[nodiscard]] Result<void> check_reads_images(Client& client, const std::string& model);
// Where it is a session's, that nobody knows yet: fails where no model reads any.
[[nodiscard]] Result<void> check_any_reads_images(Client& client);

struct DescribeOptions {
  std::string image;
  std::string query = "Describe this image.";
  std::string model;  // empty: the default model
  GenerationFlags generation;
  bool shows_usage = false;  // the receipt, on standard error
};

// One answer about one image. Ends as run_one_shot() does.
Result<void> run_describe(Client& client, const DescribeOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
