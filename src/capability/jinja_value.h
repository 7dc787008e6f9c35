// The values of a chat template, as Python's are: what a rendering is given, and what its expressions make. Immutable, but for
// namespaces and loops, which live inside one rendering. Every text knows which of its parts users wrote, through all that a
// template does with it, so that in the end only the template's own words become special tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace uma::capability::jinja {

// What ends a parse or a rendering. Thrown inside the engine only: ChatTemplate turns it into an Error.
struct TemplateError {
  std::string message;
  std::int32_t line = 0;  // 0: not known here
};

// What a rendering may still do. Throws TemplateError where it is used up.
class Budget {
 public:
  Budget(std::uint64_t steps, std::uint64_t bytes) : steps_(steps), bytes_(bytes) {}
  // About 100 ns of work each.
  void take_steps(std::uint64_t count = 1);
  // Bytes of new texts, whether they are still there or not.
  void take_bytes(std::uint64_t count);
  // Bytes that are only looked at.
  void take_reading(std::uint64_t count) { take_steps(count / 1024); }

 private:
  std::uint64_t steps_;
  std::uint64_t bytes_;
};

// Who wrote a part of a text: the content of the message with this index, or other input (tools, names).
using Source = std::int32_t;
inline constexpr Source kOtherInput = -1;

struct SourceRange {
  std::size_t begin = 0;  // in bytes
  std::size_t end = 0;
  Source source = kOtherInput;
  bool operator==(const SourceRange&) const = default;
};

// UTF-8 with the ranges that are input, in order, apart; what lies between them is the template's.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
  static Text input(std::string bytes, Source source);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::span<const SourceRange> inputs() const { return inputs_; }
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, std::size_t begin, std::size_t end);
  void append(std::string_view template_text) { bytes_ += template_text; }
  [[nodiscard]] Text part(std::size_t begin, std::size_t end) const;
  // The same ranges over other bytes of the same length, as a change of letters' case leaves them.
  [[nodiscard]] Text with_bytes(std::string bytes) const;

 private:
  std::string bytes_;
  std::vector<SourceRange> inputs_;
};

struct Statement;
struct Scope;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

struct Undefined {
  std::string name;  // what was looked for
};
struct None {};

using TextPtr = std::shared_ptr<const Text>;  // shared: a value is copied wherever a name is used

// Lists and dicts are nested no deeper than this, so that walking one needs no care for the stack.
inline constexpr std::int32_t kValueDepthMax = 64;

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, std::shared_ptr<const List>,
                               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Loop>,
                               std::shared_ptr<const Callable>>;
  using Entry = std::pair<std::string, Value>;

  Value() = default;  // undefined
  explicit Value(Variant data) : data_(std::move(data)) {}
  static Value undefined(std::string name) { return Value(Variant(Undefined{std::move(name)})); }
  static Value none() { return Value(Variant(None{})); }
  static Value boolean(bool value) { return Value(Variant(value)); }
  static Value integer(std::int64_t value) { return Value(Variant(value)); }
  static Value number(double value) { return Value(Variant(value)); }
  static Value text(Text text) { return Value(Variant(std::make_shared<const Text>(std::move(text)))); }
  static Value text(std::string_view template_text) { return text(Text(std::string(template_text))); }
  // Throw TemplateError where the nesting is deeper than kValueDepthMax, or an item is a namespace, a loop or a macro.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  // Of two entries with one key the later counts, at the place of the first.
  static Value dict(std::vector<std::pair<TextPtr, Value>> entries);
  static Value dict(std::vector<Entry> entries);  // keys of the template's own making

  [[nodiscard]] const Variant& data() const { return data_; }
  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  [[nodiscard]] bool is_double() const { return std::holds_alternative<double>(data_); }
  // Null where the value is something else.
  [[nodiscard]] const bool* as_boolean() const { return std::get_if<bool>(&data_); }
  [[nodiscard]] const Text* as_text() const;
  [[nodiscard]] const List* as_list() const;
  [[nodiscard]] const Dict* as_dict() const;
  [[nodiscard]] Namespace* as_namespace() const;
  [[nodiscard]] const Loop* as_loop() const;
  [[nodiscard]] const Callable* as_callable() const;

 private:
  Variant data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  std::int32_t depth = 1;
};

struct Dict {
  std::vector<std::pair<TextPtr, Value>> entries;  // in the order they came
  std::int32_t depth = 1;
  [[nodiscard]] const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<Value::Entry> entries;
};

// `loop` inside a for.
struct Loop {
  std::shared_ptr<const List> items;
  std::size_t index = 0;
};

struct Callable {
  enum class Kind : std::uint8_t { function, method, macro, caller };
  Kind kind;
  std::string name;
  Value self;                             // of a method
  const Statement* definition = nullptr;  // of a macro, and of the block that calls one
  Scope* scope = nullptr;                 // caller: where its block stands
};

// What a value is called in messages: "str", "list", "dict" and so on.
[[nodiscard]] std::string_view type_name(const Value& value);
[[nodiscard]] bool is_true(const Value& value);
// True where both are equal as Python says; texts by their bytes, whoever wrote them.
[[nodiscard]] bool are_equal(const Value& left, const Value& right, Budget& budget);
// Below, at or above zero. Throws where Python has no order of the two.
[[nodiscard]] int compare(const Value& left, const Value& right, Budget& budget);
// The number in a boolean, an integer or a float; false: none there.
[[nodiscard]] bool as_double(const Value& value, double& number);
[[nodiscard]] bool as_integer(const Value& value, std::int64_t& number);

// As Python's str().
[[nodiscard]] Text to_text(const Value& value, Budget& budget);
// The same, without a copy where the value is a text.
[[nodiscard]] TextPtr to_text_ptr(const Value& value, Budget& budget);

struct JsonStyle {
  std::string indent;  // of one level
  bool is_indented = false;
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool sorts_keys = false;
  bool ascii_only = false;
};
// As Python's json.dumps(); all of it is input where any text in the value is.
[[nodiscard]] Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

// Of valid UTF-8.
[[nodiscard]] std::size_t code_points_count(std::string_view text);
// Bytes of the character at the beginning of a text that is not empty, and the character.
std::size_t decode_code_point(std::string_view text, char32_t& character);
// What Python's str.isspace() says of a character.
[[nodiscard]] bool is_blank(char32_t character);

}  // namespace uma::capability::jinja
