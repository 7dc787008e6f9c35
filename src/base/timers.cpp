#include "base/timers.h"

#include "base/thrown.h"

namespace uma {

void Timers::run_due() {
  const TimePoint now = clock_.now();
  const std::uint64_t last = last_number_;
  auto next = calls_.begin();
  while (next != calls_.end() && next->first.first <= now) {
    if (next->first.second > last) {
      ++next;
      continue;
    }
    auto due = calls_.extract(next);
    run_noting(due.mapped().call, due.mapped().place);
    next = calls_.begin();  // The call may have cancelled any other.
  }
}

void Timer::set(TimePoint at, MoveOnlyFunction<void()> call, const std::source_location& place) {
  cancel();
  if (at == kNever) return;
  key_ = {at, ++timers_.last_number_};
  timers_.calls_.emplace(key_, Timers::Call{std::move(call), place});
}

void Timer::set_by(TimePoint at, MoveOnlyFunction<void()> call, const std::source_location& place) {
  if (!timers_.calls_.contains(key_) || at < key_.first) set(at, std::move(call), place);
}

}  // namespace uma
