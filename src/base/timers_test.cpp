#include "base/timers.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "testing/sim_clock.h"

namespace uma {
namespace {

class TimersTest : public ::testing::Test {
 protected:
  TimePoint in(int s) const { return clock_.now() + std::chrono::seconds(s); }
  auto note(char name) {
    return [this, name] { log_ += name; };
  }
  std::string after(int s) {
    clock_.advance(std::chrono::seconds(s));
    timers_.run_due();
    return log_;
  }

  testing::SimClock clock_;
  Timers timers_{clock_};
  std::string log_;
};

TEST_F(TimersTest, CallsAreMadeInTheOrderOfTheirTimes) {
  Timer late(timers_);
  Timer early(timers_);
  Timer same(timers_);
  late.set(in(3), note('l'));
  early.set(in(1), note('e'));
  same.set(in(3), note('s'));
  EXPECT_EQ(timers_.next(), in(1));
  EXPECT_EQ(after(0), "");
  EXPECT_EQ(after(1), "e");
  EXPECT_EQ(timers_.next(), in(2));
  EXPECT_EQ(after(5), "els");
  EXPECT_EQ(timers_.next(), kNever);
}

TEST_F(TimersTest, ANewTimeReplacesTheOldOne) {
  Timer timer(timers_);
  timer.set(in(1), note('a'));
  timer.set(in(2), note('b'));
  EXPECT_EQ(after(1), "");
  timer.set_by(in(3), note('c'));
  EXPECT_EQ(after(1), "b");
  timer.set_by(in(3), note('d'));
  timer.set_by(in(2), note('e'));
  EXPECT_EQ(after(2), "be");
  timer.set(kNever, note('f'));
  timer.set_by(kNever, note('g'));
  EXPECT_EQ(timers_.next(), kNever);
}

TEST_F(TimersTest, ADestroyedTimerCallsNothing) {
  std::optional<Timer> other(std::in_place, timers_);
  other->set(in(1), note('o'));
  Timer timer(timers_);
  timer.set(in(0), [&] { other.reset(); });
  EXPECT_EQ(after(1), "");
  EXPECT_EQ(timers_.next(), kNever);
}

TEST_F(TimersTest, ACallThatSetsItselfAgainEndsTheRun) {
  Timer timer(timers_);
  Timer other(timers_);
  int calls = 0;
  const std::function<void()> again = [&] {
    ++calls;
    timer.set(in(0), again);
  };
  timer.set(in(0), again);
  other.set(in(1), note('o'));
  EXPECT_EQ(after(1), "o");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(after(0), "o");
  EXPECT_EQ(calls, 2);
}

TEST_F(TimersTest, ACallThatThrowsHarmsNoOther) {
  Timer bad(timers_);
  Timer good(timers_);
  bad.set(in(0), [] { throw std::runtime_error("a call's"); });
  good.set(in(0), note('g'));
  EXPECT_EQ(after(0), "g");
}

}  // namespace
}  // namespace uma
