// Virtual time for actors that run as if each had a thread of its own: an event queue, and a thread per actor of which exactly
// one runs at a time, handing the turn on. A sleeping actor keeps its stack, so that an engine object can be in the middle of a
// call while others go on. Who runs next follows from the events alone: the same seed repeats every step.
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
    std::uint64_t generation_ = 0;  // events of earlier ones are void
    bool can_be_woken_ = false;
    std::thread thread_;
  };

  Timeline() = default;
  ~Timeline() override;

  // Tells `on_now`, where one is set, that the actor `asked_by` looks at the clock: it may sleep there.
  [[nodiscard]] TimePoint now() const override;
  void watch_clock_of(const Actor& asked_by, std::function<void()> on_now);

  // Runs `event` at a time that has not passed, on whichever thread has the turn; events take no time and do not sleep.
  void at(TimePoint time, std::function<void()> event);
  // Adds an actor, which begins to run within run(). `body` returns once is_stopping().
  Actor& add_actor(std::function<void(Actor&)> body);

  // --- Of the running actor.
  void spend(Actor& self, Duration time) { sleep(self, time_ + time, false); }
  // Until `until`, kNever included, or wake().
  void wait(Actor& self, TimePoint until) { sleep(self, until, true); }
  [[nodiscard]] bool is_stopping() const { return is_stopping_; }

  // --- Of the running actor or event, for another actor.
  // Ends its wait(), if it is in one.
  void wake(Actor& actor);
  // Moves the end of its spend(); kNever: until it is moved again.
  void move_end(Actor& actor, TimePoint end);

  // Runs events until there are none, then stops the actors. Called once, by the thread that made the timeline.
  void run();

 private:
  struct Entry {
    TimePoint time;
    std::uint64_t number;  // of two at one time the first comes first
    Actor* actor;          // null: an event
    std::uint64_t generation;
    std::shared_ptr<std::function<void()>> event;
    bool operator>(const Entry& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  void sleep(Actor& self, TimePoint until, bool can_be_woken);
  void schedule(Actor& actor, TimePoint time);
  // Runs events until one is of an actor; null: there are none left.
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
