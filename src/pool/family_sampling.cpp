#include "pool/family_sampling.h"

#include <algorithm>
#include <string>
#include <utility>

namespace uma::pool {
namespace {

// Values of a row; a negative one is not recommended, so the API's default stays.
struct Recommended {
  double temperature = -1;
  double top_p = -1;
  double top_k = -1;
  double min_p = -1;
  double repeat_penalty = -1;
  double presence_penalty = -1;
};

struct Family {
  std::string_view name;
  // One of these architectures, separated by blanks; empty: any.
  std::string_view architectures;
  // All of these are in the names, each at the beginning of a word; words are separated by blanks.
  std::string_view words;
  Recommended values;
};

// The first row that fits counts. The values are those of the makers' model cards, generation_config.json or instructions; for
// families without any, those that Unsloth Studio ships.
constexpr Family kFamilies[] = {
    {"gpt-oss", "gpt-oss", "", {.temperature = 1, .top_p = 1, .top_k = 0, .min_p = 0}},
    {"DeepSeek-V4", "", "deepseek-v4", {.temperature = 1, .top_p = 1}},
    {"DeepSeek-V3.2", "", "deepseek-v3.2", {.temperature = 1, .top_p = 0.95}},
    {"DeepSeek-V3.1", "", "deepseek-v3.1", {.temperature = 0.6, .top_p = 0.95}},
    {"DeepSeek-R1", "", "deepseek-r1", {.temperature = 0.6, .top_p = 0.95}},
    {"Qwen3-Coder", "qwen3 qwen3moe", "qwen3 coder", {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .repeat_penalty = 1.05}},
    {"Qwen3 Instruct", "qwen3 qwen3moe", "qwen3 instruct", {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .min_p = 0}},
    {"Qwen3", "qwen3 qwen3moe", "qwen3", {.temperature = 0.6, .top_p = 0.95, .top_k = 20, .min_p = 0}},
    {"Qwen2.5",
     "qwen2 qwen2moe qwen2vl",
     "qwen2.5 instruct",
     {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .repeat_penalty = 1.05}},
    {"Qwen3.5", "qwen35 qwen35moe", "", {.temperature = 1, .top_p = 0.95, .top_k = 20, .min_p = 0, .presence_penalty = 1.5}},
    {"GLM-4.5", "glm4moe", "", {.temperature = 1, .top_p = 0.95}},
    {"GLM-5", "", "glm-5", {.temperature = 1, .top_p = 0.95}},
    {"MiniMax-M2", "minimax-m2", "", {.temperature = 1, .top_p = 0.95, .top_k = 40}},
    {"Kimi-K2.5", "", "kimi-k2.5", {.temperature = 1, .top_p = 0.95}},
    {"Kimi-K2 Thinking", "", "kimi-k2 thinking", {.temperature = 1}},
    {"Kimi-K2", "", "kimi-k2 instruct", {.temperature = 0.6}},
    {"Magistral", "", "magistral", {.temperature = 0.7, .top_p = 0.95}},
    {"Ministral 3 Reasoning", "", "ministral-3 reasoning", {.temperature = 0.7, .top_p = 0.95}},
    {"Ministral 3", "", "ministral-3 instruct", {.temperature = 0.15}},
    {"Mistral Small 3.2", "", "mistral-small-3.2", {.temperature = 0.15}},
    {"Gemma 3", "gemma3", "", {.temperature = 1, .top_p = 0.95, .top_k = 64, .min_p = 0}},
    {"Gemma 4", "gemma4", "", {.temperature = 1, .top_p = 0.95, .top_k = 64, .min_p = 0}},
    {"Nemotron 3", "", "nemotron-3", {.temperature = 1, .top_p = 1}},
    {"LFM2.5", "lfm2 lfm2moe", "lfm2.5", {.temperature = 0.1, .top_p = 0.1, .top_k = 50}},
    {"LFM2 Tool", "lfm2 lfm2moe", "tool", {.temperature = 0}},
    {"LFM2", "lfm2 lfm2moe", "", {.temperature = 0.3, .min_p = 0.15, .repeat_penalty = 1.05}},
    {"Granite 4", "granitehybrid granite", "granite-4", {.temperature = 0, .top_p = 1, .top_k = 0}},
    {"EXAONE 4", "exaone4", "", {.temperature = 0.6, .top_p = 0.95}},
    {"Llama 3", "llama", "llama-3 instruct", {.temperature = 0.6, .top_p = 0.9}},
    {"Llama 4", "llama4", "", {.temperature = 1, .top_p = 0.9, .min_p = 0.01}},
    {"SmolLM2", "llama", "smollm2 instruct", {.temperature = 0.2, .top_p = 0.9}},
    {"SmolLM3", "smollm3", "", {.temperature = 0.6, .top_p = 0.95}},
    {"Phi-4", "", "phi-4", {.temperature = 0.8, .top_p = 0.95}},
    {"ERNIE 4.5", "", "ernie-4.5", {.temperature = 0.7, .top_p = 0.95}},
    {"Olmo 3", "", "olmo-3", {.temperature = 0.7, .top_p = 0.95}},
    {"MiMo", "", "mimo", {.temperature = 0.7, .top_p = 0.95}},
};

// Lower case, with hyphens instead of blanks and underscores, and one at the beginning.
std::string normalized(std::string_view name) {
  std::string text = "-";
  for (const char c : name) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    text += lower == ' ' || lower == '_' ? '-' : lower;
  }
  return text;
}

// Calls check(part) for the parts between blanks, until it returns false. True: it never did.
bool all_parts(std::string_view text, auto check) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!check(text.substr(0, end))) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

SamplingValues values_of(const Recommended& recommended) {
  const std::pair<SamplingField, double> stated[] = {
      {SamplingField::temperature, recommended.temperature},
      {SamplingField::top_p, recommended.top_p},
      {SamplingField::top_k, recommended.top_k},
      {SamplingField::min_p, recommended.min_p},
      {SamplingField::repeat_penalty, recommended.repeat_penalty},
      {SamplingField::presence_penalty, recommended.presence_penalty},
  };
  SamplingValues values;
  for (const auto& [field, value] : stated) {
    if (value >= 0) values[field] = value;
  }
  return values;
}

}  // namespace

std::optional<FamilySampling> family_sampling(const llm::GgufHeader& header) {
  std::string names;
  for (const std::string_view name : {header.name, header.base_name, header.finetune}) names += normalized(name);
  const auto has_word = [&](std::string_view word) { return names.contains("-" + std::string(word)); };
  if (has_word("base-") || names.ends_with("-base")) return std::nullopt;
  for (const Family& family : kFamilies) {
    const bool is_architecture = family.architectures.empty() || !all_parts(family.architectures, [&](std::string_view one) {
                                   return one != header.architecture;
                                 });
    if (is_architecture && all_parts(family.words, has_word)) return FamilySampling{family.name, values_of(family.values)};
  }
  return std::nullopt;
}

}  // namespace uma::pool
