#include "capability/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <format>
#include <initializer_list>
#include <optional>
#include <span>

namespace uma::capability::jinja {
namespace {

constexpr std::int64_t kRangeMax = 100'000;
constexpr std::size_t kNone = std::string_view::npos;

// The arguments of one call, by the names of its parameters.
class Parameters {
 public:
  Parameters(std::string_view callee, const Arguments& arguments, std::initializer_list<std::string_view> names)
      : callee_(callee), values_(names.size(), nullptr) {
    if (arguments.positional.size() > names.size()) {
      throw TemplateError{std::format("{} takes {} arguments, not {}", callee, names.size(), arguments.positional.size())};
    }
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
      const auto* const place = std::ranges::find(names, name);
      if (place == names.end()) throw TemplateError{std::format("{} has no argument \"{}\"", callee, name)};
      values_[static_cast<std::size_t>(place - names.begin())] = &value;
    }
  }

  [[nodiscard]] bool has(std::size_t i) const { return values_[i] != nullptr; }
  [[nodiscard]] const Value& at(std::size_t i) const {
    if (!has(i)) throw TemplateError{std::format("{} needs {} more", callee_, i == 0 ? "an argument" : "arguments")};
    return *values_[i];
  }
  [[nodiscard]] const Text& text(std::size_t i) const {
    const Text* text = at(i).as_text();
    if (text == nullptr) throw TemplateError{std::format("{} needs a str, not {}", callee_, type_name(at(i)))};
    return *text;
  }
  [[nodiscard]] std::int64_t integer(std::size_t i) const {
    std::int64_t number = 0;
    if (!as_integer(at(i), number)) throw TemplateError{std::format("{} needs an int, not {}", callee_, type_name(at(i)))};
    return number;
  }
  [[nodiscard]] std::int64_t integer_or(std::size_t i, std::int64_t absent) const { return has(i) ? integer(i) : absent; }
  [[nodiscard]] bool flag(std::size_t i, bool absent = false) const { return has(i) ? is_true(*values_[i]) : absent; }

 private:
  std::string_view callee_;
  std::vector<const Value*> values_;
};

// --- texts

// Linear in both, whatever they hold.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from, Budget& budget) {
  if (from > text.size()) return kNone;
  budget.take_steps(1);
  if (wanted.empty()) return from;
  if (from == text.size()) return kNone;
  const void* found = ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const std::size_t place = found == nullptr ? kNone : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  budget.take_steps(((place == kNone ? text.size() : place) - from) / 256 + wanted.size() / 256);
  return place;
}

std::size_t rfind_text(std::string_view text, std::string_view wanted, Budget& budget) {
  std::size_t last = kNone;
  for (std::size_t at = find_text(text, wanted, 0, budget); at != kNone; at = find_text(text, wanted, at + 1, budget))
    last = at;
  return last;
}

std::size_t previous_code_point(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

Value strip(const Text& text, const std::string* characters, bool at_begin, bool at_end, Budget& budget) {
  const std::string_view bytes = text.bytes();
  const auto goes = [&](std::string_view one) {
    budget.take_reading(256);
    if (characters != nullptr) {
      budget.take_steps(characters->size() / 64);
      return characters->contains(one);
    }
    char32_t character = 0;
    decode_code_point(one, character);
    return is_blank(character);
  };
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (at_begin && begin < end) {
    char32_t character = 0;
    const std::size_t length = decode_code_point(bytes.substr(begin), character);
    if (!goes(bytes.substr(begin, length))) break;
    begin += length;
    budget.take_steps(1);
  }
  while (at_end && end > begin) {
    const std::size_t last = previous_code_point(bytes, end);
    if (!goes(bytes.substr(last, end - last))) break;
    end = last;
    budget.take_steps(1);
  }
  budget.take_bytes(end - begin);
  return Value::text(text.part(begin, end));
}

// Letters of ASCII only: no template needs others.
char upper_letter(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
char lower_letter(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Calls change(byte, previous byte) for each byte; before the first one the previous is 0.
template <class Change>
Value change_letters(const Text& text, Budget& budget, Change change) {
  budget.take_bytes(text.size());
  budget.take_steps(text.size() / 64);
  std::string bytes = text.bytes();
  char previous = '\0';
  for (char& c : bytes) {
    const char now = c;
    c = change(now, previous);
    previous = now;
  }
  return Value::text(text.with_bytes(std::move(bytes)));
}

Value upper(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char) { return upper_letter(c); });
}
Value lower(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char) { return lower_letter(c); });
}
Value capitalize(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char before) { return before == '\0' ? upper_letter(c) : lower_letter(c); });
}
// The filter begins a word behind a blank or an opening bracket, the method behind everything that is no letter.
Value title(const Text& text, bool is_method, Budget& budget) {
  return change_letters(text, budget, [&](char c, char before) {
    constexpr std::string_view kBefore = "- \t\n\r\f\v({[<";
    const bool begins = before == '\0' || (is_method ? !is_letter(before) : kBefore.contains(before));
    return begins ? upper_letter(c) : lower_letter(c);
  });
}

