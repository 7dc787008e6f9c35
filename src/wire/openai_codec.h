// OpenAI's JSON of chat/completions and completions: bodies of requests as core requests, and back what the engine says, as one
// object or as server-sent events. docs/PROTOCOL.md, section HTTP, lists the fields.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>

#include "core/event.h"
#include "core/request.h"
#include "core/session_info.h"
#include "wire/json_body.h"

namespace uma::wire {

enum class CompletionKind : std::uint8_t { chat, text };

struct CompletionRequest {
  GenerateRequest generate;
  bool includes_usage = false;  // stream_options.include_usage
};

// Pure.
[[nodiscard]] std::expected<CompletionRequest, RejectedBody> decode_completion(CompletionKind kind, std::string_view body);

// What every object of one answer repeats.
class CompletionHead {
 public:
  // `id` is the answer's own, without its prefix; `created_s` is Unix time.
  CompletionHead(CompletionKind kind, std::string_view id, std::int64_t created_s, std::string_view model, bool includes_usage);

  [[nodiscard]] CompletionKind kind() const { return kind_; }
  [[nodiscard]] bool includes_usage() const { return includes_usage_; }
  // {"id":…,"object":…,"created":…,"model":… without the closing brace.
  [[nodiscard]] const std::string& whole() const { return whole_; }
  [[nodiscard]] const std::string& chunk() const { return chunk_; }

 private:
  const CompletionKind kind_;
  const bool includes_usage_;
  std::string whole_;
  std::string chunk_;
};

// The answer to a request that does not stream.
[[nodiscard]] std::string completion_json(const CompletionHead& head, const EosEvent& eos);

// Server-sent events, each appended whole. A stream is: the first chunk, text chunks, then the last ones, which end with
// [DONE].
void append_first_chunk(std::string& out, const CompletionHead& head);  // names the role; nothing for completions
void append_text_chunk(std::string& out, const CompletionHead& head, std::string_view text);
// A piece of what the model thinks, or of a call.
void append_part_chunk(std::string& out, const CompletionHead& head, const ReplyPart& part);
// The rest of the reply, the reason, the receipt; the usage where it is wanted. An error of the engine is an event instead.
void append_last_chunks(std::string& out, const CompletionHead& head, const EosEvent& eos);

// {"error":{"message","type","param","code"}}; `field` may be empty. The status chooses the type.
[[nodiscard]] std::string error_json(const Error& error, int status, std::string_view field);

[[nodiscard]] std::string model_json(const ModelInfo& model, std::int64_t created_s);
[[nodiscard]] std::string models_json(std::span<const ModelInfo> models, std::int64_t created_s);

}  // namespace uma::wire
