#include "chat/message_style.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/calls/call_pattern.h"
#include "chat/calls/tool_format.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

using jinja::Value;

// Many times what a template needs for four messages, and few milliseconds.
constexpr std::uint64_t kProbeSteps = 50'000;

constexpr std::string_view kProbeTools =
    R"([{"type":"function","function":{"name":"uma_tool","description":"A tool.","parameters":{"type":"object",)"
    R"("properties":{"text":{"type":"string","description":"A text."}},"required":["text"]}}}])";

// Texts that appear in no template. Their blanks stay blanks in every notation.
constexpr std::string_view kValue = "uma value";
constexpr std::string_view kOtherValue = "uma other";
constexpr std::string_view kThought = "uma thought";
constexpr std::string_view kReply = "uma reply";

const ChatMessage kQuestion{"user", "uma question"};

std::string arguments_with(std::string_view value) {
  return std::format(R"({{\"uma_key\": \"{}\"}})", value);
}

// The ids have nine letters and digits, because some templates refuse others.
std::string call_json(std::string_view id, std::string_view arguments) {
  return std::format(R"({{"id":"{}","type":"function","function":{{"name":"uma_tool","arguments":"{}"}}}})", id, arguments);
}

constexpr std::string_view kFirstId = "umaCall01";
constexpr std::string_view kSecondId = "umaCall02";

ChatMessage calling(std::string_view content, std::string_view thoughts, std::string_view calls) {
  const std::string before = thoughts.empty() ? "" : std::format(R"("reasoning_content":"{}",)", thoughts);
  return {"assistant", std::string(content), std::format(R"({{{}"tool_calls":[{}]}})", before, calls)};
}

