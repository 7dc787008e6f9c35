// The keys file of the HTTP listener. It has the SHA-256 of each key, never a key. A key is 256 random bits, so a plain digest
// reveals nothing.
//
// One key per line; `#` begins a comment:
//   NAME sha256:64-HEX-DIGITS [tenant=NAME] [requests_per_minute=N] [tokens_per_minute=N] [deadline_ms=N] [admin=true]
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "core/error.h"
#include "core/ids.h"

namespace uma::server {

struct ApiKey {
  std::string name = {};  // Name of the key in the log.
  Sha256Digest digest{};
  TenantId tenant = {};                  // "key:NAME" where the line names none.
  std::int64_t requests_per_minute = 0;  // 0: no limit.
  std::int64_t tokens_per_minute = 0;    // Prompt and reply tokens together; 0: no limit.
  std::optional<std::int64_t> deadline_ms =
      std::nullopt;       // For generations that state none; nullopt: limits.deadline_ms; 0: no limit.
  bool is_admin = false;  // May administer this daemon: HttpRoute::is_administrative.
  bool operator==(const ApiKey&) const = default;
};

// Parses the text of a keys file. Errors name the line. Pure.
[[nodiscard]] Expected<std::vector<ApiKey>> parse_api_keys(std::string_view text);

// Reads and parses a keys file. Errors name the path.
[[nodiscard]] Expected<std::vector<ApiKey>> read_api_keys(const std::string& path);

struct NewKey {
  std::string key;   // The key itself, for the client. It is stored nowhere else.
  std::string line;  // The line for the keys file.
};
// `options` are those of the line; its name and digest are not used, and an empty tenant is the key's own. Errors: an invalid
// name or option, or no entropy.
[[nodiscard]] Expected<NewKey> make_api_key(const std::string& name, const ApiKey& options = {});

// The text of a keys file without the line of this key, if it has one. Pure.
[[nodiscard]] std::string without_api_key(std::string_view text, std::string_view name);

}  // namespace uma::server
