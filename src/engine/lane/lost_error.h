// The error of every request for a model that has lost a device.
#pragma once

#include "core/error.h"

namespace uma::engine {

[[nodiscard]] inline Error lost_error() {
  return {ErrorCode::runtime_decode, "a device of the model has failed, so its requests have ended: send the request again"};
}

}  // namespace uma::engine
