// What is kept of one of OpenAI's responses (ResponseRequest), which is a turn of a session, beside its messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/event.h"

namespace uma {

struct ResponseRecord {
  std::int32_t turn = 0;     // since the session's beginning
  std::string id = {};       // ResponseRequest::id
  std::string request = {};  // ResponseRequest::request
  std::int64_t created_s = 0;
  FinishReason reason = FinishReason::stop;
  std::int32_t prompt_tokens = 0;
  std::int32_t reused_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t reasoning_tokens = 0;  // of them
  bool operator==(const ResponseRecord&) const = default;
};

// Shared: the records of a session before and after a change have most of them in common.
using ResponsePtr = std::shared_ptr<const ResponseRecord>;

}  // namespace uma
