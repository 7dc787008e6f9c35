#include "timeline.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace uma::sim {

Timeline::~Timeline() {
  for (const auto& actor : actors_) UMA_CHECK(!actor->thread_.joinable());
}

TimePoint Timeline::now() const {
  if (running_ != nullptr && running_ == watched_ && !is_in_event_) on_now_();
  return time_;
}

void Timeline::watch_clock_of(const Actor& asked_by, std::function<void()> on_now) {
  watched_ = &asked_by;
  on_now_ = std::move(on_now);
}

void Timeline::at(TimePoint time, std::function<void()> event) {
  UMA_CHECK(time >= time_);
  queue_.push({time, ++entries_made_, nullptr, 0, std::make_shared<std::function<void()>>(std::move(event))});
}

Timeline::Actor& Timeline::add_actor(std::function<void(Actor&)> body) {
  Actor& actor = *actors_.emplace_back(std::make_unique<Actor>());
  schedule(actor, time_);
  actor.thread_ = std::thread([this, &actor, body = std::move(body)] {
    actor.turn_.acquire();
    running_ = &actor;
    body(actor);
    UMA_CHECK(is_stopping_);
    give_turn_to(&main_);
  });
  return actor;
}

void Timeline::schedule(Actor& actor, TimePoint time) {
  ++actor.generation_;
  if (time != kNever) queue_.push({std::max(time, time_), ++entries_made_, &actor, actor.generation_, nullptr});
}

void Timeline::wake(Actor& actor) {
  if (!actor.can_be_woken_) return;
  actor.can_be_woken_ = false;
  schedule(actor, time_);
}

void Timeline::move_end(Actor& actor, TimePoint end) {
  schedule(actor, end);
}

void Timeline::sleep(Actor& self, TimePoint until, bool can_be_woken) {
  UMA_CHECK(running_ == &self && !is_in_event_);
  if (is_stopping_) return;
  schedule(self, until);
  self.can_be_woken_ = can_be_woken;
  Actor* next = next_actor();
  if (next != &self) {
    give_turn_to(next != nullptr ? next : &main_);
    self.turn_.acquire();
  }
  running_ = &self;
  self.can_be_woken_ = false;
}

Timeline::Actor* Timeline::next_actor() {
  while (!queue_.empty()) {
    const Entry entry = queue_.top();
    queue_.pop();
    if (entry.actor != nullptr && entry.generation != entry.actor->generation_) continue;
    time_ = entry.time;
    if (entry.actor != nullptr) return entry.actor;
    is_in_event_ = true;
    (*entry.event)();
    is_in_event_ = false;
  }
  return nullptr;
}

void Timeline::give_turn_to(Actor* actor) {
  running_ = nullptr;
  actor->turn_.release();
}

void Timeline::run() {
  if (Actor* first = next_actor()) {
    give_turn_to(first);
    main_.turn_.acquire();
  }
  is_stopping_ = true;
  for (const auto& actor : actors_) {
    give_turn_to(actor.get());
    main_.turn_.acquire();
    actor->thread_.join();
  }
}

}  // namespace uma::sim
