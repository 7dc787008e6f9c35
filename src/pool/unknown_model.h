// Requests that name a model that is not registered (docs/decisions/0050).
#pragma once

#include <cstdint>
#include <string_view>

namespace uma::pool {

// Which model answers such a request. `automatic`: the default model if the name is one of another vendor's models, or if there
// is only one model that the request can mean.
enum class UnknownModel : std::uint8_t { automatic, use_default, refuse };

// Whether a program means a hosted model by this name, as "claude-sonnet-4-5", "openai/gpt-5" or "o3". Programs ask for such
// models in side requests, whatever model their user has chosen.
[[nodiscard]] bool is_name_of_other_vendor(std::string_view name);

}  // namespace uma::pool
