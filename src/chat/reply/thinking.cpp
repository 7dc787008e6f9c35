#include "chat/reply/thinking.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"

namespace uma::chat {
namespace {

constexpr std::array<std::string_view, 2> kSwitches{"enable_thinking", "thinking"};
constexpr std::string_view kEffort = "reasoning_effort";
constexpr std::string_view kBudget = "thinking_budget";
constexpr std::string_view kNone = "none";

// From the least.
constexpr std::array<std::string_view, 7> kEfforts{kNone, "minimal", "low", "medium", "high", "xhigh", "max"};
// Words that few templates know; the others get `high`.
constexpr std::array<std::string_view, 2> kNewEfforts{"xhigh", "max"};

// Whether a template names this variable: as a word of its own, no field and no text.
bool names(std::string_view chat_template, std::string_view variable) {
  const auto is_part_of_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '\'' || c == '"';
  };
  for (std::size_t at = chat_template.find(variable); at != std::string_view::npos; at = chat_template.find(variable, at + 1)) {
    const char before = at == 0 ? ' ' : chat_template[at - 1];
    const std::size_t end = at + variable.size();
    const char after = end == chat_template.size() ? ' ' : chat_template[end];
    if (before != '.' && !is_part_of_word(before) && !is_part_of_word(after)) return true;
  }
  return false;
}

// The known word that is closest to `effort`, rather a lower one; a word that nobody knows stays.
std::string_view closest_effort(std::string_view effort, std::span<const std::string_view> known) {
  const auto rank = [](std::string_view word) { return std::ranges::find(kEfforts, word) - kEfforts.begin(); };
  if (rank(effort) == std::ssize(kEfforts)) return effort;
  return *std::ranges::min_element(known, {}, [&](std::string_view word) { return std::abs(rank(word) - rank(effort)); });
}

bool has_text(std::string_view chat_template, const std::string& text) {
  return chat_template.contains('\'' + text + '\'') || chat_template.contains('"' + text + '"');
}

boost::json::object object_of(std::string_view text) {
  boost::system::error_code problem;
  if (text.empty()) return {};
  const boost::json::value value = json::parse(text, {}, problem);
  return problem || !value.is_object() ? boost::json::object() : value.get_object();
}

// Whether the request wants thoughts; nullopt: it does not say.
std::optional<bool> wants_thoughts(const boost::json::object& arguments, const ChatOptions& options) {
  for (const std::string_view name : kSwitches) {
    const boost::json::value* value = arguments.if_contains(name);
    if (value != nullptr && value->is_bool()) return value->get_bool();
  }
  if (options.thinking_budget == 0) return false;
  const boost::json::value* effort = arguments.if_contains(kEffort);
  if (effort != nullptr && effort->is_string()) return std::string_view(effort->get_string()) != kNone;
  return std::nullopt;
}

void settle_effort(std::string_view chat_template, const Family* family, const std::optional<bool>& thinks,
                   boost::json::object& arguments) {
  const auto known = family == nullptr ? std::span<const std::string_view>() : family->efforts;
  const boost::json::value* given = arguments.if_contains(kEffort);
  if (given == nullptr) {
    // A template without a switch, which may still have the word "thinking".
    if (thinks == false && !known.empty() && !names(chat_template, kSwitches.front()))
      arguments[kEffort] = std::string(known.front());
    return;
  }
  if (!given->is_string()) return;
  const std::string effort(given->get_string());
  if (!known.empty()) {
    arguments[kEffort] = std::string(closest_effort(effort, known));
  } else if (std::ranges::contains(kNewEfforts, effort) && !has_text(chat_template, effort)) {
    arguments[kEffort] = "high";
  }
}

// A budget among the arguments, as vLLM's clients send it.
std::optional<std::int32_t> budget_of(const boost::json::object& arguments) {
  const boost::json::value* value = arguments.if_contains(kBudget);
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value->get_int64(), -1, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace

void settle_thinking(std::string_view chat_template, const Family* family, ChatOptions& options) {
  boost::json::object arguments = object_of(options.template_arguments);
  if (!options.thinking_budget) options.thinking_budget = budget_of(arguments);
  const std::optional<bool> thinks = wants_thoughts(arguments, options);
  if (thinks == false) options.thinking_budget = 0;
  if (!thinks && !options.thinking_budget) return;
  for (const std::string_view name : kSwitches) {
    if (thinks && names(chat_template, name) && !arguments.contains(name)) arguments[name] = *thinks;
  }
  if (names(chat_template, kEffort)) settle_effort(chat_template, family, thinks, arguments);
  if (options.thinking_budget >= 0 && names(chat_template, kBudget)) arguments[kBudget] = *options.thinking_budget;
  options.template_arguments = arguments.empty() ? "" : boost::json::serialize(arguments);
}

std::vector<std::pair<std::string_view, bool>> history_variables(std::string_view chat_template) {
  constexpr std::array<std::pair<std::string_view, bool>, 4> kVariables{{
      {"preserve_thinking", true},
      {"clear_thinking", false},
      {"truncate_history_thinking", false},
      {"drop_thinking", false},
  }};
  std::vector<std::pair<std::string_view, bool>> named;
  for (const auto& variable : kVariables) {
    if (names(chat_template, variable.first)) named.push_back(variable);
  }
  return named;
}

std::optional<Token> ThinkingBudget::next(bool is_thinking) {
  if (!is_thinking) waits_for_end_ = false;
  if (!is_closing_ && (!is_thinking || waits_for_end_ || used_ < limit_.tokens_max)) return std::nullopt;
  return close();
}

Token ThinkingBudget::close() {
  is_closing_ = true;
  return closing()[forced_];
}

const std::vector<Token>& ThinkingBudget::closing() const {
  return has_closed_ && !limit_.answer.empty() ? limit_.answer : limit_.closing;
}

void ThinkingBudget::push(Token token, bool was_thinking) {
  if (is_closing_ && token == closing()[forced_]) {
    if (++forced_ < closing().size()) return;
    has_closed_ = waits_for_end_ = true;
  } else if (was_thinking) {
    ++used_;
  }
  is_closing_ = false;
  forced_ = 0;
}

}  // namespace uma::chat
