// OpenAI's JSON of chat/completions and completions: bodies of requests as core requests (their answers: completion_answer.h),
// errors and models. docs/protocol/openai.md lists the fields.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/session_info.h"
#include "wire/json_body.h"

namespace uma::wire {

enum class CompletionKind : std::uint8_t { chat, text };

inline constexpr std::int64_t kChoicesMax = 16;         // of one prompt
inline constexpr std::int64_t kAnswerChoicesMax = 64;   // of one request
inline constexpr std::int64_t kTextTopLogprobsMax = 5;  // of a text, as OpenAI has it

struct CompletionRequest {
  GenerateRequest generate;     // of each prompt, but for its input
  std::vector<Input> prompts;   // at least one
  std::size_t n = 1;            // choices of each prompt
  bool includes_usage = false;  // stream_options.include_usage
  bool echoes = false;          // the prompts are texts
};

// Pure.
[[nodiscard]] std::expected<CompletionRequest, RejectedBody> decode_completion(CompletionKind kind, std::string_view body);

// {"error":{"message","type","param","code"}}; `field` may be empty. The status chooses the type.
[[nodiscard]] std::string error_json(const Error& error, int status, std::string_view field);

[[nodiscard]] std::string model_json(const ModelInfo& model, std::int64_t created_s);
[[nodiscard]] std::string models_json(std::span<const ModelInfo> models, std::int64_t created_s);

}  // namespace uma::wire
