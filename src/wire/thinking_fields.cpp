#include "wire/thinking_fields.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <boost/json/value.hpp>

namespace uma::wire {
namespace {

constexpr json::TextBytes kEffortBytes{1, 64};

struct Thinking {
  std::optional<bool> is_wanted{};
  std::optional<std::string> effort{};
  std::optional<std::int64_t> budget{};  // In tokens; -1: no limit.
};

template <class T>
void set_if_open(std::optional<T>& value, std::optional<T> stated) {
  if (!value) value = std::move(stated);
}

// OpenAI's {effort}, with OpenRouter's max_tokens and enabled.
void read_reasoning_object(json::FieldReader& fields, Thinking& thinking) {
  const boost::json::object* object = fields.object("reasoning");
  if (object == nullptr) return;
  json::FieldReader reasoning(*object, fields.path() + "reasoning.");
  set_if_open(thinking.effort, reasoning.text("effort", kEffortBytes));
  set_if_open(thinking.budget, reasoning.integer("max_tokens", 0, json::kInt32Max));
  set_if_open(thinking.is_wanted, reasoning.boolean("enabled"));
  if (!reasoning.ok()) fields.fail_as(reasoning);
}

// Anthropic's {type, budget_tokens}. Every type but "disabled" wants thoughts.
void read_thinking_object(json::FieldReader& fields, Thinking& thinking) {
  const boost::json::object* object = fields.object("thinking");
  if (object == nullptr) return;
  json::FieldReader given(*object, fields.path() + "thinking.");
  const std::string type = given.required_text("type");
  set_if_open(thinking.is_wanted, std::optional(type != "disabled"));
  const auto budget = given.integer("budget_tokens", 0, json::kInt32Max);
  if (type == "enabled") set_if_open(thinking.budget, budget);
  if (!given.ok()) fields.fail_as(given);
}

// Ollama's true, false or level.
void read_think(json::FieldReader& fields, Thinking& thinking) {
  const boost::json::value* think = fields.find("think");
  if (think == nullptr) return;
  if (think->is_string()) {
    set_if_open(thinking.effort, fields.text("think", kEffortBytes));
    set_if_open(thinking.is_wanted, std::optional(*think != "none"));
  } else {
    set_if_open(thinking.is_wanted, fields.boolean("think"));
  }
}

std::optional<std::int64_t> budget_field(json::FieldReader& fields) {
  std::optional<std::int64_t> budget;
  for (const std::string_view name : std::span(kThinkingFields).first(kBudgetFields))
    set_if_open(budget, fields.integer(name, -1, json::kInt32Max));
  return budget;
}

}  // namespace

void read_thinking(json::FieldReader& fields, boost::json::object& arguments, ChatOptions& options) {
  Thinking thinking{.is_wanted = fields.boolean("enable_thinking"),
                    .effort = fields.text("reasoning_effort", kEffortBytes),
                    .budget = budget_field(fields)};
  read_reasoning_object(fields, thinking);
  read_thinking_object(fields, thinking);
  read_think(fields, thinking);
  if (thinking.budget) options.thinking_budget = static_cast<std::int32_t>(*thinking.budget);
  if (thinking.effort) {
    if (!arguments.contains("reasoning_effort")) arguments["reasoning_effort"] = *thinking.effort;
    if (*thinking.effort == "none") set_if_open(thinking.is_wanted, std::optional(false));
  }
  if (thinking.is_wanted && !arguments.contains("enable_thinking")) arguments["enable_thinking"] = *thinking.is_wanted;
}

}  // namespace uma::wire