Value replace(const Text& text, const Text& old_text, const Text& new_text, std::int64_t count, Budget& budget) {
  Text result;
  std::size_t at = 0;
  const std::string_view bytes = text.bytes();
  budget.take_bytes(text.size());
  while (count != 0) {
    std::size_t found = find_text(bytes, old_text.bytes(), at, budget);
    if (found == kNone) break;
    budget.take_bytes(new_text.size());
    result.append(text, at, found);
    result.append(new_text);
    --count;
    if (old_text.size() == 0) {
      if (at == bytes.size()) return Value::text(std::move(result));
      char32_t character = 0;
      found += decode_code_point(bytes.substr(at), character);
      result.append(text, at, found);
    }
    at = found + old_text.size();
  }
  result.append(text, at, text.size());
  return Value::text(std::move(result));
}

Value part_value(const Text& text, std::size_t begin, std::size_t end, Budget& budget) {
  budget.take_steps(1);
  budget.take_bytes(end - begin);
  return Value::text(text.part(begin, end));
}

Value split_at(const Text& text, const Text& separator, std::int64_t count, bool from_end, Budget& budget) {
  if (separator.size() == 0) throw TemplateError{"split: the separator is empty"};
  std::vector<std::size_t> places;
  const std::string_view bytes = text.bytes();
  if (from_end && count >= 0) {
    std::size_t end = bytes.size();
    while (static_cast<std::int64_t>(places.size()) < count) {
      const std::size_t found = rfind_text(bytes.substr(0, end), separator.bytes(), budget);
      if (found == kNone) break;
      places.push_back(found);
      end = found;
    }
    std::ranges::reverse(places);
  } else {
    for (std::size_t at = 0; count < 0 || static_cast<std::int64_t>(places.size()) < count;) {
      const std::size_t found = find_text(bytes, separator.bytes(), at, budget);
      if (found == kNone) break;
      places.push_back(found);
      at = found + separator.size();
    }
  }
  std::vector<Value> parts;
  std::size_t begin = 0;
  for (const std::size_t place : places) {
    parts.push_back(part_value(text, begin, place, budget));
    begin = place + separator.size();
  }
  parts.push_back(part_value(text, begin, text.size(), budget));
  return Value::list(std::move(parts));
}

// At runs of blanks, none at the ends; `count` splits at the most, the rest whole.
Value split_at_blanks(const Text& text, std::int64_t count, bool from_end, Budget& budget) {
  const std::string_view bytes = text.bytes();
  budget.take_steps(bytes.size() / 64);
  std::vector<std::pair<std::size_t, std::size_t>> words;
  for (std::size_t at = 0; at < bytes.size();) {
    char32_t character = 0;
    const std::size_t length = decode_code_point(bytes.substr(at), character);
    if (!is_blank(character)) {
      if (!words.empty() && words.back().second == at) {
        words.back().second = at + length;
      } else {
        words.emplace_back(at, at + length);
      }
    }
    at += length;
  }
  const std::size_t words_max = count < 0 ? words.size() : static_cast<std::size_t>(count) + 1;
  if (words.size() > words_max && from_end) {
    const std::size_t joined = words.size() - words_max;
    words[joined].first = words.front().first;
    words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(joined));
    words.front().first = 0;
  } else if (words.size() > words_max) {
    words.resize(words_max);
    words.back().second = bytes.size();
  }
  std::vector<Value> parts;
  parts.reserve(words.size());
  for (const auto& [begin, end] : words) parts.push_back(part_value(text, begin, end, budget));
  return Value::list(std::move(parts));
}

Value split(const Text& text, const Parameters& given, bool from_end, Budget& budget) {
  const std::int64_t count = given.integer_or(1, -1);
  if (!given.has(0) || given.at(0).is_none()) return split_at_blanks(text, count, from_end, budget);
  return split_at(text, given.text(0), count, from_end, budget);
}

Value split_lines(const Text& text, bool keeps_ends, Budget& budget) {
  const std::string_view bytes = text.bytes();
  budget.take_steps(bytes.size() / 64);
  std::vector<Value> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    char32_t c = 0;
    std::size_t end = at + decode_code_point(bytes.substr(at), c);
    const bool is_end = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (is_end) {
      if (c == '\r' && end < bytes.size() && bytes[end] == '\n') ++end;
      lines.push_back(part_value(text, begin, keeps_ends ? end : at, budget));
      begin = end;
    }
    at = end;
  }
  if (begin < bytes.size()) lines.push_back(part_value(text, begin, bytes.size(), budget));
  return Value::list(std::move(lines));
}

