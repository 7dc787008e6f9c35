// Runs a planned batch: computes its rows, samples the next token of each sequence, and finds the sequences that make a call
// fail. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/kv_compactor.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/plan/speculation.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reply_sampler.h"
#include "engine/lane/sequence_ends.h"
#include "llm/model.h"
#include "sched/plan_batch.h"

namespace uma::engine {

class BatchRunner {
 public:
  BatchRunner(const LaneParts& parts, ContextCalls& calls, SequenceEnds& ends, Preemption& preemption, ReplySampler& sampler,
              Speculation& speculation, KvCompactor& compactor)
      : parts_(parts),
        calls_(calls),
        ends_(ends),
        preemption_(preemption),
        sampler_(sampler),
        speculation_(speculation),
        compactor_(compactor) {}

  // Frees the cells that the plan needs and runs it. False: there was no row to run, or a sequence was swapped out instead.
  bool run(sched::BatchPlan& plan);

  // Adds the rows of the last call to the slots' tokens.
  void add_computed(std::span<const sched::PlanRow> rows, bool is_prefill);
  // Reports to the client that `done` tokens of the prompt are computed.
  void report_progress(Sequence& sequence, std::int32_t done);

 private:
  void run_decode(sched::BatchPlan& plan);
  [[nodiscard]] bool run_decode_group(std::span<sched::PlanRow> rows);
  [[nodiscard]] bool run_decode_call(std::span<const sched::PlanRow> rows);
  void run_prefill(std::span<const sched::PlanRow> rows);
  void end_prompt_part(Sequence& sequence, std::int32_t row_end, std::int32_t count, TimePoint now);
  [[nodiscard]] bool run_call(std::span<const sched::PlanRow> rows, bool is_prefill);
  [[nodiscard]] sched::StepShape append_rows(std::span<const sched::PlanRow> rows, bool is_prefill);
  void append_padding(sched::StepShape& shape);
  void choose_ahead(std::span<const sched::PlanRow> rows);
  void drop_padding(std::size_t useful);
  void run_one_by_one(std::span<const sched::PlanRow> rows, const Error& first_error);
  [[nodiscard]] std::size_t put_lone_rows_last(std::span<sched::PlanRow> rows) const;
  [[nodiscard]] std::int64_t longest_pause_us(std::span<const sched::PlanRow> rows, TimePoint ended) const;
  [[nodiscard]] bool needs_one_thread(std::span<const sched::PlanRow> rows) const;
  [[nodiscard]] Sequence& sequence_of(const sched::PlanRow& row) const { return parts_.sequences.at(row.index); }

  const LaneParts& parts_;
  ContextCalls& calls_;
  SequenceEnds& ends_;
  Preemption& preemption_;
  ReplySampler& sampler_;
  Speculation& speculation_;
  KvCompactor& compactor_;
  std::vector<Sequence*> row_owners_;     // The sequences whose tokens are chosen from a row; null: several rows are tried.
  std::vector<llm::BatchRow> rows_;       // The rows of the call.
  std::vector<RequestId> interruptible_;  // The requests whose prompts the call computes.
};

}  // namespace uma::engine
