// State shared by the connections of one Unix socket. Used only on its thread, unless a comment says otherwise.
#pragma once

#include <array>
#include <memory>

#include "base/byte_budget.h"
#include "core/limits.h"
#include "core/service.h"
#include "server/server_state.h"

namespace uma::server {

class LiveFeed;
class UnixConnection;

struct UnixState : ServerState<UnixConnection> {
  UnixState(Service& served, const Limits& given, LiveFeed* feed) : ServerState(served), limits(given), live(feed) {}

  const Limits limits;
  LiveFeed* const live;  // Null: the daemon cannot be watched.
  // Memory of all imports together; shared with the files that the engine still reads.
  const std::shared_ptr<ByteBudget> imports = std::make_shared<ByteBudget>(limits.transfer_bytes_max);
  // Every connection reads through this buffer, so that an idle connection holds none.
  std::array<char, 65'536> read_buffer;
};

}  // namespace uma::server
