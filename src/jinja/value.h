// The values of a chat template, modelled on Python: the inputs of a rendering and the results of expressions. Immutable,
// except for namespaces and loops, which exist inside one rendering. The rendering owns its namespaces, so values that contain
// themselves through a namespace are freed like others, and nothing that walks a value enters a namespace. Every text knows
// which of its parts are user input, through all operations, so that in the end only the template's own words become special
// tokens.
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

#include "core/prompt_outline.h"

namespace uma::jinja {

// Ends a parse or a rendering. Thrown inside this module only: ChatTemplate converts it to an Error.
struct TemplateError {
  std::string message;
  std::int32_t line = 0;  // 0: unknown.
};

// The remaining budget of a rendering. Throws TemplateError when it is exhausted.
class Budget {
 public:
  Budget(std::uint64_t steps, std::uint64_t bytes) : steps_(steps), bytes_(bytes) {}
  // One step is about 100 ns of work.
  void take_steps(std::uint64_t count = 1);
  // Bytes of new texts, including temporary ones.
  void take_bytes(std::uint64_t count);
  // Bytes that are only read.
  void take_reading(std::uint64_t count) { take_steps(count / 1024); }

 private:
  std::uint64_t steps_;
  std::uint64_t bytes_;
};

// The origin of a part of a text.
struct Source {
  std::int32_t message = -1;  // The index of the message; negative: other input (tools, names).
  PromptPart part = PromptPart::template_text;

  constexpr Source() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): the text of a message is the usual source.
  constexpr Source(std::int32_t of_message, PromptPart of_part = PromptPart::text) : message(of_message), part(of_part) {}
  bool operator==(const Source&) const = default;
};
inline constexpr Source kOtherInput{};
inline constexpr Source kToolsInput{-1, PromptPart::tools};

struct SourceRange {
  std::size_t begin = 0;  // In bytes.
  std::size_t end = 0;
  Source source = kOtherInput;
  bool operator==(const SourceRange&) const = default;
};

// UTF-8 with its ranges of input, in order and disjoint; the rest comes from the template.
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
  // A text with the same ranges and other bytes of the same length, such as after a change of case.
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
  std::string name;  // The name of the missing value.
};
struct None {};

using TextPtr = std::shared_ptr<const Text>;  // Shared, because every use of a name copies the value.

class Value;

// A key of a dict: a text, or an integer as its digits.
class Key {
 public:
  explicit Key(TextPtr text) : text_(std::move(text)) {}
  static Key integer(std::int64_t number);

  [[nodiscard]] bool is_integer() const { return is_integer_; }
  const Text* operator->() const { return text_.get(); }
  const Text& operator*() const { return *text_; }
  operator const TextPtr&() const { return text_; }  // NOLINT(google-explicit-constructor): keys of JSON are texts.
  [[nodiscard]] Value value() const;

 private:
  TextPtr text_;
  bool is_integer_ = false;
};

// Limit for the nesting of lists and dicts, so that recursion over a value cannot exhaust the stack.
inline constexpr std::int32_t kValueDepthMax = 160;  // More than json::kDepthMax.

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Loop>, std::shared_ptr<const Callable>>;
  using Entry = std::pair<std::string, Value>;

  Value() = default;  // Undefined.
  explicit Value(Variant data) : data_(std::move(data)) {}
  static Value undefined(std::string name) { return Value(Variant(Undefined{std::move(name)})); }
  static Value none() { return Value(Variant(None{})); }
  static Value boolean(bool value) { return Value(Variant(value)); }
  static Value integer(std::int64_t value) { return Value(Variant(value)); }
  static Value number(double value) { return Value(Variant(value)); }
  static Value text(Text text) { return Value(Variant(std::make_shared<const Text>(std::move(text)))); }
  static Value text(std::string_view template_text) { return text(Text(std::string(template_text))); }
  // Throws TemplateError if the nesting exceeds kValueDepthMax, or if an item is a loop or a macro.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  // The last value of entries with equal keys counts, at the place of the first.
  static Value dict(std::vector<std::pair<Key, Value>> entries);
  static Value dict(std::vector<std::pair<TextPtr, Value>> entries);
  static Value dict(std::vector<Entry> entries);  // The keys are the template's own.

  [[nodiscard]] const Variant& data() const { return data_; }
  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  [[nodiscard]] bool is_double() const { return std::holds_alternative<double>(data_); }
  // Null if the value has another type.
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
  std::vector<std::pair<Key, Value>> entries;  // In order of insertion.
  std::int32_t depth = 1;
  [[nodiscard]] const Value* find(std::string_view key) const;
  // Null also for a key that no dict has, such as a list.
  [[nodiscard]] const Value* find(const Value& key) const;
};

// Counted as a value without depth.
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
  Value self;                             // The object of a method.
  const Statement* definition = nullptr;  // The definition of a macro, or of a call block.
  Scope* scope = nullptr;                 // For `caller`: the scope of its block.
};

// The name of a value's type in messages: "str", "list", "dict" and so on.
[[nodiscard]] std::string_view type_name(const Value& value);
[[nodiscard]] bool is_true(const Value& value);
// Equality as in Python; texts are compared by their bytes, whatever their origin.
[[nodiscard]] bool are_equal(const Value& left, const Value& right, Budget& budget);
// Negative, zero or positive. Throws for values without an order in Python.
[[nodiscard]] int compare(const Value& left, const Value& right, Budget& budget);
// The number in a boolean, an integer or a float; false for other types.
[[nodiscard]] bool as_double(const Value& value, double& number);
[[nodiscard]] bool as_integer(const Value& value, std::int64_t& number);

// Like Python's str().
[[nodiscard]] Text to_text(const Value& value, Budget& budget);
// Like to_text(), without a copy if the value is a text.
[[nodiscard]] TextPtr to_text_ptr(const Value& value, Budget& budget);

struct JsonStyle {
  std::string indent;  // The whitespace of one level.
  bool is_indented = false;
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool sorts_keys = false;
  bool ascii_only = false;
};
// Like Python's json.dumps(); the whole result is input if any text in the value is input.
[[nodiscard]] Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

// Requires: valid UTF-8.
[[nodiscard]] std::size_t code_points_count(std::string_view text);
// Like Python's str.isspace().
[[nodiscard]] bool is_blank(char32_t character);

}  // namespace uma::jinja
