// Reads numbers that may have a fraction by std::from_chars, which libc++ 19 does not have for them.
#pragma once

#include <charconv>
#include <concepts>

namespace uma {

// Like std::from_chars with the general format or base 10.
std::from_chars_result read_number(const char* begin, const char* end, double& value);
std::from_chars_result read_number(const char* begin, const char* end, float& value);
template <std::integral Integer>
std::from_chars_result read_number(const char* begin, const char* end, Integer& value) {
  return std::from_chars(begin, end, value);
}

// The C library's reading of a number, with the same result as read_number(); declared for tests. It copies the text.
std::from_chars_result read_number_by_c(const char* begin, const char* end, double& value);
std::from_chars_result read_number_by_c(const char* begin, const char* end, float& value);

}  // namespace uma
