#include "pool/card_file.h"

#include <algorithm>
#include <array>
#include <format>
#include <functional>
#include <map>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "base/read_number.h"
#include "base/utf8.h"
#include "chat/family.h"
#include "core/request.h"
#include "core/sampling_fields.h"
#include "llm/device/devices.h"

namespace uma::pool {
namespace {

constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kAliasesMax = 64;
constexpr std::int64_t kTimeMsMax = 31'536'000'000;
constexpr std::size_t kEffortBytesMax = 64;

// Stores a node's value; returns a description of the expected value on failure.
using Apply = std::function<std::optional<std::string>(ModelCard& card, const YAML::Node& node)>;

struct Key {
  std::string_view name;
  Apply apply;
};

std::optional<std::string> scalar(const YAML::Node& node) {
  return node.IsScalar() ? std::optional(node.Scalar()) : std::nullopt;
}

template <class T>
std::optional<T> number_in(const YAML::Node& node, T min, T max) {
  const auto text = scalar(node);
  T value{};
  if (!text) return std::nullopt;
  const auto [end, problem] = read_number(text->data(), text->data() + text->size(), value);
  // The comparison also refuses NaN.
  if (problem != std::errc() || end != text->data() + text->size() || !(value >= min && value <= max)) return std::nullopt;
  return value;
}

template <class Field>
Apply text(Field field) {
  return [field](ModelCard& card, const YAML::Node& node) -> std::optional<std::string> {
    const auto value = scalar(node);
    if (!value || value->empty() || value->contains('\0')) return "a text";
    field(card) = *value;
    return std::nullopt;
  };
}

template <class Field>
Apply boolean(Field field) {
  return [field](ModelCard& card, const YAML::Node& node) -> std::optional<std::string> {
    const auto value = scalar(node);
    if (value != "true" && value != "false") return "true or false";
    field(card) = value == "true";
    return std::nullopt;
  };
}

template <class T, class Field>
Apply number(T min, T max, Field field) {
  return [=](ModelCard& card, const YAML::Node& node) -> std::optional<std::string> {
    const auto value = number_in<T>(node, min, max);
    if (!value) return std::format("a number from {} to {}", min, max);
    const T number = *value;
    field(card) = number;
    return std::nullopt;
  };
}

std::optional<std::string> apply_workers_max(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node) == "auto" ? kWorkersMax : number_in<std::int32_t>(node, 1, kWorkersMax);
  if (!value) return std::format("auto, or a number from 1 to {}", kWorkersMax);
  card.workers_max = *value;
  return std::nullopt;
}

std::optional<std::string> apply_capability(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  card.capability = value ? parse_capability(*value) : std::nullopt;
  if (!card.capability) return "chat, text_embedding, rerank, vision or text_to_image";
  return std::nullopt;
}

std::optional<std::string> apply_aliases(ModelCard& card, const YAML::Node& node) {
  if (!node.IsSequence() || node.size() > kAliasesMax) return std::format("a list of at most {} names", kAliasesMax);
  for (const YAML::Node& item : node) {
    const auto alias = scalar(item);
    if (!alias || !is_model_name(*alias)) return "a list of names without blanks";
    card.aliases.push_back(*alias);
  }
  return std::nullopt;
}

std::optional<std::string> apply_kv_type(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (value) card.kv_types = llm::kv_types_of(*value);
  return card.kv_types ? std::nullopt : std::optional(llm::kv_types_expected());
}

std::optional<std::string> apply_rope(ModelCard& card, const YAML::Node& node) {
  if (!node.IsMap()) return "a map, such as {scaling: yarn, scale: 4, yarn_orig_ctx: 32768}";
  llm::RopeOptions rope;
  for (const auto& entry : node) {
    const std::string key = scalar(entry.first).value_or("");
    if (const auto expected = llm::set_rope(rope, key, scalar(entry.second).value_or(""))) {
      return std::format("{}{}{}", key, key.empty() ? "" : ": ", *expected);
    }
  }
  card.rope = rope;
  return llm::check_rope(rope);
}

// A text, or the parts of a list, one a line. Nullopt: the list has other lists in it.
std::optional<std::string> text_or_list(const YAML::Node& node) {
  std::string text = scalar(node).value_or("");
  if (!node.IsSequence()) return text;
  for (const YAML::Node& item : node) {
    const auto part = scalar(item);
    if (!part) return std::nullopt;
    text += *part + '\n';
  }
  return text;
}

// Sets a field to what `read` makes of a text or a list.
template <class Field, class Read>
std::optional<std::string> apply_text(Field& field, const YAML::Node& node, const Read& read) {
  const auto text = text_or_list(node);
  if (!text) return "a list of names or numbers";
  auto value = read(*text);
  if (!value) return std::move(value.error());
  field = *std::move(value);
  return std::nullopt;
}

std::optional<std::string> apply_devices(ModelCard& card, const YAML::Node& node) {
  return apply_text(card.devices, node, llm::device_names_of);
}
std::optional<std::string> apply_gpu_layers(ModelCard& card, const YAML::Node& node) {
  return apply_text(card.gpu_layers, node, llm::device_layers_of);
}
std::optional<std::string> apply_split(ModelCard& card, const YAML::Node& node) {
  return apply_text(card.split, node, llm::device_split_of);
}
std::optional<std::string> apply_main_device(ModelCard& card, const YAML::Node& node) {
  return apply_text(card.main_device, node, llm::main_device_of);
}

std::optional<std::string> apply_weights(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (value != "shared" && value != "replicated") return "shared or replicated";
  card.replicates_weights = value == "replicated";
  return std::nullopt;
}

std::optional<std::string> apply_tasks(ModelCard& card, const YAML::Node& node) {
  if (!node.IsMap()) return "a map from task names to text prefixes";
  for (const auto& entry : node) {
    const auto task = scalar(entry.first);
    const auto prefix = scalar(entry.second);
    if (!task || task->empty() || !prefix) return "a map from task names to text prefixes";
    card.tasks[*task] = *prefix;
  }
  return std::nullopt;
}

std::optional<std::string> apply_pooling(ModelCard& card, const YAML::Node& node) {
  card.pooling = llm::parse_vector_pooling(scalar(node).value_or(""));
  return card.pooling ? std::nullopt : std::optional<std::string>("mean, cls or last");
}

std::optional<std::string> apply_frame(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (value != "chat" && value != "plain") return "chat or plain";
  card.defaults.has_chat_frame = value == "chat";
  return std::nullopt;
}

// An adapter is {path: FILE, scale: NUMBER}, or just its path.
std::optional<llm::AdapterSource> read_adapter(const YAML::Node& value) {
  llm::AdapterSource adapter;
  const auto is_path = [](const YAML::Node& node) {
    return scalar(node) && !node.Scalar().empty() && !node.Scalar().contains('\0');
  };
  if (is_path(value)) {
    adapter.path = value.Scalar();
    return adapter;
  }
  if (!value.IsMap()) return std::nullopt;
  for (const auto& entry : value) {
    const std::string key = scalar(entry.first).value_or("");
    const auto number = number_in(entry.second, -kAdapterScaleMax, kAdapterScaleMax);
    if (key == "path" && adapter.path.empty() && is_path(entry.second)) {
      adapter.path = entry.second.Scalar();
    } else if (key == "scale" && number) {
      adapter.scale = *number;
    } else {
      return std::nullopt;
    }
  }
  return adapter.path.empty() ? std::nullopt : std::optional(adapter);
}

std::optional<std::string> apply_adapters(ModelCard& card, const YAML::Node& node) {
  const std::string expected = std::format(
      "a map of at most {} adapters, each a name without blanks and {{path: file.gguf, scale: number}} with a scale "
      "from -{} to {}",
      llm::kAdaptersMax, kAdapterScaleMax, kAdapterScaleMax);
  if (!node.IsMap() || node.size() > llm::kAdaptersMax) return expected;
  for (const auto& entry : node) {
    const auto name = scalar(entry.first);
    auto adapter = read_adapter(entry.second);
    if (!name || !is_model_name(*name) || !adapter) return expected;
    if (std::ranges::contains(card.adapters, *name, &llm::AdapterSource::name)) return expected + ", none of them twice";
    adapter->name = *name;
    card.adapters.push_back(std::move(*adapter));
  }
  return std::nullopt;
}

std::optional<std::string> apply_system(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (!value || value->contains('\0') || !is_utf8(*value)) return "a text";
  card.defaults.system = *value;
  return std::nullopt;
}

std::optional<std::string> apply_effort(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (!value || value->empty() || value->size() > kEffortBytesMax || !is_utf8(*value) || value->contains('\0'))
    return std::format("a word of at most {} bytes, such as low, medium or high", kEffortBytesMax);
  card.defaults.reasoning_effort = *value;
  return std::nullopt;
}

std::optional<std::string> apply_family(ModelCard& card, const YAML::Node& node) {
  card.defaults.family = scalar(node).value_or("");
  if (chat::family_named(card.defaults.family) != nullptr) return std::nullopt;
  std::string names;
  for (const chat::Family& family : chat::families()) names += std::format("{}{}", names.empty() ? "" : ", ", family.name);
  return "one of " + names;
}

std::optional<std::string> apply_speculation(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (value != "auto" && value != "off") return "auto or off";
  card.defaults.speculates = value == "auto";
  return std::nullopt;
}

std::optional<std::string> apply_sampler(ModelCard& card, const YAML::Node& node) {
  card.picture.sampler = sampler_of(scalar(node).value_or(""));
  if (card.picture.sampler) return std::nullopt;
  return "one of " + sampler_names();
}

std::optional<std::string> apply_schedule(ModelCard& card, const YAML::Node& node) {
  card.picture.schedule = schedule_of(scalar(node).value_or(""));
  if (card.picture.schedule) return std::nullopt;
  return "one of " + schedule_names();
}

std::optional<std::string> apply_prediction(ModelCard& card, const YAML::Node& node) {
  const auto value = scalar(node);
  if (value != "noise" && value != "velocity") return "noise or velocity";
  card.picture.predicts_velocity = value == "velocity";
  return std::nullopt;
}

// Describes the range of a setting: "a number from 0 to 1", "a number from 0 to below 1".
std::string range_of(const SamplingFieldInfo& info) {
  return std::format("{} from {}{} to {}{}", info.is_whole() ? "an integer" : "a number", info.low_excluded ? "above " : "",
                     info.low, info.high_excluded ? "below " : "", info.high);
}

Apply sampling(const SamplingFieldInfo& info) {
  return [&info](ModelCard& card, const YAML::Node& node) -> std::optional<std::string> {
    const auto value = number_in<double>(node, info.low, info.high);
    if (!value || !info.accepts(*value)) return range_of(info);
    card.defaults.sampling[info.field] = *value;
    return std::nullopt;
  };
}

std::optional<std::string> apply_breakers(ModelCard& card, const YAML::Node& node) {
  const std::string expected = std::format("a list of at most {} texts of 1 to {} bytes", kDryBreakersMax, kDryBreakerBytesMax);
  if (!node.IsSequence() || node.size() > kDryBreakersMax) return expected;
  std::vector<std::string> breakers;
  for (const YAML::Node& item : node) {
    const auto text = scalar(item);
    if (!text || text->empty() || text->size() > kDryBreakerBytesMax || !is_utf8(*text)) return expected;
    breakers.push_back(*text);
  }
  card.defaults.dry_sequence_breakers = std::move(breakers);
  return std::nullopt;
}

// A card's keys without those of sampling.
std::vector<Key> other_keys() {
  return {
      {"path", text([](ModelCard& card) -> auto& { return card.path; })},
      {"url", text([](ModelCard& card) -> auto& { return card.url; })},
      {"capability", apply_capability},
      {"aliases", apply_aliases},
      {"n_ctx", number<std::int32_t>(0, 1 << 24, [](ModelCard& card) -> auto& { return card.sequence_cells; })},
      {"slots", number<std::int32_t>(1, 256, [](ModelCard& card) -> auto& { return card.slots; })},
      {"kv_type", apply_kv_type},
      {"rope", apply_rope},
      {"devices", apply_devices},
      {"gpu_layers", apply_gpu_layers},
      {"split", apply_split},
      {"main_device", apply_main_device},
      {"pin", boolean([](ModelCard& card) -> auto& { return card.is_pinned; })},
      {"preload", boolean([](ModelCard& card) -> auto& { return card.is_preloaded; })},
      {"workers_max", apply_workers_max},
      {"weights", apply_weights},
      {"weight", number(0.001, 1000.0, [](ModelCard& card) -> auto& { return card.weight; })},
      {"draft_model", text([](ModelCard& card) -> auto& { return card.draft_model; })},
      {"projector", text([](ModelCard& card) -> auto& { return card.projector; })},
      {"vae", text([](ModelCard& card) -> auto& { return card.picture.vae_path; })},
      {"steps", number<std::int32_t>(1, kPictureStepsMax, [](ModelCard& card) -> auto& { return card.picture.steps; })},
      {"guidance", number<float>(1, kPictureGuidanceMax, [](ModelCard& card) -> auto& { return card.picture.guidance; })},
      {"sampler", apply_sampler},
      {"schedule", apply_schedule},
      {"prediction", apply_prediction},
      {"adapters", apply_adapters},
      {"tasks", apply_tasks},
      {"pooling", apply_pooling},
      {"frame", apply_frame},
      {"dry_sequence_breakers", apply_breakers},
      {"system", apply_system},
      {"thinking", boolean([](ModelCard& card) -> auto& { return card.defaults.thinking; })},
      {"reasoning_effort", apply_effort},
      {"thinking_budget", number<std::int32_t>(-1, std::numeric_limits<std::int32_t>::max(),
                                               [](ModelCard& card) -> auto& { return card.defaults.thinking_budget; })},
      {"family", apply_family},
      {"chat_template", text([](ModelCard& card) -> auto& { return card.defaults.chat_template; })},
      {"deadline_ms", number<std::int64_t>(0, kTimeMsMax, [](ModelCard& card) -> auto& { return card.defaults.deadline_ms; })},
      {"speculation", apply_speculation},
      {"idle_unload_s", number<std::int64_t>(0, 1'000'000'000, [](ModelCard& card) -> auto& { return card.idle_unload_s; })},
  };
}

// All keys of a card.
const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> made = other_keys();
    for (const SamplingFieldInfo& info : sampling_fields()) made.push_back({info.name, sampling(info)});
    return made;
  }();
  return all;
}

std::string known_keys() {
  std::string names;
  for (const Key& key : keys()) names += std::format("{}{}", names.empty() ? "" : ", ", key.name);
  return names;
}

// Whether it is not a card of this name, but a list or a map of cards, as other programs have them.
bool is_list_of_models(std::string_view name, const YAML::Node& value) {
  if (name != "models") return false;
  return value.IsSequence() ||
         (value.IsMap() && std::ranges::all_of(value, [](const auto& entry) { return entry.second.IsMap(); }));
}

class CardReader {
 public:
  explicit CardReader(std::string_view file) : file_(file) {}

