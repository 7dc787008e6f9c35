// How a lane requests the encoding of an image, and hears of it.
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"
#include "image/image_encoder.h"

namespace uma::engine {

// Encodes an image of a current request, by its id, for a tenant, and calls `then` on another thread. `end` is requested when
// nobody waits any more.
using EncodeImage = std::function<void(const TenantId& tenant, const std::string& image, std::stop_token end,
                                       MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then)>;

// The image of a tenant. Nobody has rows that were computed for another tenant, since the time that they save tells of them.
struct AskedImage {
  TenantId tenant;
  std::string image;
  auto operator<=>(const AskedImage&) const = default;
};

// An image that requests wait for has been encoded, or encoding has failed.
struct EncodedReport {
  AskedImage asked;
  Expected<image::EncodedPtr> encoded;
};

}  // namespace uma::engine
