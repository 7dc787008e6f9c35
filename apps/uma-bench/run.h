// One measured run: the event loop with its clients, the clock and the records. Uses one thread.
#pragma once

#include <expected>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "uma-bench/chat_client.h"
#include "uma-bench/client.h"
#include "uma-bench/measure.h"
#include "uma-bench/prompts.h"

namespace uma::bench {

struct RunOptions {
  Endpoint endpoint{};
  std::uint64_t seed = 1;
  double timeout_s = 900;             // Limit of the whole run.
  std::optional<pid_t> server_pid{};  // The process whose CPU time is measured.
};

// CPU seconds of a process, user and system, all threads; NaN if the system does not report them.
[[nodiscard]] double process_cpu_s(pid_t pid);

class Run {
 public:
  explicit Run(const RunOptions& options);

  [[nodiscard]] const Endpoint& endpoint() const { return options_.endpoint; }
  [[nodiscard]] std::uint64_t seed() const { return options_.seed; }
  [[nodiscard]] PromptMaker& prompts() { return prompts_; }
  [[nodiscard]] double now_ms() const { return clock_.now_ms(); }

  // Adds a client that lives as long as the run.
  Client& add_client();
  // Like add_client(), for POST /v1/chat/completions. Requires: endpoint().is_http.
  ChatClient& add_chat_client();
  // Starts one request on a new client and records it when it ends.
  void start(Job job);
  // Like start(), `delay_ms` from now.
  void start_after(double delay_ms, Job job);
  // Starts other work on the loop. Requires: the objects it refers to outlive the run or wait_all().
  void spawn(boost::asio::awaitable<void> work);
  void record(StreamRecord record) { records_.push_back(std::move(record)); }

  // Runs one short request without recording it, so that one-time work of a server is not measured. Then restarts the totals.
  [[nodiscard]] std::expected<void, Failure> warm_up();
  // Runs the loop until all work is done. Work that misses the time limit becomes one failure.
  void wait_all();

  [[nodiscard]] const std::vector<StreamRecord>& records() const { return records_; }
  // Totals since the construction or the warm-up.
  [[nodiscard]] Totals totals() const;

 private:
  [[nodiscard]] double server_cpu_s() const;

  const RunOptions options_;
  RunClock clock_;
  PromptMaker prompts_;
  std::vector<StreamRecord> records_;
  double begin_ms_;
  double begin_cpu_s_;
  boost::asio::io_context io_;
  std::list<std::unique_ptr<Client>> clients_;
  std::list<ChatClient> chat_clients_;
};

}  // namespace uma::bench
