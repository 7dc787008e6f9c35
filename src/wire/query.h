// What stands behind the ? of a URL: name=value, joined by &.
#pragma once

#include <string>
#include <string_view>

namespace uma::wire {

// The first value of that name, with %XX decoded, and + as a blank; empty where there is none. Any bytes may come out.
[[nodiscard]] std::string query_value(std::string_view query, std::string_view name);

}  // namespace uma::wire
