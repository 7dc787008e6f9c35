// Replays coding agents' afternoon over OpenAI's chat/completions (bench/README.md): agents with the same system prompt and
// tools call tools and read their results, title and summary requests arrive beside them, and a user chats meanwhile.
#pragma once

#include <functional>

#include "uma-bench/agent_texts.h"
#include "uma-bench/run.h"
#include "uma-bench/scenarios.h"

namespace uma::bench {

// `before_second_half` (may be empty) is called when all agents have half of their turns, while no client is connected: the
// server may be restarted meanwhile. Requires: run.endpoint().is_http.
[[nodiscard]] Outcome run_agent(Run& run, const AgentOptions& options, const std::function<void()>& before_second_half);

}  // namespace uma::bench
