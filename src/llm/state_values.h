// The keys and values of a saved state, as the library writes them (libllama 0.7: one cache, positions of one sequence). Pure.
#pragma once

#include <cstddef>
#include <span>

#include "core/error.h"

namespace uma::llm {

// Whether all of them are finite. The library loads any: one that is not makes everything not finite that is computed beside
// it. Errors: E_RUNTIME_001 for one that is not finite, and for bytes of which this cannot be said.
[[nodiscard]] Expected<Unit> check_state_values(std::span<const std::byte> state);

}  // namespace uma::llm
