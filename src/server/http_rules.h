// What the HTTP door decides from values alone. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::server {

// The status of an answer that carries this error (docs/protocol/errors.md).
[[nodiscard]] int http_status(ErrorCode code);
// The header that says when to try again, with its end; empty where that would change nothing. A model that could not be loaded
// is tried anew after 5 s.
[[nodiscard]] constexpr std::string_view retry_header(ErrorCode code) {
  if (code == ErrorCode::model_load) return "Retry-After: 5\r\n";
  return code == ErrorCode::limit_wait ? "Retry-After: 1\r\n" : "";
}

// Whether `authority` (a Host header: a name or an address, perhaps with a port) means this machine: localhost, 127.0.0.0/8 or
// [::1]. A page of another site that has its name point to this machine (DNS rebinding) still sends that name.
[[nodiscard]] bool is_loopback_authority(std::string_view authority);

// Whether a request that says `origin` comes from a page that was served under `scheme` (http, https) and `host`. What programs
// send has no Origin.
[[nodiscard]] bool is_same_origin(std::string_view origin, std::string_view scheme, std::string_view host);

// Whether the text is what browsers send as Origin: a scheme, a host, perhaps a port, nothing behind it.
[[nodiscard]] bool is_origin(std::string_view text);

// What an Authorization header of the scheme Bearer carries; nothing where it is none.
[[nodiscard]] std::optional<std::string_view> bearer_token(std::string_view authorization);

// Whether a client's own request id may go into a header and a log: 1 to 128 letters, digits and ._-
[[nodiscard]] bool is_request_id(std::string_view text);

// The names of headers, as Access-Control-Request-Headers lists them.
[[nodiscard]] bool is_header_list(std::string_view text);

// The text for one line of a log: what is not visible ASCII is `?`, and a long one is cut.
[[nodiscard]] std::string loggable(std::string_view text);

// The path of a request's target, without its query, and with its %XX replaced; empty where it is not a path.
[[nodiscard]] std::string target_path(std::string_view target);

// What stands behind the first question mark, as it is.
[[nodiscard]] std::string_view target_query(std::string_view target);

}  // namespace uma::server
