// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace uma::cli {

[[nodiscard]] std::string human_bytes(double bytes);                       // "512 B", "1.4 MiB"
[[nodiscard]] std::string short_bytes(double bytes);                       // At most 4 characters: "512", "1.4M", "23G".
[[nodiscard]] std::string human_age(std::int64_t seconds);                 // "12 s", "5 min", "3 h", "8 d"
[[nodiscard]] std::string human_number(double number);                     // At most 3 decimals, without trailing zeros.
[[nodiscard]] std::string count_of(std::int64_t n, const char* singular);  // "1 turn", "2 turns"

}  // namespace uma::cli
