// The calls of a catalog as values, on their way to its thread. For the catalogs that queue them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "kv/catalog/catalog.h"

namespace uma::kv::calls {

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
