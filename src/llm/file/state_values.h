// Checks the keys and values of a saved state in the library's format (libllama 0.7: one cache, positions of one sequence).
// Pure.
#pragma once

#include <cstddef>
#include <span>

#include "core/error.h"

namespace uma::llm {

// Checks that all values are finite. The library loads any value, and a value that is not finite makes everything computed
// beside it not finite. `has_grids`: as in ContextShape. Errors: E_RUNTIME_001 for a value that is not finite, and for bytes of
// unknown format.
[[nodiscard]] Expected<Unit> check_state_values(std::span<const std::byte> state, bool has_grids = false);

}  // namespace uma::llm
