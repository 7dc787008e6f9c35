// Filters of lists, dicts and any value, and the methods of Python's dict and of `loop`.
#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "jinja/builtin_table.h"

namespace uma::jinja {

Value dict_keys(const Dict& dict, Budget& budget) {
  std::vector<Value> keys;
  keys.reserve(dict.entries.size());
  budget.take_steps(dict.entries.size());
  for (const auto& entry : dict.entries) keys.push_back(entry.first.value());
  return Value::list(std::move(keys));
}

constexpr std::size_t kCountedPerStep = 128;  // In bytes; counting characters is slower than reading bytes.

std::size_t length_of(const Value& value, Budget& budget) {
  if (const Text* text = value.as_text()) {
    budget.take_steps(text->size() / kCountedPerStep);
    return code_points_count(text->bytes());
  }
  if (const List* list = value.as_list()) return list->items.size();
  if (const Dict* dict = value.as_dict()) return dict->entries.size();
  if (value.is_undefined()) return 0;
  throw TemplateError{std::format("a value of type {} has no length", type_name(value))};
}

namespace {

Value pair_value(const Key& key, const Value& value) {
  return Value::list({key.value(), value}, /*is_tuple=*/true);
}

Value dict_items(const Dict& dict, Budget& budget) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    budget.take_steps(2);
    items.push_back(pair_value(key, value));
  }
  return Value::list(std::move(items));
}

Value dict_values(const Dict& dict, Budget& budget) {
  std::vector<Value> values;
  values.reserve(dict.entries.size());
  budget.take_steps(dict.entries.size());
  for (const auto& entry : dict.entries) values.push_back(entry.second);
  return Value::list(std::move(values));
}

// The attribute of an item at a path such as "function.name"; without a path, the item itself.
Value follow(Value value, const Value* path, Budget& budget) {
  if (path == nullptr || path->is_none()) return value;
  if (path->is_integer()) return get_item(value, *path, budget);
  const Text* text = path->as_text();
  if (text == nullptr) throw TemplateError{std::format("the name of an attribute must be a str, got {}", type_name(*path))};
  std::string_view rest = text->bytes();
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && end == name.data() + name.size();
    value = get_item(value, is_index ? Value::integer(index) : Value::text(name), budget);
    if (dot == kNone) return value;
    rest.remove_prefix(dot + 1);
  }
}

// The key for sorting and unique: lower case, unless the template asks for case.
Value sort_key(const Value& value, bool is_case_sensitive, Budget& budget) {
  const Text* text = value.as_text();
  return text == nullptr || is_case_sensitive ? value : lower(*text, budget);
}

Value sort(const Value& value, const Parameters& given, Budget& budget) {
  const auto items = items_of(value, budget);
  const Value* attribute = given.has(2) ? &given.at(2) : nullptr;
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items->items) {
    budget.take_steps(2);
    keyed.emplace_back(sort_key(follow(item, attribute, budget), given.flag(1), budget), item);
  }
  const bool is_reverse = given.flag(0);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reverse ? compare(b.first, a.first, budget) < 0 : compare(a.first, b.first, budget) < 0;
  });
  std::vector<Value> sorted;
  sorted.reserve(keyed.size());
  for (auto& entry : keyed) sorted.push_back(std::move(entry.second));
  return Value::list(std::move(sorted));
}

Value sort_dict(const Value& self, const Parameters& given, Budget& budget) {
  if (self.as_dict() == nullptr) throw TemplateError{std::format("dictsort needs a dict, got {}", type_name(self))};
  const Dict& dict = *self.as_dict();
  const bool by_value = given.has(1) && given.text(1).bytes() == "value";
  if (given.has(1) && !by_value && given.text(1).bytes() != "key")
    throw TemplateError{"dictsort: \"by\" is \"key\" or \"value\""};
  std::vector<std::pair<Value, std::size_t>> keyed;
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    const auto& [key, value] = dict.entries[i];
    keyed.emplace_back(sort_key(by_value ? value : key.value(), given.flag(0), budget), i);
  }
  const bool is_reverse = given.flag(2);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reverse ? compare(b.first, a.first, budget) < 0 : compare(a.first, b.first, budget) < 0;
  });
  std::vector<Value> items;
  for (const auto& entry : keyed) {
    budget.take_steps(2);
    items.push_back(pair_value(dict.entries[entry.second].first, dict.entries[entry.second].second));
  }
  return Value::list(std::move(items));
}

