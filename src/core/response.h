// The stored properties of an OpenAI response (ResponseRequest). The response is a turn of a session, which has its messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/event.h"

namespace uma {

struct ResponseRecord {
  std::int32_t turn = 0;     // Counted from the session's beginning.
  std::string id = {};       // See ResponseRequest::id.
  std::string request = {};  // See ResponseRequest::request.
  std::int64_t created_s = 0;
  FinishReason reason = FinishReason::stop;
  std::int32_t prompt_tokens = 0;
  std::int32_t reused_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t reasoning_tokens = 0;  // Reasoning tokens among the completion tokens.
  bool operator==(const ResponseRecord&) const = default;
};

// Shared, because successive records of a session have most responses in common.
using ResponsePtr = std::shared_ptr<const ResponseRecord>;

}  // namespace uma
