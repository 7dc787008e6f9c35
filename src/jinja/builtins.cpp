#include "jinja/builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <format>

#include "base/utf8.h"
#include "jinja/builtin_table.h"

namespace uma::jinja {
namespace {

const Builtin* find_filter(std::string_view name) {
  for (const auto table : {text_filters(), number_filters(), collection_filters()}) {
    if (const Builtin* found = find_builtin(table, name)) return found;
  }
  return nullptr;
}

const Builtin* find_method(const Value& value, std::string_view name) {
  if (value.as_text() != nullptr) return find_builtin(text_methods(), name);
  if (value.as_dict() != nullptr) return find_builtin(dict_methods(), name);
  if (value.as_loop() != nullptr) return find_builtin(loop_methods(), name);
  return nullptr;
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto& items = loop.items->items;
  const auto integer = [](std::size_t number) { return Value::integer(static_cast<std::int64_t>(number)); };
  if (name == "index") return integer(loop.index + 1);
  if (name == "index0") return integer(loop.index);
  if (name == "revindex") return integer(items.size() - loop.index);
  if (name == "revindex0") return integer(items.size() - loop.index - 1);
  if (name == "first") return Value::boolean(loop.index == 0);
  if (name == "last") return Value::boolean(loop.index + 1 == items.size());
  if (name == "length") return integer(items.size());
  if (name == "depth") return Value::integer(1);  // Recursive loops are not supported.
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return loop.index == 0 ? Value::undefined("loop.previtem") : items[loop.index - 1];
  if (name == "nextitem") return loop.index + 1 == items.size() ? Value::undefined("loop.nextitem") : items[loop.index + 1];
  throw TemplateError{std::format("\"loop.{}\" is not supported", name)};
}

Value formatted_time(const std::string& format, std::int64_t unix_s) {
  constexpr std::string_view kConversions = "aAbBcdDeFHIjmMpSTuUwxXyYZ%";
  std::tm time{};
  const auto seconds = static_cast<std::time_t>(unix_s);
  ::localtime_r(&seconds, &time);
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    const std::size_t begin = i++;
    if (i < format.size() && format[i] == '-') ++i;  // Without leading zeros.
    if (i == format.size() || !kConversions.contains(format[i])) {
      throw TemplateError{std::format("strftime_now: \"{}\" is not supported", format.substr(begin, 3))};
    }
    std::array<char, 64> buffer{};
    text.append(buffer.data(), std::strftime(buffer.data(), buffer.size(), format.substr(begin, i + 1 - begin).c_str(), &time));
  }
  return Value::text(text);
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Value find_function(std::string_view name) {
  constexpr std::array<std::string_view, 5> kFunctions = {"dict", "namespace", "raise_exception", "range", "strftime_now"};
  if (!std::ranges::contains(kFunctions, name)) return Value::undefined(std::string(name));
  return Value(
      std::make_shared<const Callable>(Callable{.kind = Callable::Kind::function, .name = std::string(name), .self = {}}));
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) throw TemplateError{std::format("the filter \"{}\" is not supported", name)};
  budget.take_steps(2);
  return filter->run(value, Parameters(name, arguments, filter->parameters), budget);
}

Value call_function(std::string_view name, const Arguments& arguments, std::int64_t unix_s, Budget& budget) {
  if (name == "range") return range(arguments, budget);
  if (name == "raise_exception") {
    const Parameters given(name, arguments, {"message"});
    throw TemplateError{"the template refuses this conversation: " + to_text_ptr(given.at(0), budget)->bytes().substr(0, 1000)};
  }
  if (name == "strftime_now") {
    const Parameters given(name, arguments, {"format"});
    budget.take_steps(given.text(0).size() * 4);
    return formatted_time(given.text(0).bytes(), unix_s);
  }
  // dict(a=2) or dict({'a': 2}, b=3)
  std::vector<std::pair<Key, Value>> entries;
  if (arguments.positional.size() > 1) throw TemplateError{std::format("{} takes one dict", name)};
  if (arguments.positional.size() == 1) {
    const Dict* first = arguments.positional.front().as_dict();
    if (first == nullptr)
      throw TemplateError{std::format("{} takes a dict, got {}", name, type_name(arguments.positional.front()))};
    entries = first->entries;
  }
  for (const auto& [key, value] : arguments.named) {
    entries.emplace_back(Key(std::make_shared<const Text>(std::string(key))), value);
  }
  budget.take_steps(entries.size());
  return Value::dict(std::move(entries));
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments, Budget& budget) {
  const Builtin* method = find_method(self, name);
  if (method == nullptr) throw TemplateError{std::format("{} has no supported method \"{}\"", type_name(self), name)};
  budget.take_steps(2);
  return method->run(self, Parameters(name, arguments, method->parameters), budget);
}

Value get_attribute(const Value& value, std::string_view name, Budget& budget) {
  if (find_method(value, name) != nullptr) {
    return Value(
        std::make_shared<const Callable>(Callable{.kind = Callable::Kind::method, .name = std::string(name), .self = value}));
  }
  if (value.is_undefined()) {
    throw TemplateError{std::format("\"{}\" is undefined, so it has no \"{}\"", std::get<Undefined>(value.data()).name, name)};
  }
  if (const Loop* loop = value.as_loop()) return loop_attribute(*loop, name);
  if (const Namespace* space = value.as_namespace()) {
    budget.take_steps(space->entries.size() / 8);
    const auto found = std::ranges::find(space->entries, name, &Value::Entry::first);
    if (found != space->entries.end()) return found->second;
  }
  if (const Dict* dict = value.as_dict()) {
    budget.take_steps(dict->entries.size() / 8);
    if (const Value* found = dict->find(name)) return *found;
  }
  return Value::undefined(std::string(name.substr(0, 100)));
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  budget.take_steps(1);
  if (const Text* name = key.as_text()) {
    if (const Dict* dict = value.as_dict()) {
      budget.take_steps(dict->entries.size() / 8);
      if (const Value* found = dict->find(name->bytes())) return *found;
    }
    return get_attribute(value, name->bytes(), budget);
  }
  if (value.is_undefined()) {
    throw TemplateError{std::format("\"{}\" is undefined, so it has no items", std::get<Undefined>(value.data()).name)};
  }
  const std::string missing = std::format("an item of a {}", type_name(value));
  if (const Dict* dict = value.as_dict()) {
    budget.take_steps(dict->entries.size() / 8);
    const Value* found = dict->find(key);
    return found == nullptr ? Value::undefined(missing) : *found;
  }
  std::int64_t index = 0;
  if (!as_integer(key, index)) return Value::undefined(missing);
  if (const List* list = value.as_list()) {
    const auto size = static_cast<std::int64_t>(list->items.size());
    if (index < 0) index += size;
    return index >= 0 && index < size ? list->items[static_cast<std::size_t>(index)] : Value::undefined(missing);
  }
  if (value.as_text() != nullptr) {
    index = std::clamp<std::int64_t>(index, INT32_MIN, INT32_MAX);  // INT32_MAX is longer than any text.
    const Value next = index == -1 ? Value::none() : Value::integer(index + 1);
    const Value one = get_slice(value, Value::integer(index), next, Value::none(), budget);
    return one.as_text()->size() > 0 ? one : Value::undefined(missing);
  }
  return Value::undefined(missing);
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  const auto part = [&](const Value& of, std::int64_t absent) {
    std::int64_t number = 0;
    if (of.is_none()) return absent;
    if (!as_integer(of, number)) throw TemplateError{std::format("the bounds of a slice must be ints, got {}", type_name(of))};
    return std::clamp<std::int64_t>(number, INT32_MIN, INT32_MAX);  // INT32_MAX is longer than any value.
  };
  const std::int64_t stride = part(step, 1);
  if (stride == 0) throw TemplateError{"the step of a slice is 0"};
  const Text* text = value.as_text();
  const List* list = value.as_list();
  if (value.is_undefined()) {
    throw TemplateError{std::format("\"{}\" is undefined, so it has no items", std::get<Undefined>(value.data()).name)};
  }
  if (text == nullptr && list == nullptr) return Value::undefined(std::format("a slice of a {}", type_name(value)));
  const auto size = static_cast<std::int64_t>(length_of(value, budget));
  const auto place = [&](std::int64_t number) {
    if (number < 0) number += size;
    return stride > 0 ? std::clamp<std::int64_t>(number, 0, size) : std::clamp<std::int64_t>(number, -1, size - 1);
  };
  const std::int64_t first = begin.is_none() ? (stride > 0 ? 0 : size - 1) : place(part(begin, 0));
  const std::int64_t last = end.is_none() ? (stride > 0 ? size : -1) : place(part(end, 0));
  if (list != nullptr) {
    std::vector<Value> items;
    for (std::int64_t at = first; stride > 0 ? at < last : at > last; at += stride) {
      budget.take_steps(1);
      items.push_back(list->items[static_cast<std::size_t>(at)]);
    }
    return Value::list(std::move(items), list->is_tuple);
  }
  // Begins of the counted characters; a slice without a step needs only its ends.
  const std::string_view bytes = text->bytes();
  budget.take_steps(bytes.size() / 128);
  if (stride == 1) {
    if (first >= last) return Value::text("");
    const auto byte_of = [&](std::int64_t character) {
      if (static_cast<std::size_t>(size) == bytes.size()) return static_cast<std::size_t>(character);
      std::size_t at = 0;
      for (; character > 0; --character) {
        char32_t ignored = 0;
        at += decode_code_point(bytes.substr(at), ignored);
      }
      return at;
    };
    return part_value(*text, byte_of(first), byte_of(last), budget);
  }
  std::vector<std::size_t> begins;
  budget.take_steps(static_cast<std::uint64_t>(size) / 8);
  for (std::size_t at = 0; at < bytes.size();) {
    char32_t ignored = 0;
    begins.push_back(at);
    at += decode_code_point(bytes.substr(at), ignored);
  }
  begins.push_back(bytes.size());
  Text result;
  for (std::int64_t at = first; stride > 0 ? at < last : at > last; at += stride) {
    const auto index = static_cast<std::size_t>(at);
    budget.take_bytes(begins[index + 1] - begins[index]);
    result.append(*text, begins[index], begins[index + 1]);
  }
  return Value::text(std::move(result));
}

std::shared_ptr<const List> items_of(const Value& value, Budget& budget) {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&value.data())) return *list;
  if (value.is_undefined()) return std::make_shared<const List>();
  const auto shared = [](const Value& made) { return std::get<std::shared_ptr<const List>>(made.data()); };
  if (const Dict* dict = value.as_dict()) return shared(dict_keys(*dict, budget));
  const Text* text = value.as_text();
  if (text == nullptr) throw TemplateError{std::format("a value of type {} has no items", type_name(value))};
  std::vector<Value> characters;
  for (std::size_t at = 0; at < text->size();) {
    char32_t ignored = 0;
    const std::size_t length = decode_code_point(std::string_view(text->bytes()).substr(at), ignored);
    characters.push_back(part_value(*text, at, at + length, budget));
    at += length;
  }
  return shared(Value::list(std::move(characters)));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.as_text()) {
    if (item.as_text() == nullptr) throw TemplateError{std::format("\"in\" a str needs a str, got {}", type_name(item))};
    return find_text(text->bytes(), item.as_text()->bytes(), 0, budget) != kNone;
  }
  if (const Dict* dict = container.as_dict()) {
    budget.take_steps(dict->entries.size() / 8);
    return dict->find(item) != nullptr;
  }
  const auto items = items_of(container, budget);
  return std::ranges::any_of(items->items, [&](const Value& one) { return are_equal(one, item, budget); });
}

}  // namespace uma::jinja