Value join(const Value& value, const Text& separator, Budget& budget) {
  Text result;
  const auto items = items_of(value, budget);
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    const TextPtr item = to_text_ptr(items->items[i], budget);
    budget.take_steps(1);
    budget.take_bytes(item->size() + separator.size());
    if (i > 0) result.append(separator);
    result.append(*item);
  }
  return Value::text(std::move(result));
}

Value indent(const Text& text, const Parameters& given, Budget& budget) {
  Text margin("    ");
  if (given.has(0)) {
    if (const Text* prefix = given.at(0).as_text()) {
      margin = *prefix;
    } else {
      const std::int64_t width = std::max<std::int64_t>(given.integer(0), 0);
      budget.take_bytes(static_cast<std::uint64_t>(width));
      margin = Text(std::string(static_cast<std::size_t>(width), ' '));
    }
  }
  const bool first = given.flag(1);
  const bool blank = given.flag(2);
  // The end of the last line counts as one more line, as in Jinja.
  Text whole = text;
  whole.append("\n");
  budget.take_bytes(whole.size());
  const Value lines = split_lines(whole, false, budget);
  Text result;
  bool is_first = true;
  for (const Value& line : lines.as_list()->items) {
    const Text& words = *line.as_text();
    budget.take_bytes(margin.size() + words.size() + 1);
    if (!is_first) result.append("\n");
    if (is_first ? first : blank || words.size() > 0) result.append(margin);
    result.append(words);
    is_first = false;
  }
  return Value::text(std::move(result));
}

Value escape(const Text& text, Budget& budget) {
  Text result;
  const std::string_view bytes = text.bytes();
  std::size_t begin = 0;
  budget.take_bytes(bytes.size());
  budget.take_steps(bytes.size() / 64);
  for (std::size_t i = 0; i <= bytes.size(); ++i) {
    constexpr std::string_view kCharacters = "&<>'\"";
    constexpr std::array<std::string_view, 5> kNames = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const std::size_t found = i < bytes.size() ? kCharacters.find(bytes[i]) : kNone;
    if (found == kNone && i < bytes.size()) continue;
    result.append(text, begin, i);
    begin = i + 1;
    if (found == kNone) break;
    budget.take_bytes(kNames[found].size());
    result.append(kNames[found]);
  }
  return Value::text(std::move(result));
}

// --- numbers

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  return begin == kNone ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\n\r\f\v") - begin + 1);
}

