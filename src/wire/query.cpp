#include "wire/query.h"

#include <algorithm>
#include <charconv>
#include <format>

namespace uma::wire {

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name) || pair.size() == name.size() || pair[name.size()] != '=') continue;
    const std::string_view encoded = pair.substr(name.size() + 1);
    std::string value;
    for (std::size_t i = 0; i < encoded.size(); ++i) {
      unsigned byte = 0;
      const char* const digits = encoded.data() + i + 1;
      if (encoded[i] == '%' && i + 2 < encoded.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
        value.push_back(static_cast<char>(byte));
        i += 2;
      } else {
        value.push_back(encoded[i] == '+' ? ' ' : encoded[i]);
      }
    }
    return value;
  }
  return "";
}

std::optional<std::int64_t> query_integer(std::string_view value) {
  std::int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [read_end, problem] = std::from_chars(value.data(), end, number);
  if (problem != std::errc() || read_end != end) return std::nullopt;
  return number;
}

Expected<std::int64_t> query_number(std::string_view query, std::string_view name, std::int64_t fallback, std::int64_t low,
                                    std::int64_t high) {
  const std::string stated = query_value(query, name);
  if (stated.empty()) return fallback;
  const auto number = query_integer(stated);
  if (number && *number >= low && *number <= high) return *number;
  return fail(ErrorCode::proto_field, std::format("{} must be a number from {} to {}", name, low, high));
}

}  // namespace uma::wire
