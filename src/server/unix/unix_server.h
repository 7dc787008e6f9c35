// The Unix socket server: one listener, its connections and their thread "uma-io". docs/protocol/socket.md describes the
// protocol.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/published.h"
#include "core/limits.h"
#include "core/model_library.h"
#include "core/service.h"
#include "server/live_feed.h"
#include "server/server.h"
#include "server/socket_file.h"

namespace uma::server {

struct UnixServerOptions {
  std::string path = {};  // For messages only, if a listening socket is passed.
  int backlog = 1024;
  std::size_t connections_max = 1024;  // A user has at most half of them.
  // Limit for a connection without requests in flight and without traffic; 0: none.
  Duration idle_timeout = std::chrono::seconds(300);
  Limits limits = {};
  ModelLibrary* library = nullptr;                   // Outlives the server; null: models cannot be pulled.
  LiveFeed* live = nullptr;                          // Outlives the server; null: the daemon cannot be watched.
  const Published<std::string>* http_url = nullptr;  // Outlives the server; null, or nothing published: HTTP is off.
};

// stop_accepting() removes the socket file if the daemon created it.
class UnixServer : public Server {
 public:
  // Accepts connections when it returns. `service` outlives the server. Errors: the path is too long, not writable, or taken by
  // a live daemon or by a file that is not a socket.
  [[nodiscard]] static Expected<std::unique_ptr<UnixServer>> start(const UnixServerOptions& options, Service& service);
  // Serves on a socket that already listens.
  [[nodiscard]] static Expected<std::unique_ptr<UnixServer>> start(const UnixServerOptions& options, ListeningSocket listening,
                                                                   Service& service);
};

}  // namespace uma::server
