// Describes models in Ollama's API (docs/protocol/ollama.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/session_info.h"

namespace uma::wire {

// The name with a tag, as clients expect it: "uma-tiny" becomes "uma-tiny:latest"; "qwen3:8b" stays.
[[nodiscard]] std::string with_tag(std::string_view model);
// The inverse: the name without ":latest".
[[nodiscard]] std::string_view without_latest_tag(std::string_view model);

// The answer to /api/version: the version of Ollama whose API is served, and umad's own, such as "0.14.0-uma.0.1.0".
[[nodiscard]] std::string ollama_version_json(std::string_view umad_version);
// The models that can be used for chats or embeddings.
[[nodiscard]] std::string ollama_tags_json(std::span<const ModelInfo> models);
// The loaded ones.
[[nodiscard]] std::string ollama_ps_json(std::span<const ModelInfo> models, std::int64_t now_s);
[[nodiscard]] std::string ollama_show_json(const ModelInfo& model);

}  // namespace uma::wire
