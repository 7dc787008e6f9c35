// One context and everything that runs in it: the executor of continuous batching. Only the lane touches its context; other
// threads send it commands. A thread is a loop around step(): commands, deadlines, admission, moves, plan, run. The
// members are the parts of the lane in order of dependency, hence their number; most own one thing, and the others are steps
// that share LaneParts.
//
// Invariants, checked by check_invariants() and by the simulator after every step: those of SlotTable; (1) every posted job
// gets exactly one result; (2) a sequence whose prompt is offloaded, or on its way there or back, or that is being swapped out,
// keeps its slot and is in no plan; its cells stay too, until others need them; (3) a running sequence has the adapters that
// its slot's tokens were computed with. Once a device of its model is lost, it only ends requests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "core/ids.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_costs.h"
#include "engine/lane/lane_options.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/move/context_shifter.h"
#include "engine/lane/move/early_writer.h"
#include "engine/lane/move/kv_compactor.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/move/prefill_offload.h"
#include "engine/lane/move/prefix_copy.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/move/state_moves.h"
#include "engine/lane/move/state_transfers.h"
#include "engine/lane/plan/admission.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/plan/lane_activity.h"
#include "engine/lane/plan/latency_targets.h"
#include "engine/lane/plan/model_drafter.h"
#include "engine/lane/plan/placement.h"
#include "engine/lane/plan/prefix_finder.h"
#include "engine/lane/plan/speculation.h"
#include "engine/lane/plan/tick_planner.h"
#include "engine/lane/plan/warm_up.h"
#include "engine/lane/run/batch_runner.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/image_prompts.h"
#include "engine/lane/run/prefill_lane.h"
#include "engine/lane/run/reply_sampler.h"
#include "engine/lane/run/reuse_check.h"
#include "engine/lane/sequence_ends.h"
#include "engine/lane/slot_table.h"
#include "engine/lane/state_memory.h"
#include "engine/lane/tenant_shares.h"

namespace uma::engine {

class Lane {
 public:
  using OnResult = SequenceEnds::OnResult;

  // `vocab` and `clock` outlive the lane. `on_result` is called from step(). With a `prefill_context` (one sequence, the same
  // state identity) long prompts are computed in a prefill lane; null: they are computed in chunks between the tokens of
  // streams.
  Lane(LaneOptions options, std::unique_ptr<llm::Context> context, std::unique_ptr<llm::Context> prefill_context,
       const llm::Vocab& vocab, const Clock& clock, OnResult on_result);
  ~Lane();

  // Call it before the first step. The drafter's model drafts tokens where a sequence's own text has no draft. Needs
  // `speculates`.
  void draft_with(std::unique_ptr<ModelDrafter> drafter) { speculation_.use_model(std::move(drafter)); }

  // --- Any thread.
  // Queues a command. A cancel also interrupts the computation of the request's prompt.
  void post(LaneCommand command);
  // Ends the loop around step().
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  // Whether the session runs in this lane or its tokens are cached, as of the last step.
  [[nodiscard]] bool holds(const SessionId& session) const { return slots_.holds(session); }
  // The size of the session's cached tokens, as of the beginning or end of its last request in this lane.
  [[nodiscard]] std::uint64_t bytes_of(const SessionId& session) const { return slots_.bytes_of(session); }

  // The activity of its slots and of those who wait for one, without the model's name; null: nothing was published yet.
  [[nodiscard]] std::shared_ptr<const LaneActivity> activity(TimePoint now) { return activity_.read(now); }

  // --- Owner thread.
  // Runs one tick.
  StepOutcome step();
  // Waits for a command, until `until`. False: close() was called and the queue is empty.
  bool wait(TimePoint until) { return inbox_->wait_drain(inbox_taken_, until); }
  // After close(): ends the remaining jobs as cancelled and stores the cached states.
  void cancel_all();

