// Wakes a coroutine on its own thread. Not thread-safe: notify() must be called on that thread, too.
#pragma once

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
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
  // Like wait(), but at most until `limit`. Returns false if that came first.
  Awaitable<bool> wait_until(TimePoint limit) {
    timer_.expires_at(limit);
    const auto [end] = co_await timer_.async_wait(kAwait);
    co_return end == boost::asio::error::operation_aborted;
  }
  void notify() { timer_.cancel(); }

 private:
  boost::asio::steady_timer timer_;
};

}  // namespace uma::server
