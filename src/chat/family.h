// Families of models: how their replies write thoughts and tool calls. A family is a row of a table, which the parser of
// replies (reply_parser.h) and the grammars of calls (call_grammar.h) read; a new family needs a row and its tests, no code.
// The facts are from the vendors' documents and templates (docs/MODELS.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace uma::chat {

// How the arguments of a call are written.
enum class ArgumentStyle : std::uint8_t {
  json,      // {"a": 1}
  elements,  // <parameter=a>1</parameter>: Family::element.
  loose,     // (a=1, b='x') or {a:1,b:<|"|>x<|"|>}: Family::quote.
  raw,       // The rest of the reply is the text of the only parameter.
};

// The marks of one argument. What stands between the end of the name and the begin of the value are attributes.
struct ElementMarks {
  std::string_view open{};
  std::string_view name_end{};
  std::string_view value_begin{};  // Empty: the value follows the name.
  // {name} in it stands for the name. Then a list or an object may consist of such elements, those of a list named "item".
  std::string_view close{};
  // Whitespace around a value does not belong to it; false: one line feed at each side does not.
  bool trims_blanks = false;
  bool keeps_blanks = false;  // All whitespace around a value belongs to it.
  // In forced calls: around values that are no texts, before `value_begin`, and behind each element.
  std::string_view padding{};
  std::string_view before_value{};
  std::string_view between = "\n";
  bool quotes_name = false;  // The name has quotes of either kind.
  // The marks begin a line, so only there they end a value whose own end is missing.
  bool begins_line = true;
  // The attribute that says whether the value is a text; empty: the tool's schema says it.
  std::string_view text_attribute{};
  // The attribute for all other values; empty: the schema says it. {type} in it stands for their type: number, boolean, null,
  // array or object.
  std::string_view other_attribute{};
};

// One way to write calls: open, call, between, call, ..., close. In these texts a blank or line feed stands for any whitespace
// or none, and forced calls have it as it is here; a tab stands for the same, and forced calls have none. {line} stands for one
// line feed. {name}, {id}, {arguments} and {function}, an object with the name and the arguments, stand for parts of a call,
// {index} for its number in the reply, from 1, and {any} for up to 64 bytes without <.
struct CallForm {
  std::string_view open{};  // May be empty, as the next two.
  std::string_view call{};
  std::string_view between{};
  std::string_view close{};
  ArgumentStyle style = ArgumentStyle::json;
  // The text is a call only if it begins the reply, or only if it names a known tool: it has no mark of its own.
  bool begins_reply = false;
  bool needs_known_name = false;
  std::string_view name{};  // The function, if the texts have no name.
};

// The ids of calls that models of a family know.
enum class CallIds : std::uint8_t {
  any,
  nine,     // Nine letters and digits.
  named,    // functions.NAME:INDEX; the index counts the calls of the conversation from 0.
  counted,  // The index alone.
};

struct Marks {
  std::string_view open{};
  std::string_view close{};
};

struct Family {
  std::string_view name{};
  // A template of the family has all of the first texts, and none of the second.
  std::span<const std::string_view> has{};
  std::span<const std::string_view> lacks{};
  std::span<const CallForm> calls{};  // Forced calls have the first form.
  Marks thoughts{};                   // Empty: those of kThoughts that the template has.
  bool thinks_anywhere = false;       // Thoughts may begin behind content; else at the begin of a reply or behind a call.
  bool may_call_in_thoughts = true;   // A call inside of thoughts ends them.
  std::span<const std::string_view> dropped{};  // Marks that are no content, as the texts of CallForm.
  // Dropped marks that may stand before an answer, beside the first ones of `around`.
  std::span<const std::string_view> before_answer{};
  // Marks around the whole content, likewise: the first at its begin, the second behind the first; the second may be empty.
  std::span<const Marks> around{};
  std::span<const std::string_view> ends{};  // Tokens that end a reply, beside those that the file names.
  ElementMarks element{};
  std::string_view quote{};  // The mark around texts of ArgumentStyle::loose; empty: Python's quotes.
  // {function} as forced calls have it, with the placeholders of CallForm.
  std::string_view function = R"({"name": "{name}", "arguments": {arguments}})";
  std::span<const std::string_view> no_calls{};  // The names of calls that stand for none.
  // Booleans and null are Python's words, as the templates write them; false: JSON's. Not within JSON.
  bool python_words = false;
  CallIds ids = CallIds::any;
  std::string_view tools_variable{};  // A variable of the template that has the tools as indented JSON; empty: none.
  std::string_view next_message{};    // Between thoughts and a forced call.
  std::string_view answer{};          // Between thoughts and the answer, if a model may think again there instead.
  // The values of `reasoning_effort` that its templates know, from the least; empty: any.
  std::span<const std::string_view> efforts{};
  std::string_view call_trigger{};  // Text showing that a call has begun; empty: the begin of a form up to its first blank.
};

// All families, in the order in which a template is compared with them. The last one is for templates without tools.
[[nodiscard]] std::span<const Family> families();
// The family of a template; null: its calls are not known.
[[nodiscard]] const Family* family_of(std::string_view chat_template);
// The family with this name; null: there is none.
[[nodiscard]] const Family* family_named(std::string_view name);
// Whether the id of a forced call stands behind its arguments.
[[nodiscard]] bool has_late_id(const Family& family);
// The notation that models without tools in their template are asked for.
[[nodiscard]] const Family& general_family();
// The marks around thoughts in replies of such a template; empty: none are known. `family` may be null.
[[nodiscard]] Marks thoughts_of(std::string_view chat_template, const Family* family);

}  // namespace uma::chat
