// What stands behind the ? of a URL: name=value, joined by &.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::wire {

// The first value of that name, with %XX decoded, and + as a blank; empty where there is none. Any bytes may come out.
[[nodiscard]] std::string query_value(std::string_view query, std::string_view name);

// Of decimal digits, with a minus before them or not, and nothing else; absent where it is not that, or above 64 bits.
[[nodiscard]] std::optional<std::int64_t> query_integer(std::string_view value);

}  // namespace uma::wire
