#include "jinja/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <format>
#include <optional>
#include <unordered_map>

#include "base/utf8.h"

namespace uma::jinja {
namespace {

std::int32_t depth_of(const Value& value) {
  if (const List* list = value.as_list()) return list->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  return 0;
}

// Adds an item to the depth of its container. Loops and macros are refused because they refer to objects with a shorter
// lifetime.
void count_item(const Value& item, std::int32_t& depth) {
  if (item.as_loop() != nullptr || item.as_callable() != nullptr) {
    throw TemplateError{std::format("a {} cannot be an item of a list or a dict", type_name(item))};
  }
  depth = std::max(depth, depth_of(item) + 1);
  if (depth > kValueDepthMax) throw TemplateError{std::format("values are nested deeper than {} levels", kValueDepthMax)};
}

// Like Python's repr(): the shortest digits that read back as the same number.
std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const double size = std::abs(number);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (is_plain && !text.contains('.')) text += ".0";
  return text;
}

// Calls take(character, begin, end) for each code point.
template <class Take>
void for_code_points(std::string_view text, Take take) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    char32_t character = 0;
    const std::size_t length = decode_code_point(text.substr(begin), character);
    take(character, begin, begin + length);
    begin += length;
  }
}

// Python's repr() or json.dumps() of a value, written into one string.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void write_repr(const Value& value) {
    budget_.take_steps();
    if (const Text* text = value.as_text()) return quote(*text);
    if (const List* list = value.as_list()) {
      out_ += list->is_tuple ? '(' : '[';
      for (std::size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) out_ += ", ";
        write_repr(list->items[i]);
      }
      if (list->is_tuple && list->items.size() == 1) out_ += ',';
      out_ += list->is_tuple ? ')' : ']';
    } else if (const Dict* dict = value.as_dict()) {
      out_ += '{';
      for (std::size_t i = 0; i < dict->entries.size(); ++i) {
        if (i > 0) out_ += ", ";
        write_repr(dict->entries[i].first.value());
        out_ += ": ";
        write_repr(dict->entries[i].second);
      }
      out_ += '}';
    } else {
      out_ += value.is_undefined() ? "Undefined" : to_text(value, budget_).bytes();
    }
  }

  void write_json(const Value& value, const JsonStyle& style, std::size_t level = 0) {
    budget_.take_steps();
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* boolean = value.as_boolean()) {
      out_ += *boolean ? "true" : "false";
    } else if (const auto* number = std::get_if<double>(&value.data())) {
      out_ += std::isnan(*number)   ? "NaN"
              : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                    : number_text(*number);
    } else if (value.is_integer()) {
      out_ += std::format("{}", std::get<std::int64_t>(value.data()));
    } else if (const Text* text = value.as_text()) {
      quote_json(*text, style.ascii_only);
    } else if (const List* list = value.as_list()) {
      write_items(list->items.size(), '[', ']', style, level,
                  [&](std::size_t i) { write_json(list->items[i], style, level + 1); });
    } else if (const Dict* dict = value.as_dict()) {
      std::vector<const std::pair<Key, Value>*> entries;
      entries.reserve(dict->entries.size());
      for (const auto& entry : dict->entries) entries.push_back(&entry);
      if (style.sorts_keys) {
        budget_.take_steps(entries.size());
        std::ranges::stable_sort(
            entries, [&](const auto* a, const auto* b) { return compare(a->first.value(), b->first.value(), budget_) < 0; });
      }
      write_items(entries.size(), '{', '}', style, level, [&](std::size_t i) {
        quote_json(*entries[i]->first, style.ascii_only);
        out_ += style.after_key;
        write_json(entries[i]->second, style, level + 1);
      });
    } else {
      throw TemplateError{std::format("tojson: a value of type {} has no JSON form", type_name(value))};
    }
  }

  Text take() && { return source_ ? Text::input(std::move(out_), *source_) : Text(std::move(out_)); }

 private:
  template <class Item>
  void write_items(std::size_t count, char open, char close, const JsonStyle& style, std::size_t level, Item item) {
    out_ += open;
    const auto new_line = [&](std::size_t depth) {
      if (!style.is_indented) return;
      budget_.take_bytes(depth * style.indent.size() + 1);
      out_ += '\n';
      for (std::size_t i = 0; i < depth; ++i) out_ += style.indent;
    };
    for (std::size_t i = 0; i < count; ++i) {
      budget_.take_bytes(style.between_items.size() + style.after_key.size());
      if (i > 0) out_ += style.between_items;
      new_line(level + 1);
      item(i);
    }
    if (count > 0) new_line(level);
    out_ += close;
  }

  void quote(const Text& text) {
    begin_text(text);
    const char mark = text.bytes().contains('\'') && !text.bytes().contains('"') ? '"' : '\'';
    out_ += mark;
    for_code_points(text.bytes(), [&](char32_t character, std::size_t begin, std::size_t end) {
      if (character == U'\\' || character == static_cast<unsigned char>(mark)) {
        out_ += '\\';
        out_ += static_cast<char>(character);
      } else if (character == U'\n') {
        out_ += "\\n";
      } else if (character == U'\r') {
        out_ += "\\r";
      } else if (character == U'\t') {
        out_ += "\\t";
      } else if (character < 0x20 || (character >= 0x7f && character <= 0xa0) || character == 0xad) {
        out_ += std::format("\\x{:02x}", static_cast<std::uint32_t>(character));
      } else {
        out_ += std::string_view(text.bytes()).substr(begin, end - begin);
      }
    });
    out_ += mark;
  }

  void quote_json(const Text& text, bool ascii_only) {
    begin_text(text);
    out_ += '"';
    for_code_points(text.bytes(), [&](char32_t character, std::size_t begin, std::size_t end) {
      constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
      constexpr std::string_view kLetters = "\"\\bfnrt";
      const std::size_t found = character < 0x80 ? kShort.find(static_cast<char>(character)) : std::string_view::npos;
      if (found != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[found];
      } else if (character < 0x20 || (ascii_only && character >= 0x7f && character <= 0xffff)) {
        out_ += std::format("\\u{:04x}", static_cast<std::uint32_t>(character));
      } else if (ascii_only && character > 0xffff) {
        const std::uint32_t rest = static_cast<std::uint32_t>(character) - 0x10000;
        out_ += std::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
      } else {
        out_ += std::string_view(text.bytes()).substr(begin, end - begin);
      }
    });
    out_ += '"';
  }

  void begin_text(const Text& text) {
    budget_.take_bytes(text.size() + 2);
    budget_.take_steps(text.size() / 32);
    for (const SourceRange& input : text.inputs()) {
      if (!source_) source_ = input.source;
      if (source_->message != input.source.message) source_ = kOtherInput;
      if (source_->part != input.source.part && source_->message >= 0) source_->part = PromptPart::text;
    }
  }

  Budget& budget_;
  std::string out_;
  std::optional<Source> source_;  // That of all its inputs; nullopt: there are none.
};

}  // namespace

