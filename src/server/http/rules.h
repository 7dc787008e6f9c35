// Decisions of the HTTP server that depend on values only. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::server {

// The error of a new request while the daemon stops.
[[nodiscard]] inline Error stopping_error() {
  return {ErrorCode::limit_wait, "the daemon is stopping and accepts no new requests"};
}

// The HTTP status of an error (docs/protocol/errors.md).
[[nodiscard]] int http_status(ErrorCode code);
// The Retry-After header as one line; empty if a retry would fail again. A model that failed to load is tried again after 5 s.
[[nodiscard]] constexpr std::string_view retry_header(ErrorCode code) {
  if (code == ErrorCode::model_load) return "Retry-After: 5\r\n";
  return code == ErrorCode::limit_wait ? "Retry-After: 1\r\n" : "";
}

// Whether no page of another site can have `authority` (a Host header: a name or address with an optional port): an address,
// localhost, or a name below .localhost or .internal, which no public name server answers for (RFC 6761; ICANN's resolution of
// 2024-07-29): containers call the machine host.docker.internal. A page whose name resolves to this machine (DNS rebinding)
// sends that name.
[[nodiscard]] bool is_local_authority(std::string_view authority);

// Whether the host of `authority` is one of `names`, whatever its port. Case does not matter.
[[nodiscard]] bool is_host_among(std::string_view authority, std::span<const std::string> names);

// Whether the request with this `origin` comes from a page that was served under `scheme` (http, https) and `host`. Programs
// send no Origin.
[[nodiscard]] bool is_same_origin(std::string_view origin, std::string_view scheme, std::string_view host);

// Whether the text has the form of a browser's Origin: scheme, host and optional port, without a path.
[[nodiscard]] bool is_origin(std::string_view text);

// The token of a Bearer Authorization header; nullopt for another scheme.
[[nodiscard]] std::optional<std::string_view> bearer_token(std::string_view authorization);

// Whether a client's request id is safe in a header and a log: 1 to 128 letters, digits and ._-
[[nodiscard]] bool is_request_id(std::string_view text);

// Whether a header's list, such as Accept or Accept-Encoding, has this value by name, and not with the weight 0. Case does not
// matter.
[[nodiscard]] bool lists_value(std::string_view list, std::string_view value);

// Whether a browser sent the request for another site's page, not for its user who opens an address or follows a link.
// `site`, `mode` and `destination` are the headers Sec-Fetch-*; programs send none.
[[nodiscard]] bool is_fetched_by_other_site(std::string_view site, std::string_view mode, std::string_view destination);

// Whether the text is a list of header names, as in Access-Control-Request-Headers.
[[nodiscard]] bool is_header_list(std::string_view text);

// The text for one line of a log: other characters than visible ASCII become `?`, and a long text is cut.
[[nodiscard]] std::string loggable(std::string_view text);

// The path of a request's target without its query, %XX decoded; empty if the target is not a path.
[[nodiscard]] std::string target_path(std::string_view target);

// Whether the path belongs to Anthropic's Messages API, whose errors have a form of their own.
[[nodiscard]] bool is_messages_path(std::string_view path);

// The ETag of an answer with these bytes, with its quotation marks.
[[nodiscard]] std::string etag_of(std::string_view bytes);

// The undecoded text after the first question mark.
[[nodiscard]] std::string_view target_query(std::string_view target);

}  // namespace uma::server
