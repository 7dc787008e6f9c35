// Simulates the scheduler on a machine whose calls take time: router, work pool, a lane and often a prefill lane, with clients
// of several tenants, both classes and their targets. It checks properties of time and order, each with a bound derived from
// the times of calls and the rules of the scheduler:
// - start: a request's first token comes within the time of the work in front of it
// - stream: a decoding interactive stream waits for its next token at most as long as the largest allowed tick
// - target: a tick keeps its target if the step model says that it can
// - fair: while two tenants, or two clients of one, wait, neither gets ahead by more than the work of a few requests
// - preempt: an interactive request is computed right after the tick of its arrival if only background work runs
// - tokens: every request has the tokens of a separate run
// - cores: no call begins on threads of the other lane's call
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "core/work/work_pool.h"
#include "engine/model/model_loader_test_support.h"
#include "engine/router/router.h"
#include "kv/catalog/catalog.h"
#include "kv/state_store.h"
#include "machine.h"
#include "sched/fair_share.h"
#include "timeline.h"

namespace uma::sim {

struct SchedulingOutcome {
  std::vector<std::string> broken;  // "property: what happened".
  std::uint64_t requests = 0;
  std::uint64_t starts_background = 0;  // First tokens of background requests that had waited for 10 s.
  std::uint64_t gaps = 0;               // Intervals between tokens of interactive streams.
  std::uint64_t ticks_in_time = 0;      // Ticks in time, among those that can be according to the model.
  std::uint64_t ticks_late = 0;
  std::uint64_t gaps_in_time = 0;  // Intervals beside a prefill lane.
  std::uint64_t gaps_late = 0;
  std::uint64_t contests = 0;  // Periods in which two clients of a tenant both waited.
  std::uint64_t preemptions_checked = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t handovers = 0;
  double worst_start = 0;  // Time to the first token, as a share of its bound.
  double worst_gap = 0;
};

class SchedulingSim {
 public:
  explicit SchedulingSim(std::uint64_t seed);
  ~SchedulingSim();
  SchedulingOutcome run();

 private:
  enum class Mix : std::uint8_t { calm, storm, hog, preemption, tenants, overload, prompts };
  class Sink;
  struct Request {
    std::uint64_t id = 0;
    sched::Flow flow;
    bool is_background = false;
    std::int32_t prompt = 0;  // Tokens, including BOS.
    std::int32_t reply = 0;
    double target_tbt_ms = 0;   // 0: the lane's target.
    double target_ttft_ms = 0;  // 0: no target.
    TimePoint received{};
    TimePoint computed{};  // The begin of the call with its first row.
    TimePoint first_token{};
    TimePoint last_token{};
    TimePoint ended{};
    std::vector<Token> tokens;
    bool has_ended = false;
    bool must_be_next = false;          // Only background work is running.
    std::uint64_t next_tick = 0;        // The first step with a call after its arrival; 0: not known yet.
    std::uint64_t step_at_arrival = 0;  // Number of the lane's step.
    TimePoint seen{};                   // End of the step in which it arrived.
    TimePoint admitted{};               // End of the step after `seen`.
    double decode_ms_seen = 0;          // The longest decode call since its last token.
    double state_ms_seen = 0;
    double target_seen_ms = 0;         // Target of the tick with its last token.
    bool is_beside_prefill = false;    // The prefill lane has computed since its last token.
    std::set<std::uint64_t> let_pass;  // Background prompts that the prefill lane computed while this request should be next.
    sched::FairShare::Rank rank;       // At its arrival.
    std::vector<std::pair<sched::Flow, sched::FairShare::Rank>> others;  // Ranks of the other flows at its arrival.

    [[nodiscard]] std::int32_t work() const { return prompt + reply; }
    [[nodiscard]] bool is_open_at(TimePoint time) const { return received <= time && ended > time; }
    [[nodiscard]] bool is_computed_at(TimePoint time) const { return computed <= time; }
  };
  // A period in which two clients of a tenant both have waiting requests.
  struct Contest {
    bool is_on = false;
    double lead = 0;   // Lead of the first, by its counter, at the begin of the contest.
    double ahead = 0;  // Lead of the first, in work since the begin.
  };

  void make_world();
  void make_requests();
  void add_request(double at_ms, const sched::Flow& flow, bool is_background, std::int32_t prompt, std::int32_t reply);
  void arrive(Request& request);
  void pump();
  void note_token(Request& request, Token token);
  void note_end(Request& request);
  void trace(const std::string& what) const;
  void trace(const Call& call) const;
  [[nodiscard]] static char class_of(const Request& request) { return request.is_background ? 'b' : 'i'; }
  void note_step();
  void note_begin(const Call& call);
  void note_call(const Call& call);
  void check_tick(const Call& decode, const Call& prefill);
  void check_gap(const Request& request, double gap_ms);
  void charge(const Request& request, std::int64_t tokens);
  void update_contests();
  void check_starts();
  void check_shares();
  void check_tokens();

  [[nodiscard]] static bool may_overtake(const Request& other, const Request& request);
  [[nodiscard]] static bool is_due_before(const Request& one, const Request& other);
  [[nodiscard]] std::vector<const Request*> in_front_of(const Request& request, TimePoint since) const;
  [[nodiscard]] double start_bound_ms(const Request& request) const;
  [[nodiscard]] double prefill_bound_ms(std::int32_t tokens) const;
  [[nodiscard]] double decode_full_ms() const;
  [[nodiscard]] double layer_ms() const;
  [[nodiscard]] double target_of(const Request& request) const;
  [[nodiscard]] std::int32_t between(std::int32_t low, std::int32_t high);
  [[nodiscard]] double between(double low, double high);
  void broken(const std::string& what) { outcome_.broken.push_back(what); }

  Random random_;
  Mix mix_;
  Timeline timeline_;
  const TimePoint began_ = timeline_.now();
  const bool traces_ = std::getenv("UMA_SIM_TRACE") != nullptr;
  MachineOptions machine_options_;
  kv::MemoryCatalog catalog_;
  kv::StateStore store_{{}, nullptr, timeline_};
  engine::NamedModels source_;
  WorkPool work_;
  std::unique_ptr<engine::Router> router_;
  std::shared_ptr<const testing::FakeModel> model_;
  std::unique_ptr<Machine> machine_;
  std::vector<std::unique_ptr<Request>> requests_;  // Sorted by id.
  sched::FairShare ledger_;                         // The expected state of the lane's ledger.
  sched::StepModel shadow_;                         // The observations of the lane.
  sched::StepModel shadow_before_;                  // The model at the begin of the running tick.
  Call last_decode_;
  std::int32_t length_max_ = 0;
  std::int32_t work_max_ = 0;
  double slowest_ = 1;  // Factor of the slowest call, by speed and noise.
  std::map<std::pair<sched::Flow, sched::Flow>, Contest> contests_;
  SchedulingOutcome outcome_;
};

}  // namespace uma::sim