std::optional<double> read_double(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> truncated(double number) {
  if (!(std::abs(number) < 9e18)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Value to_int(const Value& value, const Parameters& given) {
  Value fallback = given.has(0) ? given.at(0) : Value::integer(0);
  const std::int64_t base = given.integer_or(1, 10);
  if (base < 2 || base > 36) throw TemplateError{"int: the base must be 2 to 36"};
  std::int64_t number = 0;
  if (as_integer(value, number)) return Value::integer(number);
  if (value.is_double()) {
    const auto whole = truncated(std::get<double>(value.data()));
    return whole ? Value::integer(*whole) : fallback;
  }
  const Text* text = value.as_text();
  if (text == nullptr) return fallback;
  std::string_view digits = trimmed(text->bytes());
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : " ";
  if (digits.starts_with(prefix)) digits.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (error == std::errc() && end == digits.data() + digits.size()) return Value::integer(number);
  const auto real = read_double(text->bytes());
  const auto whole = real ? truncated(*real) : std::nullopt;
  return whole ? Value::integer(*whole) : fallback;
}

Value to_float(const Value& value, const Parameters& given) {
  double number = 0;
  if (as_double(value, number)) return Value::number(number);
  if (const Text* text = value.as_text()) {
    if (const auto real = read_double(text->bytes())) return Value::number(*real);
  }
  return given.has(0) ? given.at(0) : Value::number(0);
}

Value absolute(const Value& value) {
  std::int64_t whole = 0;
  if (as_integer(value, whole)) {
    if (whole == INT64_MIN) throw TemplateError{"an integer is too large"};
    return Value::integer(std::abs(whole));
  }
  if (!value.is_double()) throw TemplateError{std::format("abs needs a number, not {}", type_name(value))};
  return Value::number(std::abs(std::get<double>(value.data())));
}

// --- lists and dicts

Value pair_value(const TextPtr& key, const Value& value) {
  return Value::list({Value(Value::Variant(key)), value}, /*is_tuple=*/true);
}

Value dict_items(const Dict& dict, Budget& budget) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    budget.take_steps(2);
    items.push_back(pair_value(key, value));
  }
  return Value::list(std::move(items));
}

Value dict_keys(const Dict& dict, Budget& budget) {
  std::vector<Value> keys;
  keys.reserve(dict.entries.size());
  budget.take_steps(dict.entries.size());
  for (const auto& entry : dict.entries) keys.emplace_back(Value::Variant(entry.first));
  return Value::list(std::move(keys));
}

Value dict_values(const Dict& dict, Budget& budget) {
  std::vector<Value> values;
  values.reserve(dict.entries.size());
  budget.take_steps(dict.entries.size());
  for (const auto& entry : dict.entries) values.push_back(entry.second);
  return Value::list(std::move(values));
}

// The attribute of an item that a path such as "function.name" leads to; an absent path is the item itself.
Value follow(Value value, const Value* path, Budget& budget) {
  if (path == nullptr || path->is_none()) return value;
  if (path->is_integer()) return get_item(value, *path, budget);
  const Text* text = path->as_text();
  if (text == nullptr) throw TemplateError{std::format("an attribute is named by a str, not {}", type_name(*path))};
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

// What sorting and unique compare: letters in one case, unless told otherwise.
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

Value sort_dict(const Dict& dict, const Parameters& given, Budget& budget) {
  const bool by_value = given.has(1) && given.text(1).bytes() == "value";
  if (given.has(1) && !by_value && given.text(1).bytes() != "key")
    throw TemplateError{"dictsort: \"by\" is \"key\" or \"value\""};
  std::vector<std::pair<Value, std::size_t>> keyed;
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    const auto& [key, value] = dict.entries[i];
    keyed.emplace_back(sort_key(by_value ? value : Value(Value::Variant(key)), given.flag(0), budget), i);
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

Value reverse(const Value& value, Budget& budget) {
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

// What map and select go through: as in Jinja, nothing of whatever is false.
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
Value select(const Value& value, const Arguments& arguments, bool by_attribute, bool keeps, std::string_view filter,
             Budget& budget) {
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
      throw TemplateError{"tojson: \"separators\" are two texts"};
    }
    style.between_items = separators->items[0].as_text()->bytes();
    style.after_key = separators->items[1].as_text()->bytes();
  }
  style.sorts_keys = given.flag(3);
  return Value::text(to_json(value, style, budget));
}

constexpr std::size_t kCountedPerStep = 128;  // bytes: counting characters is slower than reading them

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

enum class Filter : std::uint8_t {
  abs_,
  capitalize_,
  default_,
  dictsort,
  escape_,
  first,
  float_,
  indent_,
  int_,
  items,
  join_,
  last,
  length,
  list,
  lower_,
  map_,
  reject,
  rejectattr,
  replace_,
  reverse_,
  safe,
  select_,
  selectattr,
  sort_,
  string,
  title_,
  tojson,
  trim,
  unique_,
  upper_,
};
constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", Filter::abs_},
    {"capitalize", Filter::capitalize_},
    {"count", Filter::length},
    {"d", Filter::default_},
    {"default", Filter::default_},
    {"dictsort", Filter::dictsort},
    {"e", Filter::escape_},
    {"escape", Filter::escape_},
    {"first", Filter::first},
    {"float", Filter::float_},
    {"forceescape", Filter::escape_},
    {"indent", Filter::indent_},
    {"int", Filter::int_},
    {"items", Filter::items},
    {"join", Filter::join_},
    {"last", Filter::last},
    {"length", Filter::length},
    {"list", Filter::list},
    {"lower", Filter::lower_},
    {"map", Filter::map_},
    {"reject", Filter::reject},
    {"rejectattr", Filter::rejectattr},
    {"replace", Filter::replace_},
    {"reverse", Filter::reverse_},
    {"safe", Filter::safe},
    {"select", Filter::select_},
    {"selectattr", Filter::selectattr},
    {"sort", Filter::sort_},
    {"string", Filter::string},
    {"title", Filter::title_},
    {"tojson", Filter::tojson},
    {"trim", Filter::trim},
    {"unique", Filter::unique_},
    {"upper", Filter::upper_},
};

enum class Test : std::uint8_t {
  boolean,
  callable,
  defined,
  divisibleby,
  eq,
  even,
  false_,
  float_,
  ge,
  gt,
  in,
  integer,
  iterable,
  le,
  lower,
  lt,
  mapping,
  ne,
  none,
  number,
  odd,
  sameas,
  sequence,
  string,
  true_,
  undefined,
  upper,
};
constexpr std::pair<std::string_view, Test> kTests[] = {
    {"!=", Test::ne},
    {"<", Test::lt},
    {"<=", Test::le},
    {"==", Test::eq},
    {">", Test::gt},
    {">=", Test::ge},
    {"boolean", Test::boolean},
    {"callable", Test::callable},
    {"defined", Test::defined},
    {"divisibleby", Test::divisibleby},
    {"eq", Test::eq},
    {"equalto", Test::eq},
    {"even", Test::even},
    {"false", Test::false_},
    {"float", Test::float_},
    {"ge", Test::ge},
    {"greaterthan", Test::gt},
    {"gt", Test::gt},
    {"in", Test::in},
    {"integer", Test::integer},
    {"iterable", Test::iterable},
    {"le", Test::le},
    {"lessthan", Test::lt},
    {"lower", Test::lower},
    {"lt", Test::lt},
    {"mapping", Test::mapping},
    {"ne", Test::ne},
    {"none", Test::none},
    {"number", Test::number},
    {"odd", Test::odd},
    {"sameas", Test::sameas},
    {"sequence", Test::sequence},
    {"string", Test::string},
    {"true", Test::true_},
    {"undefined", Test::undefined},
    {"upper", Test::upper},
};

enum class Method : std::uint8_t {
  capitalize_,
  count,
  endswith,
  find,
  get,
  isdigit,
  items,
  join_,
  keys,
  lower_,
  lstrip,
  removeprefix,
  removesuffix,
  replace_,
  rfind,
  rsplit,
  rstrip,
  split_,
  splitlines,
  startswith,
  strip_,
  title_,
  upper_,
  values,
  cycle,
};
constexpr std::pair<std::string_view, Method> kTextMethods[] = {
    {"capitalize", Method::capitalize_},
    {"count", Method::count},
    {"endswith", Method::endswith},
    {"find", Method::find},
    {"isdigit", Method::isdigit},
    {"join", Method::join_},
    {"lower", Method::lower_},
    {"lstrip", Method::lstrip},
    {"removeprefix", Method::removeprefix},
    {"removesuffix", Method::removesuffix},
    {"replace", Method::replace_},
    {"rfind", Method::rfind},
    {"rsplit", Method::rsplit},
    {"rstrip", Method::rstrip},
    {"split", Method::split_},
    {"splitlines", Method::splitlines},
    {"startswith", Method::startswith},
    {"strip", Method::strip_},
    {"title", Method::title_},
    {"upper", Method::upper_},
};
constexpr std::pair<std::string_view, Method> kDictMethods[] = {
    {"get", Method::get}, {"items", Method::items}, {"keys", Method::keys}, {"values", Method::values}};
constexpr std::pair<std::string_view, Method> kLoopMethods[] = {{"cycle", Method::cycle}};

template <class Entry, std::size_t Size>
const Entry* find_entry(const std::pair<std::string_view, Entry> (&table)[Size], std::string_view name) {
  const auto* const found = std::ranges::find(table, name, &std::pair<std::string_view, Entry>::first);
  return found == std::end(table) ? nullptr : &found->second;
}

const Method* find_method(const Value& value, std::string_view name) {
  if (value.as_text() != nullptr) return find_entry(kTextMethods, name);
  if (value.as_dict() != nullptr) return find_entry(kDictMethods, name);
  if (value.as_loop() != nullptr) return find_entry(kLoopMethods, name);
  return nullptr;
}

// Calls matches(one) for a text, or for each of a tuple of texts.
template <class Matches>
bool any_text(std::string_view callee, const Value& value, Matches matches) {
  const auto match = [&](const Value& one) {
    if (one.as_text() == nullptr) throw TemplateError{std::format("{} needs a str, not {}", callee, type_name(one))};
    return matches(std::string_view(one.as_text()->bytes()));
  };
  const List* list = value.as_list();
  return list == nullptr ? match(value) : std::ranges::any_of(list->items, match);
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
  if (name == "depth") return Value::integer(1);  // of recursive loops it would be more
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return loop.index == 0 ? Value::undefined("loop.previtem") : items[loop.index - 1];
  if (name == "nextitem") return loop.index + 1 == items.size() ? Value::undefined("loop.nextitem") : items[loop.index + 1];
  throw TemplateError{std::format("\"loop.{}\" is not supported", name)};
}

Value range(const Arguments& arguments, Budget& budget) {
  const Parameters given("range", arguments, {"start", "stop", "step"});
  const bool has_stop = given.has(1);
  const std::int64_t begin = has_stop ? given.integer(0) : 0;
  const std::int64_t end = given.integer(has_stop ? 1 : 0);
  const std::int64_t step = given.integer_or(2, 1);
  if (step == 0) throw TemplateError{"range: the step is 0"};
  std::vector<Value> numbers;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (static_cast<std::int64_t>(numbers.size()) == kRangeMax) {
      throw TemplateError{std::format("range: more than {} numbers", kRangeMax)};
    }
    budget.take_steps(1);
    numbers.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::list(std::move(numbers));
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
    if (i < format.size() && format[i] == '-') ++i;  // without leading zeros
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
  return find_entry(kFilters, name) != nullptr;
}

bool is_test(std::string_view name) {
  return find_entry(kTests, name) != nullptr;
}

Value find_function(std::string_view name) {
  constexpr std::array<std::string_view, 5> kFunctions = {"dict", "namespace", "raise_exception", "range", "strftime_now"};
  if (!std::ranges::contains(kFunctions, name)) return Value::undefined(std::string(name));
  return Value(
      std::make_shared<const Callable>(Callable{.kind = Callable::Kind::function, .name = std::string(name), .self = {}}));
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Filter* filter = find_entry(kFilters, name);
  if (filter == nullptr) throw TemplateError{std::format("the filter \"{}\" is not supported", name)};
  budget.take_steps(2);
  const auto take = [&](std::initializer_list<std::string_view> names) { return Parameters(name, arguments, names); };
  const auto text = [&] { return to_text_ptr(value, budget); };
  switch (*filter) {
    case Filter::abs_:
      take({});
      return absolute(value);
    case Filter::capitalize_:
      take({});
      return capitalize(*text(), budget);
    case Filter::default_: {
      const Parameters given = take({"default_value", "boolean"});
      if (!value.is_undefined() && (!given.flag(1) || is_true(value))) return value;
      return given.has(0) ? given.at(0) : Value::text("");
    }
    case Filter::dictsort:
      if (value.as_dict() == nullptr) throw TemplateError{std::format("dictsort needs a dict, not {}", type_name(value))};
      return sort_dict(*value.as_dict(), take({"case_sensitive", "by", "reverse"}), budget);
    case Filter::escape_:
      take({});
      return escape(*text(), budget);
    case Filter::first:
    case Filter::last: {
      take({});
      if (value.as_text() != nullptr) return get_item(value, Value::integer(*filter == Filter::first ? 0 : -1), budget);
      const auto items = items_of(value, budget);
      if (items->items.empty()) return Value::undefined(std::format("the {} item of nothing", name));
      return *filter == Filter::first ? items->items.front() : items->items.back();
    }
    case Filter::float_:
      return to_float(value, take({"default"}));
    case Filter::indent_:
      return indent(*text(), take({"width", "first", "blank"}), budget);
    case Filter::int_:
      return to_int(value, take({"default", "base"}));
    case Filter::items: {
      take({});
      if (value.is_undefined()) return Value::list({});
      if (value.as_dict() == nullptr) throw TemplateError{std::format("items needs a dict, not {}", type_name(value))};
      return dict_items(*value.as_dict(), budget);
    }
    case Filter::join_: {
      const Parameters given = take({"d", "attribute"});
      const TextPtr separator = given.has(0) ? to_text_ptr(given.at(0), budget) : std::make_shared<const Text>();
      if (!given.has(1)) return join(value, *separator, budget);
      return join(map(value, Arguments{.positional = {}, .named = {{"attribute", given.at(1)}}}, budget), *separator, budget);
    }
    case Filter::length:
      take({});
      return Value::integer(static_cast<std::int64_t>(length_of(value, budget)));
    case Filter::list: {
      take({});
      std::vector<Value> items = items_of(value, budget)->items;
      budget.take_steps(items.size());
      return Value::list(std::move(items));
    }
    case Filter::lower_:
      take({});
      return lower(*text(), budget);
    case Filter::map_:
      return map(value, arguments, budget);
    case Filter::reject:
      return select(value, arguments, false, false, name, budget);
    case Filter::rejectattr:
      return select(value, arguments, true, false, name, budget);
    case Filter::replace_: {
      const Parameters given = take({"old", "new", "count"});
      const bool is_counted = given.has(2) && !given.at(2).is_none();
      return replace(*text(), *to_text_ptr(given.at(0), budget), *to_text_ptr(given.at(1), budget),
                     is_counted ? given.integer(2) : -1, budget);
    }
    case Filter::reverse_:
      take({});
      return reverse(value, budget);
    case Filter::safe:
      take({});
      return value;
    case Filter::select_:
      return select(value, arguments, false, true, name, budget);
    case Filter::selectattr:
      return select(value, arguments, true, true, name, budget);
    case Filter::sort_:
      return sort(value, take({"reverse", "case_sensitive", "attribute"}), budget);
    case Filter::string:
      take({});
      return Value(Value::Variant(text()));
    case Filter::title_:
      take({});
      return title(*text(), /*is_method=*/false, budget);
    case Filter::tojson:
      return json(value, take({"ensure_ascii", "indent", "separators", "sort_keys"}), budget);
    case Filter::trim: {
      const Parameters given = take({"chars"});
      const bool has_characters = given.has(0) && !given.at(0).is_none();
      return strip(*text(), has_characters ? &given.text(0).bytes() : nullptr, true, true, budget);
    }
    case Filter::unique_:
      return unique(value, take({"case_sensitive", "attribute"}), budget);
    case Filter::upper_:
      take({});
      return upper(*text(), budget);
  }
  return {};
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const Test* test = find_entry(kTests, name);
  if (test == nullptr) throw TemplateError{std::format("the test \"{}\" is not supported", name)};
  budget.take_steps(1);
  const auto argument = [&]() -> const Value& {
    if (arguments.positional.size() != 1 || !arguments.named.empty()) {
      throw TemplateError{std::format("the test \"{}\" takes one argument", name)};
    }
    return arguments.positional.front();
  };
  const auto integer = [&](const Value& of) {
    std::int64_t number = 0;
    if (!as_integer(of, number)) throw TemplateError{std::format("the test \"{}\" needs an int, not {}", name, type_name(of))};
    return number;
  };
  switch (*test) {
    case Test::eq:
      return are_equal(value, argument(), budget);
    case Test::ne:
      return !are_equal(value, argument(), budget);
    case Test::lt:
      return compare(value, argument(), budget) < 0;
    case Test::le:
      return compare(value, argument(), budget) <= 0;
    case Test::gt:
      return compare(value, argument(), budget) > 0;
    case Test::ge:
      return compare(value, argument(), budget) >= 0;
    case Test::in:
      return contains(argument(), value, budget);
    case Test::divisibleby: {
      const std::int64_t divisor = integer(argument());
      if (divisor == 0) throw TemplateError{"division by zero"};
      return divisor == -1 || integer(value) % divisor == 0;
    }
    case Test::sameas: {
      const Value& other = argument();
      return value.data().index() == other.data().index() && are_equal(value, other, budget);
    }
    default:
      break;
  }
  if (!arguments.positional.empty() || !arguments.named.empty()) {
    throw TemplateError{std::format("the test \"{}\" takes no argument", name)};
  }
  const bool* boolean = value.as_boolean();
  const auto has_only = [&](auto is_other) {
    const TextPtr text = to_text_ptr(value, budget);
    budget.take_steps(text->size() / 64);
    return std::ranges::any_of(text->bytes(), is_letter) && std::ranges::none_of(text->bytes(), is_other);
  };
  switch (*test) {
    case Test::boolean:
      return boolean != nullptr;
    case Test::callable:
      return value.as_callable() != nullptr;
    case Test::defined:
      return !value.is_undefined();
    case Test::even:
      return integer(value) % 2 == 0;
    case Test::false_:
      return boolean != nullptr && !*boolean;
    case Test::float_:
      return value.is_double();
    case Test::integer:
      return value.is_integer();
    case Test::iterable:
    case Test::sequence:
      return value.as_text() != nullptr || value.as_list() != nullptr || value.as_dict() != nullptr || value.is_undefined();
    case Test::lower:
      return has_only([](char c) { return c >= 'A' && c <= 'Z'; });
    case Test::mapping:
      return value.as_dict() != nullptr;
    case Test::none:
      return value.is_none();
    case Test::number:
      return boolean != nullptr || value.is_integer() || value.is_double();
    case Test::odd:
      return integer(value) % 2 != 0;
    case Test::string:
      return value.as_text() != nullptr;
    case Test::true_:
      return boolean != nullptr && *boolean;
    case Test::undefined:
      return value.is_undefined();
    case Test::upper:
      return has_only([](char c) { return c >= 'a' && c <= 'z'; });
    default:
      return false;
  }
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
  // namespace(x=1), dict(a=2), and either with a dict to begin with.
  std::vector<std::pair<TextPtr, Value>> entries;
  if (arguments.positional.size() > 1) throw TemplateError{std::format("{} takes one dict", name)};
  if (arguments.positional.size() == 1) {
    const Dict* first = arguments.positional.front().as_dict();
    if (first == nullptr)
      throw TemplateError{std::format("{} takes a dict, not {}", name, type_name(arguments.positional.front()))};
    entries = first->entries;
  }
  for (const auto& [key, value] : arguments.named) entries.emplace_back(std::make_shared<const Text>(std::string(key)), value);
  budget.take_steps(entries.size());
  Value dict = Value::dict(std::move(entries));
  if (name == "dict") return dict;
  auto made = std::make_shared<Namespace>();
  for (const auto& [key, value] : dict.as_dict()->entries) made->entries.emplace_back(key->bytes(), value);
  return Value(Value::Variant(std::move(made)));
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments, Budget& budget) {
  const Method* method = find_method(self, name);
  if (method == nullptr) throw TemplateError{std::format("{} has no method \"{}\" here", type_name(self), name)};
  budget.take_steps(2);
  const auto take = [&](std::initializer_list<std::string_view> names) { return Parameters(name, arguments, names); };
  if (const Loop* loop = self.as_loop()) {
    if (arguments.positional.empty()) throw TemplateError{"loop.cycle needs arguments"};
    return arguments.positional[loop->index % arguments.positional.size()];
  }
  if (const Dict* dict = self.as_dict()) {
    switch (*method) {
      case Method::items:
        take({});
        return dict_items(*dict, budget);
      case Method::keys:
        take({});
        return dict_keys(*dict, budget);
      case Method::values:
        take({});
        return dict_values(*dict, budget);
      default: {
        const Parameters given = take({"key", "default"});
        Value found = get_item(self, given.at(0), budget);
        if (found.is_undefined() || (found.as_callable() != nullptr)) return given.has(1) ? given.at(1) : Value::none();
        return found;
      }
    }
  }
  const Text& text = *self.as_text();
  const std::string_view bytes = text.bytes();
  switch (*method) {
    case Method::capitalize_:
      take({});
      return capitalize(text, budget);
    case Method::count: {
      const Parameters given = take({"sub"});
      const std::string& wanted = given.text(0).bytes();
      if (wanted.empty()) return Value::integer(static_cast<std::int64_t>(length_of(self, budget)) + 1);
      std::int64_t count = 0;
      for (std::size_t at = find_text(bytes, wanted, 0, budget); at != kNone;) {
        ++count;
        at = find_text(bytes, wanted, at + wanted.size(), budget);
      }
      return Value::integer(count);
    }
    case Method::startswith:
      return Value::boolean(any_text(name, take({"prefix"}).at(0), [&](std::string_view one) {
        budget.take_reading(one.size());
        return bytes.starts_with(one);
      }));
    case Method::endswith:
      return Value::boolean(any_text(name, take({"suffix"}).at(0), [&](std::string_view one) {
        budget.take_reading(one.size());
        return bytes.ends_with(one);
      }));
    case Method::find:
    case Method::rfind: {
      const Parameters given = take({"sub"});
      const std::string& wanted = given.text(0).bytes();
      const std::size_t found =
          *method == Method::find ? find_text(bytes, wanted, 0, budget) : rfind_text(bytes, wanted, budget);
      if (found == kNone) return Value::integer(-1);
      budget.take_reading(found);
      return Value::integer(static_cast<std::int64_t>(code_points_count(bytes.substr(0, found))));
    }
    case Method::isdigit:
      take({});
      budget.take_steps(bytes.size() / 64);
      return Value::boolean(!bytes.empty() && std::ranges::all_of(bytes, [](char c) { return c >= '0' && c <= '9'; }));
    case Method::join_: {
      const Parameters given = take({"iterable"});
      for (const auto items = items_of(given.at(0), budget); const Value& item : items->items) {
        if (item.as_text() == nullptr) throw TemplateError{std::format("join needs texts, not {}", type_name(item))};
      }
      return join(given.at(0), text, budget);
    }
    case Method::lower_:
      take({});
      return lower(text, budget);
    case Method::removeprefix: {
      const Parameters given = take({"prefix"});
      const std::string& prefix = given.text(0).bytes();
      return part_value(text, bytes.starts_with(prefix) ? prefix.size() : 0, text.size(), budget);
    }
    case Method::removesuffix: {
      const Parameters given = take({"suffix"});
      const std::string& suffix = given.text(0).bytes();
      return part_value(text, 0, text.size() - (bytes.ends_with(suffix) ? suffix.size() : 0), budget);
    }
    case Method::replace_: {
      const Parameters given = take({"old", "new", "count"});
      return replace(text, given.text(0), given.text(1), given.integer_or(2, -1), budget);
    }
    case Method::split_:
      return split(text, take({"sep", "maxsplit"}), false, budget);
    case Method::rsplit:
      return split(text, take({"sep", "maxsplit"}), true, budget);
    case Method::splitlines:
      return split_lines(text, take({"keepends"}).flag(0), budget);
    case Method::strip_:
    case Method::lstrip:
    case Method::rstrip: {
      const Parameters given = take({"chars"});
      const bool has_characters = given.has(0) && !given.at(0).is_none();
      return strip(text, has_characters ? &given.text(0).bytes() : nullptr, *method != Method::rstrip,
                   *method != Method::lstrip, budget);
    }
    case Method::title_:
      take({});
      return title(text, /*is_method=*/true, budget);
    case Method::upper_:
      take({});
      return upper(text, budget);
    default:
      return {};
  }
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
  std::int64_t index = 0;
  if (!as_integer(key, index)) return Value::undefined(missing);
  if (const List* list = value.as_list()) {
    const auto size = static_cast<std::int64_t>(list->items.size());
    if (index < 0) index += size;
    return index >= 0 && index < size ? list->items[static_cast<std::size_t>(index)] : Value::undefined(missing);
  }
  if (value.as_text() != nullptr) {
    index = std::clamp<std::int64_t>(index, INT32_MIN, INT32_MAX);  // longer than any text
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
    if (!as_integer(of, number)) throw TemplateError{std::format("the parts of a slice are ints, not {}", type_name(of))};
    return std::clamp<std::int64_t>(number, INT32_MIN, INT32_MAX);  // longer than any value
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
  // Where the characters begin that count: of a slice without a step, only its ends.
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
    if (item.as_text() == nullptr) throw TemplateError{std::format("a {} is never in a str", type_name(item))};
    return find_text(text->bytes(), item.as_text()->bytes(), 0, budget) != kNone;
  }
  if (const Dict* dict = container.as_dict()) {
    budget.take_steps(dict->entries.size() / 8);
    return item.as_text() != nullptr && dict->find(item.as_text()->bytes()) != nullptr;
  }
  const auto items = items_of(container, budget);
  return std::ranges::any_of(items->items, [&](const Value& one) { return are_equal(one, item, budget); });
}

}  // namespace uma::capability::jinja
