// JSON as the values of chat templates: tools, the fields of a message, the arguments of calls.
#pragma once

#include <optional>
#include <string_view>

#include "jinja/value.h"

namespace uma::jinja {

// Nothing for text that is not JSON, is nested too deep (json::parse), or contains a NUL character. The texts are input of
// `source`. Integers have 64 bits; larger ones become floats.
[[nodiscard]] std::optional<Value> read_json(std::string_view text, Source source);

}  // namespace uma::jinja
