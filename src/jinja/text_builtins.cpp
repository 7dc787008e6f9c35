// Filters of texts, and the methods of Python's str.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/utf8.h"
#include "jinja/builtin_table.h"

namespace uma::jinja {

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

std::size_t previous_code_point(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

Value part_value(const Text& text, std::size_t begin, std::size_t end, Budget& budget) {
  budget.take_steps(1);
  budget.take_bytes(end - begin);
  return Value::text(text.part(begin, end));
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

namespace {

std::size_t rfind_text(std::string_view text, std::string_view wanted, Budget& budget) {
  std::size_t last = kNone;
  for (std::size_t at = find_text(text, wanted, 0, budget); at != kNone; at = find_text(text, wanted, at + 1, budget))
    last = at;
  return last;
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

// ASCII letters only; templates need no others.
char upper_letter(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

char lower_letter(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Calls change(byte, previous byte) for each byte; the previous byte of the first is 0.
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

}  // namespace

Value lower(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char) { return lower_letter(c); });
}

namespace {

Value upper(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char) { return upper_letter(c); });
}

Value capitalize(const Text& text, Budget& budget) {
  return change_letters(text, budget, [](char c, char before) { return before == '\0' ? upper_letter(c) : lower_letter(c); });
}

// Words begin behind whitespace or an opening bracket in the filter, and behind any character except letters in the method.
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

// Splits at whitespace, without empty parts, at most `count` times; the last part is the rest.
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

Value title_of_filter(const Text& text, Budget& budget) {
  return title(text, /*is_method=*/false, budget);
}
Value title_of_method(const Text& text, Budget& budget) {
  return title(text, /*is_method=*/true, budget);
}

// --- filters

// A change of a text without parameters, as a filter and as a method.
template <Value (*change)(const Text&, Budget&)>
Value changed(const Value& self, const Parameters&, Budget& budget) {
  return change(*to_text_ptr(self, budget), budget);
}

Value strip_both(const Value& self, const Parameters& given, Budget& budget) {
  const bool has_characters = given.has(0) && !given.at(0).is_none();
  return strip(*to_text_ptr(self, budget), has_characters ? &given.text(0).bytes() : nullptr, true, true, budget);
}

Value replace_filter(const Value& self, const Parameters& given, Budget& budget) {
  const bool is_counted = given.has(2) && !given.at(2).is_none();
  return replace(*to_text_ptr(self, budget), *to_text_ptr(given.at(0), budget), *to_text_ptr(given.at(1), budget),
                 is_counted ? given.integer(2) : -1, budget);
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", {}, changed<capitalize>},
    {"e", {}, changed<escape>},
    {"escape", {}, changed<escape>},
    {"forceescape", {}, changed<escape>},
    {"indent",
     {"width", "first", "blank"},
     [](const Value& self, const Parameters& given, Budget& budget) {
       return indent(*to_text_ptr(self, budget), given, budget);
     }},
    {"lower", {}, changed<lower>},
    {"replace", {"old", "new", "count"}, replace_filter},
    {"string",
     {},
     [](const Value& self, const Parameters&, Budget& budget) { return Value(Value::Variant(to_text_ptr(self, budget))); }},
    {"title", {}, changed<title_of_filter>},
    {"trim", {"chars"}, strip_both},
    {"upper", {}, changed<upper>},
};

// --- methods

// Calls matches(one) for a text, or for each text of a tuple.
template <class Matches>
bool any_text(std::string_view callee, const Value& value, Matches matches) {
  const auto match = [&](const Value& one) {
    if (one.as_text() == nullptr) throw TemplateError{std::format("{} needs a str, got {}", callee, type_name(one))};
    return matches(std::string_view(one.as_text()->bytes()));
  };
  const List* list = value.as_list();
  return list == nullptr ? match(value) : std::ranges::any_of(list->items, match);
}

Value count(const Value& self, const Parameters& given, Budget& budget) {
  const std::string_view bytes = self.as_text()->bytes();
  const std::string& wanted = given.text(0).bytes();
  if (wanted.empty()) return Value::integer(static_cast<std::int64_t>(length_of(self, budget)) + 1);
  std::int64_t found = 0;
  for (std::size_t at = find_text(bytes, wanted, 0, budget); at != kNone;) {
    ++found;
    at = find_text(bytes, wanted, at + wanted.size(), budget);
  }
  return Value::integer(found);
}

template <bool at_begin>
Value has_at_end(const Value& self, const Parameters& given, Budget& budget) {
  const std::string_view bytes = self.as_text()->bytes();
  return Value::boolean(any_text(given.callee(), given.at(0), [&](std::string_view one) {
    budget.take_reading(one.size());
    return at_begin ? bytes.starts_with(one) : bytes.ends_with(one);
  }));
}

template <bool from_end>
Value find(const Value& self, const Parameters& given, Budget& budget) {
  const std::string_view bytes = self.as_text()->bytes();
  const std::string& wanted = given.text(0).bytes();
  const std::size_t found = from_end ? rfind_text(bytes, wanted, budget) : find_text(bytes, wanted, 0, budget);
  if (found == kNone) return Value::integer(-1);
  budget.take_reading(found);
  return Value::integer(static_cast<std::int64_t>(code_points_count(bytes.substr(0, found))));
}

Value is_digits(const Value& self, const Parameters&, Budget& budget) {
  const std::string_view bytes = self.as_text()->bytes();
  budget.take_steps(bytes.size() / 64);
  return Value::boolean(!bytes.empty() && std::ranges::all_of(bytes, [](char c) { return c >= '0' && c <= '9'; }));
}

Value join_texts(const Value& self, const Parameters& given, Budget& budget) {
  for (const auto items = items_of(given.at(0), budget); const Value& item : items->items) {
    if (item.as_text() == nullptr) throw TemplateError{std::format("join needs texts, got {}", type_name(item))};
  }
  return join(given.at(0), *self.as_text(), budget);
}

Value without_prefix(const Value& self, const Parameters& given, Budget& budget) {
  const Text& text = *self.as_text();
  const std::string& prefix = given.text(0).bytes();
  return part_value(text, text.bytes().starts_with(prefix) ? prefix.size() : 0, text.size(), budget);
}

Value without_suffix(const Value& self, const Parameters& given, Budget& budget) {
  const Text& text = *self.as_text();
  const std::string& suffix = given.text(0).bytes();
  return part_value(text, 0, text.size() - (text.bytes().ends_with(suffix) ? suffix.size() : 0), budget);
}

template <bool at_begin, bool at_end>
Value strip_method(const Value& self, const Parameters& given, Budget& budget) {
  const bool has_characters = given.has(0) && !given.at(0).is_none();
  return strip(*self.as_text(), has_characters ? &given.text(0).bytes() : nullptr, at_begin, at_end, budget);
}

template <bool from_end>
Value split(const Value& self, const Parameters& given, Budget& budget) {
  const Text& text = *self.as_text();
  const std::int64_t count_max = given.integer_or(1, -1);
  if (!given.has(0) || given.at(0).is_none()) return split_at_blanks(text, count_max, from_end, budget);
  return split_at(text, given.text(0), count_max, from_end, budget);
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", {}, changed<capitalize>},
    {"count", {"sub"}, count},
    {"endswith", {"suffix"}, has_at_end<false>},
    {"find", {"sub"}, find<false>},
    {"isdigit", {}, is_digits},
    {"join", {"iterable"}, join_texts},
    {"lower", {}, changed<lower>},
    {"lstrip", {"chars"}, strip_method<true, false>},
    {"removeprefix", {"prefix"}, without_prefix},
    {"removesuffix", {"suffix"}, without_suffix},
    {"replace",
     {"old", "new", "count"},
     [](const Value& self, const Parameters& given, Budget& budget) {
       return replace(*self.as_text(), given.text(0), given.text(1), given.integer_or(2, -1), budget);
     }},
    {"rfind", {"sub"}, find<true>},
    {"rsplit", {"sep", "maxsplit"}, split<true>},
    {"rstrip", {"chars"}, strip_method<false, true>},
    {"split", {"sep", "maxsplit"}, split<false>},
    {"splitlines",
     {"keepends"},
     [](const Value& self, const Parameters& given, Budget& budget) {
       return split_lines(*self.as_text(), given.flag(0), budget);
     }},
    {"startswith", {"prefix"}, has_at_end<true>},
    {"strip", {"chars"}, strip_method<true, true>},
    {"title", {}, changed<title_of_method>},
    {"upper", {}, changed<upper>},
};

}  // namespace

std::span<const Builtin> text_filters() {
  return kTextFilters;
}

std::span<const Builtin> text_methods() {
  return kTextMethods;
}

}  // namespace uma::jinja
