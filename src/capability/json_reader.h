// JSON as the values of chat templates: tools, a message's fields, the arguments of calls.
#pragma once

#include <optional>
#include <string_view>

#include "capability/jinja_value.h"

namespace uma::capability {

// Nothing where the text is no JSON, is nested too deep (wire::parse_json), or holds a NUL character.
// Texts are input of `source`. Integers keep 64 bits, larger ones become floats.
[[nodiscard]] std::optional<jinja::Value> read_json(std::string_view text, jinja::Source source);

}  // namespace uma::capability
