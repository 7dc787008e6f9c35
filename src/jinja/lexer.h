// Splits the source of a template into tokens, with Jinja's control of whitespace: `-` and `+` in tags, and the options
// trim_blocks and lstrip_blocks, which are on for chat templates. Comments and raw blocks are resolved here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace uma::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    text,  // Between tags.
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    floating,
    symbol,
    end,
  };
  Kind kind;
  std::string value;  // The content of a string; for other tokens the source text, numbers without "_".
  std::int32_t line = 0;
};

// The last token is `end`. Throws TemplateError.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

}  // namespace uma::jinja
