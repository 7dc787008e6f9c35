// The merges of CLIP's byte pairs, one "left right" a line, the first one first. clip_merges.txt is a part of the program
// (NOTICE says whose work it is).
#pragma once

#include <string_view>

namespace uma::llm {

[[nodiscard]] std::string_view clip_merges();

}  // namespace uma::llm
