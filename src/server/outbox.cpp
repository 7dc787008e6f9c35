#include "server/outbox.h"

#include <iterator>

#include "base/check.h"

namespace uma::server {
namespace {

constexpr std::size_t kFreeBytes = 65'536;  // Bytes of a connection that are not counted.

}  // namespace

void Outbox::append_drawn(const std::string& id, Draw draw) {
  {
    const MutexLock lock(mutex_);
    if (sealed_) return;
    drawn_.push_back({id, std::move(draw)});
    if (std::exchange(wake_sent_, true)) return;
  }
  wake();
}

bool Outbox::append_long_unless_full(std::string frames) {
  {
    const MutexLock lock(mutex_);
    if (!may_append()) return false;
    note_droppable(frames.size());
    if (!put_locked(std::move(frames))) return true;
  }
  wake();
  return true;
}

Expected<Unit> Outbox::append_answer(const std::string& id, std::string frame) {
  {
    const MutexLock lock(mutex_);
    if (sealed_) return Unit{};
    // A short answer is never refused, since what it tells has happened.
    auto counted = count(unsent_ + frame.size());
    if (!counted && frame.size() > kFreeBytes) return counted;
    finished_ids_.push_back(id);
    if (!put_locked(std::move(frame))) return Unit{};
  }
  wake();
  return Unit{};
}

void Outbox::append_last_answer(const std::string& id, std::string frame) {
  {
    const MutexLock lock(mutex_);
    if (sealed_) return;
    (void)count(unsent_ + frame.size());
    finished_ids_.push_back(id);
    if (!put_locked(std::move(frame))) return;
  }
  wake();
}

bool Outbox::put_locked(std::string frames) {
  if (frames.size() <= kFreeBytes) return append_locked([&](std::string& out) { out += frames; });
  if (sealed_) return false;
  unsent_ += frames.size();
  if (!bytes_.empty()) older_.push_back(std::exchange(bytes_, {}));
  older_.push_back(std::move(frames));
  return !std::exchange(wake_sent_, true);
}

Expected<Unit> Outbox::count(std::size_t bytes) {
  const bool is_counted = share_ != nullptr && bytes > kFreeBytes;
  if (!is_counted && !is_counted_) return Unit{};
  auto counted = share_->resize(is_counted ? bytes : 0);
  if (counted) is_counted_ = is_counted;
  return counted;
}

// If the wake-up fails, the next frame tries again.
void Outbox::wake() {
  try {
    wake_();
  } catch (...) {
    const MutexLock lock(mutex_);
    wake_sent_ = false;
    throw;
  }
}

void Outbox::take(std::string& bytes, std::vector<std::string>& finished_ids) {
  Drawn drawn;
  {
    const MutexLock lock(mutex_);
    wake_sent_ = false;
    std::string& first = older_.empty() ? bytes_ : older_.front();
    if (bytes.empty()) {
      bytes.swap(first);  // Both buffers keep their capacity, so that a steady stream allocates nothing.
    } else {
      bytes.append(first);
    }
    first.clear();
    if (!older_.empty()) older_.pop_front();
    finished_ids.insert(finished_ids.end(), std::make_move_iterator(finished_ids_.begin()),
                        std::make_move_iterator(finished_ids_.end()));
    finished_ids_.clear();
    if (!bytes.empty() || drawn_.empty()) return;
    drawn = std::move(drawn_.front());
    drawn_.pop_front();
  }
  const bool has_more = drawn.draw(bytes);
  const MutexLock lock(mutex_);
  unsent_ += bytes.size();
  if (!has_more) {
    finished_ids.push_back(std::move(drawn.id));
  } else if (!sealed_) {
    drawn_.push_back(std::move(drawn));
  }
}

void Outbox::mark_written(std::size_t bytes) {
  const MutexLock lock(mutex_);
  UMA_CHECK(bytes <= unsent_);
  unsent_ -= bytes;
  if (is_counted_) (void)count(unsent_);
}

std::size_t Outbox::bytes_unsent() const {
  const MutexLock lock(mutex_);
  return unsent_;
}

bool Outbox::is_sealed() const {
  const MutexLock lock(mutex_);
  return sealed_;
}

void Outbox::seal() {
  std::deque<Drawn> given_up;  // Destroyed without the lock.
  const MutexLock lock(mutex_);
  sealed_ = true;
  given_up.swap(drawn_);
}

}  // namespace uma::server
