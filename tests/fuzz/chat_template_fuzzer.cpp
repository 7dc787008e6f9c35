// Property: for any template, parse and render end soon and never crash; the result is valid UTF-8, and its ranges of user text
// are in order, disjoint and inside the text. The input is a template, followed by a NUL and a user message.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "jinja/chat_template.h"

using uma::jinja::ChatTemplate;
using uma::jinja::ChatTemplateInput;
using uma::jinja::SourceRange;
using uma::jinja::Text;
using uma::jinja::Value;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  const auto made = ChatTemplate::parse(bytes.substr(0, end));
  if (!made) {
    UMA_CHECK(!made.error().message.empty());
    return 0;
  }
  const std::string content = uma::replace_invalid_utf8(end == std::string_view::npos ? "hello" : bytes.substr(end + 1));
  const auto message = [&](std::string_view role, std::int32_t source) {
    return Value::dict({{"role", Value::text(role)}, {"content", Value::text(Text::input(content, source))}});
  };
  ChatTemplateInput input;
  input.messages = Value::list({message("system", 0), message("user", 1), message("assistant", 2), message("user", 3)});
  input.tools =
      Value::list({Value::dict({{"name", Value::text("f")}, {"strict", Value::boolean(true)}, {"n", Value::number(1.5)}})});
  input.bos_token = "<s>";
  const auto text = made->render(input);
  if (!text) {
    UMA_CHECK(!text.error().message.empty());
    return 0;
  }
  UMA_CHECK(uma::is_utf8(text->bytes()));
  std::size_t at = 0;
  for (const SourceRange& range : text->inputs()) {
    UMA_CHECK(range.begin >= at && range.begin < range.end && range.end <= text->size());
    at = range.end;
  }
  return 0;
}