void Budget::take_steps(std::uint64_t count) {
  if (count > steps_) throw TemplateError{"the template takes too many steps, it may never end"};
  steps_ -= count;
}

void Budget::take_bytes(std::uint64_t count) {
  if (count > bytes_) throw TemplateError{"the template makes too much text"};
  bytes_ -= count;
}

Text Text::input(std::string bytes, Source source) {
  Text text(std::move(bytes));
  if (text.size() > 0) text.inputs_.push_back({0, text.size(), source});
  return text;
}

void Text::append(const Text& text, std::size_t begin, std::size_t end) {
  if (begin == end) return;  // Inside a range it would leave an empty range.
  const std::size_t offset = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  auto range = std::ranges::upper_bound(text.inputs_, begin, {}, &SourceRange::end);
  for (; range != text.inputs_.end() && range->begin < end; ++range) {
    const SourceRange moved{offset + std::max(range->begin, begin) - begin, offset + std::min(range->end, end) - begin,
                            range->source};
    if (!inputs_.empty() && inputs_.back().end == moved.begin && inputs_.back().source == moved.source) {
      inputs_.back().end = moved.end;
    } else {
      inputs_.push_back(moved);
    }
  }
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text result;
  result.append(*this, begin, end);
  return result;
}

Text Text::with_bytes(std::string bytes) const {
  Text result(std::move(bytes));
  result.inputs_ = inputs_;
  return result;
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  List list{.items = std::move(items), .is_tuple = is_tuple};
  for (const Value& item : list.items) count_item(item, list.depth);
  return Value(std::make_shared<const List>(std::move(list)));
}

