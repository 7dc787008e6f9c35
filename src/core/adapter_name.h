// Names by which clients choose a model together with one of its adapters.
#pragma once

#include <string_view>

#include "core/session_info.h"

namespace uma {

// The adapter that a client means by the name "MODEL:ADAPTER", where MODEL is the model or an alias; empty: none. A name or an
// alias of the model itself names no adapter, whatever it looks like. The result is a part of `name`.
[[nodiscard]] std::string_view adapter_in_name(const ModelInfo& model, std::string_view name);

}  // namespace uma
