// Wakes a coroutine on its own thread. Not thread-safe: notify() must be called on that thread, too.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/awaitable.h"

namespace uma::server {

class Wakeup {
 public:
  explicit Wakeup(boost::asio::io_context& io) : timer_(io) {}

  // Returns after the next notify(), or when the wait is cancelled. An earlier notify() is not remembered, so the caller checks
  // its condition right before it waits.
  Awaitable<void> wait() {
    timer_.expires_at(boost::asio::steady_timer::time_point::max());
    co_await timer_.async_wait(kAwait);
  }
  void notify() { timer_.cancel(); }

 private:
  boost::asio::steady_timer timer_;
};

}  // namespace uma::server
