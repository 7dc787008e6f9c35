// Requests that load, pull, name and delete models, and their answers: llama-server's (docs/protocol/http.md) and Ollama's
// (docs/protocol/ollama.md). Pure.
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "core/model_library.h"
#include "wire/json_body.h"

namespace uma::wire {

// The model that the body {"model": NAME} names; not empty.
[[nodiscard]] std::expected<std::string, RejectedBody> decode_model_call(std::string_view body);

// Ollama's requests name the model `model` or `name`, perhaps with the tag ":latest", which is removed.
[[nodiscard]] std::expected<std::string, RejectedBody> decode_ollama_delete(std::string_view body);
struct OllamaPull {
  std::string source;
  bool stream = true;
};
[[nodiscard]] std::expected<OllamaPull, RejectedBody> decode_ollama_pull(std::string_view body);
struct OllamaCopy {
  std::string source;
  std::string destination;
};
[[nodiscard]] std::expected<OllamaCopy, RejectedBody> decode_ollama_copy(std::string_view body);

// One line of the answer to a pull, without its line feed.
[[nodiscard]] std::string ollama_pull_json(const PullProgress& progress);
[[nodiscard]] std::string ollama_pulled_json();

}  // namespace uma::wire
