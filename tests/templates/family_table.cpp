// Prints the table of docs/MODELS.md: what umad reads of each family's replies. Everything in it is tried: the template writes
// the replies of calls.json, umad's parser reads them, and its grammar of calls accepts them. What conversations of twenty
// turns keep of their past is tried by tests/e2e/test_turns.py, which stores it in turns.json.
//
//     family_table docs/MODELS.md            writes the table between the page's marks
//     family_table --check docs/MODELS.md    fails if the page has another table
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/utf8.h"
#include "chat/calls/call_grammar.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/tool_format.h"
#include "chat/family.h"
#include "chat/reply/reply_parser.h"
#include "grammar/grammar.h"
#include "jinja/chat_template.h"
#include "json_input.h"

namespace uma {
namespace {

namespace fs = std::filesystem;
using chat::Family;
using chat::without_blanks;

const fs::path kFolder = UMA_TEMPLATES_FOLDER;
constexpr std::string_view kBegin = "<!-- families: begin -->\n";
constexpr std::string_view kEnd = "<!-- families: end -->";

enum class Result : std::uint8_t { not_written, failed, passed };

// Of one template, or of all templates of a family: the worst that was seen of what some template writes.
struct Row {
  std::vector<std::string> templates{};
  Result call = Result::not_written;
  Result parallel = Result::not_written;
  Result thoughts = Result::not_written;
  Result constrained = Result::not_written;
};

std::string read(const fs::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Only marks such as <|im_end|> and whitespace.
bool is_marks(std::string_view text) {
  while (!(text = without_blanks(text)).empty()) {
    const std::string_view close = text.front() == '<'        ? ">"
                                   : text.starts_with("[e~[") ? "[e~["
                                   : text.front() == '['      ? "]"
                                                              : "";
    const std::size_t end = close.empty() ? std::string_view::npos : text.find(close);
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + close.size());
  }
  return true;
}

// A reply as the template writes it into the conversation.
struct Reply {
  std::string text;
  bool begins_with_thoughts = false;
};

class TemplateTrial {
 public:
  // `inputs`, those of inputs.json, outlive the trial.
  TemplateTrial(const std::string& name, const boost::json::object& inputs, std::string_view form)
      : source_(read(kFolder / "families" / (name + ".jinja"))),
        family_(chat::family_of(source_)),
        conversations_(inputs.at(form).as_object()),
        neutral_(inputs.at("openai").as_object()) {
    auto made = jinja::ChatTemplate::parse(source_);
    if (!made) throw std::runtime_error(name + ": " + made.error().message);
    template_ = std::move(*made);
    row_.templates.push_back(name);
  }

  [[nodiscard]] const Family* family() const { return family_; }

  Row run() {
    try_calls("call", row_.call);
    try_calls("parallel", row_.parallel);
    try_thoughts();
    return row_;
  }

 private:
  // The reply to the first messages of a conversation; nothing: the template does not write it.
  std::optional<Reply> written(const boost::json::object& conversation) {
    const boost::json::array& messages = conversation.at("messages").as_array();
    const auto is_reply = [](const boost::json::value& message) { return message.as_object().at("role") == "assistant"; };
    const auto count = static_cast<std::size_t>(std::ranges::find_if(messages, is_reply) - messages.begin());
    const auto prompt = render(conversation, count, true);
    const auto full = render(conversation, count + 1, false);
    if (!prompt || !full) return std::nullopt;
    const chat::Marks thoughts = chat::thoughts_of(source_, family_);
    std::string_view before = *prompt;
    const bool opens_thoughts = !thoughts.open.empty() && without_blanks(before).ends_with(without_blanks(thoughts.open));
    if (full->starts_with(before)) return Reply{full->substr(before.size()), opens_thoughts};
    // The template has closed or left out the thoughts that the prompt opens.
    if (!thoughts.open.empty()) before = before.substr(0, before.rfind(without_blanks(thoughts.open)));
    if (full->starts_with(before)) return Reply{full->substr(before.size()), false};
    // The prompt has a turn more, which the template has left out.
    const auto common = static_cast<std::size_t>(std::ranges::mismatch(*prompt, *full).in1 - prompt->begin());
    for (std::size_t size = std::min(prompt->size() - common, full->size() - common); size > 0; --size) {
      if (prompt->ends_with(full->substr(common, size))) return Reply{full->substr(common + size), false};
    }
    return std::nullopt;
  }

  std::optional<std::string> render(const boost::json::object& conversation, std::size_t count, bool add_prompt) {
    boost::json::object input = conversation;
    input["messages"].as_array().resize(count);
    input["add_generation_prompt"] = add_prompt;
    input["bos_token"] = "<s>";
    input["eos_token"] = "</s>";
    const auto text = template_->render(input_from_json(input));
    return text ? std::optional(text->bytes()) : std::nullopt;
  }

