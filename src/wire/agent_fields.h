// The agent that a request's fields name (core/agent.h). An agent that headers name replaces it.
#pragma once

#include "core/agent.h"
#include "json/field_reader.h"

namespace uma::wire {

// The first of: `prompt_cache_key` (OpenAI), the session in `metadata` (`session_id` or `sessionId`, or in the text of
// Anthropic's `user_id`), `metadata.user_id`, `user`. The last two are shared names.
// What is no such name is ignored: no request is refused for it.
[[nodiscard]] Agent agent_of_fields(const json::FieldReader& fields);

}  // namespace uma::wire