Key Key::integer(std::int64_t number) {
  Key key(std::make_shared<const Text>(std::format("{}", number)));
  key.is_integer_ = true;
  return key;
}

Value Key::value() const {
  if (!is_integer_) return Value(Value::Variant(text_));
  std::int64_t number = 0;
  std::from_chars(text_->bytes().data(), text_->bytes().data() + text_->size(), number);
  return Value::integer(number);
}

Value Value::dict(std::vector<std::pair<Key, Value>> entries) {
  Dict dict;
  dict.entries.reserve(entries.size());
  std::unordered_map<std::string_view, std::size_t> texts;  // The keys belong to the entries.
  std::unordered_map<std::string_view, std::size_t> integers;
  for (auto& [key, value] : entries) {
    count_item(value, dict.depth);
    const auto [place, is_new] = (key.is_integer() ? integers : texts).try_emplace(key->bytes(), dict.entries.size());
    if (is_new) {
      dict.entries.emplace_back(std::move(key), std::move(value));
    } else {
      dict.entries[place->second].second = std::move(value);
    }
  }
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Value Value::dict(std::vector<std::pair<TextPtr, Value>> entries) {
  std::vector<std::pair<Key, Value>> with_keys;
  with_keys.reserve(entries.size());
  for (auto& [key, value] : entries) with_keys.emplace_back(Key(std::move(key)), std::move(value));
  return dict(std::move(with_keys));
}

Value Value::dict(std::vector<Entry> entries) {
  std::vector<std::pair<Key, Value>> with_keys;
  with_keys.reserve(entries.size());
  for (auto& [key, value] : entries) {
    with_keys.emplace_back(Key(std::make_shared<const Text>(std::move(key))), std::move(value));
  }
  return dict(std::move(with_keys));
}

const Text* Value::as_text() const {
  const auto* found = std::get_if<TextPtr>(&data_);
  return found == nullptr ? nullptr : found->get();
}
const List* Value::as_list() const {
  const auto* found = std::get_if<std::shared_ptr<const List>>(&data_);
  return found == nullptr ? nullptr : found->get();
}
const Dict* Value::as_dict() const {
  const auto* found = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return found == nullptr ? nullptr : found->get();
}
Namespace* Value::as_namespace() const {
  const auto* found = std::get_if<Namespace*>(&data_);
  return found == nullptr ? nullptr : *found;
}
const Loop* Value::as_loop() const {
  const auto* found = std::get_if<std::shared_ptr<const Loop>>(&data_);
  return found == nullptr ? nullptr : found->get();
}
const Callable* Value::as_callable() const {
  const auto* found = std::get_if<std::shared_ptr<const Callable>>(&data_);
  return found == nullptr ? nullptr : found->get();
}

const Value* Dict::find(std::string_view key) const {
  const auto found = std::ranges::find_if(
      entries, [&](const auto& entry) { return !entry.first.is_integer() && entry.first->bytes() == key; });
  return found == entries.end() ? nullptr : &found->second;
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.as_text()) return find(text->bytes());
  std::int64_t number = 0;
  if (!as_integer(key, number)) return nullptr;
  const std::string digits = std::format("{}", number);
  const auto found = std::ranges::find_if(
      entries, [&](const auto& entry) { return entry.first.is_integer() && entry.first->bytes() == digits; });
  return found == entries.end() ? nullptr : &found->second;
}

std::string_view type_name(const Value& value) {
  constexpr std::array<std::string_view, 11> kNames = {"undefined", "None", "bool",      "int",  "float",   "str",
                                                       "list",      "dict", "namespace", "loop", "function"};
  const List* list = value.as_list();
  return list != nullptr && list->is_tuple ? "tuple" : kNames.at(value.data().index());
}

bool is_true(const Value& value) {
  double number = 0;
  if (as_double(value, number)) return number != 0;
  if (const Text* text = value.as_text()) return text->size() > 0;
  if (const List* list = value.as_list()) return !list->items.empty();
  if (const Dict* dict = value.as_dict()) return !dict->entries.empty();
  return !value.is_undefined() && !value.is_none();
}

