#include "base/read_number.h"

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace uma {
namespace {

// The part of a text that from_chars would look at. The C library also takes blanks, a plus sign and hexadecimal digits.
std::string_view plain_part(std::string_view text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  const std::string_view digits = text.substr(sign);
  if (digits.empty() || std::string_view("0123456789.iInN").find(digits.front()) == std::string_view::npos) return {};
  const bool is_hexadecimal = digits.starts_with("0x") || digits.starts_with("0X");
  return is_hexadecimal ? text.substr(0, sign + 1) : text;
}

// The decimal point is that of the C locale, because no program here sets LC_NUMERIC.
template <class Number>
std::from_chars_result read_with(Number (*read)(const char*, char**), const char* begin, const char* end, Number& value) {
  const std::string text(plain_part({begin, static_cast<std::size_t>(end - begin)}));
  char* stopped = nullptr;
  const int before = errno;
  errno = 0;
  const Number number = read(text.c_str(), &stopped);
  // A number too small for full precision is still a number.
  const bool is_out_of_range = errno == ERANGE && (number == 0 || std::isinf(number));
  errno = before;
  if (stopped == text.c_str()) return {begin, std::errc::invalid_argument};
  const char* const read_end = begin + (stopped - text.c_str());
  if (is_out_of_range) return {read_end, std::errc::result_out_of_range};
  value = number;
  return {read_end, std::errc()};
}

template <class Number>
std::from_chars_result read_with_library(const char* begin, const char* end, Number& value) {
  if constexpr (requires { std::from_chars(begin, end, value); }) {
    return std::from_chars(begin, end, value);
  } else {
    return read_number_by_c(begin, end, value);
  }
}

}  // namespace

std::from_chars_result read_number(const char* begin, const char* end, double& value) {
  return read_with_library(begin, end, value);
}

std::from_chars_result read_number(const char* begin, const char* end, float& value) {
  return read_with_library(begin, end, value);
}

std::from_chars_result read_number_by_c(const char* begin, const char* end, double& value) {
  return read_with(&std::strtod, begin, end, value);
}

std::from_chars_result read_number_by_c(const char* begin, const char* end, float& value) {
  return read_with(&std::strtof, begin, end, value);
}

}  // namespace uma
