// Memory for states that has been used before. Saving a state into memory that the system has to provide first takes ten times
// as long where the machine is a virtual one (docs/decisions/0017), and streams wait for it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"

namespace uma::kv {

class BytePool {
 public:
  // Keeps at most so many bytes that nobody uses.
  explicit BytePool(std::uint64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}

  // From now on; what is too much is freed.
  void limit_idle(std::uint64_t bytes_max);
  [[nodiscard]] std::uint64_t idle_bytes() const;

  // Empty, with room for `bytes`: memory that was used before where there is some.
  [[nodiscard]] Bytes take(std::size_t bytes);
  // Whether the next `count` of take() would find some.
  [[nodiscard]] bool has(std::size_t bytes, std::size_t count = 1) const;
  void give(Bytes bytes);
  // Whether it may keep so many.
  [[nodiscard]] bool can_keep(std::size_t bytes, std::size_t count) const;
  // New memory for give(), which its owner has to use first.
  [[nodiscard]] static Bytes make(std::size_t bytes);

 private:
  // Room is given in sizes a fifth apart, so that what one state leaves fits the next, a little longer one.
  [[nodiscard]] static std::size_t room_for(std::size_t bytes);

  void free_excess(std::vector<Bytes>& freed) REQUIRES_LOCK(mutex_);

  mutable Mutex mutex_;
  std::uint64_t idle_bytes_max_ GUARDED_BY(mutex_);
  std::map<std::size_t, std::vector<Bytes>> idle_ GUARDED_BY(mutex_);  // by room
  std::uint64_t idle_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::kv