  std::expected<std::vector<ModelCard>, std::vector<std::string>> read(const std::string& yaml) {
    try {
      const YAML::Node root = YAML::Load(yaml);
      if (root.IsMap()) {
        for (const auto& entry : root) read_card(entry.first, entry.second);
      } else if (!root.IsNull()) {
        report(root.Mark(), "expected the names of models, each with a map below it, as in `assistant: {path: file.gguf}`");
      }
    } catch (const YAML::Exception& problem) {
      report(problem.mark, problem.msg);
    }
    if (!problems_.empty()) return std::unexpected(std::move(problems_));
    return std::move(cards_);
  }

  std::expected<ModelCard, std::vector<std::string>> read_one(const std::string& name, const std::string& yaml) {
    try {
      read_card(YAML::Node(name), YAML::Load(yaml));
    } catch (const YAML::Exception& problem) {
      report(problem.mark, problem.msg);
    }
    if (!problems_.empty()) return std::unexpected(std::move(problems_));
    return std::move(cards_.front());
  }

 private:
  void read_card(const YAML::Node& key, const YAML::Node& value) {
    if (!key.IsScalar() || !is_model_name(key.Scalar())) {
      return report(key.Mark(), std::format("expected a model name of at most {} bytes without blanks", kNameBytesMax));
    }
    ModelCard card;
    card.name = key.Scalar();
    if (is_list_of_models(card.name, value)) {
      return report(key.Mark(),
                    "the file has no key \"models\" above its models: begin a line with the name of each, as in "
                    "`assistant: {path: file.gguf}`");
    }
    if (!value.IsMap()) return report(value.Mark(), std::format("{}: expected a map, such as {{path: file.gguf}}", card.name));
    std::vector<std::string> seen;
    for (const auto& entry : value) read_key(card, entry.first, entry.second, seen);
    if (!std::ranges::contains(seen, "path") && !std::ranges::contains(seen, "url"))
      report(key.Mark(), std::format("{}: expected the key path or url", card.name));
    take_name(card.name, card.name, key.Mark());
    for (const std::string& alias : card.aliases) take_name(alias, card.name, key.Mark());
    cards_.push_back(std::move(card));
  }

