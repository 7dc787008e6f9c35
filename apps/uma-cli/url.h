// Web addresses, read by libcurl's own parser: what we decide about a host is decided about the host that curl will ask.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "uma-cli/result.h"

namespace uma::cli {

struct Url {
  std::string text;    // whole, without a fragment
  std::string origin;  // "https://host:443", lower case
  std::string host;    // for messages
  std::string path;    // as it stands in the address, percent-encoded
  [[nodiscard]] bool is_https() const { return origin.starts_with("https:"); }
};

// Only http and https, and no address that carries a user's name or password.
[[nodiscard]] Result<Url> parse_url(const std::string& text);

// A redirect may not lead from https to http.
[[nodiscard]] bool may_follow(const Url& from, const Url& to);

// Everything but letters, digits and -._~ becomes %XX; `kept` names further characters that stay.
[[nodiscard]] std::string percent_encoded(std::string_view text, std::string_view kept = "");

// Nothing for a % without two hexadecimal digits.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace uma::cli
