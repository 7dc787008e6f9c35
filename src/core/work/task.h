// Straight-line code for requests: a Task is a coroutine of one thread that waits with co_await, and a TaskRunner starts tasks
// and delivers answers from other threads to them, or the news that their time is over (docs/decisions/0047).
//
// Threads: tasks and their runner belong to one thread. A Reply made by ask() may be called on any thread.
// Invariants: (1) A task that is ended, or whose runner is destroyed, is destroyed where it waits: its locals are destroyed in
// reverse order, as by an exception. (2) An answer to a task that has ended is ignored. (3) A task is resumed by a posted
// command or a timer and never from within another task, so waking many tasks uses no stack.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "base/timers.h"
#include "core/error.h"
#include "core/work/promise.h"

namespace uma {

template <class T>
class Task;

namespace detail {

class TaskPromise {
 public:
  struct ResumeAwaiter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      return ended.promise().awaiter_;
    }
    void await_resume() const noexcept {}
  };

  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] ResumeAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { thrown_ = std::current_exception(); }
  void set_awaiter(std::coroutine_handle<> awaiter) { awaiter_ = awaiter; }

 protected:
  void rethrow() {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  std::coroutine_handle<> awaiter_ = std::noop_coroutine();
  std::exception_ptr thrown_;
};

template <class T>
class ValuePromise : public TaskPromise {
 public:
  Task<T> get_return_object();
  template <class From>
  void return_value(From&& value) {
    value_.emplace(std::forward<From>(value));
  }
  T result() {
    rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

// A task that succeeds or fails may `co_return error`.
template <class T>
class ValuePromise<Expected<T>> : public TaskPromise {
 public:
  Task<Expected<T>> get_return_object();
  void return_value(Expected<T> value) { value_.emplace(std::move(value)); }
  void return_value(Error error) { value_.emplace(std::unexpected(std::move(error))); }
  Expected<T> result() {
    rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<Expected<T>> value_;
};

template <>
class ValuePromise<void> : public TaskPromise {
 public:
  Task<void> get_return_object();
  void return_void() const noexcept {}
  void result() { rethrow(); }
};

}  // namespace detail

// Starts when it is awaited, by exactly one awaiter, which gets its exceptions.
template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::ValuePromise<T>;

  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

  auto operator co_await() && {
    struct Awaiter {
      std::coroutine_handle<promise_type> frame;
      [[nodiscard]] bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiter) const noexcept {
        frame.promise().set_awaiter(awaiter);
        return frame;
      }
      T await_resume() const { return frame.promise().result(); }
    };
    UMA_CHECK(frame_);
    return Awaiter{frame_};
  }

 private:
  std::coroutine_handle<promise_type> frame_;
};

namespace detail {

template <class T>
Task<T> ValuePromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<ValuePromise<T>>::from_promise(*this));
}
template <class T>
Task<Expected<T>> ValuePromise<Expected<T>>::get_return_object() {
  return Task<Expected<T>>(std::coroutine_handle<ValuePromise<Expected<T>>>::from_promise(*this));
}
inline Task<void> ValuePromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<ValuePromise<void>>::from_promise(*this));
}

}  // namespace detail