  chat::ReplyFormat format_of(const boost::json::object& conversation, const Reply& reply) const {
    return {.family = family_,
            .tools = conversation.contains("tools")
                         ? std::make_shared<const chat::Tools>(chat::tools_of(boost::json::serialize(conversation.at("tools"))))
                         : nullptr,
            .thoughts = chat::thoughts_of(source_, family_),
            .begins_with_reasoning = reply.begins_with_thoughts};
  }

  struct Parsed {
    std::string content;
    std::string thoughts;
    std::vector<ReplyPart> calls;
  };
  Parsed parse(const boost::json::object& conversation, const Reply& reply) const {
    chat::ReplyParser parser(format_of(conversation, reply), 1);
    chat::ReplyPieces pieces;
    parser.push(reply.text, pieces);
    parser.finish(pieces);
    return {.content = pieces.content, .thoughts = parser.reasoning(), .calls = parser.calls()};
  }

  void try_calls(std::string_view name, Result& result) {
    const boost::json::object& conversation = conversations_.at(name).as_object();
    const auto reply = written(conversation);
    if (!reply || !reply->text.contains("weather")) return;
    // Some forms have the calls in the content; some have one call a message.
    const boost::json::object& wanted = calls_count(conversation) == 0 ? neutral_.at(name).as_object() : conversation;
    if (name == "parallel" && calls_count(wanted) < 2) return;
    const Parsed parsed = parse(conversation, *reply);
    result = is_marks(parsed.content) && has_calls(parsed.calls, wanted) ? Result::passed : Result::failed;
    if (result == Result::passed) add(row_.constrained, is_accepted(conversation, *reply));
  }

  // Of the first reply.
  static std::size_t calls_count(const boost::json::object& conversation) {
    for (const boost::json::value& message : conversation.at("messages").as_array()) {
      if (message.as_object().at("role") != "assistant") continue;
      const boost::json::value* calls = message.as_object().if_contains("tool_calls");
      return calls == nullptr ? 0 : calls->as_array().size();
    }
    return 0;
  }

  static bool has_calls(const std::vector<ReplyPart>& found, const boost::json::object& conversation) {
    for (const boost::json::value& message : conversation.at("messages").as_array()) {
      const boost::json::value* calls = message.as_object().if_contains("tool_calls");
      if (calls == nullptr) continue;
      if (found.size() != calls->as_array().size()) return false;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const boost::json::object& wanted = calls->as_array()[i].at("function").as_object();
        boost::json::value arguments = wanted.at("arguments");
        if (arguments.is_string()) arguments = boost::json::parse(arguments.as_string());
        boost::system::error_code problem;
        if (found[i].name != std::string_view(wanted.at("name").as_string()) ||
            boost::json::parse(found[i].text, problem) != arguments)
          return false;
      }
      return true;
    }
    return false;
  }

  // Whether the grammar that a model's own calls must follow accepts them, each from its mark on.
  bool is_accepted(const boost::json::object& conversation, const Reply& reply) {
    const chat::ReplyFormat format = format_of(conversation, reply);
    ChatOptions options;
    options.tools = boost::json::serialize(conversation.at("tools"));
    options.tool_names = {"weather", "now"};
    const auto grammar = chat::begun_call_grammar(format, options);
    if (!grammar || *grammar == nullptr) return false;
    chat::ReplyParser parser(format, 1);
    chat::ReplyPieces pieces;
    std::optional<std::string> begun;
    std::size_t at = 0;
    for (std::size_t end = 1; !begun && end <= reply.text.size(); ++end) {
      const std::string_view character = std::string_view(reply.text).substr(at, end - at);
      if (incomplete_utf8_tail(character) > 0) continue;
      parser.push(character, pieces);
      at = end;
      begun = parser.begun_call();
    }
    if (!begun) return accepts_own_form(*grammar);
    const std::string calls = *begun + reply.text.substr(at);
    std::string_view rest = calls;
    while (rest.contains("weather") || rest.contains("now")) {
      const std::size_t size = accepted_size(*grammar, rest);
      if (size == 0) return false;
      rest = without_blanks(rest.substr(size));
    }
    return is_marks(rest);
  }

  // The template writes the call in another form than its model, which has the family's first one.
  bool accepts_own_form(const std::shared_ptr<const grammar::Grammar>& grammar) const {
    std::string call(family_->calls.front().call);
    const auto put = [&](std::string_view part, std::string_view text) {
      if (const std::size_t at = call.find(part); at != std::string::npos) call.replace(at, part.size(), text);
    };
    put("{name}", "weather");
    put("{line}", "\n");
    put("{arguments}", R"({"city": "x", "days": 2})");
    return accepted_size(grammar, call) == call.size();
  }

