// Checks before a request's body is read: framing, Host, Origin, key, and limits of the key.
#include <algorithm>
#include <chrono>
#include <format>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/field.hpp>

#include "base/clock.h"
#include "server/http/http_connection.h"
#include "server/http/rules.h"

namespace uma::server {

namespace http = boost::beast::http;

namespace {

// The key of a request: in Authorization, or in x-api-key as Anthropic's clients send it. Both may be there if they are equal.
std::optional<std::string_view> key_of(const http::fields& head) {
  constexpr std::string_view kApiKey = "x-api-key";
  const auto bearer =
      head.count(http::field::authorization) == 1 ? bearer_token(head[http::field::authorization]) : std::nullopt;
  if (head.count(http::field::authorization) > 1 || head.count(kApiKey) > 1) return std::nullopt;
  if (head.count(kApiKey) == 0) return bearer;
  const std::string_view key = head[kApiKey];
  return bearer && *bearer != key ? std::nullopt : std::optional(key);
}

}  // namespace

std::optional<HttpConnection::Refusal> HttpConnection::check_head(const Parser& parser) {
  const auto& head = parser.get();
  const auto bad = [](std::string message) { return Refusal{400, {ErrorCode::proto_field, std::move(message)}}; };
  const std::size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) return bad("the request must have exactly one Host header");
  // With keys, a page whose name points here (DNS rebinding) has no access, and a proxy may use any name.
  if (hosts == 1 && !server_.keys.are_needed() && !peer_.is_local && !is_local_authority(head[http::field::host]) &&
      !is_host_among(head[http::field::host], server_.options.allowed_hosts)) {
    return Refusal{
        403,
        {ErrorCode::auth,
         "without keys the Host header must be localhost, an address, a name below .internal or one of http.allowed_hosts: add "
         "the name there if it is yours"}};
  }
  // The parser takes equal lengths for one.
  if (head.count(http::field::content_length) > 1 || head[http::field::content_length].contains(',')) {
    return bad("the request must have one Content-Length");
  }
  // The parser handles chunked only; another coding before it would be taken for the body.
  const bool has_codings = head.count(http::field::transfer_encoding) > 0;
  if (has_codings && (head.count(http::field::transfer_encoding) > 1 ||
                      !boost::beast::iequals(head[http::field::transfer_encoding], "chunked"))) {
    return bad("unsupported transfer coding: use chunked");
  }
  if (has_codings && head.version() < 11) return bad("an HTTP/1.0 request must not have a transfer coding");
  if (head.count(http::field::content_encoding) > 0 &&
      !boost::beast::iequals(head[http::field::content_encoding], "identity")) {
    return Refusal{415, {ErrorCode::proto_field, "compressed bodies are not supported: send the body uncompressed"}};
  }
  return std::nullopt;
}

std::optional<HttpConnection::Refusal> HttpConnection::check_origin(const Parser& parser) {
  const auto& head = parser.get();
  const auto other_page = [] {
    return Refusal{
        403,
        {ErrorCode::auth, "requests from web pages of other origins are refused: add the page's origin to http.cors_origins"}};
  };
  // Images, scripts and frames of a page are fetched without Origin.
  if (head.count(http::field::origin) == 0) {
    const bool is_of_other = is_fetched_by_other_site(head["Sec-Fetch-Site"], head["Sec-Fetch-Mode"], head["Sec-Fetch-Dest"]);
    return is_of_other ? std::optional(other_page()) : std::nullopt;
  }
  const std::string_view origin = head[http::field::origin];
  if (head.count(http::field::origin) == 1 && std::ranges::contains(server_.options.cors_origins, origin)) {
    current_.cors_header = std::format(
        "Access-Control-Allow-Origin: {}\r\n"
        "Access-Control-Expose-Headers: x-request-id, request-id, x-uma-node, x-uma-session, x-uma-warning, "
        "x-uma-schema-left-out, retry-after, "
        "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
        "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n"
        "Vary: Origin\r\n",
        origin);
    return std::nullopt;
  }
  if (head.count(http::field::origin) == 1 && is_same_origin(origin, tls_ ? "https" : "http", head[http::field::host]))
    return std::nullopt;
  return other_page();
}

// These paths do not count against a key's limits, and need no key if they are public.
bool HttpConnection::is_monitoring() const {
  return current_.path == "/health" || current_.path == "/ready" || current_.path == "/metrics";
}

std::optional<HttpConnection::Refusal> HttpConnection::check_key(const Parser& parser) {
  const auto& head = parser.get();
  current_.caller = nullptr;
  if (needs_no_key()) {
    current_.caller = server_.own_account;
    return std::nullopt;
  }
  const bool is_open = is_monitoring() && (current_.path != "/metrics" || server_.options.serves_metrics_without_key);
  if (!server_.keys.are_needed()) return is_open ? std::nullopt : std::optional(Refusal{403, *peer_.refusal});
  // The page asks for a key, so its own files need none.
  if (server_.options.page.find(current_.path) != nullptr) return std::nullopt;
  const auto refuse = [](std::string message) {
    return Refusal{401, {ErrorCode::auth, std::move(message)}, "WWW-Authenticate: Bearer\r\n"};
  };
  const auto token = key_of(head);
  if (!token) {
    if (is_open) return std::nullopt;
    return refuse("a key is required: send Authorization: Bearer KEY, or x-api-key: KEY");
  }
  // Every digest is compared completely, so that the time reveals nothing about the keys.
  const Sha256Digest digest = sha256(*token);
  const auto entries = server_.keys.entries();
  for (const KeyRing::Entry& entry : *entries) {
    if (are_equal(digest, entry.key.digest)) current_.caller = entry.account;
  }
  if (current_.caller) return take_place_of_tenant();
  if (is_open) return std::nullopt;
  return refuse("the key is not known to this server");
}

// Exchanges the connection's place for one of its tenant, whose connections are then as many as the tenant's share allows:
// where it has been used up, the one that has been idle for longest makes room.
std::optional<HttpConnection::Refusal> HttpConnection::take_place_of_tenant() {
  const std::string name = "tenant:" + tenant().value;
  if (place_ && place_->is_of(name)) return std::nullopt;
  const auto take = [&] { return server_.shares.take(name, server_.options.connections_max - server_.connections.size()); };
  auto place = take();
  if (!place) {
    std::shared_ptr<HttpConnection> oldest;
    for (const auto& other : server_.connections) {
      const bool is_idle = other->idle_since_ && other->place_ && other->place_->is_of(name);
      if (is_idle && (oldest == nullptr || *other->idle_since_ < *oldest->idle_since_)) oldest = other;
    }
    if (oldest != nullptr) {
      oldest->close();
      place = take();
    }
  }
  if (!place) {
    return Refusal{429,
                   {ErrorCode::limit_quota,
                    "the tenant of this key has as many connections as one tenant may have, and all are in use: close some"},
                   "Retry-After: 1\r\n"};
  }
  place_ = std::move(place);
  return std::nullopt;
}

std::optional<HttpConnection::Refusal> HttpConnection::check_limits(bool uses_tokens) {
  const std::optional<Duration> wait = current_.caller->take_request(SteadyClock().now(), uses_tokens);
  if (!wait) return std::nullopt;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(*wait).count();
  return Refusal{429,
                 {ErrorCode::limit_quota, std::format("the rate limit of this key is used up: try again in {} s", seconds)},
                 std::format("Retry-After: {}\r\n", seconds)};
}

}  // namespace uma::server
