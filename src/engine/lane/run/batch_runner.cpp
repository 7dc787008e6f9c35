#include "engine/lane/run/batch_runner.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "base/log.h"
#include "base/trace.h"
#include "sched/bytes_moved.h"

namespace uma::engine {
namespace {

constexpr TraceKind kDecodeSpan{.name = "decode", .numbers = {"rows", "sequences", "predicted_us", "pause_us"}};
constexpr TraceKind kPrefillSpan{.name = "prefill", .numbers = {"rows", "sequences", "predicted_us", "request"}};
constexpr TraceKind kSampleSpan{.name = "sample", .numbers = {"sequences"}};

std::unordered_set<std::int32_t> occupied_slots(std::span<const sched::PlanRow> rows) {
  std::unordered_set<std::int32_t> slots;
  for (const sched::PlanRow& row : rows) slots.insert(row.slot);
  return slots;
}

}  // namespace

bool BatchRunner::run(sched::BatchPlan& plan) {
  std::int64_t rows = 0;
  for (const sched::PlanRow& row : plan.decode) rows += row.tokens_count;
  for (const sched::PlanRow& row : plan.prefill) rows += row.tokens_count;
  if (plan.is_empty() || !preemption_.free_cells(rows, std::ssize(plan.decode))) return false;
  const ContextCalls::PrefillPause pause(calls_);
  parts_.stats().ticks_total.add();
  if (!plan.decode.empty()) run_decode(plan);
  if (!plan.prefill.empty()) run_prefill(plan.prefill);
  return true;
}

void BatchRunner::run_decode(sched::BatchPlan& plan) {
  parts_.stats().decode_ticks_total.add();
  parts_.stats().decode_rows_total.add(plan.decode.size());
  std::span<sched::PlanRow> rows(plan.decode);
  bool did_all = true;
  while (did_all && !rows.empty()) {
    const auto next = std::ranges::find_if(rows, [&](const sched::PlanRow& row) { return row.group != rows.front().group; });
    const auto count = static_cast<std::size_t>(next - rows.begin());
    did_all = run_decode_group(rows.first(count));
    rows = rows.subspan(count);
  }
  if (!did_all) plan.prefill.clear();  // Other planned sequences may have ended.
}

bool BatchRunner::run_decode_group(std::span<sched::PlanRow> rows) {
  speculation_.add_drafts(rows);
  double ms = 0;
  const auto run = [&](std::span<const sched::PlanRow> part) {
    if (!run_decode_call(part)) return false;
    ms += calls_.last().ms();
    return true;
  };
  const std::size_t together = put_lone_rows_last(rows);
  bool did_all = together == 0 || run(rows.first(together));
  for (std::size_t i = together; did_all && i < rows.size(); ++i) did_all = run(rows.subspan(i, 1));
  if (did_all) speculation_.settle(ms);
  return did_all;
}

bool BatchRunner::run_decode_call(std::span<const sched::PlanRow> rows) {
  if (!run_call(rows, false)) return false;
  const TimePoint now = parts_.clock.now();
  choose_ahead(rows);
  std::int32_t row = 0;
  for (const sched::PlanRow& planned : rows) {
    speculation_.verify(sequence_of(planned), row, planned.tokens_count, now);
    row += planned.tokens_count;
  }
  sampler_.forget_chosen();
  const TimePoint ended = parts_.clock.now();
  parts_.stats().sampling.record_ms(to_ms(ended - now));
  record_span(kSampleSpan, now, ended, {static_cast<std::int64_t>(rows.size())});
  return true;
}

// A row with draft tokens depends on the one before it.
void BatchRunner::choose_ahead(std::span<const sched::PlanRow> rows) {
  row_owners_.clear();
  for (const sched::PlanRow& row : rows) {
    row_owners_.resize(row_owners_.size() + static_cast<std::size_t>(row.tokens_count));
    if (row.tokens_count == 1) row_owners_.back() = &sequence_of(row);
  }
  sampler_.choose_ahead(row_owners_);
}

void BatchRunner::run_prefill(std::span<const sched::PlanRow> rows) {
  if (!run_call(rows, true)) return;
  const TimePoint now = parts_.clock.now();
  std::int32_t row_end = 0;
  for (const sched::PlanRow& row : rows) {
    row_end += row.tokens_count;
    Sequence& sequence = sequence_of(row);
    if (sequence.job.wants_progress) report_progress(sequence, parts_.cached(sequence));
    end_prompt_part(sequence, row_end, row.tokens_count, now);
  }
}

// The last `count` tokens of the slot were computed by the rows before `row_end`. The last token of a chain gives the next one.
void BatchRunner::end_prompt_part(Sequence& sequence, std::int32_t row_end, std::int32_t count, TimePoint now) {
  if (sequence.lacks_prompt_logprobs() && !sampler_.add_prompt_logprobs(sequence, row_end - count, count)) return;
  if (parts_.cached(sequence) == size_of(sequence.chain)) sampler_.sample_row(sequence, row_end - 1, now);
}

// In reproducible mode, rows without a neighbouring slot in the call get calls of their own, as the library would compute them
// alone. Returns the number of rows before them.
std::size_t BatchRunner::put_lone_rows_last(std::span<sched::PlanRow> rows) const {
  if (!parts_.options.is_reproducible) return rows.size();
  const auto is_lone = [&, slots = occupied_slots(rows)](const sched::PlanRow& row) {
    return !slots.contains(row.slot - 1) && !slots.contains(row.slot + 1);
  };
  return static_cast<std::size_t>(std::ranges::stable_partition(rows, std::not_fn(is_lone)).begin() - rows.begin());
}

// The library divides the cells of a single long row among its threads, which changes the order of its sums.
bool BatchRunner::needs_one_thread(std::span<const sched::PlanRow> rows) const {
  if (!parts_.options.is_reproducible || rows.size() != 1 || rows.front().tokens_count != 1) return false;
  return parts_.cached(sequence_of(rows.front())) >= sched::kDividedCells;
}

sched::StepShape BatchRunner::append_rows(std::span<const sched::PlanRow> rows, bool is_prefill) {
  rows_.clear();
  interruptible_.clear();
  sched::StepShape shape;
  for (const sched::PlanRow& row : rows) {
    const Sequence& sequence = sequence_of(row);
    const std::int32_t cached = parts_.cached(sequence);
    for (std::int32_t position = cached; position < cached + row.tokens_count; ++position) {
      rows_.push_back({.token = sequence.token_at(position),
                       .position = position,
                       .sequence = static_cast<std::int32_t>(sequence.slot),
                       .wants_logits = position + 1 >= size_of(sequence.chain) || sequence.lacks_prompt_logprobs()});
    }
    if (is_prefill) {
      shape.add_chunk(row.tokens_count, cached);
      interruptible_.push_back(sequence.job.id);
    } else {
      shape.add_decode(cached, row.tokens_count - 1, static_cast<std::int64_t>(parts_.slots.cells_top()));
    }
  }
  return shape;
}

void BatchRunner::append_padding(sched::StepShape& shape) {
  for (std::int32_t i = 0; i < speculation_.padding(); ++i) {
    const std::int32_t slot = rows_.back().sequence + 1;
    const std::int32_t cached = size_of(parts_.slots[static_cast<std::size_t>(slot)].tokens);
    // With logits, because the library computes these faster for some widths, too.
    rows_.push_back({.token = rows_.back().token, .position = cached, .sequence = slot, .wants_logits = true});
    shape.add_padding(cached);
  }
}

void BatchRunner::drop_padding(std::size_t useful) {
  for (const llm::BatchRow& row : std::span(rows_).subspan(useful)) (void)parts_.context.truncate(row.sequence, row.position);
}

// The longest time until `ended` since the last token of one of the sequences; 0: none of them has one.
std::int64_t BatchRunner::longest_pause_us(std::span<const sched::PlanRow> rows, TimePoint ended) const {
  Duration longest{};
  for (const sched::PlanRow& row : rows) {
    const Sequence& sequence = sequence_of(row);
    if (sequence.generated() > 0) longest = std::max(longest, ended - sequence.times.last_token);
  }
  return std::chrono::duration_cast<std::chrono::microseconds>(longest).count();
}

// False: the rows were not computed, and nothing was sampled from them.
bool BatchRunner::run_call(std::span<const sched::PlanRow> rows, bool is_prefill) {
  sched::StepShape shape = append_rows(rows, is_prefill);
  const std::size_t useful = rows_.size();
  if (!is_prefill) append_padding(shape);
  needs_one_thread(rows) ? calls_.set_threads(1) : calls_.set_decode_threads();
  const auto status = calls_.run(!is_prefill, sequence_of(rows.front()).job.adapters, interruptible_,
                                 [&](llm::CallMonitor* monitor) { return parts_.context.decode(rows_, monitor); });
  drop_padding(useful);
  if (!status) {
    run_one_by_one(rows, status.error());
    return false;
  }
  const double ms = calls_.last().ms();
  const double predicted_ms = parts_.costs.step_model.predict_ms(shape);
  log_debug("lane {}: {} call of {} rows for {} sequences took {:.2f} ms, {:.2f} were predicted", parts_.options.index,
            is_prefill ? "prefill" : "decode", rows_.size(), rows.size(), ms, predicted_ms);
  record_span(is_prefill ? kPrefillSpan : kDecodeSpan, calls_.last().began, calls_.last().ended,
              {static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(rows.size()),
               static_cast<std::int64_t>(predicted_ms * 1000),
               is_prefill ? static_cast<std::int64_t>(sequence_of(rows.front()).job.id.value)
                          : longest_pause_us(rows, calls_.last().ended)});
  if (*status != llm::DecodeStatus::done) {
    for (const sched::PlanRow& row : rows) parts_.slots.resync(sequence_of(row).slot, sequence_of(row).chain);
    if (*status == llm::DecodeStatus::out_of_cells) preemption_.free_cells_for(sequence_of(rows.front()));
    return false;
  }
  // Rows with logits take longer than others of a prompt.
  const auto is_scored = [&](const sched::PlanRow& row) { return sequence_of(row).lacks_prompt_logprobs(); };
  if (std::ranges::none_of(rows, is_scored)) parts_.costs.step_model.observe(shape, ms);
  if (!is_prefill) compactor_.charge(shape.decode_rows + shape.draft_rows, ms);
  (is_prefill ? parts_.stats().prefill_call : parts_.stats().decode_call).record_ms(ms);
  if (is_prefill) parts_.stats().prompt_tokens_total.add(useful);
  add_computed(rows, is_prefill);
  return true;
}

void BatchRunner::add_computed(std::span<const sched::PlanRow> rows, bool is_prefill) {
  std::int32_t rows_count = 0;
  double kv_tokens = 0;
  for (const sched::PlanRow& row : rows) {
    rows_count += row.tokens_count;
    kv_tokens +=
        static_cast<double>(parts_.cached(sequence_of(row)) + row.tokens_count) * sched::attention_tiles(row.tokens_count);
  }
  const double bytes = calls_.charge(rows_count, kv_tokens);
  if (!is_prefill) {
    parts_.stats().bytes_moved_per_token.store(bytes / static_cast<double>(rows.size()), std::memory_order_relaxed);
  }
  for (const sched::PlanRow& row : rows) {
    Sequence& sequence = sequence_of(row);
    for (std::int32_t i = 0; i < row.tokens_count; ++i) {
      const Token token = sequence.token_at(parts_.cached(sequence));
      parts_.slots.append(sequence.slot, std::span(&token, 1));
    }
    sequence.enter_batch(calls_.last().began, parts_.stats());
  }
}

// A failed call does not say which sequence is the reason. Each sequence is tried alone, and only those that fail again end.
void BatchRunner::run_one_by_one(std::span<const sched::PlanRow> rows, const Error& first_error) {
  for (const sched::PlanRow& row : rows) parts_.slots.resync(sequence_of(row).slot, sequence_of(row).chain);
  if (parts_.context.is_lost()) return;  // The lane's next step ends all of them.
  log_warning("a decode of {} sequences failed ({}): each is tried alone", rows.size(), first_error.message);
  for (const sched::PlanRow& row : rows) {
    Sequence& sequence = sequence_of(row);
    sched::PlanRow alone = row;
    alone.tokens_count = std::min(row.tokens_count, size_of(sequence.chain) - parts_.cached(sequence));
    const std::span<const sched::PlanRow> one(&alone, 1);
    (void)append_rows(one, false);
    const auto status =
        calls_.run(true, sequence.job.adapters, {}, [&](llm::CallMonitor*) { return parts_.context.decode(rows_, nullptr); });
    if (status && *status == llm::DecodeStatus::done) {
      add_computed(one, false);
      end_prompt_part(sequence, static_cast<std::int32_t>(rows_.size()), alone.tokens_count, parts_.clock.now());
      continue;
    }
    const Error error =
        status ? Error{ErrorCode::runtime_decode, "the context has no free cells for this request"} : status.error();
    parts_.slots.clear(sequence.slot);
    ends_.finish(sequence, FinishReason::error, error);
  }
}

void BatchRunner::report_progress(Sequence& sequence, std::int32_t done) {
  const double rate = parts_.costs.step_model.prefill_tokens_per_ms();
  ProgressEvent progress{.stage = ProgressStage::prefill, .done = done, .total = size_of(sequence.chain)};
  if (rate > 0) progress.eta_ms = static_cast<double>(progress.total - done) / rate;
  // The stream continues if a progress report fails.
  run_noting([&] { (void)sequence.job.sink->deliver(progress); });
}

}  // namespace uma::engine
