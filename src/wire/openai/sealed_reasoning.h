// `encrypted_content` of reasoning items. Clients that let the server store nothing send it back, so that the model finds its
// earlier reasoning in the prompt. The text is encoded, not secret: it is the client's own conversation, and the client may
// also send reasoning as plain text.
//
//   "uma1." BASE64 of the text "." the first 16 hexadecimal digits of its SHA-256
#pragma once

#include <string>
#include <string_view>

namespace uma::wire {

[[nodiscard]] std::string sealed_reasoning(std::string_view text);
// The text; empty for a damaged one, and for what another server has made.
[[nodiscard]] std::string reasoning_of(std::string_view sealed);

}  // namespace uma::wire
