#include "chat/calls/written_calls.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chat/calls/call_pattern.h"

namespace uma::chat {
namespace {

using jinja::Text;
using jinja::Value;

std::string as_json(const Value& value) {
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the request's size is bounded.
  return jinja::to_json(value, {}, budget).bytes();
}

// Appends a literal of Python, with texts in double quotes.
void append_python(std::string& out, const Value& value) {
  if (const bool* boolean = value.as_boolean()) {
    out += *boolean ? "True" : "False";
  } else if (value.is_none()) {
    out += "None";
  } else if (const jinja::List* list = value.as_list()) {
    out += '[';
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_python(out, list->items[i]);
    }
    out += ']';
  } else if (const jinja::Dict* dict = value.as_dict()) {
    out += '{';
    for (std::size_t i = 0; i < dict->entries.size(); ++i) {
      const auto& [key, item] = dict->entries[i];
      out += (i == 0 ? "" : ", ") + as_json(key.value()) + ": ";
      append_python(out, item);
    }
    out += '}';
  } else {
    out += as_json(value);
  }
}

std::string arguments_text(const CallForm& form, const Value& arguments) {
  const jinja::Dict* dict = arguments.as_dict();
  if (dict == nullptr) return arguments.as_text() == nullptr ? "" : arguments.as_text()->bytes();
  if (form.style == ArgumentStyle::json) return as_json(arguments);
  UMA_CHECK(form.style == ArgumentStyle::loose);
  std::string text = "(";
  for (const auto& [key, item] : dict->entries) {
    text += (text.size() == 1 ? "" : ", ") + key->bytes() + "=";
    append_python(text, item);
  }
  return text + ")";
}

std::string function_text(const Family& family, const CallForm& form, const CalledFunction& call) {
  std::string text;
  for (const PatternPart& part : pattern_of(family.function)) {
    if (part.kind == PatternPart::Kind::name) {
      const std::string name = as_json(Value::text(std::string_view(call.name)));
      text += name.substr(1, name.size() - 2);  // The object has the quotes.
    } else if (part.kind == PatternPart::Kind::id) {
      text += call.id;
    } else {
      text += part.kind == PatternPart::Kind::arguments ? arguments_text(form, call.arguments) : part.text;
    }
  }
  return text;
}

// `call` is null beside a call.
void append_form(Text& out, const Family& family, const CallForm& form, std::string_view form_text, const CalledFunction* call,
                 std::size_t index, jinja::Source source) {
  for (const PatternPart& part : pattern_of(form_text)) {
    const auto append_input = [&](std::string text) { out.append(Text::input(std::move(text), source)); };
    switch (part.kind) {
      case PatternPart::Kind::text:
        out.append(part.text);
        break;
      case PatternPart::Kind::blanks:
        for (const char c : part.text) {
          if (c != '\t') out.append(std::string_view(&c, 1));
        }
        break;
      case PatternPart::Kind::line:
        out.append("\n");
        break;
      case PatternPart::Kind::index:
        out.append(std::to_string(index));
        break;
      case PatternPart::Kind::name:
        append_input(call->name);
        break;
      case PatternPart::Kind::id:
        append_input(call->id);
        break;
      case PatternPart::Kind::any:
        break;
      case PatternPart::Kind::arguments:
        append_input(arguments_text(form, call->arguments));
        break;
      case PatternPart::Kind::function:
        append_input(function_text(family, form, *call));
        break;
    }
  }
}

}  // namespace

Text written_calls(const Family& family, std::span<const CalledFunction> calls, jinja::Source source) {
  const CallForm& form = family.calls.front();
  Text text;
  append_form(text, family, form, form.open, nullptr, 0, source);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) append_form(text, family, form, form.between, nullptr, 0, source);
    append_form(text, family, form, form.call, &calls[i], i + 1, source);
  }
  append_form(text, family, form, form.close, nullptr, 0, source);
  return text;
}

}  // namespace uma::chat
