// The agent that a request's headers name (core/agent.h).
#pragma once

#include <boost/beast/http/fields.hpp>

#include "core/agent.h"

namespace uma::server {

// Reads the headers of Claude Code, Codex, opencode, GitHub Copilot and of NVIDIA's Dynamo, which any program may send
// (docs/protocol/http.md). Unknown if there are none, or if one is empty, too long or not printable.
[[nodiscard]] Agent agent_of(const boost::beast::http::fields& head);

}  // namespace uma::server
