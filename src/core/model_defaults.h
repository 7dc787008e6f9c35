// Values that a model sets for the requests that do not set them: by its card, and sampling also by the metadata of its file or
// by its family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/sampling_fields.h"

namespace uma {

struct ModelDefaults {
  SamplingValues sampling{};  // Each value is one that its field accepts.
  std::optional<std::vector<std::string>> dry_sequence_breakers{};
  std::string system{};  // System message of conversations that begin without one; empty: none.
  // Arguments of the chat template; nullopt: as the template does by itself.
  std::optional<bool> thinking{};
  std::string reasoning_effort{};                 // Empty: not set.
  std::optional<std::int32_t> thinking_budget{};  // See ChatOptions::thinking_budget.
  std::optional<std::int64_t> deadline_ms{};
  std::optional<bool> speculates{};  // Nullopt: as the daemon's setting.
  // Whether an embedding model's inputs are written as messages, with its chat template; nullopt: if it has a template and a
  // projector.
  std::optional<bool> has_chat_frame{};
  std::string chat_template{};  // The name of the template that writes conversations; empty: chosen (chat::ChatFormat::chosen).
  std::string family{};         // The family of its replies (chat::family_named); empty: as its template shows.
};

}  // namespace uma
