// Virtual time for actors that run like threads: an event queue, and a thread per actor of which exactly one runs at a time and
// then wakes the next. A sleeping actor keeps its stack, so that an engine object can be in the middle of a call while others
// continue. The order depends on the events only, so the same seed repeats every step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace uma::sim {

class Timeline final : public Clock {
 public:
  class Actor {
    friend class Timeline;
    std::binary_semaphore turn_{0};
    std::uint64_t generation_ = 0;  // Events of earlier generations are void.
    bool can_be_woken_ = false;
    std::thread thread_;
  };

  Timeline() = default;
  ~Timeline() override;

  // Calls `on_now`, if set, because the actor `asked_by` reads the clock; it may sleep there.
  [[nodiscard]] TimePoint now() const override;
  void watch_clock_of(const Actor& asked_by, std::function<void()> on_now);

  // Runs `event` at a time in the future, on any thread. Events take no time and do not sleep.
  void at(TimePoint time, std::function<void()> event);
  // Adds an actor, which begins to run within run(). `body` returns once is_stopping().
  Actor& add_actor(std::function<void(Actor&)> body);

  // --- For the running actor.
  void spend(Actor& self, Duration time) { sleep(self, time_ + time, false); }
  // Sleeps until `until`, which may be kNever, or until wake().
  void wait(Actor& self, TimePoint until) { sleep(self, until, true); }
  [[nodiscard]] bool is_stopping() const { return is_stopping_; }

  // --- For the running actor or event, on another actor. Ends its wait(), if it waits.
  void wake(Actor& actor);
  // Moves the end of the actor's spend(); kNever: until the next call.
  void move_end(Actor& actor, TimePoint end);

  // Runs events until there are none, then stops the actors. Called once, on the thread that made the timeline.
  void run();

 private:
  struct Entry {
    TimePoint time;
    std::uint64_t number;  // Events at the same time run in this order.
    Actor* actor;          // Null: an event.
    std::uint64_t generation;
    std::shared_ptr<std::function<void()>> event;
    bool operator>(const Entry& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  void sleep(Actor& self, TimePoint until, bool can_be_woken);
  void schedule(Actor& actor, TimePoint time);
  // Runs events until one belongs to an actor; null: there are none left.
  [[nodiscard]] Actor* next_actor();
  void give_turn_to(Actor* actor);

  TimePoint time_{std::chrono::hours(1)};
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::uint64_t entries_made_ = 0;
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor main_;
  const Actor* running_ = nullptr;
  const Actor* watched_ = nullptr;
  std::function<void()> on_now_;
  bool is_in_event_ = false;
  bool is_stopping_ = false;
};

}  // namespace uma::sim
