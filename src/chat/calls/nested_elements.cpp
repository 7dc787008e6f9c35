#include "chat/calls/nested_elements.h"

#include <cstddef>
#include <utility>

#include "chat/calls/call_pattern.h"

namespace uma::chat {
namespace {

constexpr std::size_t kNestedDepthMax = 30;
constexpr std::string_view kNameInClose = "{name}";  // In ElementMarks::close.
constexpr TypeSet kCompound{TypeSet::array | TypeSet::object};

class NestedElements {
 public:
  NestedElements(const ElementMarks& marks, std::string_view text, const ParameterTypes* types)
      : marks_(marks), text_(text), types_(types) {}

  // The JSON of the whole text; empty: it is something else.
  [[nodiscard]] std::optional<std::string> read(std::string_view name) {
    auto json = children("", std::string(name), 0);
    return text_.empty() ? std::move(json) : std::nullopt;
  }

 private:
  // The types of a part of the arguments; unknown if its schema does not say them.
  [[nodiscard]] TypeSet type_of(const std::string& path) const {
    if (types_ == nullptr) return {};
    const auto found = types_->find(path);
    return found == types_->end() ? TypeSet() : found->second;
  }

  // The elements up to `close`, which is taken; empty: up to the end.
  [[nodiscard]] std::optional<std::string> children(std::string_view close, const std::string& path, std::size_t depth) {
    const TypeSet type = type_of(path);
    std::string json;
    std::optional<bool> is_list;
    if (type.has(TypeSet::array) != type.has(TypeSet::object)) is_list = type.has(TypeSet::array);
    for (;;) {
      text_.remove_prefix(blanks_at_begin(text_));
      if (close.empty() ? text_.empty() : text_.starts_with(close)) break;
      if (!text_.starts_with(marks_.open) || depth == kNestedDepthMax) return std::nullopt;
      const MarkPlace name_end = find_mark(text_.substr(marks_.open.size()), marks_.name_end, kNameBytesMax);
      if (name_end.found != Found::yes) return std::nullopt;
      const std::string_view name = text_.substr(marks_.open.size(), name_end.at);
      text_.remove_prefix(marks_.open.size() + name_end.at + marks_.name_end.size());
      if (!is_list) is_list = name == kListItem;
      json += json.empty() ? "" : ", ";
      if (!*is_list) {
        json += '"';
        append_json_text(json, name);
        json += "\": ";
      }
      const auto value = value_of(name, part_of(path, *is_list ? kListItem : name), depth);
      if (!value) return std::nullopt;
      json += *value;
    }
    if (!is_list) return std::nullopt;
    text_.remove_prefix(close.size());
    return *is_list ? "[" + json + "]" : "{" + json + "}";
  }

  [[nodiscard]] std::optional<std::string> value_of(std::string_view name, const std::string& path, std::size_t depth) {
    const TypeSet type = type_of(path);
    const bool is_known = type.bits != 0;
    const std::string close = close_of(marks_, name);
    std::string_view inside = text_.substr(blanks_at_begin(text_));
    const bool may_have_children = !is_known || (type.bits & kCompound.bits) != 0;
    const bool has_children = inside.starts_with(marks_.open) && !inside.starts_with(close);
    const bool is_empty = inside.starts_with(close) && is_known && (type.bits & ~kCompound.bits) == 0;
    if (may_have_children && (has_children || is_empty)) return children(close, path, depth + 1);
    const std::size_t end = text_.find(close);
    if (end == std::string_view::npos) return std::nullopt;
    constexpr TypeSet kScalar{TypeSet::integer | TypeSet::number | TypeSet::boolean | TypeSet::null};
    std::string json = typed_json(without_blanks(text_.substr(0, end)), is_known ? type : kScalar);
    text_.remove_prefix(end + close.size());
    return json;
  }

  const ElementMarks& marks_;
  std::string_view text_;
  const ParameterTypes* const types_;
};

}  // namespace

std::string close_of(const ElementMarks& marks, std::string_view name) {
  std::string close(marks.close);
  if (const std::size_t at = close.find(kNameInClose); at != std::string::npos) close.replace(at, kNameInClose.size(), name);
  return close;
}

bool has_nested_values(const ElementMarks& marks, TypeSet types) {
  return !types.has(TypeSet::string) && (types.bits & kCompound.bits) != 0 && marks.close.contains(kNameInClose);
}

std::optional<std::string> nested_json(const ElementMarks& marks, std::string_view text, std::string_view name,
                                       const ParameterTypes* types) {
  return NestedElements(marks, text, types).read(name);
}

}  // namespace uma::chat
