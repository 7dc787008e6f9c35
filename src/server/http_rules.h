// What the HTTP door decides from values alone. Pure.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::server {

// The status of an answer that carries this error (docs/PROTOCOL.md).
[[nodiscard]] int http_status(ErrorCode code);

// Whether `authority` (a Host header: a name or an address, perhaps with a port) means this machine: localhost, 127.0.0.0/8 or
// [::1]. A page of another site that has its name point to this machine (DNS rebinding) still sends that name.
[[nodiscard]] bool is_loopback_authority(std::string_view authority);

// Whether a request that says `origin` comes from a page that was served under `host`. Nothing else may use the door: what
// programs send has no Origin.
[[nodiscard]] bool is_same_origin(std::string_view origin, std::string_view host);

// The path of a request's target, without its query, and with its %XX replaced; empty where it is not a path.
[[nodiscard]] std::string target_path(std::string_view target);

// What stands behind the first question mark, as it is.
[[nodiscard]] std::string_view target_query(std::string_view target);

}  // namespace uma::server
