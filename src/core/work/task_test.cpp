#include "core/work/task.h"

#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/move_only_function.h"
#include "base/mutex.h"
#include "testing/sim_clock.h"

namespace uma {
namespace {

using ::testing::ElementsAre;

class TaskTest : public ::testing::Test {
 public:
  using Command = MoveOnlyFunction<void()>;

  TaskRunner::Post poster() {
    return [queue = queue_](Command command) {
      const MutexLock lock(queue->mutex);
      queue->commands.push_back(std::move(command));
    };
  }
  // Runs what was posted until there is nothing more; returns how many there were.
  int run() {
    int count = 0;
    while (true) {
      Command next;
      {
        const MutexLock lock(queue_->mutex);
        if (queue_->commands.empty()) return count;
        next = std::move(queue_->commands.front());
        queue_->commands.pop_front();
      }
      next();
      ++count;
    }
  }
  void advance(Duration by) {
    clock_.advance(by);
    runner_->timers().run_due();
  }
  // Waits until somebody answers replies_.back().
  auto question(const std::string& what) {
    return runner_->ask<int>([this, what](Promise<int> reply) {
      log_.push_back("ask " + what);
      replies_.push_back(std::move(reply));
    });
  }

  struct Queue {
    Mutex mutex;
    std::deque<Command> commands GUARDED_BY(mutex);
  };
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::vector<std::string> log_;
  std::vector<Promise<int>> replies_;
  testing::SimClock clock_;
  std::unique_ptr<TaskRunner> runner_ = std::make_unique<TaskRunner>(poster(), clock_);
};

// Notes when it is destroyed.
struct Trace {
  std::vector<std::string>& log;
  std::string name;
  ~Trace() { log.push_back("end of " + name); }
};

TEST_F(TaskTest, GoesOnWithTheAnswerInAPostedCommand) {
  runner_->start([](TaskTest& test) -> Task<> {
    const Expected<int> one = co_await test.question("one");
    const Expected<int> two = co_await test.question("two");
    test.log_.push_back("sum " + std::to_string(*one + *two));
  }(*this));
  EXPECT_THAT(log_, ElementsAre("ask one"));
  replies_.at(0)(1);
  EXPECT_THAT(log_, ElementsAre("ask one")) << "not from within the answer";
  EXPECT_EQ(run(), 1);
  replies_.at(1)(2);
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(log_, ElementsAre("ask one", "ask two", "sum 3"));
  EXPECT_EQ(runner_->size(), 0U);
}

TEST_F(TaskTest, TasksAwaitTasksAndPassErrorsOn) {
  struct Steps {
    static Task<Expected<int>> half(TaskTest& test) {
      const Expected<int> all = co_await test.question("number");
      if (!all) co_return all.error();
      if (*all % 2 != 0) co_return Error{ErrorCode::proto_field, "odd"};
      co_return *all / 2;
    }
    static Task<> tell(TaskTest& test) {
      for (int i = 0; i < 3; ++i) {
        const Expected<int> value = co_await half(test);
        test.log_.push_back(value ? std::to_string(*value) : value.error().message);
      }
    }
  };
  runner_->start(Steps::tell(*this));
  replies_.at(0)(8);
  run();
  replies_.at(1)(7);
  run();
  replies_.at(2)(fail(ErrorCode::io_failed, "no number"));
  run();
  EXPECT_THAT(log_, ElementsAre("ask number", "4", "ask number", "odd", "ask number", "no number"));
}

TEST_F(TaskTest, AnEndedTaskIsDestroyedWhereItWaitsAndHearsNoAnswer) {
  struct Steps {
    static Task<> inner(TaskTest& test) {
      const Trace trace{test.log_, "inner"};
      (void)co_await test.question("never");
      test.log_.push_back("never here");
    }
    static Task<> outer(TaskTest& test) {
      const Trace trace{test.log_, "outer"};
      co_await inner(test);
    }
  };
  const std::uint64_t id = runner_->start(Steps::outer(*this));
  runner_->end(id);
  EXPECT_THAT(log_, ElementsAre("ask never", "end of inner", "end of outer"));
  replies_.at(0)(1);
  run();
  EXPECT_EQ(log_.size(), 3U);
  runner_->end(id);
}

TEST_F(TaskTest, AnAnswerThatWasPostedWhenTheTaskEndedIsNotHeard) {
  const std::uint64_t id = runner_->start([](TaskTest& test) -> Task<> {
    (void)co_await test.question("it");
    test.log_.push_back("never here");
  }(*this));
  replies_.at(0)(1);
  runner_->end(id);
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(log_, ElementsAre("ask it"));
}

TEST_F(TaskTest, WhoNeverAnswersAnswersWithAnError) {
  runner_->start([](TaskTest& test) -> Task<> {
    const Expected<int> value = co_await test.question("it");
    test.log_.push_back(value ? "?" : "failed");
  }(*this));
  replies_.clear();
  run();
  EXPECT_THAT(log_, ElementsAre("ask it", "failed"));
}

TEST_F(TaskTest, WhatATaskThrowsIsThrownWhereItIsAwaitedAndCountedAtTheEnd) {
  struct Steps {
    static Task<int> thrower(TaskTest& test) {
      (void)co_await test.question("it");
      throw std::runtime_error("broken");
      co_return 1;
    }
    static Task<> catcher(TaskTest& test) {
      try {
        (void)co_await thrower(test);
      } catch (const std::runtime_error& error) {
        test.log_.emplace_back(error.what());
      }
    }
    static Task<> dropper(TaskTest& test) { (void)co_await thrower(test); }
  };
  const std::uint64_t before = thrown_count();
  runner_->start(Steps::catcher(*this));
  replies_.at(0)(1);
  run();
  EXPECT_THAT(log_, ElementsAre("ask it", "broken"));
  EXPECT_EQ(thrown_count(), before);
  runner_->start(Steps::dropper(*this));
  replies_.at(1)(1);
  run();
  EXPECT_EQ(thrown_count(), before + 1);
  EXPECT_EQ(runner_->size(), 0U);
}

TEST_F(TaskTest, WhatAskingThrowsIsThrownByTheQuestion) {
  runner_->start([](TaskTest& test) -> Task<> {
    try {
      (void)co_await test.runner_->ask<int>([](Promise<int>) { throw std::runtime_error("not asked"); });
    } catch (const std::runtime_error& error) {
      test.log_.emplace_back(error.what());
    }
  }(*this));
  run();
  EXPECT_THAT(log_, ElementsAre("not asked"));
}

TEST_F(TaskTest, AnswersAReplyWithItsResultAlsoWhereItThrows) {
  std::vector<std::string> told;
  const auto tell = [&](const Expected<int>& value) { told.push_back(value ? std::to_string(*value) : "failed"); };
  runner_->answer<int>(tell, [](TaskTest& test) -> Task<Expected<int>> { co_return co_await test.question("it"); }(*this));
  replies_.at(0)(5);
  run();
  runner_->answer<int>(tell, [](TaskTest& test) -> Task<Expected<int>> {
    (void)co_await test.question("it");
    throw std::runtime_error("broken");
    co_return 1;
  }(*this));
  replies_.at(1)(5);
  run();
  EXPECT_THAT(told, ElementsAre("5", "failed"));
}

TEST_F(TaskTest, ARunnerEndsTheTasksThatWait) {
  runner_->start([](TaskTest& test) -> Task<> {
    const Trace trace{test.log_, "it"};
    (void)co_await test.question("it");
  }(*this));
  runner_.reset();
  EXPECT_THAT(log_, ElementsAre("ask it", "end of it"));
  replies_.at(0)(1);
  run();
}

TEST_F(TaskTest, AnswersComeFromOtherThreads) {
  runner_->start([](TaskTest& test) -> Task<> {
    for (int i = 0; i < 100; ++i) {
      const std::thread::id before = std::this_thread::get_id();
      const Expected<int> value = co_await test.runner_->ask<int>(
          [i](Promise<int> reply) { std::thread([i, reply = std::move(reply)]() mutable { reply(i); }).join(); });
      if (*value != i || before != std::this_thread::get_id()) test.log_.push_back("wrong");
    }
    test.log_.push_back("done");
  }(*this));
  run();
  EXPECT_THAT(log_, ElementsAre("done"));
}

TEST_F(TaskTest, WaitsForAnAnswerAsLongAsItMay) {
  const auto ask_twice = [](TaskTest& test) -> Task<> {
    for (int i = 0; i < 2; ++i) {
      const auto answer = co_await test.runner_->ask_until<int>(
          test.clock_.now() + std::chrono::seconds(5), [&](Promise<int> reply) { test.replies_.push_back(std::move(reply)); });
      test.log_.push_back(answer ? std::to_string(**answer) : "late");
    }
  };
  runner_->start(ask_twice(*this));
  advance(std::chrono::seconds(4));
  replies_.at(0)(1);
  run();
  advance(std::chrono::seconds(4));
  EXPECT_THAT(log_, ElementsAre("1")) << "the first limit ends nothing any more";
  advance(std::chrono::seconds(1));
  EXPECT_THAT(log_, ElementsAre("1", "late"));
  replies_.at(1)(2);
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(log_, ElementsAre("1", "late"));
  EXPECT_EQ(runner_->size(), 0u);
}

TEST_F(TaskTest, WakingManyTakesNoStack) {
  int done = 0;
  for (int i = 0; i < 100'000; ++i) {
    runner_->start([](TaskTest& test, int& count) -> Task<> {
      (void)co_await test.runner_->ask<int>([&](Promise<int> reply) { test.replies_.push_back(std::move(reply)); });
      if (!test.replies_.empty()) {
        Promise<int> next = std::move(test.replies_.back());
        test.replies_.pop_back();
        next(0);
      }
      ++count;
    }(*this, done));
  }
  Promise<int> first = std::move(replies_.back());
  replies_.pop_back();
  first(0);
  run();
  EXPECT_EQ(done, 100'000);
}

}  // namespace
}  // namespace uma