Value unique(const Value& value, const Parameters& given, Budget& budget) {
  const auto items = items_of(value, budget);
  const Value* attribute = given.has(1) ? &given.at(1) : nullptr;
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    Value key = sort_key(follow(item, attribute, budget), given.flag(0), budget);
    if (std::ranges::any_of(seen, [&](const Value& other) { return are_equal(key, other, budget); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Value reverse(const Value& value, const Parameters&, Budget& budget) {
  if (const Text* text = value.as_text()) {
    Text result;
    budget.take_bytes(text->size());
    budget.take_steps(text->size() / 16);
    for (std::size_t end = text->size(); end > 0;) {
      const std::size_t begin = previous_code_point(text->bytes(), end);
      result.append(*text, begin, end);
      end = begin;
    }
    return Value::text(std::move(result));
  }
  std::vector<Value> items = items_of(value, budget)->items;
  budget.take_steps(items.size());
  std::ranges::reverse(items);
  return Value::list(std::move(items));
}

// The input of map and select: as in Jinja, empty for any false value.
std::shared_ptr<const List> items_if_any(const Value& value, Budget& budget) {
  return is_true(value) ? items_of(value, budget) : std::make_shared<const List>();
}

Arguments arguments_from(const Arguments& arguments, std::size_t first) {
  Arguments rest;
  for (std::size_t i = first; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  rest.named = arguments.named;
  return rest;
}

std::string_view name_argument(std::string_view filter, const Arguments& arguments, std::size_t index) {
  const Text* name = index < arguments.positional.size() ? arguments.positional[index].as_text() : nullptr;
  if (name == nullptr) throw TemplateError{std::format("{} needs a name as its argument", filter)};
  return name->bytes();
}

// map('upper'), map(attribute='name', default='')
Value map(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto items = items_if_any(value, budget);
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const Parameters given("map", arguments, {"attribute", "default"});
    for (const Value& item : items->items) {
      budget.take_steps(1);
      Value found = follow(item, &given.at(0), budget);
      if (found.is_undefined() && given.has(1)) found = given.at(1);
      mapped.push_back(std::move(found));
    }
  } else {
    const std::string_view filter = name_argument("map", arguments, 0);
    const Arguments rest = arguments_from(arguments, 1);
    for (const Value& item : items->items) mapped.push_back(apply_filter(filter, item, rest, budget));
  }
  return Value::list(std::move(mapped));
}

// select('odd'), rejectattr('role', 'equalto', 'system')
template <bool by_attribute, bool keeps>
Value select(const Value& value, const Parameters& given, Budget& budget) {
  const Arguments& arguments = given.arguments();
  const std::string_view filter = given.callee();
  const auto items = items_if_any(value, budget);
  const std::size_t test = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) throw TemplateError{std::format("{} needs an attribute", filter)};
  const bool has_test = test < arguments.positional.size();
  const std::string_view name = has_test ? name_argument(filter, arguments, test) : std::string_view();
  const Arguments rest = arguments_from(arguments, test + 1);
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    budget.take_steps(1);
    const Value examined = by_attribute ? follow(item, &arguments.positional.front(), budget) : item;
    const bool passes = has_test ? apply_test(name, examined, rest, budget) : is_true(examined);
    if (passes == keeps) kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Value json(const Value& value, const Parameters& given, Budget& budget) {
  JsonStyle style;
  style.ascii_only = given.flag(0);
  if (given.has(1) && !given.at(1).is_none()) {
    style.is_indented = true;
    style.between_items = ",";
    if (const Text* margin = given.at(1).as_text()) {
      style.indent = margin->bytes();
    } else {
      const std::int64_t width = std::max<std::int64_t>(given.integer(1), 0);
      budget.take_bytes(static_cast<std::uint64_t>(width));
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
  }
  if (given.has(2) && !given.at(2).is_none()) {
    const List* separators = given.at(2).as_list();
    if (separators == nullptr || separators->items.size() != 2 || separators->items[0].as_text() == nullptr ||
        separators->items[1].as_text() == nullptr) {
      throw TemplateError{"tojson: \"separators\" must be two texts"};
    }
    style.between_items = separators->items[0].as_text()->bytes();
    style.after_key = separators->items[1].as_text()->bytes();
  }
  style.sorts_keys = given.flag(3);
  return Value::text(to_json(value, style, budget));
}

// --- filters

Value default_value(const Value& self, const Parameters& given, Budget&) {
  if (!self.is_undefined() && (!given.flag(1) || is_true(self))) return self;
  return given.has(0) ? given.at(0) : Value::text("");
}

template <bool is_first>
Value end_item(const Value& self, const Parameters& given, Budget& budget) {
  if (self.as_text() != nullptr) return get_item(self, Value::integer(is_first ? 0 : -1), budget);
  const auto items = items_of(self, budget);
  if (items->items.empty()) return Value::undefined(std::format("the {} item of an empty list", given.callee()));
  return is_first ? items->items.front() : items->items.back();
}

Value items_filter(const Value& self, const Parameters&, Budget& budget) {
  if (self.is_undefined()) return Value::list({});
  if (self.as_dict() == nullptr) throw TemplateError{std::format("items needs a dict, got {}", type_name(self))};
  return dict_items(*self.as_dict(), budget);
}

Value join_items(const Value& self, const Parameters& given, Budget& budget) {
  const TextPtr separator = given.has(0) ? to_text_ptr(given.at(0), budget) : std::make_shared<const Text>();
  if (!given.has(1)) return join(self, *separator, budget);
  return join(map(self, Arguments{.positional = {}, .named = {{"attribute", given.at(1)}}}, budget), *separator, budget);
}

Value length(const Value& self, const Parameters&, Budget& budget) {
  return Value::integer(static_cast<std::int64_t>(length_of(self, budget)));
}

Value list(const Value& self, const Parameters&, Budget& budget) {
  std::vector<Value> items = items_of(self, budget)->items;
  budget.take_steps(items.size());
  return Value::list(std::move(items));
}

constexpr Builtin kCollectionFilters[] = {
    {"count", {}, length},
    {"d", {"default_value", "boolean"}, default_value},
    {"default", {"default_value", "boolean"}, default_value},
    {"dictsort", {"case_sensitive", "by", "reverse"}, sort_dict},
    {"first", {}, end_item<true>},
    {"items", {}, items_filter},
    {"join", {"d", "attribute"}, join_items},
    {"last", {}, end_item<false>},
    {"length", {}, length},
    {"list", {}, list},
    {"map", ParameterNames::any(),
     [](const Value& self, const Parameters& given, Budget& budget) { return map(self, given.arguments(), budget); }},
    {"reject", ParameterNames::any(), select<false, false>},
    {"rejectattr", ParameterNames::any(), select<true, false>},
    {"reverse", {}, reverse},
    {"safe", {}, [](const Value& self, const Parameters&, Budget&) { return self; }},
    {"select", ParameterNames::any(), select<false, true>},
    {"selectattr", ParameterNames::any(), select<true, true>},
    {"sort", {"reverse", "case_sensitive", "attribute"}, sort},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, json},
    {"unique", {"case_sensitive", "attribute"}, unique},
};

// --- methods

Value get_entry(const Value& self, const Parameters& given, Budget& budget) {
  Value found = get_item(self, given.at(0), budget);
  if (found.is_undefined() || (found.as_callable() != nullptr)) return given.has(1) ? given.at(1) : Value::none();
  return found;
}

template <Value (*part)(const Dict&, Budget&)>
Value of_dict(const Value& self, const Parameters&, Budget& budget) {
  return part(*self.as_dict(), budget);
}

constexpr Builtin kDictMethods[] = {
    {"get", {"key", "default"}, get_entry},
    {"items", {}, of_dict<dict_items>},
    {"keys", {}, of_dict<dict_keys>},
    {"values", {}, of_dict<dict_values>},
};

constexpr Builtin kLoopMethods[] = {
    {"cycle", ParameterNames::any(),
     [](const Value& self, const Parameters& given, Budget&) {
       const std::vector<Value>& values = given.arguments().positional;
       if (values.empty()) throw TemplateError{"loop.cycle needs arguments"};
       return values[self.as_loop()->index % values.size()];
     }},
};

}  // namespace

std::span<const Builtin> collection_filters() {
  return kCollectionFilters;
}

std::span<const Builtin> dict_methods() {
  return kDictMethods;
}

std::span<const Builtin> loop_methods() {
  return kLoopMethods;
}

}  // namespace uma::jinja
