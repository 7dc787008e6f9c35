#include "pool/unknown_model.h"

#include <algorithm>
#include <array>

namespace uma::pool {

bool is_name_of_other_vendor(std::string_view name) {
  constexpr std::array<std::string_view, 7> kPrefixes = {"claude-",         "gpt-", "chatgpt-", "codex-", "gemini-",
                                                         "text-embedding-", "grok-"};
  name.remove_prefix(name.rfind('/') + 1);        // "openai/gpt-5"; npos + 1 is 0.
  if (name.starts_with("gpt-oss")) return false;  // Its weights are open.
  const bool is_numbered = name.size() >= 2 && name[0] == 'o' && name[1] >= '1' && name[1] <= '9' &&
                           (name.size() == 2 || name[2] == '-');  // "o3", "o4-mini"
  return is_numbered || std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace uma::pool
