// The weights within a prompt, as Stable Diffusion web UI writes them: (more), [less], (this much:1.3), escapes with a
// backslash, and the word BREAK, which begins a new piece. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace uma::llm {

struct PromptPart {
  std::string text;
  float weight = 1;
  bool begins_piece = false;  // BREAK stands before it.
};

// Brackets that are not closed are read as if they were closed at the end. Errors: E_PROTO_003 for what programs put into
// prompts for themselves, such as <lora:name:1>.
[[nodiscard]] Expected<std::vector<PromptPart>> read_prompt(std::string_view prompt);

}  // namespace uma::llm