  // The prefill lane, which runs on a thread of its own; null: there is none.
  [[nodiscard]] PrefillLane* prefill_lane() const { return prefill_lane_.get(); }
  [[nodiscard]] const LaneStats& stats() const { return *options_.stats; }
  [[nodiscard]] LaneStats& stats() { return *options_.stats; }
  [[nodiscard]] const llm::ContextShape& shape() const { return context_->shape(); }

  // --- Any thread.
  [[nodiscard]] const std::string& state_identity() const { return context_->state_identity(); }
  // The family of the lane's states without adapters in the store; 0: there is no store.
  [[nodiscard]] kv::FamilyId family() const { return states_.base_family(); }

  // --- Owner thread, for tests.
  void check_invariants();
  [[nodiscard]] llm::Context& context() { return *context_; }
  [[nodiscard]] CoreShare& cores() { return cores_; }
  [[nodiscard]] bool is_idle() const { return sequences_.is_empty() && inbox_taken_.empty() && commands_.empty(); }

 private:
  // Streams wait for them; the others wait for the next step.
  static constexpr std::size_t kCommandsPerStep = 128;

  [[nodiscard]] StepOutcome tick();
  [[nodiscard]] bool warm();
  void tell_warm();
  [[nodiscard]] StepOutcome end_lost();
  void take_commands();
  void run(StartCommand& command);
  void run(const CancelCommand& command);
  void run(const ForgetCommand& command);
  void run(CopyCommand& command);
  void run(CopyPrefixCommand& command) { prefix_copy_.begin(std::move(command)); }
  void run(PrefillReport& report);
  void run(FetchReport& report);
  void run(const WrittenReport& report) { writer_.accept(report); }
  void run(const EncodedReport& report) { images_.accept_encoded(report); }
  // Runs `work` for the request, if it is still in the lane; an exception ends the request.
  void contain(RequestId id, const std::function<void(Sequence*)>& work);
  void add_sequence(GenerationJob job);
  [[nodiscard]] StepOutcome end_step(bool did_work, TimePoint wake);
  [[nodiscard]] TimePoint next_wake() const;

  // Shared by the parts (LaneParts).
  const LaneOptions options_;  // With stats.
  const llm::Vocab& vocab_;
  const Clock& clock_;
  const std::unique_ptr<llm::Context> context_;
  const std::shared_ptr<Mailbox<LaneCommand>> inbox_ = std::make_shared<Mailbox<LaneCommand>>();
  CoreShare cores_;
  sched::BandwidthBudget bandwidth_;
  LaneCosts costs_{.step_model = sched::StepModel(context_->shape().attention_share), .transfer = {}};
  TenantShares tenants_;
  StateMemory states_;  // Sequences and slots have memory of its pool.
  SequenceList sequences_;
  SlotTable slots_;
  std::unique_ptr<PrefillLane> prefill_lane_;
  const LaneParts parts_;

  LatencyTargets targets_;
  ContextCalls calls_;
  SlotEviction eviction_;
  ReuseCheck reuse_check_;
  SequenceEnds ends_;
  ContextShifter shifter_;
  ReplySampler sampler_;
  Preemption preemption_;
  PrefixCopy prefix_copy_;
  EarlyWriter writer_;
  const PrefixFinder finder_;
  Placement placement_;
  Admission admission_;
  TickPlanner planner_;
  StateMoves moves_;
  Speculation speculation_;
  KvCompactor compactor_;
  StateTransfers transfers_;
  BatchRunner runner_;
  PrefillOffload offload_;
  ImagePrompts images_;
  WarmUp warm_up_;
  LaneActivityBoard activity_;

  std::vector<LaneCommand> inbox_taken_;
  std::deque<LaneCommand> commands_;  // Taken from the inbox, in their order.
  bool has_told_warm_ = false;        // on_warm was called.
  bool has_told_loss_ = false;        // on_lost was called.
  std::atomic<bool> closed_{false};
};

}  // namespace uma::engine
