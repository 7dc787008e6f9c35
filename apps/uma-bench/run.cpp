#include "uma-bench/run.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <format>
#include <limits>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace uma::bench {

namespace asio = boost::asio;

double process_cpu_s(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (pid <= 0 || ::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

Run::Run(const RunOptions& options)
    : options_(options), prompts_(options.seed), begin_ms_(clock_.now_ms()), begin_cpu_s_(server_cpu_s()), io_(1) {}

double Run::server_cpu_s() const {
  return options_.server_pid ? process_cpu_s(*options_.server_pid) : std::numeric_limits<double>::quiet_NaN();
}

Totals Run::totals() const {
  return {.wall_ms = clock_.now_ms() - begin_ms_, .cpu_s = server_cpu_s() - begin_cpu_s_};
}

Client& Run::add_client() {
  return *clients_.emplace_back(make_client(io_.get_executor(), options_.endpoint, clock_));
}

ChatClient& Run::add_chat_client() {
  return chat_clients_.emplace_back(io_.get_executor(), options_.endpoint, clock_);
}

void Run::start(Job job) {
  start_after(0, std::move(job));
}

void Run::start_after(double delay_ms, Job job) {
  spawn([](Run& run, Client& client, double delay, Job work) -> asio::awaitable<void> {
    if (delay > 0) {
      asio::steady_timer timer(
          run.io_, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double, std::milli>(delay)));
      co_await timer.async_wait(asio::use_awaitable);
    }
    run.record(co_await client.generate(std::move(work)));
  }(*this, add_client(), delay_ms, std::move(job)));
}

void Run::spawn(asio::awaitable<void> work) {
  asio::co_spawn(io_, std::move(work), asio::detached);
}

std::expected<void, Failure> Run::warm_up() {
  constexpr int kWords = 16;
  constexpr int kTokens = 4;
  start({.prompt = prompts_.make_unique(kWords), .tokens = kTokens});
  wait_all();
  const std::vector<StreamRecord> warm_up_records = std::exchange(records_, {});
  begin_ms_ = clock_.now_ms();
  begin_cpu_s_ = server_cpu_s();
  for (const StreamRecord& record : warm_up_records) {
    if (record.failure) {
      return std::unexpected(*record.failure);
    }
  }
  return {};
}

void Run::wait_all() {
  io_.restart();
  const double left_ms = options_.timeout_s * 1000 - clock_.now_ms();
  io_.run_for(std::chrono::milliseconds(static_cast<std::int64_t>(std::max(left_ms, 0.0))));
  if (!io_.stopped()) {
    StreamRecord record{.start_ms = clock_.now_ms(), .end_ms = clock_.now_ms()};
    record.failure =
        Failure{Failure::Kind::server, std::format("some requests were not answered within {} s", options_.timeout_s)};
    records_.push_back(std::move(record));
  }
}

}  // namespace uma::bench
