#include "core/adapter_name.h"

#include <algorithm>

namespace uma {

std::string_view adapter_in_name(const ModelInfo& model, std::string_view name) {
  const auto is_model = [&](std::string_view one) { return one == model.name || std::ranges::contains(model.aliases, one); };
  if (is_model(name)) return {};
  for (const AdapterInfo& adapter : model.adapters) {
    if (!name.ends_with(adapter.name)) continue;
    const std::string_view before = name.substr(0, name.size() - adapter.name.size());
    if (before.ends_with(':') && is_model(before.substr(0, before.size() - 1))) return name.substr(before.size());
  }
  return {};
}

}  // namespace uma
