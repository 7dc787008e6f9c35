// The entry type of the tables of filters and methods, and helpers that their files share. Each table is in the file for its
// type of value: text_builtins.cpp, number_builtins.cpp, collection_builtins.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <format>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "jinja/builtins.h"

namespace uma::jinja {

inline constexpr std::size_t kNone = std::string_view::npos;

struct ParameterNames {
  constexpr ParameterNames(std::initializer_list<std::string_view> given) : count(given.size()) {
    std::ranges::copy(given, names.begin());
  }
  // The function accepts any arguments and reads them itself.
  [[nodiscard]] static constexpr ParameterNames any() {
    ParameterNames names({});
    names.are_any = true;
    return names;
  }

  std::array<std::string_view, 4> names{};
  std::size_t count;
  bool are_any = false;
};

// The arguments of one call, by the names of its parameters. Borrows them.
class Parameters {
 public:
  Parameters(std::string_view callee, const Arguments& arguments, const ParameterNames& given_names)
      : callee_(callee), arguments_(arguments), values_(given_names.count, nullptr) {
    if (given_names.are_any) return;
    const std::span<const std::string_view> names(given_names.names.data(), given_names.count);
    if (arguments.positional.size() > names.size()) {
      throw TemplateError{std::format("{} takes {} arguments, got {}", callee, names.size(), arguments.positional.size())};
    }
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
      const auto place = std::ranges::find(names, name);
      if (place == names.end()) throw TemplateError{std::format("{} has no argument \"{}\"", callee, name)};
      values_[static_cast<std::size_t>(place - names.begin())] = &value;
    }
  }

  [[nodiscard]] std::string_view callee() const { return callee_; }
  // The arguments as written in the template.
  [[nodiscard]] const Arguments& arguments() const { return arguments_; }
  [[nodiscard]] bool has(std::size_t i) const { return values_[i] != nullptr; }
  [[nodiscard]] const Value& at(std::size_t i) const {
    if (!has(i)) throw TemplateError{std::format("{} needs {}", callee_, i == 0 ? "an argument" : "more arguments")};
    return *values_[i];
  }
  [[nodiscard]] const Text& text(std::size_t i) const {
    const Text* text = at(i).as_text();
    if (text == nullptr) throw TemplateError{std::format("{} needs a str, got {}", callee_, type_name(at(i)))};
    return *text;
  }
  [[nodiscard]] std::int64_t integer(std::size_t i) const {
    std::int64_t number = 0;
    if (!as_integer(at(i), number)) throw TemplateError{std::format("{} needs an int, got {}", callee_, type_name(at(i)))};
    return number;
  }
  [[nodiscard]] std::int64_t integer_or(std::size_t i, std::int64_t absent) const { return has(i) ? integer(i) : absent; }
  [[nodiscard]] bool flag(std::size_t i, bool absent = false) const { return has(i) ? is_true(*values_[i]) : absent; }

 private:
  std::string_view callee_;
  const Arguments& arguments_;
  std::vector<const Value*> values_;
};

// A filter for `self`, or a method. Throws TemplateError.
struct Builtin {
  std::string_view name;
  ParameterNames parameters;
  Value (*run)(const Value& self, const Parameters& given, Budget& budget);
};

// Null if there is no such name.
[[nodiscard]] inline const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

[[nodiscard]] std::span<const Builtin> text_filters();
[[nodiscard]] std::span<const Builtin> number_filters();
[[nodiscard]] std::span<const Builtin> collection_filters();
[[nodiscard]] std::span<const Builtin> text_methods();
[[nodiscard]] std::span<const Builtin> dict_methods();
[[nodiscard]] std::span<const Builtin> loop_methods();

// --- text_builtins.cpp

// The position of `wanted`, or kNone. Linear in both lengths for any content.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from, Budget& budget);
// The begin of the character before `end`. Requires: end > 0.
[[nodiscard]] std::size_t previous_code_point(std::string_view text, std::size_t end);
[[nodiscard]] Value lower(const Text& text, Budget& budget);
[[nodiscard]] Value part_value(const Text& text, std::size_t begin, std::size_t end, Budget& budget);
[[nodiscard]] Value join(const Value& value, const Text& separator, Budget& budget);

// --- number_builtins.cpp

// range(start, stop, step)
[[nodiscard]] Value range(const Arguments& arguments, Budget& budget);

// --- collection_builtins.cpp

[[nodiscard]] Value dict_keys(const Dict& dict, Budget& budget);
// In characters, items or entries. Throws for a value without a length.
[[nodiscard]] std::size_t length_of(const Value& value, Budget& budget);

}  // namespace uma::jinja
