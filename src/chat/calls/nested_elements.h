// Values of elements that consist of elements (ElementMarks::close with {name}): the members of an object, and the items of a
// list, which are named "item".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/calls/parameter_types.h"
#include "chat/family.h"

namespace uma::chat {

inline constexpr std::string_view kListItem = "item";

// The mark behind the value of an element of this name.
[[nodiscard]] std::string close_of(const ElementMarks& marks, std::string_view name);
// Whether values of these types are elements.
[[nodiscard]] bool has_nested_values(const ElementMarks& marks, TypeSet types);

// The JSON of the value of parameter `name`; empty: it is no list of elements. `types` may be null. Cost: linear in the text
// for each level of elements, of which there are at most 30.
[[nodiscard]] std::optional<std::string> nested_json(const ElementMarks& marks, std::string_view text, std::string_view name,
                                                     const ParameterTypes* types);

}  // namespace uma::chat
