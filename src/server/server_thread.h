// Runs and stops a server's thread: the common part of all servers. ServerT is the interface, StateT a ServerState.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/system/thread_name.h"
#include "base/thrown.h"

namespace uma::server {

// A derived class calls stop() in its destructor.
template <class ServerT, class StateT>
class ServerThread : public ServerT {
 public:
  void stop_accepting() final {
    post_and_wait([this] { drain(); });
  }

  bool wait_idle(Duration limit) final { return state_.busy->wait_zero(SteadyClock().now() + limit); }

  void stop() final {
    const MutexLock lock(control_mutex_);
    if (std::exchange(is_stopped_, true) || !thread_.joinable()) return;
    // Closes everything that the loop waits for, so that it ends.
    boost::asio::post(state_.io, [this] {
      drain();
      close_connections([](const auto&) { return true; });
      stop_timers();
      state_.flushes->close();
      keep_running_.reset();
    });
    thread_.join();
  }

  [[nodiscard]] std::size_t connections_count() const final {
    return static_cast<std::size_t>(state_.connections_count.value());
  }

 protected:
  template <class... Args>
  explicit ServerThread(Args&&... args) : state_(std::forward<Args>(args)...), keep_running_(state_.io.get_executor()) {}

  void run(const char* name) {
    thread_ = std::thread([this, name] {
      set_thread_name(name);
      run_to_end(state_.io);
    });
  }

  // Calls action() on the server's thread, and returns after it. Does nothing once the server has stopped.
  template <class ActionT>
  void post_and_wait(ActionT action) {
    const MutexLock lock(control_mutex_);
    if (is_stopped_) return;
    std::promise<void> done;
    boost::asio::post(state_.io, [&] {
      action();
      done.set_value();
    });
    done.get_future().wait();
  }

  // --- The server's thread.
  // Closes the listeners, and idle connections of protocols whose clients connect again. May be called repeatedly.
  virtual void stop_listening() = 0;
  virtual void stop_timers() {}

  template <class ChooseT>
  void close_connections(ChooseT&& choose) {
    // A copy, because closing a connection removes it from the set.
    const std::vector all(state_.connections.begin(), state_.connections.end());
    for (const auto& connection : all) {
      if (choose(*connection)) connection->close();
    }
  }

  StateT state_;  // Owned by the thread once it runs.

 private:
  void drain() {
    state_.draining = true;
    stop_listening();
  }

  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keep_running_;
  std::thread thread_;
  Mutex control_mutex_;
  bool is_stopped_ GUARDED_BY(control_mutex_) = false;
};

}  // namespace uma::server
