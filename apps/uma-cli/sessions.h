// The `sessions` commands.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

inline constexpr std::string_view kUnknownSession = "E_SESSION_001";

// An id is 32 hexadecimal digits; any other text is the name of a session.
[[nodiscard]] bool is_session_id(std::string_view text);

struct CreateSession {
  std::string name;
  std::string model;
  std::string system;
  std::string on_full;  // "error" or "shift"; empty: the daemon's default.
  std::int64_t ttl_s = 0;
  bool is_raw = false;  // Text mode, even if the model has a chat template.
};

// Each of these returns the daemon's description of the session.
Result<boost::json::object> create_session(Client& client, const CreateSession& wanted);
Result<boost::json::object> get_session(Client& client, std::string_view session);
Result<boost::json::object> fork_session(Client& client, std::string_view session, std::string_view name);
// An empty name removes the session's.
Result<boost::json::object> rename_session(Client& client, std::string_view session, std::string_view name);
Result<boost::json::object> rewind_session(Client& client, std::string_view session, std::int64_t turn);
Result<void> end_session(Client& client, std::string_view session);

// A table of sessions, the most recently used first: name (else id), the title of those without a name, and KV by tier.
[[nodiscard]] std::string session_table(const boost::json::array& sessions, std::int64_t now_s);
[[nodiscard]] std::string session_text(const boost::json::object& session, std::int64_t now_s);

// The commands. `as_json` prints the daemon's frame unchanged.
// Only the sessions that contain the words of `search` in their name, title or tags; empty: all.
Result<void> print_sessions(Client& client, std::string_view search, Output& output, bool as_json);
Result<void> print_session(Client& client, std::string_view session, Output& output, bool as_json);
Result<void> print_renamed(Client& client, std::string_view session, std::string_view name, Output& output);
Result<void> print_rewound(Client& client, std::string_view session, std::int64_t turn, Output& output);
Result<void> print_forked(Client& client, std::string_view session, std::string_view name, Output& output);

}  // namespace uma::cli
