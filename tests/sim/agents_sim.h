// Agents with long conversations beside a stream without end, in one lane with a prefill lane, on a machine whose calls and
// state moves take time. Every turn of an agent adds to its session. It measures the longest pause of the stream, the time to
// first tokens, and the tokens that are computed more than once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/state_store.h"
#include "machine.h"
#include "testing/fake_model.h"
#include "timeline.h"

namespace uma::sim {

struct AgentsOptions {
  std::uint64_t seed = 1;
  std::int32_t agents = 2;
  std::int32_t turns = 4;  // Of each agent.
  std::int32_t tokens_first = 17'000;
  std::int32_t cells = 48'000;
  bool is_unified = true;
  bool takes_turns = false;  // The two lanes share all threads.
  double state_token_ms = 0.004;
};

struct AgentsOutcome {
  std::uint64_t turns = 0;
  std::uint64_t wrong = 0;  // Replies that differ from those of a separate run.
  std::uint64_t stream_tokens = 0;
  double pause_ms_max = 0;            // Between two tokens of the stream.
  double pause_ms_99 = 0;             // Of a hundred pauses one is longer.
  double first_token_ms_max = 0;      // Of a turn, except the first.
  std::uint64_t tokens_needed = 0;    // Prompt tokens that no earlier turn of the session has computed.
  std::uint64_t tokens_computed = 0;  // Prompt tokens in calls.
  std::uint64_t handovers = 0;
  std::uint64_t preemptions = 0;
  double ms = 0;  // Of the whole run.
};

class AgentsSim {
 public:
  explicit AgentsSim(const AgentsOptions& options);
  ~AgentsSim();
  AgentsOutcome run();

 private:
  class Sink;
  struct Agent {
    std::vector<Token> chain;
    std::int32_t turns_left = 0;
    TimePoint asked{};
    bool has_begun = false;  // Its first turn has ended.
  };

  void ask(std::size_t agent);
  void start_stream();
  void post(std::uint64_t id, const std::string& session, std::vector<Token> tokens, std::int32_t tokens_max);
  void note_result(engine::GenerationResult result);
  void note_token(std::uint64_t id);
  [[nodiscard]] std::int32_t between(std::int32_t low, std::int32_t high);

  const AgentsOptions options_;
  Random random_;
  Timeline timeline_;
  kv::StateStore store_;
  std::unique_ptr<testing::FakeModel> model_;
  MachineOptions machine_options_;
  std::unique_ptr<Machine> machine_;
  std::vector<Agent> agents_;
  std::vector<double> pauses_ms_;
  TimePoint last_token_{};  // Of the stream.
  AgentsOutcome outcome_;
};

}  // namespace uma::sim
