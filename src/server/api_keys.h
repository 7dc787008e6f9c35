// The keys of the HTTP door as a file keeps them: never a key, only its SHA-256. A key is 256 bits of chance, so a plain digest
// gives nothing away.
//
// One key a line, `#` begins a comment:
//   NAME sha256:64-HEX-DIGITS [tenant=NAME] [requests_per_minute=N] [tokens_per_minute=N]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "core/error.h"
#include "core/ids.h"

namespace uma::server {

struct ApiKey {
  std::string name = {};  // what the log calls it
  Sha256Digest digest{};
  TenantId tenant = {};                  // "key:NAME" where the line names none
  std::int64_t requests_per_minute = 0;  // 0: no limit
  std::int64_t tokens_per_minute = 0;    // of prompts and replies together; 0: no limit
};

// Errors name the line. Pure.
[[nodiscard]] Expected<std::vector<ApiKey>> parse_api_keys(std::string_view text);

// The same for a file; its path is in the error.
[[nodiscard]] Expected<std::vector<ApiKey>> read_api_keys(const std::string& path);

struct NewKey {
  std::string key;   // for the client: nobody else has it
  std::string line;  // for the file
};
// Errors: a name that no line may have, or no entropy.
[[nodiscard]] Expected<NewKey> make_api_key(const std::string& name);

}  // namespace uma::server
