// The Unix-socket door: one listener, its connections and their thread, "uma-io". docs/protocol/socket.md is what it speaks.
//
// To stop in good order: stop_accepting(), wait_idle(limit), stop(). `service` must outlive the server. After stop() the server
// calls it no more, and sinks and replies that the engine still holds lead nowhere.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "core/limits.h"
#include "core/service.h"
#include "server/socket_file.h"

namespace uma::server {

struct UnixServerOptions {
  std::string path = {};  // for messages only, where a socket is given that listens already
  int backlog = 1024;
  Duration idle_timeout = std::chrono::seconds(300);  // a connection with nothing in flight and no bytes; 0: never
  Limits limits = {};
};

// Thread-safe, but not to be called from the service's replies and events.
class UnixServer {
 public:
  // Listens and accepts when it returns. Errors: the path is too long, taken by a live daemon or by a file that is no socket,
  // or not writable.
  [[nodiscard]] static Expected<std::unique_ptr<UnixServer>> start(const UnixServerOptions& options, Service& service);
  // The same on a socket that listens already.
  [[nodiscard]] static Expected<std::unique_ptr<UnixServer>> start(const UnixServerOptions& options, ListeningSocket listening,
                                                                   Service& service);
  ~UnixServer();  // as stop()
  UnixServer(const UnixServer&) = delete;
  UnixServer& operator=(const UnixServer&) = delete;

  // Removes the socket where it is ours; connected clients stay, and their new generations are refused.
  void stop_accepting();
  // Waits until no request is in flight and every answer is written; false when `limit` passes first.
  [[nodiscard]] bool wait_idle(Duration limit);
  // Closes every connection, cancels what runs, ends the thread.
  void stop();

  [[nodiscard]] std::size_t connections_count() const;

 private:
  class Impl;  // keeps Asio out of this header
  explicit UnixServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace uma::server
