#include "chat/calls/answer_grammar.h"

#include <format>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/call_rules.h"
#include "grammar/grammar_parts.h"

namespace uma::chat {
namespace {

using grammar::Grammar;
using grammar::GrammarReader;

// A mark in the notation of CallForm.
std::string mark_rule(std::string_view mark) {
  std::string rule;
  for (const PatternPart& part : pattern_of(mark)) {
    if (!rule.empty()) rule += ' ';
    switch (part.kind) {
      case PatternPart::Kind::blanks:
        rule += "[ \\t\\n]{0,3}";
        break;
      case PatternPart::Kind::line:
        rule += literal("\n");
        break;
      case PatternPart::Kind::any:
        rule += "[ !-;=-~]{0,64}";
        break;
      default:
        rule += literal(part.text);
    }
  }
  return rule;
}

std::string marks_before_answer(const Family& family) {
  std::string marks;
  for (const std::string_view mark : family.before_answer) add_alternative(marks, mark_rule(mark));
  for (const Marks& around : family.around) add_alternative(marks, mark_rule(around.open));
  return marks;
}

// The texts with which the calls of the family begin, if they have marks of their own.
std::vector<std::string_view> call_marks(const Family& family) {
  std::vector<std::string_view> marks;
  for (const CallForm& form : family.calls) {
    const Pattern open = pattern_of(form.open.empty() ? form.call : form.open);
    if (!form.needs_known_name && open.front().kind == PatternPart::Kind::text) marks.push_back(open.front().text);
  }
  return marks;
}

std::shared_ptr<const Grammar> compile_reply(const ReplyFormat& format, const AnswerRules& rules) {
  const Family& family = *format.family;
  const std::string marks = marks_before_answer(family);
  std::string gbnf = "root ::= \"b\" begin | \"t\" behind";
  std::string begin = rules.may_begin_with_blanks ? "edge answer" : "answer";
  std::string behind = "edge answer";
  const auto add_to_both = [&](std::string_view more) {
    add_alternative(begin, more);
    add_alternative(behind, more);
  };
  if (!marks.empty()) add_to_both("edge mark edge (mark edge)? answer");
  if (rules.may_think) {
    add_alternative(begin, "edge thoughts");
    if (family.thinks_anywhere) add_alternative(behind, "edge thoughts");
  }
  std::vector<grammar::GrammarPart> parts{{"answer", rules.answer}};
  std::string calls;
  if (rules.may_call) {
    gbnf += " | \"c\" more | \"i\" edge";
    if (!format.thoughts.close.empty()) gbnf += std::format(" ({} edge)?", literal(format.thoughts.close));
    gbnf += " more";
    if (rules.calls != nullptr) {
      parts.push_back({"calls", *rules.calls});
    } else {
      for (const std::string_view mark : call_marks(family)) add_alternative(calls, literal(mark) + " .*");
    }
    if (rules.calls != nullptr || !calls.empty()) add_to_both("edge calls more");
  }
  gbnf += std::format("\nbegin ::= {}\nbehind ::= {}\n", begin, behind);
  if (!marks.empty()) gbnf += std::format("mark ::= {}\n", marks);
  if (!calls.empty()) gbnf += std::format("calls ::= {}\n", calls);
  if (rules.may_call) {
    const bool has_calls = rules.calls != nullptr || !calls.empty();
    gbnf += std::format("more ::= {} edge {}\n", has_calls ? "(edge calls)*" : "", rules.may_think ? "thoughts?" : "");
  }
  if (rules.may_think) gbnf += std::format("thoughts ::= {} .*\n", literal(format.thoughts.open));
  const std::string next = family.next_message.empty() ? "" : std::format(" ({} [ \\n]{{0,3}})?", literal(family.next_message));
  gbnf += std::format("edge ::= [ \\n]{{0,3}}{}\n", next);
  auto made = grammar::parse_with_parts(gbnf, parts);
  UMA_CHECK(made);  // The parts are grammars already.
  return std::move(*made);
}

// Whether calls of so many tools can begin within the limits of a reader.
bool can_begin_calls(const ReplyFormat& format, const std::shared_ptr<const Grammar>& grammar) {
  GrammarReader reader(grammar);
  for (const std::string_view mark : call_marks(*format.family)) {
    if (reader.next(GrammarReader::kStart, text_at(ReplyPlace::begin, mark)) == GrammarReader::kNowhere) return false;
  }
  return reader.can_go_on(reader.next(GrammarReader::kStart, text_at(ReplyPlace::begin, "")));
}

}  // namespace

AnswerGrammar answer_grammar(const ReplyFormat& format, const AnswerRules& rules) {
  auto made = compile_reply(format, rules);
  if (rules.calls == nullptr || can_begin_calls(format, made)) return {.grammar = std::move(made)};
  AnswerRules marks_only = rules;
  marks_only.calls = nullptr;
  return {.grammar = compile_reply(format, marks_only), .has_calls = false};
}

std::string text_at(ReplyPlace place, std::string_view text) {
  return static_cast<char>(place) + std::string(text);
}

bool may_precede_answer(const ReplyFormat& format, bool may_call) {
  return may_call || !format.thoughts.open.empty() || !marks_before_answer(*format.family).empty();
}

bool has_thoughts(const ReplyFormat& format, const std::shared_ptr<const Grammar>& answer) {
  const std::string_view open = format.thoughts.open;
  return !open.empty() && GrammarReader(answer).next(GrammarReader::kStart, open) != GrammarReader::kNowhere;
}

}  // namespace uma::chat
