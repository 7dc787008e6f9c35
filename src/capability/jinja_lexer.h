// Cuts the source of a template into tokens, with Jinja's control of white space: `-` and `+` in tags, and the options
// trim_blocks and lstrip_blocks, which are on for chat templates. Comments and raw blocks end here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace uma::capability::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    text,  // between tags
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
  std::string value;  // of a string: what it stands for; of the others: as written, integers and floats without "_"
  std::int32_t line = 0;
};

// The last token is `end`. Throws TemplateError.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

}  // namespace uma::capability::jinja
