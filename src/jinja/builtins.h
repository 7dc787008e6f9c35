// The built-in names of templates: filters, tests, functions, and the methods of Python's str and dict. Pure, except for the
// budget that they use. All functions throw TemplateError, also for an unknown name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace uma::jinja {

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

[[nodiscard]] bool is_filter(std::string_view name);
[[nodiscard]] bool is_test(std::string_view name);
// A function as a value, or undefined.
[[nodiscard]] Value find_function(std::string_view name);

[[nodiscard]] Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
[[nodiscard]] bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);
// `unix_s` is the time of strftime_now(). For "namespace", the result is a dict of its names; the rendering makes the
// namespace.
[[nodiscard]] Value call_function(std::string_view name, const Arguments& arguments, std::int64_t unix_s, Budget& budget);
[[nodiscard]] Value call_method(const Value& self, std::string_view name, const Arguments& arguments, Budget& budget);

// value.name: a method, else an item.
[[nodiscard]] Value get_attribute(const Value& value, std::string_view name, Budget& budget);
// value[key]: an item, else an attribute, else undefined.
[[nodiscard]] Value get_item(const Value& value, const Value& key, Budget& budget);
// value[begin:end:step]; each bound is an integer or none.
[[nodiscard]] Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);
// The iteration of a for loop: items, keys or characters.
[[nodiscard]] std::shared_ptr<const List> items_of(const Value& value, Budget& budget);
[[nodiscard]] bool contains(const Value& container, const Value& item, Budget& budget);

}  // namespace uma::jinja
