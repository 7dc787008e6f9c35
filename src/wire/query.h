// Reads the query of a URL: name=value pairs joined by &.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::wire {

// The first value of that name, with %XX decoded and + as a blank; empty if absent. The result may contain any bytes.
[[nodiscard]] std::string query_value(std::string_view query, std::string_view name);

// Parses decimal digits with an optional minus; nullopt for other text and for numbers above 64 bits.
[[nodiscard]] std::optional<std::int64_t> query_integer(std::string_view value);

// The number of that name; `fallback` if it is absent or empty. Errors: E_PROTO_003 for anything but a number from `low` to
// `high`.
[[nodiscard]] Expected<std::int64_t> query_number(std::string_view query, std::string_view name, std::int64_t fallback,
                                                  std::int64_t low, std::int64_t high);

}  // namespace uma::wire
