// Names of models that only their vendors serve.
#pragma once

#include <string_view>

namespace uma::pool {

// Whether a program means a hosted model by this name, as "claude-sonnet-4-5", "openai/gpt-5" or "o3". Programs ask for such names
// in side requests, whatever model their user has chosen.
[[nodiscard]] bool is_name_of_other_vendor(std::string_view name);

}  // namespace uma::pool
