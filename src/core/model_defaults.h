// What the card of a model sets for the requests that do not set it themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace uma {

struct ModelDefaults {
  std::optional<double> temperature{};
  std::optional<double> top_p{};
  std::optional<int> top_k{};
  std::optional<double> min_p{};
  std::optional<double> repeat_penalty{};
  std::optional<double> presence_penalty{};
  std::optional<double> frequency_penalty{};
  std::string system{};  // System message of conversations that begin without one; empty: none.
  // Arguments of the chat template; nullopt: as the template does by itself.
  std::optional<bool> thinking{};
  std::string reasoning_effort{};  // Empty: not set.
  std::optional<std::int64_t> deadline_ms{};
  std::optional<bool> speculates{};  // Nullopt: as the daemon's setting.
};

}  // namespace uma
