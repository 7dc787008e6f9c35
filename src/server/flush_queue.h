// Connections whose outbox waits to be written. Engine threads push, the io thread flushes: one wake-up for a whole burst.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/mutex.h"

namespace uma::server {

// Something with bytes to write; flush() is called on the io thread.
class Flushable {
 public:
  virtual ~Flushable() = default;
  virtual void flush() = 0;
};

// push from any thread, the rest on the io thread. Shared: outboxes outlive the server while the engine still holds a sink;
// after close() they push into nothing.
class FlushQueue : public std::enable_shared_from_this<FlushQueue> {
 public:
  explicit FlushQueue(boost::asio::io_context& io) : io_(io) {}

  void push(std::weak_ptr<Flushable> connection);
  void close();

  // Memory for the one handler that is posted at a time, so that a wake-up allocates nothing.
  struct HandlerMemory {
    alignas(std::max_align_t) std::byte bytes[256];
    bool in_use = false;
  };

 private:
  void post() REQUIRES_LOCK(mutex_);
  void flush_all();

  boost::asio::io_context& io_;
  HandlerMemory handler_memory_;  // the posting thread's while posted_ is being set, then the io thread's

  Mutex mutex_;
  std::vector<std::weak_ptr<Flushable>> waiting_ GUARDED_BY(mutex_);
  bool posted_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;

  std::vector<std::weak_ptr<Flushable>> flushing_;  // io thread
};

}  // namespace uma::server
