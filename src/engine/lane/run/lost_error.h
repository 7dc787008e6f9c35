// The error of every request for a model that has lost a device.
#pragma once

#include <string>

#include "core/error.h"

namespace uma::engine {

// `loss`: as of the context.
[[nodiscard]] inline Error lost_error(const std::string& loss) {
  return {ErrorCode::runtime_decode, loss + "; the requests of its models have ended: send the request again"};
}

}  // namespace uma::engine
