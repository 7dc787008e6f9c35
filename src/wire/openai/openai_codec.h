// OpenAI's JSON of chat/completions and completions: decodes requests, encodes errors and models (answers:
// completion_answer.h). docs/protocol/openai.md lists the fields.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_library.h"
#include "core/request.h"
#include "core/session_info.h"
#include "wire/json_body.h"

namespace uma::wire {

enum class CompletionKind : std::uint8_t { chat, text };

inline constexpr std::int64_t kChoicesMax = 16;         // Limit for one prompt.
inline constexpr std::int64_t kAnswerChoicesMax = 64;   // Limit for one request.
inline constexpr std::int64_t kTextTopLogprobsMax = 5;  // OpenAI's limit for text completions.

struct CompletionRequest {
  GenerateRequest generate;             // The request for each prompt, without its input.
  std::vector<Input> prompts;           // At least one.
  std::size_t n = 1;                    // Choices of each prompt.
  bool includes_usage = false;          // Field stream_options.include_usage.
  bool echoes = false;                  // The text begins with its prompt, or with the reply that it continues.
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};

// Pure.
[[nodiscard]] std::expected<CompletionRequest, RejectedBody> decode_completion(CompletionKind kind, std::string_view body);

// Whether the input is too long, which agents react to by shortening their history.
[[nodiscard]] bool is_overflow(ErrorCode code);
// The code in OpenAI's APIs: OpenAI's own if the input is too long, else code_name().
[[nodiscard]] std::string_view openai_code(ErrorCode code);

// The type of an error with this status.
[[nodiscard]] std::string_view error_type(int status);
// Returns {"error":{"message","type","param","code"}}; `field` may be empty. The status determines the type.
[[nodiscard]] std::string error_json(const Error& error, int status, std::string_view field);

// A model as OpenAI's API shows it, with the fields that Anthropic's API and other servers have.
[[nodiscard]] std::string model_json(const ModelInfo& model, std::int64_t created_s);
// The models, and each of their adapters as a model "MODEL:ADAPTER" behind its model.
[[nodiscard]] std::vector<ModelInfo> with_adapters(std::span<const ModelInfo> models);
// `pulls`: for an administrator; null: for others.
[[nodiscard]] std::string models_json(std::span<const ModelInfo> models, std::int64_t created_s,
                                      const std::vector<PullInProgress>* pulls = nullptr);

}  // namespace uma::wire
