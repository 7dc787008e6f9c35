// Parses URLs with libcurl's own parser, so that rules about a host apply to the host that curl will contact.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "uma-cli/result.h"

namespace uma::cli {

struct Url {
  std::string text;    // The whole URL without its fragment.
  std::string origin;  // "https://host:443", lower case.
  std::string host;    // Host name for messages.
  std::string path;    // Path as in the URL, percent-encoded.
  [[nodiscard]] bool is_https() const { return origin.starts_with("https:"); }
};

// Accepts only http and https, and no URL with a user name or password.
[[nodiscard]] Result<Url> parse_url(const std::string& text);

// A URL, or what should be one, as messages show it: without its query, its fragment, and a user name with a password, which
// may be secret.
[[nodiscard]] std::string shown_url(std::string_view text);

// False for a redirect from https to http.
[[nodiscard]] bool may_follow(const Url& from, const Url& to);

// Encodes everything but letters, digits and -._~ as %XX. `kept` lists further characters that stay.
[[nodiscard]] std::string percent_encoded(std::string_view text, std::string_view kept = "");

// Returns nullopt for a % without two hexadecimal digits.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace uma::cli
