// Bytes to be sent to one client. Engine threads append frames; the io thread takes and writes them.
// Thread rule: append…, is_full, is_sealed, bytes_unsent and seal may be called from any thread and never block; take and
// mark_written belong to the io thread. Invariants: (1) Between two takes the io thread is woken at most once, so a burst of
// frames costs one wake-up. (2) A frame is appended completely or not at all. (3) After seal() nothing is added. Remaining
// frames can still be taken, except answers that are drawn, which are dropped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/work/tenant_budget.h"

namespace uma::server {

class Outbox {
 public:
  // `bytes_max` is the limit of unsent bytes for droppable frames, beside the largest of them if that alone is more than half
  // of the limit: a frame that a fast client needs time for is no sign of a slow one. wake() is called from any thread, without
  // a lock, when there are bytes to take.
  // `share` counts answers until they are written; null: nothing does.
  Outbox(std::size_t bytes_max, std::function<void()> wake, RequestShare share = nullptr)
      : bytes_max_(bytes_max), wake_(std::move(wake)), share_(std::move(share)) {}

  // write(std::string& out) appends one frame to `out`. Returns false if the outbox is full; nothing was written then.
  template <class WriteT>
  bool append_unless_full(WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (!may_append()) return false;
      const std::size_t before = unsent_;
      const bool must_wake = append_locked(std::forward<WriteT>(write));
      note_droppable(unsent_ - before);
      if (!must_wake) return true;
    }
    wake();
    return true;
  }

  // Like append_unless_full, but ignores the limit.
  template <class WriteT>
  void append(WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (!append_locked(std::forward<WriteT>(write))) return;
    }
    wake();
  }

  // Appends the last frame of the request with the client's `id`. The io thread learns of the end before it writes the frame.
  template <class WriteT>
  void append_last(const std::string& id, WriteT&& write) {
    {
      const MutexLock lock(mutex_);
      if (sealed_) return;
      finished_ids_.push_back(id);
      if (!append_locked(std::forward<WriteT>(write))) return;
    }
    wake();
  }

  // Like append_unless_full, for frames that may be long: they are moved, because engine threads wait for the lock.
  bool append_long_unless_full(std::string frames);
  // Appends a whole answer. Errors: E_LIMIT_003, there is no room for an answer of more than 64 KiB; nothing was written then.
  [[nodiscard]] Expected<Unit> append_answer(const std::string& id, std::string frame);
  // Like append_answer, but ignores the limit.
  void append_last_answer(const std::string& id, std::string frame);

  // Adds a long answer to the request with the client's `id`, generated as the client reads. Whenever nothing else waits, the
  // io thread calls draw(out), which appends the next frames and returns false after the last ones.
  using Draw = MoveOnlyFunction<bool(std::string& out)>;
  void append_drawn(const std::string& id, Draw draw);

  // Moves frames appended since the last take to the ends of `bytes` and `finished_ids`, and arms the next wake-up: all frames,
  // or those up to a long answer. Nothing is left once it moves nothing. If there are none, draws a part of a long answer.
  void take(std::string& bytes, std::vector<std::string>& finished_ids);
  // Reports that `bytes` of the taken bytes were sent to the client.
  void mark_written(std::size_t bytes);

  [[nodiscard]] std::size_t bytes_unsent() const;  // Appended and not yet marked as written.
  [[nodiscard]] bool is_full() const { return bytes_unsent() >= bytes_max_; }
  void seal();
  // Whether what is appended is dropped.
  [[nodiscard]] bool is_sealed() const;

 private:
  // Returns true if the caller must wake the io thread after releasing the lock.
  template <class WriteT>
  bool append_locked(WriteT&& write) REQUIRES_LOCK(mutex_) {
    if (sealed_) return false;
    const std::size_t before = bytes_.size();
    write(bytes_);
    unsent_ += bytes_.size() - before;
    return !std::exchange(wake_sent_, true);
  }

  // Whether there is space for a droppable frame, which note_droppable() counts.
  [[nodiscard]] bool may_append() const REQUIRES_LOCK(mutex_) { return unsent_ < bytes_max_ + large_frame_; }
  void note_droppable(std::size_t frame) REQUIRES_LOCK(mutex_) {
    if (frame > bytes_max_ / 2) large_frame_ = std::max(large_frame_, frame);
  }
  // Appends frames as append_locked does, without copying many bytes.
  bool put_locked(std::string frames) REQUIRES_LOCK(mutex_);

  void wake();
  // Counts the unsent bytes, beyond what every connection may have.
  [[nodiscard]] Expected<Unit> count(std::size_t bytes) REQUIRES_LOCK(mutex_);

  const std::size_t bytes_max_;
  const std::function<void()> wake_;
  const RequestShare share_;

  mutable Mutex mutex_;
  std::deque<std::string> older_
      GUARDED_BY(mutex_);  // Frames before `bytes_`: long ones, and those before them. None is empty.
  std::string bytes_ GUARDED_BY(mutex_);
  std::vector<std::string> finished_ids_ GUARDED_BY(mutex_);
  struct Drawn {
    std::string id;
    Draw draw;
  };
  std::deque<Drawn> drawn_ GUARDED_BY(mutex_);  // Served in turn.
  std::size_t unsent_ GUARDED_BY(mutex_) = 0;
  std::size_t large_frame_ GUARDED_BY(mutex_) = 0;  // Bytes of the largest droppable frame; 0: none was large.
  bool is_counted_ GUARDED_BY(mutex_) = false;
  bool wake_sent_ GUARDED_BY(mutex_) = false;
  bool sealed_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::server
