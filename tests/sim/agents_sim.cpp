#include "agents_sim.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <utility>

#include "base/check.h"

namespace uma::sim {
namespace {

constexpr std::uint64_t kStream = 0;  // The stream's request; agents have those behind it.
constexpr std::int32_t kAgentsThreads = 4;
constexpr std::int32_t kStreamPrompt = 20;
constexpr std::int32_t kStreamTokensMax = 1'000'000;

}  // namespace

class AgentsSim::Sink final : public EventSink {
 public:
  Sink(AgentsSim& sim, std::uint64_t id) : sim_(sim), id_(id) {}
  bool deliver(const Event& event) override {
    if (std::holds_alternative<TokenEvent>(event)) sim_.note_token(id_);
    return true;
  }

 private:
  AgentsSim& sim_;
  std::uint64_t id_;
};

AgentsSim::AgentsSim(const AgentsOptions& options)
    : options_(options),
      random_(options.seed),
      store_({.warm_bytes_max = 1 << 30}, nullptr, timeline_),
      agents_(static_cast<std::size_t>(options.agents)) {
  machine_options_.price.state_token = options_.state_token_ms;
  testing::FakeOptions& model = machine_options_.model;
  model.sequences = options_.agents + 2;
  model.cells = options_.is_unified ? options_.cells : options_.cells / 2 * model.sequences;
  model.unified = options_.is_unified;
  model.batch_rows_max = 512;
  machine_options_.has_prefill_lane = true;
  machine_options_.seed = random_.next_u64();
  engine::LaneOptions& lane = machine_options_.lane;
  lane.threads = kAgentsThreads;
  lane.threads_beside_prefill = options_.takes_turns ? 0 : kAgentsThreads / 2;
  lane.speculates = false;
  lane.store = &store_;
  model_ = std::make_unique<testing::FakeModel>(model);
  machine_ = std::make_unique<Machine>(machine_options_, timeline_, model_->vocab(),
                                       [this](engine::GenerationResult result) { note_result(std::move(result)); });
  machine_->on_begin = [](const Call&) {};
  machine_->on_call = [](const Call&) {};
  machine_->on_step = [] {};
  machine_->on_state = [](double) {};
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    agent.turns_left = options_.turns;
    agent.chain.assign(static_cast<std::size_t>(options_.tokens_first), 'x');
    agent.chain[0] = testing::kFakeBos;
    const std::string name = name_of(i + 1);
    std::ranges::copy(name, agent.chain.begin() + 1);
    timeline_.at(timeline_.now() + from_ms(between(500, 3000)), [this, i] { ask(i); });
  }
  timeline_.at(timeline_.now() + from_ms(1), [this] { start_stream(); });
}

AgentsSim::~AgentsSim() = default;

std::int32_t AgentsSim::between(std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random_.next_below(static_cast<std::uint64_t>(high - low) + 1));
}

AgentsOutcome AgentsSim::run() {
  const TimePoint began = timeline_.now();
  timeline_.run();
  machine_->lane().check_invariants();
  outcome_.ms = to_ms(timeline_.now() - began);
  const engine::LaneStats& stats = machine_->lane().stats();
  outcome_.tokens_computed = stats.prompt_tokens_total.value();
  outcome_.handovers = stats.handover.count();
  outcome_.preemptions = stats.preemptions_total.value();
  outcome_.stream_tokens = pauses_ms_.size();
  std::ranges::sort(pauses_ms_);
  outcome_.pause_ms_max = pauses_ms_.back();
  outcome_.pause_ms_99 = pauses_ms_[pauses_ms_.size() * 99 / 100];
  return outcome_;
}

void AgentsSim::post(std::uint64_t id, const std::string& session, std::vector<Token> tokens, std::int32_t tokens_max) {
  engine::GenerationJob job;
  job.id = RequestId{id + 1};
  job.session = SessionId{session};
  job.tokens = std::move(tokens);
  job.tokens_max = tokens_max;
  job.flow = {"tenant", id};
  job.received = timeline_.now();
  job.sink = std::make_shared<Sink>(*this, id);
  machine_->lane().stats().queue_depth.add(1);
  machine_->lane().post(engine::StartCommand{std::move(job)});
  machine_->wake_lane();
}

void AgentsSim::start_stream() {
  std::vector<Token> tokens(kStreamPrompt, 's');
  tokens[0] = testing::kFakeBos;
  outcome_.tokens_needed += tokens.size();
  post(kStream, "", std::move(tokens), kStreamTokensMax);
}

// The tokens of the earlier turns are computed, except for the last one of the reply.
void AgentsSim::ask(std::size_t index) {
  Agent& agent = agents_[index];
  const auto added = static_cast<std::size_t>(agent.has_begun ? between(60, 900) : 0);
  outcome_.tokens_needed += agent.has_begun ? added + 1 : agent.chain.size();
  agent.chain.insert(agent.chain.end(), added, 'y');
  agent.asked = timeline_.now();
  --agent.turns_left;
  post(index + 1, std::format("agent {}", index), agent.chain, between(20, 80));
}

void AgentsSim::note_token(std::uint64_t id) {
  const TimePoint now = timeline_.now();
  if (id == kStream) {
    if (last_token_ != TimePoint{}) pauses_ms_.push_back(to_ms(now - last_token_));
    last_token_ = now;
    return;
  }
  Agent& agent = agents_[id - 1];
  if (agent.asked == TimePoint{}) return;
  const double first_token_ms = to_ms(now - std::exchange(agent.asked, {}));
  if (agent.has_begun) outcome_.first_token_ms_max = std::max(outcome_.first_token_ms_max, first_token_ms);
}

void AgentsSim::note_result(engine::GenerationResult result) {
  const std::uint64_t id = result.id.value - 1;
  if (id == kStream) return;
  Agent& agent = agents_[id - 1];
  ++outcome_.turns;
  const auto count = static_cast<std::int32_t>(result.generated.size());
  if (testing::fake_continuation(machine_options_.model, agent.chain, count) != result.generated) ++outcome_.wrong;
  agent.chain.insert(agent.chain.end(), result.generated.begin(), result.generated.end());
  agent.has_begun = true;
  if (agent.turns_left > 0) {
    timeline_.at(timeline_.now() + from_ms(between(100, 4000)), [this, index = id - 1] { ask(index); });
  } else if (outcome_.turns == agents_.size() * static_cast<std::uint64_t>(options_.turns)) {
    machine_->lane().post(engine::CancelCommand{RequestId{kStream + 1}});
  }
}

}  // namespace uma::sim
