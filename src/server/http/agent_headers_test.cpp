#include "server/http/agent_headers.h"

#include <initializer_list>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

Agent named_by(std::initializer_list<std::pair<const char*, std::string>> headers) {
  boost::beast::http::fields head;
  for (const auto& [name, value] : headers) head.set(name, value);
  return agent_of(head);
}

TEST(AgentHeaders, NameTheAgentsOfClaudeCode) {
  EXPECT_EQ(named_by({{"x-claude-code-session-id", "s"}}), (Agent{.program = "claude-code", .id = "s", .run = "s"}));
  EXPECT_EQ(named_by({{"x-claude-code-session-id", "s"}, {"x-claude-code-agent-id", "a"}}),
            (Agent{.program = "claude-code", .id = "a", .parent = "s", .run = "s"}));
  EXPECT_EQ(
      named_by({{"x-claude-code-session-id", "s"}, {"x-claude-code-agent-id", "b"}, {"x-claude-code-parent-agent-id", "a"}}),
      (Agent{.program = "claude-code", .id = "b", .parent = "a", .run = "s"}));
}

TEST(AgentHeaders, NameThreadsAndTheirParents) {
  EXPECT_EQ(named_by({{"user-agent", "Codex_cli_rs/0.1"}, {"thread-id", "t"}, {"session-id", "s"}}),
            (Agent{.program = "codex", .id = "t", .run = "t"}));
  EXPECT_EQ(named_by({{"session-id", "t"}, {"x-codex-parent-thread-id", "p"}}),
            (Agent{.program = "codex", .id = "t", .parent = "p", .run = "p"}));
  EXPECT_EQ(named_by({{"x-session-id", "t"}, {"x-parent-session-id", "p"}}),
            (Agent{.program = "opencode", .id = "t", .parent = "p", .run = "p"}));
  EXPECT_EQ(named_by({{"x-interaction-id", "i"}}), (Agent{.program = "copilot", .id = "i", .run = "i"}));
  EXPECT_EQ(named_by({{"x-dynamo-session-id", "d"}, {"x-session-id", "t"}}), (Agent{.id = "d", .run = "d"}));
}

TEST(AgentHeaders, WhatIsNoNameNamesNobody) {
  EXPECT_FALSE(named_by({}).is_known());
  EXPECT_FALSE(named_by({{"x-interaction-id", ""}}).is_known());
  EXPECT_FALSE(named_by({{"x-interaction-id", "a b"}}).is_known());
  EXPECT_FALSE(named_by({{"x-interaction-id", std::string(Agent::kNameBytesMax + 1, 'x')}}).is_known());
  EXPECT_FALSE(named_by({{"x-parent-session-id", "p"}}).is_known());
  EXPECT_FALSE(named_by({{"x-session-id", "t"}, {"user-agent", "Mozilla/5.0"}}).is_known()) << "it may be a proxy's secret";
  EXPECT_EQ(named_by({{"x-session-id", "t"}, {"user-agent", "opencode/1.2 ai-sdk"}}).program, "opencode");
  EXPECT_EQ(named_by({{"x-session-id", "t"}, {"x-parent-session-id", "t"}, {"user-agent", "opencode"}}).parent, "");
  EXPECT_FALSE(named_by({{"x-claude-code-agent-id", "a"}}).is_known());
}

}  // namespace
}  // namespace uma::server
