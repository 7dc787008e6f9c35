// The calls of a catalog as values, on their way to its thread. For the catalogs that queue them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "kv/catalog/catalog.h"

namespace uma::kv::calls {

// A step changes, and reads, about so much before it looks for new calls; the last call may exceed it. So a change waits for a
// bounded part of what other tenants have asked for.
inline constexpr std::size_t kStepBytes = 4ul << 20;
inline constexpr std::size_t kStepReads = 16;
inline constexpr std::size_t kRowBytes = 4096;  // A change writes about so much besides its texts.

// Images that the change makes the session refer to, and those to which it refers no more. For catalogs that store images.
struct ImageChanges {
  std::vector<std::string> added;
  std::vector<std::string> removed;
};

struct Change {
  RecordPtr record;  // Null: a removal.
  RecordPtr before;
  SessionId id;
  Catalog::Done done;
  ImageChanges images{};
};
// About the bytes that the change writes.
[[nodiscard]] inline std::size_t bytes_of(const Change& change) {
  const std::size_t now = change.record == nullptr ? 0 : stored_bytes(*change.record);
  const std::size_t then = change.before == nullptr ? 0 : stored_bytes(*change.before);
  return kRowBytes + std::max(now, then) - std::min(now, then);
}

struct Reading {
  SessionId id;
  Catalog::OnRead on_read;
};

// --- Of a catalog that several daemons share.

struct Finding {
  TenantId tenant;
  std::string session;
  Catalog::OnFound on_found;
};
struct Taking {
  SessionId id;
  Catalog::OnRead on_read;
  TimePoint deadline{};
};
struct GivingUp {
  SessionId id;
};
struct Asking {
  Catalog::OnChanges on_changes;
};
using Call = std::variant<Change, Reading, Finding, Taking, GivingUp, Asking>;

}  // namespace uma::kv::calls
