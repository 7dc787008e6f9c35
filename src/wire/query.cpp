#include "wire/query.h"

#include <algorithm>
#include <charconv>

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

}  // namespace uma::wire
