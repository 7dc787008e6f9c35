// What the connections of one server share. Io thread only, but for what says otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>

#include <boost/asio/io_context.hpp>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/service.h"
#include "server/flush_queue.h"

namespace uma::server {

class Connection;

// Counts connections that owe their client something, for wait_idle(). Thread-safe.
class BusyCount {
 public:
  void add(int amount) {
    {
      const MutexLock lock(mutex_);
      count_ += amount;
    }
    changed_.notify_all();
  }
  // False when the count was not 0 at any moment until `deadline`.
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

// A number of its own for each connection of any door (GenerateRequest::client). Thread-safe.
[[nodiscard]] inline std::uint64_t next_client_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

struct ServerState {
  boost::asio::io_context& io;
  Service& service;
  const Limits limits;
  const std::shared_ptr<FlushQueue> flushes;

  // What all imports hold together; shared with the files that the engine still reads.
  const std::shared_ptr<ByteBudget> imports = std::make_shared<ByteBudget>(limits.transfer_bytes_max);

  // Every connection reads through this buffer, so that an idle one holds none.
  std::array<char, 65'536> read_buffer;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool draining = false;

  BusyCount busy;           // any thread
  Gauge connections_count;  // written here, read by any thread
};

}  // namespace uma::server
