// The bytes on their way to one client. Engine threads append frames, the io thread takes and writes them.
// Thread rule: append…, is_full, bytes_unsent and seal from any thread, never blocking; take and mark_written from the io
// thread. Invariants: (1) between two takes the io thread is woken at most once, however many frames come: a burst costs one
// wake-up. (2) A frame is whole or not there. (3) After seal() nothing is added; what is there can still be taken, but
// for long answers, which are given up.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace uma::server {

class Outbox {
 public:
  // `bytes_max` bounds droppable frames by what is unsent. wake() is called from any thread, without a lock held, when there is
  // something to take.
  Outbox(std::size_t bytes_max, std::function<void()> wake) : bytes_max_(bytes_max), wake_(std::move(wake)) {}

  // write(std::string& out) appends one frame to `out`. False when the outbox is full: nothing was written.
  template <class WriteT>
  bool append_unless_full(WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (unsent_ >= bytes_max_) return false;
      if (!append_locked(std::forward<WriteT>(write))) return true;
    }
    wake_();
    return true;
  }

  // The same, however full the outbox is.
  template <class WriteT>
  void append(WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (!append_locked(std::forward<WriteT>(write))) return;
    }
    wake_();
  }

  // The last frame of the request that the client calls `id`: the io thread hears that it is over before it writes the frame.
  template <class WriteT>
  void append_last(const std::string& id, WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (sealed_) return;
      finished_ids_.push_back(id);
      if (!append_locked(std::forward<WriteT>(write))) return;
    }
    wake_();
  }

  // A long answer to the request that the client calls `id`, made as the client reads: whenever nothing else waits, draw(out)
  // appends its next frames to `out`, on the io thread; false: those were the last.
  using Draw = std::move_only_function<bool(std::string& out)>;
  void append_drawn(const std::string& id, Draw draw);

  // Moves what was appended since the last take to the ends of `bytes` and `finished_ids`, and arms the next wake-up. Where
  // that is nothing, some of a long answer is drawn.
  void take(std::string& bytes, std::vector<std::string>& finished_ids);
  // `bytes` of those taken have left for the client.
  void mark_written(std::size_t bytes);

  [[nodiscard]] std::size_t bytes_unsent() const;  // appended and not yet marked as written
  [[nodiscard]] bool is_full() const { return bytes_unsent() >= bytes_max_; }
  void seal();

 private:
  // True when the caller must wake the io thread, after it has let go of the lock.
  template <class WriteT>
  bool append_locked(WriteT&& write) REQUIRES_LOCK(mutex_) {
    if (sealed_) return false;
    const std::size_t before = bytes_.size();
    write(bytes_);
    unsent_ += bytes_.size() - before;
    return !std::exchange(wake_sent_, true);
  }

  const std::size_t bytes_max_;
  const std::function<void()> wake_;

  mutable Mutex mutex_;
  std::string bytes_ GUARDED_BY(mutex_);
  std::vector<std::string> finished_ids_ GUARDED_BY(mutex_);
  struct Drawn {
    std::string id;
    Draw draw;
  };
  std::deque<Drawn> drawn_ GUARDED_BY(mutex_);  // in turn
  std::size_t unsent_ GUARDED_BY(mutex_) = 0;
  bool wake_sent_ GUARDED_BY(mutex_) = false;
  bool sealed_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::server