ChatMessage result_of(std::string_view id) {
  return {"tool", "uma result", std::format(R"({{"tool_call_id":"{}"}})", id)};
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Whether the text has the arguments once, as JSON or in the family's own notation: not as JSON within JSON, and not as Python
// prints a dict.
bool shows_arguments(std::string_view text, std::string_view value) {
  return count_of(text, value) == 1 && !text.contains("\\\"uma_key") && !text.contains("'uma_key'");
}

// Whether the text has the thoughts once, and not as a printed list of parts.
bool shows_thoughts(std::string_view text) {
  return count_of(text, kThought) == 1 && !text.contains(std::format("'{}'", kThought)) &&
         !text.contains(std::format("\"{}\"", kThought));
}

class StyleProbe {
 public:
  StyleProbe(const jinja::ChatTemplate& chat_template, const Family* family, const std::string& bos_text,
             const std::string& eos_text)
      : template_(chat_template) {
    input_.bos_token = bos_text;
    input_.eos_token = eos_text;
    input_.steps_max = kProbeSteps;
    // Thoughts stay in the past only if the model thinks; templates have either name.
    for (const char* name : {"enable_thinking", "thinking"}) input_.variables.emplace_back(name, Value::boolean(true));
    if (family != nullptr) {
      family_ = family;
      style_.ids = family->ids;
      tools_ = jinja::read_json(kProbeTools, jinja::kOtherInput).value_or(Value::none());
      if (!family->tools_variable.empty())
        input_.variables.emplace_back(std::string(family->tools_variable), Value::text(indented_json(tools_)));
    }
  }

  MessageStyle find() {
    if (family_ != nullptr) find_call_style();
    const bool shows_thoughts_of_calls = family_ != nullptr && find_thoughts(question_call_result("", kThought), true);
    if (!shows_thoughts_of_calls) {
      const ChatMessage thinking{"assistant", std::string(kReply), std::format(R"({{"reasoning_content":"{}"}})", kThought)};
      (void)find_thoughts({kQuestion, thinking}, false);
    }
    if (shows_thoughts_of_calls) {
      const auto text = render(question_call_result(kReply, kThought), style_, true);
      style_.has_content_beside_thoughts = text && shows_thoughts(*text);
    }
    find_system_style();
    find_turns();
    find_blanks();
    return style_;
  }

 private:
  using Messages = std::vector<ChatMessage>;

  static Messages question_call_result(std::string_view content, std::string_view thoughts) {
    return {kQuestion, calling(content, thoughts, call_json(kFirstId, arguments_with(kValue))), result_of(kFirstId)};
  }

  // Nothing: the template refuses the messages.
  std::optional<std::string> render(const Messages& messages, const MessageStyle& style, bool add_generation_prompt) {
    input_.messages = Value::list(message_values(messages, style));
    input_.tools = tools_;
    input_.add_generation_prompt = add_generation_prompt;
    const auto text = template_.render(input_);
    return text ? std::optional(text->bytes()) : std::nullopt;
  }

  void find_call_style() {
    if (!find_arguments()) return;
    const Messages two{
        kQuestion,
        calling("", "", call_json(kFirstId, arguments_with(kValue)) + "," + call_json(kSecondId, arguments_with(kOtherValue))),
        result_of(kFirstId), result_of(kSecondId)};
    const auto shows_both = [&] {
      const auto text = render(two, style_, true);
      return text && shows_arguments(*text, kValue) && shows_arguments(*text, kOtherValue);
    };
    if (!shows_both()) {
      style_.has_parallel_calls = false;
      if (!shows_both()) style_.has_parallel_calls = true;
    }
    const Messages broken{kQuestion, calling("", "", call_json(kFirstId, kValue)), result_of(kFirstId)};
    const auto text = render(broken, style_, true);
    style_.takes_broken_arguments = text && text->contains(kValue);
  }

  // False: the template shows no calls.
  bool find_arguments() {
    const Messages messages = question_call_result("", "");
    for (const bool are_objects : {true, false}) {
      for (const bool is_none : {false, true}) {
        MessageStyle style = style_;
        style.are_arguments_objects = are_objects;
        style.is_empty_content_none = is_none;
        const auto text = render(messages, style, true);
        if (!text || !shows_arguments(*text, kValue)) continue;
        style_ = style;
        return true;
      }
    }
    // The writer of calls knows JSON and Python; templates with other notations write calls themselves.
    if (family_->calls.front().style == ArgumentStyle::elements || !family_->quote.empty()) return false;
    MessageStyle style = style_;
    style.calls_in_content = family_;
    const auto text = render(messages, style, true);
    if (!text || !shows_arguments(*text, kValue)) return false;
    style_ = style;
    return true;
  }

  // False: the template shows no thoughts.
  bool find_thoughts(const Messages& messages, bool add_generation_prompt) {
    for (const std::string_view field : {"reasoning_content", "thinking", "reasoning", ""}) {
      MessageStyle style = style_;
      style.thoughts_field = field;
      const auto text = render(messages, style, add_generation_prompt);
      if (!text || !shows_thoughts(*text)) continue;
      style_ = style;
      return true;
    }
    return false;
  }

  // Whether the template writes each of these texts once.
  bool shows(const Messages& messages, std::span<const std::string_view> parts, const MessageStyle& style, bool in_order) {
    const auto text = render(messages, style, true);
    std::size_t at = 0;
    for (const std::string_view part : parts) {
      if (!text || count_of(*text, part) != 1) return false;
      if (in_order && text->find(part) < at) return false;
      at = text->find(part);
    }
    return true;
  }

  void find_system_style() {
    const Messages messages{{"system", "uma rule"},   {"system", "uma order"}, kQuestion, {"assistant", std::string(kReply)},
                            {"system", "uma change"}, {"user", "uma answer"}};
    constexpr std::array<std::string_view, 6> kParts{"uma rule",  "uma order",  "uma question",
                                                     "uma reply", "uma change", "uma answer"};
    MessageStyle one = style_;
    one.has_system_messages = false;
    // Some templates write the system message into the last message of the user.
    if (!shows(messages, kParts, style_, true) && shows(messages, kParts, one, false)) style_ = one;
  }

  // Which orders of messages the template takes.
  void find_turns() {
    const ChatMessage reply{"assistant", std::string(kReply)};
    const ChatMessage answer{"user", "uma answer"};
    // Changes the style if the template shows the texts only then.
    const auto settle = [&](const Messages& messages, std::span<const std::string_view> parts, auto change) {
      MessageStyle changed = style_;
      change(changed);
      if (!shows(messages, parts, style_, true) && shows(messages, parts, changed, true)) style_ = changed;
    };
    constexpr std::array<std::string_view, 3> kTexts{"uma question", kReply, "uma answer"};
    const std::span texts(kTexts);
    const auto begin_with_user = [](MessageStyle& style) { style.begins_with_user = true; };
    settle({kQuestion, answer}, std::array{kTexts[0], kTexts[2]}, [](MessageStyle& style) { style.has_users_in_row = false; });
    settle({reply, answer}, texts.last(2), begin_with_user);
    settle({{"system", "uma rule"}}, std::array<std::string_view, 1>{"uma rule"}, begin_with_user);
    settle({kQuestion, reply, {"assistant", "uma second"}, answer},
           std::array<std::string_view, 4>{kTexts[0], kTexts[1], "uma second", kTexts[2]},
           [](MessageStyle& style) { style.has_replies_in_row = false; });
    if (family_ == nullptr) return;
    Messages results = question_call_result("", "");
    results.push_back(answer);
    const std::array<std::string_view, 3> shown{"uma question", "uma result", "uma answer"};
    for (const auto behind : {MessageStyle::BehindResults::reply, MessageStyle::BehindResults::joined})
      settle(results, shown, [&](MessageStyle& style) { style.behind_results = behind; });
  }

  void find_blanks() {
    const auto prompt = render({kQuestion}, style_, true);
    const auto full = render({kQuestion, {"assistant", std::string(kReply)}, kQuestion}, style_, true);
    if (!prompt || !full || !full->starts_with(*prompt)) return;
    const std::string_view rest = std::string_view(*full).substr(prompt->size());
    style_.has_blanks_before_replies = rest.starts_with(' ') && without_blanks(rest).starts_with(kReply);
  }

  const jinja::ChatTemplate& template_;
  jinja::ChatTemplateInput input_;
  Value tools_ = Value::none();
  MessageStyle style_;
  const Family* family_ = nullptr;  // Null: the template's calls are not known.
};

}  // namespace

MessageStyle message_style_of(const jinja::ChatTemplate& chat_template, const Family* family, const std::string& bos_text,
                              const std::string& eos_text) {
  return StyleProbe(chat_template, family, bos_text, eos_text).find();
}

}  // namespace uma::chat
