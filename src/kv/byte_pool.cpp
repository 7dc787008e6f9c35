#include "kv/byte_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace uma::kv {
namespace {

constexpr std::size_t kSmall = std::size_t{1} << 20;  // Smaller buffers are not worth keeping.

}  // namespace

std::size_t BytePool::room_for(std::size_t bytes) {
  if (bytes < kSmall) return bytes;
  const std::size_t quarter = std::max(std::bit_floor(bytes), kSmall) / 4;
  return (bytes + quarter - 1) / quarter * quarter;
}

std::optional<ByteBudget::Share> BytePool::reserve(std::uint64_t bytes) const {
  ByteBudget::Share share(budget_);
  return share.grow(bytes) ? std::optional(std::move(share)) : std::nullopt;
}

void BytePool::correct(ByteBudget::Share& room, std::uint64_t bytes) const {
  if (room.bytes() == 0) room = ByteBudget::Share(budget_);
  room.correct(bytes);
}

Bytes BytePool::take(std::size_t bytes) {
  const std::size_t room = room_for(bytes);
  std::vector<Bytes> freed;
  {
    const MutexLock lock(mutex_);
    if (const auto fitting = find(bytes); fitting != idle_.end()) {
      const auto found = idle_.find(fitting->first);
      Bytes taken = std::move(found->second.back());
      found->second.pop_back();
      if (found->second.empty()) idle_.erase(found);
      idle_bytes_ -= taken.capacity();
      return taken;
    }
    const std::uint64_t held = bytes_held() + room;
    free_excess(idle_bytes_ - std::min(idle_bytes_, held - std::min(held, bytes_max())), freed);
  }
  freed.clear();  // Freed before new memory is taken, and without the lock, because it takes a while.
  return make(bytes);
}

Bytes BytePool::make(std::size_t bytes) {
  Bytes made;
  made.reserve(room_for(bytes));
  return made;
}

bool BytePool::has(std::size_t bytes, std::size_t count) const {
  if (bytes < kSmall) return true;
  const MutexLock lock(mutex_);
  const auto found = find(bytes);
  return found != idle_.end() && found->second.size() >= count;
}

// The smallest buffers that fit and waste at most a third of themselves.
BytePool::Idle::const_iterator BytePool::find(std::size_t bytes) const {
  const std::size_t room = room_for(bytes);
  const auto found = idle_.lower_bound(room);
  return found != idle_.end() && found->first <= room + room / 2 ? found : idle_.end();
}

void BytePool::give(Bytes bytes) {
  const std::size_t room = bytes.capacity();
  if (room < kSmall || room != room_for(room)) return;  // The buffer is not from this pool.
  bytes.clear();
  std::vector<Bytes> freed;  // Freed without the lock.
  const MutexLock lock(mutex_);
  idle_[room].push_back(std::move(bytes));
  idle_bytes_ += room;
  free_excess(idle_bytes_max_, freed);
}

void BytePool::limit_idle(std::uint64_t bytes_max) {
  std::vector<Bytes> freed;
  const MutexLock lock(mutex_);
  idle_bytes_max_ = bytes_max;
  free_excess(idle_bytes_max_, freed);
}

std::uint64_t BytePool::idle_bytes() const {
  const MutexLock lock(mutex_);
  return idle_bytes_;
}

bool BytePool::can_keep(std::size_t bytes, std::size_t count) const {
  const MutexLock lock(mutex_);
  return room_for(bytes) * count <= idle_bytes_max_;
}

void BytePool::free_excess(std::uint64_t idle_bytes_max, std::vector<Bytes>& freed) {
  while (idle_bytes_ > idle_bytes_max) {
    auto& largest = *idle_.rbegin();
    freed.push_back(std::move(largest.second.back()));
    largest.second.pop_back();
    idle_bytes_ -= largest.first;
    if (largest.second.empty()) idle_.erase(largest.first);
  }
}

}  // namespace uma::kv
