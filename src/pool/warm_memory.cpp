#include "pool/warm_memory.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/text.h"

namespace uma::pool {
namespace {

constexpr Duration kDiskPatience = std::chrono::seconds(2);  // Time to wait for a disk.
constexpr Duration kDiskLookAgain = std::chrono::milliseconds(5);

std::uint64_t less(std::uint64_t from, std::uint64_t bytes) {
  return from - std::min(from, bytes);
}

}  // namespace

WarmMemory::WarmMemory(MemoryGovernor& governor, const Clock& clock)
    : governor_(governor),
      clock_(clock),
      held_(governor.reserve({.model = kName, .kind = MemoryKind::warm_kv, .bytes = 0}).value()) {}

// Memory of states beyond the allowance for transfers.
std::uint64_t WarmMemory::used() const {
  return less(host_->stored().bytes, under_way_);
}

void WarmMemory::limit(std::uint64_t at_rest) {
  limit_ = at_rest;
  host_->limit_stored({.at_rest = limit_, .in_all = held_.bytes() + under_way_});
}

// Sets the reservation to the states' limit at rest, or to the memory they take if that is more. Memory is returned only after
// it has left the states.
void WarmMemory::correct() {
  std::uint64_t kept = 0;
  do {
    kept = std::max(limit_, used());
    host_->limit_stored({.at_rest = limit_, .in_all = kept + under_way_});
  } while (used() > kept);
  if (kept > held_.bytes()) {
    log_info("memory: {} of {} are used outside of models, more than the {} that were reserved",
             readable_bytes(used() + under_way_), kName, readable_bytes(held_.bytes() + under_way_));
  }
  held_.correct(kept);
}

void WarmMemory::update(std::uint64_t under_way_bytes) {
  under_way_ = under_way_bytes;
  correct();
}

void WarmMemory::follow_use() {
  const engine::StoredStates stored = host_->stored();
  const std::uint64_t wanted = std::min(stored.bytes_max, stored.bytes + std::max(kSpare, stored.bytes / 2));
  if (wanted < limit_) {
    give_back_unused(limit_ - wanted);
  } else {
    const auto left = static_cast<std::uint64_t>(std::max<std::int64_t>(0, governor_.use().front().left()));
    grow(std::min(wanted - limit_, left / 2));
  }
}

void WarmMemory::grow(std::uint64_t bytes) {
  bytes = std::min(bytes, less(host_->stored().bytes_max, limit_));
  const Claim claim{.model = kName, .kind = MemoryKind::warm_kv, .bytes = bytes};
  bytes -= std::min(bytes, governor_.shortage(claim));
  if (bytes > 0 && held_.grow(bytes)) limit(limit_ + bytes);
}

void WarmMemory::give_back_unused(std::uint64_t bytes) {
  const std::uint64_t unused = less(limit_, host_->stored().bytes);
  if (std::min(bytes, unused) > 0) (void)give_back(std::min(bytes, unused));
}

bool WarmMemory::give_back(std::uint64_t bytes) {
  limit(less(limit_, bytes));
  const TimePoint end = clock_.now() + kDiskPatience;
  while (used() > limit_ && clock_.now() < end) std::this_thread::sleep_for(kDiskLookAgain);
  const std::uint64_t before = held_.bytes();
  correct();
  return held_.bytes() < before;
}

}  // namespace uma::pool
