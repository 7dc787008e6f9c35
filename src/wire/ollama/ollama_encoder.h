// Writes the answers of Ollama's API to /api/chat, /api/generate and the requests for embeddings (docs/protocol/ollama.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/event.h"
#include "json/json_writer.h"
#include "wire/ollama/ollama_decoder.h"

namespace uma::wire {

// Returns {"error": text}.
[[nodiscard]] std::string ollama_error_json(const Error& error);

// The time of Unix seconds in RFC 3339, such as "2026-01-01T12:00:00Z".
[[nodiscard]] std::string rfc3339(std::int64_t unix_s);

// One reply, either as lines of JSON, each appended completely, or as one object.
class OllamaAnswer {
 public:
  // `model` is the name that the client has used.
  OllamaAnswer(OllamaKind kind, std::string_view model, std::int64_t created_s);

  void append_text(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs);
  // Appends a piece of reasoning. Pieces of a tool call are kept until the call is complete.
  void append_part(std::string& out, const ReplyPart& part);
  // Appends a line without text, which clients skip.
  void append_empty(std::string& out);
  // Appends the rest of the reply, and the line with the reason and the counts, or with the error.
  void append_last(std::string& out, const EosEvent& eos);

  [[nodiscard]] std::string whole(const EosEvent& eos) const;
  // The answer to a request without a prompt: `reason` is "load" or "unload".
  [[nodiscard]] std::string without_reply(std::string_view reason) const;

 private:
  struct Content {
    std::string_view text{};
    std::string_view thinking{};
    std::span<const ReplyPart> calls{};  // Complete ones.
    std::span<const TokenLogprobs> logprobs{};
  };
  void append_line(std::string& out, const Content& content) const;
  void append_end(std::string& out, const Content& content, const EosEvent& eos) const;
  void append_call(std::string& out);
  void write_content(json::ObjectWriter& object, const Content& content) const;

  const OllamaKind kind_;
  std::string head_;               // The beginning of every line.
  std::optional<ReplyPart> call_;  // The tool call whose arguments are arriving.
};

[[nodiscard]] std::string ollama_embed_json(const EmbedResult& result, std::string_view model, Duration took);
// The older form: one vector.
[[nodiscard]] std::string ollama_embeddings_json(const EmbedResult& result, std::string_view model, Duration took);

}  // namespace uma::wire
