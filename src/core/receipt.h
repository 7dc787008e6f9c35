// The end of a reply as it is kept with its turn: why it ended, and its cost.
#pragma once

#include <memory>

#include "core/event.h"
#include "core/usage.h"

namespace uma {

struct Receipt {
  FinishReason reason = FinishReason::stop;
  Usage usage;
  bool operator==(const Receipt&) const = default;
};

// Shared, because successive records of a session have most turns in common.
using ReceiptPtr = std::shared_ptr<const Receipt>;

}  // namespace uma