  void read_key(ModelCard& card, const YAML::Node& key, const YAML::Node& value, std::vector<std::string>& seen) {
    const std::string name = scalar(key).value_or("");
    const auto known = std::ranges::find(keys(), name, &Key::name);
    if (known == keys().end()) {
      return report(key.Mark(),
                    std::format("unknown key \"{}\" in {}; known: {}", name.substr(0, 100), card.name, known_keys()));
    }
    if (std::ranges::contains(seen, name)) return report(key.Mark(), std::format("{}.{} is set twice", card.name, name));
    seen.push_back(name);
    if (const auto expected = known->apply(card, value)) {
      report(value.Mark(), std::format("{}.{}: expected {}{}", card.name, name, *expected,
                                       value.IsScalar() ? std::format(", got \"{}\"", value.Scalar().substr(0, 100)) : ""));
    }
  }

  // Names and aliases share one namespace.
  void take_name(const std::string& name, const std::string& model, const YAML::Mark& mark) {
    const auto [taken, is_new] = names_.emplace(name, std::pair(model, mark.line + 1));
    if (is_new) return;
    const auto& [other, line] = taken->second;
    report(mark, std::format("the name {} is already used by {} in line {}", name, other, line));
  }

  void report(const YAML::Mark& mark, std::string_view what) {
    if (file_.empty()) {
      problems_.push_back(mark.is_null() ? std::string(what) : std::format("line {}: {}", mark.line + 1, what));
      return;
    }
    problems_.push_back(mark.is_null() ? std::format("{}: {}", file_, what)
                                       : std::format("{}:{}:{}: {}", file_, mark.line + 1, mark.column + 1, what));
  }

  std::string_view file_;  // Empty: a card alone.
  std::vector<ModelCard> cards_;
  std::map<std::string, std::pair<std::string, int>> names_;  // The owner of each name, and its line.
  std::vector<std::string> problems_;
};

}  // namespace

std::optional<Capability> parse_capability(std::string_view name) {
  for (const Capability capability :
       {Capability::chat, Capability::text_embedding, Capability::rerank, Capability::vision, Capability::text_to_image}) {
    if (capability_name(capability) == name) return capability;
  }
  return std::nullopt;
}

bool is_model_name(std::string_view name) {
  const auto is_bad = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; };
  return !name.empty() && name.size() <= kNameBytesMax && std::ranges::none_of(name, is_bad) && is_utf8(name);
}

std::expected<std::vector<ModelCard>, std::vector<std::string>> parse_cards(const std::string& yaml, std::string_view name) {
  return CardReader(name).read(yaml);
}

std::expected<ModelCard, std::vector<std::string>> parse_card(const std::string& name, const std::string& yaml) {
  return CardReader("").read_one(name, yaml);
}

}  // namespace uma::pool
