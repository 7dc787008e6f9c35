#include "jinja/json_reader.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "json/field_reader.h"

namespace uma::jinja {
namespace {

std::optional<Value> value_of(const boost::json::value& value, Source source);

// Nothing if the text contains a NUL character.
std::optional<Text> text_of(std::string_view text, Source source) {
  if (text.contains('\0')) return std::nullopt;
  return Text::input(std::string(text), source);
}

std::optional<Value> list_of(const boost::json::array& array, Source source) {
  std::vector<Value> items;
  for (const boost::json::value& value : array) {
    auto item = value_of(value, source);
    if (!item) return std::nullopt;
    items.push_back(std::move(*item));
  }
  return Value::list(std::move(items));
}

std::optional<Value> dict_of(const boost::json::object& object, Source source) {
  std::vector<std::pair<TextPtr, Value>> entries;
  for (const auto& [name, value] : object) {
    auto key = text_of(name, source);
    auto item = value_of(value, source);
    if (!key || !item) return std::nullopt;
    entries.emplace_back(std::make_shared<const Text>(std::move(*key)), std::move(*item));
  }
  return Value::dict(std::move(entries));
}

std::optional<Value> value_of(const boost::json::value& value, Source source) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return Value::none();
    case boost::json::kind::bool_:
      return Value::boolean(value.get_bool());
    case boost::json::kind::int64:
      return Value::integer(value.get_int64());
    case boost::json::kind::uint64:
      return Value::number(static_cast<double>(value.get_uint64()));
    case boost::json::kind::double_:
      return Value::number(value.get_double());
    case boost::json::kind::array:
      return list_of(value.get_array(), source);
    case boost::json::kind::object:
      return dict_of(value.get_object(), source);
    case boost::json::kind::string:
      break;
  }
  auto text = text_of(value.get_string(), source);
  if (!text) return std::nullopt;
  return Value::text(std::move(*text));
}

}  // namespace

std::optional<Value> read_json(std::string_view text, Source source) {
  if (!is_utf8(text)) return std::nullopt;
  boost::system::error_code problem;
  const boost::json::value value = json::parse(text, {}, problem);
  return problem ? std::nullopt : value_of(value, source);
}

}  // namespace uma::jinja
