// Decodes the requests of Ollama's API (docs/protocol/ollama.md). Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/embedding.h"
#include "core/request.h"
#include "wire/json_body.h"

namespace uma::wire {

enum class OllamaKind : std::uint8_t { chat, generate };

// A request to /api/chat or /api/generate.
struct OllamaCall {
  GenerateRequest generate;
  bool is_empty = false;                // No messages, or no prompt: the request only loads or unloads the model.
  std::optional<double> keep_alive_s;   // 0: unload the model now; negative: keep it; nullopt: not given.
  std::int64_t context_wanted = 0;      // options.num_ctx; 0: not given.
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};

// A request to /api/embed or /api/embeddings.
struct OllamaEmbedCall {
  EmbedRequest embed;
  bool is_empty = false;  // No text: the request only loads the model.
  std::vector<std::string> warnings{};
};

// Makes the messages of a call to /api/generate one text, for a model without a template.
void write_as_text(Input& input);
[[nodiscard]] std::expected<OllamaCall, RejectedBody> decode_ollama(OllamaKind kind, std::string_view body);
[[nodiscard]] std::expected<OllamaEmbedCall, RejectedBody> decode_ollama_embed(std::string_view body);
// The older form: one text, `prompt`.
[[nodiscard]] std::expected<OllamaEmbedCall, RejectedBody> decode_ollama_embeddings(std::string_view body);
// Returns the model that a request to /api/show names; empty: the default model.
[[nodiscard]] std::expected<std::string, RejectedBody> decode_ollama_show(std::string_view body);

// Seconds of a duration in Go's notation, such as "5m", "1h30m" or "-1"; without a unit, seconds. Nullopt for other texts.
[[nodiscard]] std::optional<double> parse_go_duration(std::string_view text);

}  // namespace uma::wire