// The result of a concurrent task (TaskRunner::begin).
template <class T>
class [[nodiscard]] Started {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return state_->result.has_value(); }
  void await_suspend(std::coroutine_handle<> asker) { state_->asker = asker; }
  Expected<T> await_resume() { return std::move(*state_->result); }

  Started(Started&&) = default;
  Started& operator=(Started&&) = default;
  ~Started() {
    if (state_) state_->asker = nullptr;
  }

 private:
  friend class TaskRunner;
  // Shared with the task.
  struct State {
    std::coroutine_handle<> asker;  // Null: nobody waits.
    std::optional<Expected<T>> result;
  };
  explicit Started(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

class TaskRunner {
  template <class T, class Begin>
  class Question;
  template <class T, class Begin>
  class LimitedQuestion;

 public:
  // Posts a command to the runner's thread from any thread; may drop the command once the runner's thread has ended.
  using Post = std::function<void(MoveOnlyFunction<void()>)>;

  // The clock outlives the runner.
  TaskRunner(Post post, const Clock& clock) : post_(std::move(post)), timers_(clock) {}
  TaskRunner(const TaskRunner&) = delete;
  ~TaskRunner() { end_all(); }

  // Runs the task until it first waits, and owns it until it has ended. Exceptions are logged and counted.
  std::uint64_t start(Task<> task) {
    const std::uint64_t id = ++last_id_;
    const std::coroutine_handle<> root = run(std::move(task), id).frame;
    roots_.emplace(id, root);
    root.resume();
    return id;
  }
  // Runs the task and answers with its result.
  template <class T>
  void answer(std::type_identity_t<Promise<T>> reply, Task<Expected<T>> task) {
    start(answered(std::move(reply), std::move(task)));
  }
  // Starts a concurrent task, whose result the caller may await later.
  template <class T>
  [[nodiscard]] Started<T> begin(Task<Expected<T>> task) {
    auto state = std::make_shared<typename Started<T>::State>();
    answer(Promise<T>([post = post_, state](Expected<T> result) mutable {
             state->result.emplace(std::move(result));
             post([state] {
               if (state->asker) std::exchange(state->asker, nullptr).resume();
             });
           }),
           std::move(task));
    return Started<T>(std::move(state));
  }
  // Destroys the task where it waits; does nothing if it has ended. Requires: the task is not the caller.
  void end(std::uint64_t id) {
    if (auto root = roots_.extract(id)) root.mapped().destroy();
  }

  void end_all() {
    while (!roots_.empty()) end(roots_.begin()->first);
  }

  // Waits for an answer. `begin` is called at once with a Promise, which any thread may call.
  template <class T, class Begin>
  [[nodiscard]] auto ask(Begin begin, const std::source_location& place = std::source_location::current()) {
    return Question<T, Begin>(*this, std::move(begin), place);
  }
  // Lets other tasks and commands of the thread run.
  [[nodiscard]] auto yield(const std::source_location& place = std::source_location::current()) {
    return ask<Unit>([](Promise<Unit> reply) { reply(Unit{}); }, place);
  }
  // Waits for an answer, but only until then. Nullopt: it has not come in time, and is ignored when it comes.
  template <class T, class Begin>
  [[nodiscard]] auto ask_until(TimePoint until, Begin begin,
                               const std::source_location& place = std::source_location::current()) {
    return LimitedQuestion<T, Begin>(until, *this, std::move(begin), place);
  }
  // The runner's thread calls timers().run_due() when timers().next() has come.
  [[nodiscard]] Timers& timers() { return timers_; }

  // Where the running task waited last; for logs.
  [[nodiscard]] const std::source_location& place() const { return place_; }
  [[nodiscard]] std::size_t size() const { return roots_.size(); }

 private:
  // The outermost coroutine of a task, which destroys itself at its end.
  struct Root {
    struct promise_type {
      Root get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
      [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
      [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
      void return_void() const noexcept {}
      void unhandled_exception() const noexcept { UMA_CHECK(false); }
    };
    std::coroutine_handle<> frame;
  };

  template <class T, class Begin>
  class [[nodiscard]] Question {
   public:
    Question(TaskRunner& runner, Begin begin, const std::source_location& place)
        : runner_(runner), begin_(std::move(begin)), place_(place) {}
    Question(const Question&) = delete;
    ~Question() {
      if (answer_) answer_->asker = nullptr;
    }

    [[nodiscard]] bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> asker) {
      answer_ = std::make_shared<Answer>(asker);
      begin_(Promise<T>([runner = &runner_, post = runner_.post_, answer = answer_, place = place_](Expected<T> value) mutable {
        post([runner, answer = std::move(answer), place, value = std::move(value)]() mutable {
          if (!answer->asker) return;
          answer->value.emplace(std::move(value));
          answer->wake(*runner, place);
        });
      }));
    }
    Expected<T> await_resume() { return std::move(*answer_->value); }

   protected:
    // Shared with the reply. Used on the runner's thread only, except for the pointer itself.
    struct Answer {
      std::coroutine_handle<> asker;       // Null: nobody waits any more.
      std::optional<Expected<T>> value{};  // Nullopt: it has not come in time.

      void wake(TaskRunner& runner, const std::source_location& place) {
        runner.place_ = place;
        std::exchange(asker, nullptr).resume();
      }
    };

    TaskRunner& runner_;
    Begin begin_;
    const std::source_location place_;
    std::shared_ptr<Answer> answer_;
  };

  template <class T, class Begin>
  class [[nodiscard]] LimitedQuestion : public Question<T, Begin> {
   public:
    LimitedQuestion(TimePoint until, TaskRunner& runner, Begin begin, const std::source_location& place)
        : Question<T, Begin>(runner, std::move(begin), place), until_(until), timer_(runner.timers_) {}

    void await_suspend(std::coroutine_handle<> asker) {
      Question<T, Begin>::await_suspend(asker);
      timer_.set(
          until_,
          [runner = &this->runner_, answer = this->answer_, place = this->place_] {
            if (answer->asker) answer->wake(*runner, place);
          },
          this->place_);
    }
    std::optional<Expected<T>> await_resume() { return std::move(this->answer_->value); }

   private:
    const TimePoint until_;
    Timer timer_;
  };

  Root run(Task<> task, std::uint64_t id) {
    try {
      co_await std::move(task);
    } catch (...) {
      note_thrown(place_);
    }
    roots_.erase(id);
  }

  template <class T>
  static Task<> answered(Promise<T> reply, Task<Expected<T>> task) {
    reply(co_await std::move(task));
  }

  const Post post_;
  Timers timers_;  // Outlives the tasks.
  std::unordered_map<std::uint64_t, std::coroutine_handle<>> roots_;
  std::uint64_t last_id_ = 0;
  std::source_location place_;
};

}  // namespace uma
