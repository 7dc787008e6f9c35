// The outputs of tests/diffusion/make_golden.py and make_tokens.py. They are parts of the test program.
#pragma once

#include <string_view>

namespace uma::llm {

[[nodiscard]] std::string_view diffusion_golden();
[[nodiscard]] std::string_view clip_tokens_golden();

}  // namespace uma::llm
