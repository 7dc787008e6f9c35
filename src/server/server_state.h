// State shared by the connections of one server, for both protocols. Used only on its thread, unless a comment says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_set>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "core/service.h"
#include "server/flush_queue.h"

namespace uma::server {

// Counts connections with unfinished answers, for wait_idle(). Thread-safe.
class BusyCount {
 public:
  void add(int amount) {
    {
      const MutexLock lock(mutex_);
      count_ += amount;
    }
    changed_.notify_all();
  }
  // Returns false if the count was not 0 at any moment until `deadline`.
  bool wait_zero(TimePoint deadline) {
    const MutexLock lock(mutex_);
    while (count_ != 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      changed_.wait_until(mutex_, deadline);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ GUARDED_BY(mutex_) = 0;
};

// A unique number for each connection of any server (GenerateRequest::client). Thread-safe.
[[nodiscard]] inline std::uint64_t next_client_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

template <class ConnectionT>
struct ServerState {
  explicit ServerState(Service& served) : service(served) {}

  boost::asio::io_context io{1};
  Service& service;
  const std::shared_ptr<FlushQueue> flushes = std::make_shared<FlushQueue>(io);
  std::unordered_set<std::shared_ptr<ConnectionT>> connections;
  bool draining = false;

  // Any thread. Shared with generations that may outlive the server.
  const std::shared_ptr<BusyCount> busy = std::make_shared<BusyCount>();
  Gauge connections_count;  // Written by the server's thread, read by any thread.
};

}  // namespace uma::server
