// Connections whose outbox has bytes to write. Engine threads push, the io thread flushes: one wake-up serves a whole burst.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/mutex.h"

namespace uma::server {

// An object with bytes to write; flush() is called on the io thread.
class Flushable {
 public:
  virtual ~Flushable() = default;
  virtual void flush() = 0;
};

// Any thread may call push(); all other calls are on the io thread. Shared, because the engine may hold a sink, and so an
// outbox, after the server has ended; after close() a push does nothing.
class FlushQueue : public std::enable_shared_from_this<FlushQueue> {
 public:
  explicit FlushQueue(boost::asio::io_context& io) : io_(io) {}

  void push(std::weak_ptr<Flushable> connection);
  void close();

  // Memory for the only handler posted at a time, so that a wake-up allocates nothing.
  struct HandlerMemory {
    alignas(std::max_align_t) std::byte bytes[256];
    bool in_use = false;
  };

 private:
  void post() REQUIRES_LOCK(mutex_);
  void flush_all();

  boost::asio::io_context& io_;
  HandlerMemory handler_memory_;  // Owned by the posting thread while it sets posted_, then by the io thread.

  Mutex mutex_;
  std::vector<std::weak_ptr<Flushable>> waiting_ GUARDED_BY(mutex_);
  bool posted_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;

  std::vector<std::weak_ptr<Flushable>> flushing_;  // Io thread only.
};

}  // namespace uma::server