  // The longest beginning of the text that is a text of the grammar.
  static std::size_t accepted_size(const std::shared_ptr<const grammar::Grammar>& grammar, std::string_view text) {
    grammar::GrammarReader reader(grammar);
    auto place = grammar::GrammarReader::kStart;
    std::size_t size = 0;
    for (std::size_t i = 0; i < text.size() && place != grammar::GrammarReader::kNowhere; ++i) {
      place = reader.next(place, static_cast<std::uint8_t>(text[i]));
      if (reader.can_end(place)) size = i + 1;
    }
    return size;
  }

  void try_thoughts() {
    for (const std::string_view name : {"call", "thoughts_of_a_reply"}) {
      const boost::json::object& conversation = conversations_.at(name).as_object();
      const auto reply = written(conversation);
      const std::string_view wanted = name == "call" ? "A call is needed." : "Decimals.";
      if (!reply || !reply->text.contains(wanted)) continue;
      const Parsed parsed = parse(conversation, *reply);
      add(row_.thoughts, without_blanks(parsed.thoughts) == wanted && !parsed.content.contains(wanted));
    }
  }

  static void add(Result& result, bool is_right) {
    if (result != Result::failed) result = is_right ? Result::passed : Result::failed;
  }

  const std::string source_;
  const Family* const family_;
  const boost::json::object& conversations_;
  const boost::json::object& neutral_;  // With all calls apart from the content.
  std::optional<jinja::ChatTemplate> template_;
  Row row_;
};

// What some template of the family writes and another reads wrongly counts as wrong.
void merge(Row& row, const Row& other) {
  row.templates.insert(row.templates.end(), other.templates.begin(), other.templates.end());
  const auto worst = [](Result& one, Result two) {
    if (one != Result::failed && two != Result::not_written) one = two;
  };
  worst(row.call, other.call);
  worst(row.parallel, other.parallel);
  worst(row.thoughts, other.thoughts);
  worst(row.constrained, other.constrained);
}

std::string_view shown(Result result) {
  switch (result) {
    case Result::passed:
      return "yes";
    case Result::failed:
      return "**no**";
    case Result::not_written:
      break;
  }
  return "–";
}

// What these templates keep of the past: one word if it is the same for all.
std::string turns_of(const std::vector<std::string>& templates, const boost::json::object& turns) {
  std::map<std::string, std::string> by_verdict;
  for (const std::string& name : templates) {
    const boost::json::value* entry = turns.if_contains(name);
    if (entry == nullptr) continue;
    std::string& names = by_verdict[std::string(std::string_view(entry->at("verdict").as_string()))];
    names += (names.empty() ? "" : ", ") + name;
  }
  if (by_verdict.empty()) return "–";
  if (by_verdict.size() == 1) return by_verdict.begin()->first;
  std::string text;
  for (const auto& [verdict, names] : by_verdict) text += std::format("{}{}: {}", text.empty() ? "" : "; ", names, verdict);
  return text;
}

std::string table() {
  const boost::json::object turns = boost::json::parse(read(kFolder / "turns.json")).as_object();
  const boost::json::object inputs = boost::json::parse(read(kFolder / "inputs.json")).as_object();
  std::map<std::string_view, Row> rows;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kFolder / "families")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    const boost::json::object facts = boost::json::parse(read(file)).as_object();
    const boost::json::value* form = facts.if_contains("form");
    if (form == nullptr) continue;
    TemplateTrial trial(file.stem().string(), inputs, form->as_string());
    if (trial.family() != nullptr) merge(rows[trial.family()->name], trial.run());
  }
  std::string text = "| family | calls | parallel calls | thoughts | constrained | 20 turns | templates tried |\n";
  text += "|---|---|---|---|---|---|---|\n";
  const auto add_row = [&](std::string_view family) {
    const auto found = rows.find(family);
    if (found == rows.end()) return;
    const Row& row = found->second;
    std::string templates;
    for (const std::string& name : row.templates) templates += (templates.empty() ? "" : ", ") + name;
    text += std::format("| {} | {} | {} | {} | {} | {} | {} |\n", family, shown(row.call), shown(row.parallel),
                        shown(row.thoughts), shown(row.constrained), turns_of(row.templates, turns), templates);
  };
  for (const Family& family : chat::families()) add_row(family.name);
  return text;
}

int run(bool is_check, const fs::path& page) {
  const std::string text = read(page);
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw std::runtime_error(page.string() + " has no marks of the table");
  const std::string wanted = text.substr(0, begin + kBegin.size()) + table() + text.substr(end);
  if (is_check && wanted != text)
    throw std::runtime_error(page.string() + " has another table: run family_table " + page.string());
  if (!is_check) std::ofstream(page) << wanted;
  return 0;
}

}  // namespace
}  // namespace uma

int main(int argc, char** argv) {
  try {
    const bool is_check = argc == 3 && std::string_view(argv[1]) == "--check";
    if (argc == 2 || is_check) return uma::run(is_check, argv[argc - 1]);
    std::fputs("usage: family_table [--check] PAGE\n", stderr);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "family_table: %s\n", problem.what());
  }
  return 1;
}
