// Reads the query of a URL: name=value pairs joined by &.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::wire {

// The first value of that name, with %XX decoded and + as a blank; empty if absent. The result may contain any bytes.
[[nodiscard]] std::string query_value(std::string_view query, std::string_view name);

// Parses decimal digits with an optional minus; nullopt for other text and for numbers above 64 bits.
[[nodiscard]] std::optional<std::int64_t> query_integer(std::string_view value);

}  // namespace uma::wire
