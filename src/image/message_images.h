// The images of a message, stored in ChatMessage::extra: {"images":[{"at":0,"sha256":"..."}]}.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/request.h"

namespace uma::image {

struct MessageImage {
  std::size_t at = 0;  // Position in the content, in bytes.
  std::string id;      // SHA-256 of its file, in hexadecimal digits.
  bool operator==(const MessageImage&) const = default;
};

// The images in order; empty if the message has none, or an `extra` of another origin.
[[nodiscard]] std::vector<MessageImage> images_of(const ChatMessage& message);
// The ids in this extra.
[[nodiscard]] std::vector<std::string> image_ids(const std::string& extra);
// The extra of a message with these images and no other fields. Requires: in order.
[[nodiscard]] std::string images_extra(std::span<const MessageImage> images);

}  // namespace uma::image