bool as_integer(const Value& value, std::int64_t& number) {
  if (const bool* boolean = value.as_boolean()) {
    number = *boolean ? 1 : 0;
    return true;
  }
  if (!value.is_integer()) return false;
  number = std::get<std::int64_t>(value.data());
  return true;
}

bool as_double(const Value& value, double& number) {
  std::int64_t whole = 0;
  if (as_integer(value, whole)) {
    number = static_cast<double>(whole);
    return true;
  }
  if (!value.is_double()) return false;
  number = std::get<double>(value.data());
  return true;
}

bool are_equal(const Value& left, const Value& right, Budget& budget) {
  budget.take_steps();
  std::int64_t whole_left = 0;
  std::int64_t whole_right = 0;
  if (as_integer(left, whole_left) && as_integer(right, whole_right)) return whole_left == whole_right;
  double number_left = 0;
  double number_right = 0;
  if (as_double(left, number_left)) return as_double(right, number_right) && number_left == number_right;
  if (left.data().index() != right.data().index()) return false;
  if (const Text* text = left.as_text()) {
    if (text->size() != right.as_text()->size()) return false;
    budget.take_reading(text->size());
    return text->bytes() == right.as_text()->bytes();
  }
  if (const List* list = left.as_list()) {
    const List* other = right.as_list();
    if (list->is_tuple != other->is_tuple || list->items.size() != other->items.size()) return false;
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (!are_equal(list->items[i], other->items[i], budget)) return false;
    }
    return true;
  }
  if (const Dict* dict = left.as_dict()) {
    const Dict* other = right.as_dict();
    if (dict->entries.size() != other->entries.size()) return false;
    for (const auto& [key, value] : dict->entries) {
      budget.take_steps(1 + other->entries.size() / 4);
      const Value* same = other->find(key.value());
      if (same == nullptr || !are_equal(value, *same, budget)) return false;
    }
    return true;
  }
  if (left.is_undefined() || left.is_none()) return true;
  return left.as_namespace() == right.as_namespace() && left.as_loop() == right.as_loop() &&
         left.as_callable() == right.as_callable();
}

int compare(const Value& left, const Value& right, Budget& budget) {
  budget.take_steps();
  const auto order = [](const auto& a, const auto& b) { return a < b ? -1 : b < a ? 1 : 0; };
  std::int64_t whole_left = 0;
  std::int64_t whole_right = 0;
  if (as_integer(left, whole_left) && as_integer(right, whole_right)) return order(whole_left, whole_right);
  double number_left = 0;
  double number_right = 0;
  if (as_double(left, number_left) && as_double(right, number_right)) return order(number_left, number_right);
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    budget.take_reading(std::min(left.as_text()->size(), right.as_text()->size()));
    return order(left.as_text()->bytes(), right.as_text()->bytes());
  }
  const List* list = left.as_list();
  const List* other = right.as_list();
  if (list != nullptr && other != nullptr && list->is_tuple == other->is_tuple) {
    for (std::size_t i = 0; i < std::min(list->items.size(), other->items.size()); ++i) {
      if (!are_equal(list->items[i], other->items[i], budget)) return compare(list->items[i], other->items[i], budget);
    }
    return order(list->items.size(), other->items.size());
  }
  throw TemplateError{std::format("{} and {} have no order", type_name(left), type_name(right))};
}

Text to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None");
  if (const bool* boolean = value.as_boolean()) return Text(*boolean ? "True" : "False");
  if (value.is_integer()) return Text(std::format("{}", std::get<std::int64_t>(value.data())));
  if (value.is_double()) return Text(number_text(std::get<double>(value.data())));
  if (const Text* text = value.as_text()) {
    budget.take_bytes(text->size());
    return *text;
  }
  if (value.as_list() != nullptr || value.as_dict() != nullptr) {
    Writer writer(budget);
    writer.write_repr(value);
    return std::move(writer).take();
  }
  throw TemplateError{std::format("a {} cannot be printed", type_name(value))};
}

TextPtr to_text_ptr(const Value& value, Budget& budget) {
  if (const auto* text = std::get_if<TextPtr>(&value.data())) return *text;
  return std::make_shared<const Text>(to_text(value, budget));
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Writer writer(budget);
  writer.write_json(value, style);
  return std::move(writer).take();
}

std::size_t code_points_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool is_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace uma::jinja
