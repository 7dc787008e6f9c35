#include "llm/kv_types.h"

#include <algorithm>

namespace uma::llm {
namespace {

std::optional<KvType> kv_type_named(std::string_view name) {
  const auto* const found = std::ranges::find(kKvTypes, name, &KvTypeFacts::name);
  return found == kKvTypes.end() ? std::nullopt : std::optional(found->type);
}

}  // namespace

std::string kv_types_text(KvTypes types) {
  std::string text(facts_of(types.keys).name);
  if (types.values != types.keys) text.append("/").append(facts_of(types.values).name);
  return text;
}

std::optional<KvTypes> kv_types_of(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto keys = kv_type_named(text.substr(0, slash));
  const auto values = slash == std::string_view::npos ? keys : kv_type_named(text.substr(slash + 1));
  if (!keys || !values) return std::nullopt;
  return KvTypes{*keys, *values};
}

std::string kv_types_expected() {
  std::string names;
  for (const KvTypeFacts& facts : kKvTypes) names.append(facts.name).append(", ");
  return names + "or two of them as KEYS/VALUES";
}

}  // namespace uma::llm
