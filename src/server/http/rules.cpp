#include "server/http/rules.h"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <format>
#include <netinet/in.h>
#include <ranges>

#include "base/sha256.h"
#include "base/text.h"

namespace uma::server {
namespace {

bool equals_ignoring_case(std::string_view left, std::string_view right) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
  return std::ranges::equal(left, right, {}, lower, lower);
}

// Whether the text may follow a colon as a port: empty, or digits.
bool is_port(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::proto_json:
    case ErrorCode::proto_frame:
    case ErrorCode::proto_field:
    case ErrorCode::proto_type:
    case ErrorCode::proto_id_in_flight:
    case ErrorCode::limit_prompt:
    case ErrorCode::limit_context:
    case ErrorCode::model_capability:
      return 400;
    case ErrorCode::limit_sessions:
    case ErrorCode::limit_quota:
      return 429;
    case ErrorCode::limit_wait:
    case ErrorCode::model_load:
      return 503;
    case ErrorCode::model_unknown:
    case ErrorCode::session_unknown:
      return 404;
    case ErrorCode::session_busy:
    case ErrorCode::session_name_taken:
      return 409;
    case ErrorCode::auth:
      return 401;
    case ErrorCode::runtime_decode:
    case ErrorCode::io_failed:
    case ErrorCode::outcome_unknown:
      break;
  }
  return 500;
}

bool is_local_authority(std::string_view authority) {
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view port = authority.substr(end + 1);
    if (!port.empty() && (port.front() != ':' || !is_port(port.substr(1)))) return false;
    in6_addr address{};
    const std::string text(authority.substr(1, end - 1));
    return ::inet_pton(AF_INET6, text.c_str(), &address) == 1 && IN6_IS_ADDR_UNSPECIFIED(&address) == 0;
  }
  if (const std::size_t colon = authority.find(':'); colon != std::string_view::npos) {
    if (!is_port(authority.substr(colon + 1))) return false;
    authority = authority.substr(0, colon);
  }
  const std::string name = lower_ascii(authority);
  if (name == "localhost" || name.ends_with(".localhost") || name.ends_with(".internal")) return true;
  in_addr address{};
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 && address.s_addr != INADDR_ANY;
}

bool is_host_among(std::string_view authority, std::span<const std::string> names) {
  const std::size_t end =
      authority.starts_with('[') ? authority.find(']') + 1 : std::min(authority.find(':'), authority.size());
  const std::string_view port = authority.substr(end);
  if (end == 0 || (!port.empty() && (port.front() != ':' || !is_port(port.substr(1))))) return false;
  return std::ranges::any_of(
      names, [host = authority.substr(0, end)](const std::string& name) { return equals_ignoring_case(host, name); });
}

bool is_same_origin(std::string_view origin, std::string_view scheme, std::string_view host) {
  if (host.empty() || !origin.starts_with(scheme)) return false;
  origin.remove_prefix(scheme.size());
  constexpr std::string_view kSeparator = "://";
  return origin.starts_with(kSeparator) && equals_ignoring_case(origin.substr(kSeparator.size()), host);
}

bool is_origin(std::string_view text) {
  const std::size_t scheme_end = text.find("://");
  const std::string_view scheme = text.substr(0, scheme_end);
  if (scheme_end == std::string_view::npos || scheme.empty()) return false;
  const std::string_view authority = text.substr(scheme_end + 3);
  const auto is_scheme_char = [](char c) { return is_letter_or_digit(c) || c == '+' || c == '-' || c == '.'; };
  const auto is_authority_char = [](char c) { return is_letter_or_digit(c) || std::string_view(".-_:[]").contains(c); };
  return !authority.empty() && std::ranges::all_of(scheme, is_scheme_char) && std::ranges::all_of(authority, is_authority_char);
}

std::optional<std::string_view> bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (!equals_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' ', kScheme.size()), authorization.size()));
  if (authorization.empty()) return std::nullopt;
  return authorization;
}

bool is_request_id(std::string_view text) {
  constexpr std::size_t kBytesMax = 128;
  const auto is_allowed = [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= kBytesMax && std::ranges::all_of(text, is_allowed);
}

bool lists_value(std::string_view list, std::string_view value) {
  for (const auto part : std::views::split(list, ',')) {
    const std::string_view entry(part);
    const std::size_t end = entry.find(';');
    if (!equals_ignoring_case(trim(entry.substr(0, end)), value)) continue;
    const std::string_view parameter = end == std::string_view::npos ? "" : trim(entry.substr(end + 1));
    const bool is_refused = parameter.starts_with("q=0") && parameter.find_first_not_of("0.", 2) == std::string_view::npos;
    return !is_refused;
  }
  return false;
}

bool is_fetched_by_other_site(std::string_view site, std::string_view mode, std::string_view destination) {
  const bool is_of_other = site == "cross-site" || site == "same-site";
  return is_of_other && !(mode == "navigate" && destination == "document");
}

bool is_header_list(std::string_view text) {
  constexpr std::size_t kBytesMax = 4096;
  const auto is_allowed = [](char c) { return is_letter_or_digit(c) || std::string_view("-_, ").contains(c); };
  return !text.empty() && text.size() <= kBytesMax && std::ranges::all_of(text, is_allowed);
}

std::string loggable(std::string_view text) {
  constexpr std::size_t kBytesMax = 256;
  std::string out(text.substr(0, kBytesMax));
  std::ranges::replace_if(out, [](char c) { return c <= ' ' || c > '~'; }, '?');
  return out;
}

std::string target_path(std::string_view target) {
  target = target.substr(0, target.find('?'));
  if (!target.starts_with('/')) return "";
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path.push_back(target[i]);
      continue;
    }
    unsigned byte = 0;
    const char* const digits = target.data() + i + 1;
    if (i + 2 >= target.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return "";
    path.push_back(static_cast<char>(byte));
    i += 2;
  }
  return path;
}

bool is_messages_path(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  return path == kMessages || (path.starts_with(kMessages) && path[kMessages.size()] == '/');
}

std::string etag_of(std::string_view bytes) {
  constexpr std::size_t kDigits = 32;
  Sha256 sum;
  sum.add(bytes);
  return std::format("\"{}\"", sum.hex().substr(0, kDigits));
}

std::string_view target_query(std::string_view target) {
  const std::size_t at = target.find('?');
  return at == std::string_view::npos ? std::string_view() : target.substr(at + 1);
}

}  // namespace uma::server
