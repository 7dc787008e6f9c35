// The access log of the HTTP door: one line a request, which says who asked for what and what it cost, and never what was said.
// Server's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

struct AccessTokens {
  std::uint64_t prompt = 0;
  std::uint64_t completion = 0;
};

struct AccessRecord {
  std::string_view method = {};
  std::string_view path = {};  // without the query
  int status = 0;              // 499: the client left before there was one
  std::size_t bytes = 0;       // of the answer, its header included, that were written
  bool is_cut = false;         // the client did not take the rest
  Duration took{};
  std::string_view tenant = {};  // empty: nobody was recognised
  std::string_view key = {};     // empty: none
  std::string_view request_id = {};
  std::optional<AccessTokens> tokens = {};  // nothing: no generation has ended
};

// Without its newline. Whatever the request holds, this is one line of visible ASCII. Pure.
[[nodiscard]] std::string access_line(const AccessRecord& record);

class AccessLog {
 public:
  // `destination`: `log` (the daemon's, at info), `off`, or a file, to whose end the lines go; it is made with mode 0600.
  [[nodiscard]] static Expected<AccessLog> open(const std::string& destination);

  // A file that cannot be written is told once to the daemon's log; requests are served all the same.
  void write(const AccessRecord& record);

 private:
  AccessLog() = default;

  bool is_off_ = false;
  UniqueFd file_;  // none: the daemon's log
  bool is_failing_ = false;
};

}  // namespace uma::server
