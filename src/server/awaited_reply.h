// A reply that a connection's coroutine waits for, from whichever thread it comes.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "core/work/promise.h"
#include "server/flush_queue.h"
#include "server/wakeup.h"

namespace uma::server {

template <class T>
class AwaitedReply {
 public:
  // Wakes the connection, whose flush() notifies the wakeup of wait().
  [[nodiscard]] Promise<T> reply(std::shared_ptr<FlushQueue> flushes, std::weak_ptr<Flushable> connection) const {
    return [state = state_, flushes = std::move(flushes), connection = std::move(connection)](Expected<T> value) {
      {
        const MutexLock lock(state->mutex);
        state->value = std::move(value);
      }
      flushes->push(connection);
    };
  }
  // Nullopt: `is_open` became false first.
  Awaitable<std::optional<Expected<T>>> wait(Wakeup& wakeup, const bool& is_open) {
    while (is_open) {
      {
        const MutexLock lock(state_->mutex);
        if (state_->value) co_return std::move(state_->value);
      }
      co_await wakeup.wait();
    }
    co_return std::nullopt;
  }

 private:
  // Shared with the reply, which may come after the connection has ended.
  struct State {
    Mutex mutex;
    std::optional<Expected<T>> value GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace uma::server
