#include "run.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace uma::bench {

namespace asio = boost::asio;

double process_cpu_s(pid_t pid) {
  std::ifstream file(std::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t name_end = text.rfind(')');  // the name in parentheses may hold spaces and parentheses
  if (name_end == std::string::npos) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  // proc(5): after the name come state (field 3) and more; utime and stime are fields 14 and 15, in clock ticks.
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) {
    fields >> skipped;
  }
  double user_ticks = 0, system_ticks = 0;
  fields >> user_ticks >> system_ticks;
  return fields ? (user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK))
                : std::numeric_limits<double>::quiet_NaN();
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
    record.failure = Failure{Failure::Kind::server, std::format("not everything was answered within {} s", options_.timeout_s)};
    records_.push_back(std::move(record));
  }
}

}  // namespace uma::bench
