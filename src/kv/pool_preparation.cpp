#include "kv/pool_preparation.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace uma::kv {

void PoolPreparation::expect(std::size_t bytes, std::size_t count, TimePoint now) {
  if (!is_wanted_) begin(bytes, count, now);
}

void PoolPreparation::want(std::size_t bytes, TimePoint now) {
  begin(bytes, 1, now);
  is_wanted_ = true;
}

void PoolPreparation::begin(std::size_t bytes, std::size_t count, TimePoint now) {
  if (bytes != bytes_) stop();
  bytes_ = bytes;
  count_ = count;
  next_ = now;
}

void PoolPreparation::step(bool has_room, TimePoint now, Duration pause) {
  constexpr std::size_t kStep = std::size_t{2} << 20;
  if (!has_room || pool_.has(bytes_, count_)) return stop();
  if (memory_.empty()) {
    auto room = pool_.reserve(BytePool::room_for(bytes_));
    if (!room) return stop();
    room_ = std::move(*room);
    memory_ = BytePool::make(bytes_);
    memory_.resize(memory_.capacity());
  }
  const std::size_t step = std::min(kStep, memory_.size() - used_);
  std::memset(memory_.data() + used_, 0, step);
  used_ += step;
  if (used_ == memory_.size()) {
    pool_.give(std::exchange(memory_, {}));
    room_ = {};
    used_ = 0;
  }
  next_ = is_wanted_ ? now : now + pause;
}

void PoolPreparation::stop() {
  bytes_ = count_ = used_ = 0;
  is_wanted_ = false;
  memory_ = {};
  room_ = {};
  next_ = kNever;
}

}  // namespace uma::kv
