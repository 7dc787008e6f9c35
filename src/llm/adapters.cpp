#include "llm/adapters.h"

#include <algorithm>
#include <format>
#include <utility>

namespace uma::llm {

AdapterSet make_adapter_set(std::span<const AdapterFacts> adapters, std::vector<AdapterUse> uses) {
  std::erase_if(uses, [](const AdapterUse& use) { return use.scale == 0; });
  std::ranges::sort(uses, {}, &AdapterUse::index);
  AdapterSet set{.uses = std::move(uses), .identity = {}};
  for (const AdapterUse& use : set.uses) {
    set.identity += std::format("{}{}*{}", set.identity.empty() ? kAdapterMark : "+",
                                adapters[static_cast<std::size_t>(use.index)].identity, use.scale);
  }
  return set;
}

}  // namespace uma::llm
