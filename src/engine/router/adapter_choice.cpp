#include "engine/router/adapter_choice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/adapter_name.h"

namespace uma::engine {
namespace {

constexpr std::string_view kField = "lora";

std::unexpected<Error> refuse_choice(std::string message) {
  return std::unexpected(Error{ErrorCode::proto_field, std::move(message), std::string(kField)});
}

std::string names_of(std::span<const llm::AdapterFacts> adapters) {
  std::string names;
  for (const llm::AdapterFacts& adapter : adapters) names += (names.empty() ? "" : ", ") + adapter.source.name;
  return names.empty() ? "it has none" : "it has " + names;
}

// The index of the chosen adapter.
Expected<std::size_t> find_adapter(const AdapterChoice& choice, std::string_view model, const llm::ModelFacts& facts) {
  const std::vector<llm::AdapterFacts>& adapters = facts.adapters;
  auto index = static_cast<std::size_t>(choice.number);
  if (!choice.name.empty()) {
    const auto found = std::ranges::find(adapters, choice.name, [](const llm::AdapterFacts& each) { return each.source.name; });
    index = static_cast<std::size_t>(found - adapters.begin());
  }
  if (index < adapters.size()) return index;
  const std::string wanted =
      choice.name.empty() ? std::format("with the id {}", choice.number) : std::format("\"{}\"", choice.name);
  return refuse_choice(std::format("field \"lora\": model \"{}\" has no adapter {}: {}", model, wanted, names_of(adapters)));
}

}  // namespace

std::string_view named_adapter(const ModelLoader& source, std::string_view model, std::string_view asked) {
  if (asked == model || !asked.contains(':')) return {};
  const std::vector<ModelInfo> models = source.list();
  const auto info = std::ranges::find(models, model, &ModelInfo::name);
  return info == models.end() ? std::string_view() : adapter_in_name(*info, asked);
}

Expected<llm::AdapterSet> choose_adapters(const GenerateOptions& options, std::string_view named, std::string_view model,
                                          const llm::ModelFacts& facts) {
  std::vector<AdapterChoice> choices = options.adapters;
  if (!named.empty()) choices.insert(choices.begin(), {.name = std::string(named)});
  std::vector<llm::AdapterUse> uses;
  for (const AdapterChoice& choice : choices) {
    const auto index = find_adapter(choice, model, facts);
    if (!index) return std::unexpected(index.error());
    const llm::AdapterFacts& adapter = facts.adapters[*index];
    if (std::ranges::contains(uses, static_cast<std::int32_t>(*index), &llm::AdapterUse::index)) {
      return refuse_choice(std::format("field \"lora\": adapter \"{}\" is chosen twice", adapter.source.name));
    }
    if (!adapter.problem.empty()) {
      return fail(ErrorCode::model_load, std::format("adapter \"{}\" of model \"{}\" cannot be used: {}", adapter.source.name,
                                                     model, adapter.problem));
    }
    uses.push_back(
        {.index = static_cast<std::int32_t>(*index), .scale = static_cast<float>(choice.scale.value_or(adapter.source.scale))});
  }
  return llm::make_adapter_set(facts.adapters, std::move(uses));
}

}  // namespace uma::engine
