// The images of a message, stored in ChatMessage::extra: {"images":[{"at":0,"sha256":"...","pixels":"..."}]}.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"

namespace uma::image {

struct MessageImage {
  std::size_t at = 0;  // Position in the content, in bytes.
  std::string id;      // See image/image_id.h.
  bool operator==(const MessageImage&) const = default;
};

// The images in order; empty if the message has none, or an `extra` of another origin.
[[nodiscard]] std::vector<MessageImage> images_of(const ChatMessage& message);
// The ids in this extra.
[[nodiscard]] std::vector<std::string> image_ids(const std::string& extra);
// The names of their files.
[[nodiscard]] std::vector<std::string> image_files(const std::string& extra);
// The extra with these images in place of its own. Requires: in order.
[[nodiscard]] std::string with_images(std::string_view extra, std::span<const MessageImage> images);

// Writes a line of text in place of image `index` of the input.
void put_line(Input& input, std::size_t index, std::string_view line);

}  // namespace uma::image
