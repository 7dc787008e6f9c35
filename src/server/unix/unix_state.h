// State shared by the connections of one Unix socket. Used only on its thread, unless a comment says otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/published.h"
#include "core/limits.h"
#include "core/service.h"
#include "core/work/tenant_budget.h"
#include "server/connection_shares.h"
#include "server/server_state.h"

namespace uma::server {

class LiveFeed;
class UnixConnection;

struct UnixState : ServerState<UnixConnection> {
  UnixState(Service& served, const Limits& given, LiveFeed* feed, std::size_t most, const Published<std::string>* url)
      : ServerState(served), limits(given), live(feed), connections_max(most), http_url(url) {}

  const Limits limits;
  LiveFeed* const live;  // Null: the daemon cannot be watched.
  const std::size_t connections_max;
  const Published<std::string>* const http_url;  // See UnixServerOptions.
  ConnectionShares shares{connections_max};
  // Memory of all imports together: a tenant may hold half of it, which is enough for a file of limits.transfer_bytes_max.
  const std::shared_ptr<TenantBudget> imports = std::make_shared<TenantBudget>(
      2 * std::uint64_t{limits.transfer_bytes_max}, "session files being imported", "twice limits.transfer_bytes_max");
  // Every connection reads through this buffer, so that an idle connection holds none.
  std::array<char, 65'536> read_buffer;
};

}  // namespace uma::server
