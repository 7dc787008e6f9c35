// A server for one protocol: its listeners, its connections and their thread. For an orderly stop, call stop_accepting(),
// wait_idle(limit) and stop(). After stop() the server makes no more calls of the service, and sinks and replies that the
// engine still holds do nothing. Thread-safe, but not to be called from the service's replies and events.
#pragma once

#include <cstddef>

#include "base/clock.h"

namespace uma::server {

class Server {
 public:
  virtual ~Server() = default;  // Calls stop().
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Says from now on that the server will stop soon, where clients can ask (/ready); everything is still served.
  virtual void announce_stop() {}
  // Closes the listeners. Connected clients stay and get the rest of their answers; new generations are refused.
  virtual void stop_accepting() = 0;
  // Waits until no request is in flight and every answer is written; returns false if `limit` passes first.
  [[nodiscard]] virtual bool wait_idle(Duration limit) = 0;
  // Closes every connection, cancels requests in flight and ends the thread.
  virtual void stop() = 0;

  [[nodiscard]] virtual std::size_t connections_count() const = 0;

 protected:
  Server() = default;
};

}  // namespace uma::server
