#include "server/http/agent_headers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

namespace uma::server {
namespace {

namespace http = boost::beast::http;

// Where a program names its agents. An empty name: the program has no such header.
struct AgentHeaders {
  std::string_view program;
  bool is_common;          // Others have a header of this name, too: the program must say so in its User-Agent.
  std::string_view run;    // Header of the whole conversation, sub-agents included.
  std::string_view agent;  // Header of one agent in it; without this header it is the conversation's first one.
  std::string_view parent;
};
// The first one that a request has counts.
constexpr std::array<AgentHeaders, 6> kHeaders = {{
    {"", false, "", "X-Dynamo-Session-ID", "X-Dynamo-Parent-Session-ID"},
    {"claude-code", false, "X-Claude-Code-Session-Id", "X-Claude-Code-Agent-Id", "X-Claude-Code-Parent-Agent-Id"},
    {"codex", true, "", "Thread-Id", "X-Codex-Parent-Thread-Id"},
    {"codex", true, "", "Session-Id", "X-Codex-Parent-Thread-Id"},
    {"opencode", true, "", "X-Session-Id", "X-Parent-Session-Id"},
    {"copilot", false, "", "X-Interaction-Id", ""},
}};

std::string value_of(const http::fields& head, std::string_view name) {
  if (name.empty()) return {};
  const std::string_view value = head[name];
  const bool is_printable = std::ranges::all_of(value, [](char c) { return c > ' ' && c <= '~'; });
  return is_printable && value.size() <= Agent::kNameBytesMax ? std::string(value) : std::string();
}

bool is_from(const http::fields& head, std::string_view program) {
  const std::string_view name = head[http::field::user_agent];
  const auto is_same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return !std::ranges::search(name, program, is_same).empty();
}

}  // namespace

Agent agent_of(const http::fields& head) {
  for (const AgentHeaders& headers : kHeaders) {
    const std::string run = value_of(head, headers.run);
    const std::string agent = value_of(head, headers.agent);
    if (run.empty() && (agent.empty() || !headers.run.empty())) continue;
    std::string parent = value_of(head, headers.parent);
    if (headers.is_common && parent.empty() && !is_from(head, headers.program)) continue;
    if (parent == (agent.empty() ? run : agent)) parent.clear();
    Agent found{.program = std::string(headers.program), .id = agent.empty() ? run : agent, .parent = parent};
    if (found.parent.empty() && !run.empty() && found.id != run) found.parent = run;
    found.run = !run.empty() ? run : found.parent.empty() ? found.id : found.parent;
    return found;
  }
  return {};
}

}  // namespace uma::server
