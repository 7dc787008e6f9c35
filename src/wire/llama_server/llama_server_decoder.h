// Decodes llama-server's requests that other APIs do not have: /tokenize, /detokenize, /infill and /completion. Pure.
// docs/protocol/llama-server.md lists the fields.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/text_conversion.h"
#include "wire/json_body.h"

namespace uma::wire {

// A call of /infill or /completion.
struct TextCall {
  GenerateRequest generate;
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};

[[nodiscard]] std::expected<TokenizeRequest, RejectedBody> decode_tokenize(std::string_view body);
[[nodiscard]] std::expected<DetokenizeRequest, RejectedBody> decode_detokenize(std::string_view body);
[[nodiscard]] std::expected<TextCall, RejectedBody> decode_infill(std::string_view body);
[[nodiscard]] std::expected<TextCall, RejectedBody> decode_plain_completion(std::string_view body);

}  // namespace uma::wire
