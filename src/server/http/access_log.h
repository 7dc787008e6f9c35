// The access log of the HTTP listener: one line per request with caller, path and cost, but without contents. Server's thread
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/system/unique_fd.h"
#include "core/agent.h"
#include "core/error.h"

namespace uma::server {

struct AccessTokens {
  std::uint64_t prompt = 0;
  std::uint64_t completion = 0;
};

struct AccessRecord {
  std::string_view method = {};
  std::string_view path = {};  // Path without the query.
  int status = 0;              // 499: the client left before there was a status.
  std::size_t bytes = 0;       // Bytes of the answer that were written, including its header.
  bool is_cut = false;         // The client did not read the whole answer.
  Duration took{};
  std::string_view tenant = {};  // Empty: the caller is unknown.
  std::string_view key = {};     // Empty: no key.
  std::string_view request_id = {};
  Agent agent{};
  std::optional<AccessTokens> tokens = {};  // Nullopt: no generation has ended.
};

// The line without its newline: always one line of visible ASCII, whatever the request holds. Pure.
[[nodiscard]] std::string access_line(const AccessRecord& record);

class AccessLog {
 public:
  // `destination` is `log` (the daemon's log, level info), `off`, or a file to append to, which is created with mode 0600.
  [[nodiscard]] static Expected<AccessLog> open(const std::string& destination);

  // If the file cannot be written, the daemon's log says so once, and requests are still served.
  void write(const AccessRecord& record);

 private:
  AccessLog() = default;

  bool is_off_ = false;
  UniqueFd file_;  // Closed: use the daemon's log.
  bool is_failing_ = false;
};

}  // namespace uma::server
