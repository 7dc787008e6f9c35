// The images of a message, as ChatMessage::extra keeps them: {"images":[{"at":0,"sha256":"..."}]}.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/request.h"

namespace uma::capability {

struct MessageImage {
  std::size_t at = 0;  // it stands before this byte of the content
  std::string id;      // SHA-256 of its file, in hexadecimal digits
  bool operator==(const MessageImage&) const = default;
};

// In order. None where the message has none, or its extra was not made here.
[[nodiscard]] std::vector<MessageImage> images_of(const ChatMessage& message);
// The ids alone, of a message with this extra.
[[nodiscard]] std::vector<std::string> image_ids(const std::string& extra);
// The extra of a message that has these and nothing else. REQUIRES: in order.
[[nodiscard]] std::string images_extra(std::span<const MessageImage> images);

}  // namespace uma::capability
