// UTF-8 as Unicode 15 chapter 3.9 defines it (table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma {

// Whether `text` is valid UTF-8.
[[nodiscard]] bool is_utf8(std::string_view text);

// Number of bytes at the beginning of `text` that are valid UTF-8.
[[nodiscard]] std::size_t valid_utf8_length(std::string_view text);

// Number of bytes at the end of `text` that begin an incomplete, possibly valid character: 0 to 3.
[[nodiscard]] std::size_t incomplete_utf8_tail(std::string_view text);

// Copies `text` and replaces each byte outside of a valid character by U+FFFD.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view text);

// The number of bytes of a character that begins with this one; 1 for a byte that begins none.
[[nodiscard]] std::size_t character_length(char first);

// Decodes the first character of a text that is not empty, and returns its length in bytes. What is not valid gives some
// number.
std::size_t decode_code_point(std::string_view text, char32_t& character);

// Appends the character. Requires: a Unicode scalar value.
void append_utf8(std::string& out, char32_t c);

}  // namespace uma
