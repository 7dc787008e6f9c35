#include "engine/lane/lane.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/thrown.h"
#include "base/trace.h"
#include "engine/lane/run/lost_error.h"

namespace uma::engine {
namespace {

constexpr TraceKind kTickSpan{.name = "tick", .numbers = {"sequences", "running", "cells_used"}};

LaneOptions with_stats(LaneOptions options) {
  if (options.stats == nullptr) options.stats = std::make_shared<LaneStats>();
  return options;
}

}  // namespace

Lane::Lane(LaneOptions options, std::unique_ptr<llm::Context> context, std::unique_ptr<llm::Context> prefill_context,
           const llm::Vocab& vocab, const Clock& clock, OnResult on_result)
    : options_(with_stats(std::move(options))),
      vocab_(vocab),
      clock_(clock),
      context_(std::move(context)),
      cores_(options_.threads, options_.threads_beside_prefill, options_.workers),
      bandwidth_(options_.bmt_budget_gbps * 1e9),
      states_(options_.store, state_identity(), shape().can_truncate),
      slots_(*context_, !options_.is_reproducible),
      parts_{.options = options_,
             .clock = clock_,
             .context = *context_,
             .costs = costs_,
             .tenants = tenants_,
             .states = states_,
             .sequences = sequences_,
             .slots = slots_},
      targets_(options_, costs_.step_model),
      calls_(parts_, cores_, bandwidth_),
      eviction_(parts_),
      reuse_check_(parts_, calls_),
      ends_(parts_, eviction_, reuse_check_, std::move(on_result)),
      shifter_(parts_, ends_),
      sampler_(parts_, calls_, ends_, shifter_, targets_, vocab),
      preemption_(parts_, eviction_, reuse_check_, ends_, sampler_),
      prefix_copy_(parts_, calls_, eviction_, reuse_check_),
      writer_(parts_, calls_, inbox_),
      finder_(parts_, reuse_check_),
      placement_(parts_, eviction_, reuse_check_),
      admission_(parts_, eviction_, ends_, preemption_, shifter_, finder_, placement_, inbox_),
      planner_(parts_, targets_, cores_, bandwidth_),
      moves_(parts_, calls_, reuse_check_, ends_, sampler_, planner_, preemption_),
      speculation_(parts_, calls_, sampler_),
      compactor_(parts_, calls_, eviction_),
      transfers_(parts_, eviction_, prefix_copy_, writer_, compactor_, moves_),
      runner_(parts_, calls_, ends_, preemption_, sampler_, speculation_, compactor_),
      offload_(parts_, planner_, preemption_, runner_, cores_, prefill_lane_),
      images_(parts_, calls_, ends_, preemption_, sampler_, runner_, inbox_),
      warm_up_(parts_, calls_, vocab.bos().value_or(0)),
      activity_(parts_, admission_, targets_) {
  stats().threads.set(options_.threads);
  if (prefill_context == nullptr) return;
  UMA_CHECK(prefill_context->state_identity() == state_identity());
  prefill_lane_ = std::make_unique<PrefillLane>(std::move(prefill_context),
                                                PrefillOptions{.weights = options_.weights,
                                                               .is_reproducible = options_.is_reproducible,
                                                               .make_wider = options_.make_prefill_context,
                                                               .cells_max = shape().sequence_cells_max},
                                                states_.pool(), cores_, bandwidth_, *options_.stats, clock_,
                                                [this](PrefillReport report) { inbox_->push(std::move(report)); });
}

Lane::~Lane() = default;

void Lane::post(LaneCommand command) {
  if (const auto* cancelled = std::get_if<CancelCommand>(&command)) calls_.cancel(cancelled->id);
  if (std::holds_alternative<StartCommand>(command)) calls_.cancel(WarmUp::kId);
  inbox_->push(std::move(command));
}

void Lane::close() {
  closed_.store(true);
  calls_.close();
  inbox_->close();
  if (prefill_lane_) prefill_lane_->close();
}

void Lane::cancel_all() {
  tell_warm();
  do {
    take_commands();
  } while (!commands_.empty());
  for (const SequencePtr& sequence : sequences_) {
    if (!sequence->is_finished()) ends_.finish(*sequence, FinishReason::cancelled);
  }
  transfers_.give_up();
  eviction_.store_all();
  (void)end_step(true, kNever);
}

// --- Steps

StepOutcome Lane::step() {
  const TimePoint began = clock_.now();
  try {
    const StepOutcome outcome = tick();
    if (outcome.did_work) {
      record_span(kTickSpan, began, clock_.now(),
                  {static_cast<std::int64_t>(sequences_.size()), slots_.running(), slots_.cells_used()});
    }
    return outcome;
  } catch (...) {
    // It is not known for which sequence the failed work was.
    const Error error = thrown_error();
    for (const SequencePtr& sequence : sequences_) ends_.fail_thrown(*sequence, error);
    sequences_.remove_finished();
    return {.did_work = true, .wake = kNever};
  }
}

StepOutcome Lane::tick() {
  const TimePoint began = clock_.now();
  calls_.begin_step();
  if (is_closed()) calls_.close();
  take_commands();
  if (context_->is_lost()) return end_lost();
  if (warm()) {
    admission_.expire(clock_.now());
    return end_step(true, kNever);
  }
  admission_.expire(clock_.now());
  const bool has_sampled = sampler_.begin_step();
  admission_.admit(clock_.now());
  shifter_.shorten_running();
  images_.prepare();
  const bool has_saved = transfers_.save() || has_sampled;
  planner_.build_views(clock_.now());
  offload_.offload_long_prompts();
  const bool has_moved = transfers_.move();
  if (has_moved && !planner_.someone_decodes()) {
    // A sequence whose state has come decodes next, beside which prompts have less time.
    cores_.set_decode_busy(true);
    return end_step(true, kNever);
  }
  Sequence* image = images_.stop_at_images(planner_.views());
  const auto until = planner_.begin_tick(clock_.now(), image != nullptr);
  if (until && image == nullptr) return end_step(has_moved || has_saved, *until);
  if (image != nullptr && !planner_.is_turn_of_image(until.has_value())) image = nullptr;
  calls_.watch_load(clock_.now());
  (void)calls_.take_lost_tokens();
  const bool has_verified = reuse_check_.run(planner_.tick_target_ms());
  if (calls_.take_lost_tokens()) return end_step(true, kNever);
  sched::BatchPlan& plan = planner_.plan(to_ms(clock_.now() - began), until.has_value());
  if (runner_.run(plan))
    planner_.set_next_tick(clock_.now() + from_ms(calls_.prefill_slice_ms(planner_.tick_target_ms(), targets_.decode_calls())));
  if (image != nullptr && image->is_running()) images_.run(*image);
  if (calls_.take_unsound()) preemption_.clear_context();
  return end_step(has_moved || has_saved || has_verified || !plan.is_empty() || image != nullptr, kNever);
}

// Ends all requests. What only the context held is computed again elsewhere: conversations are in the sessions' records.
StepOutcome Lane::end_lost() {
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->is_finished()) continue;
    ends_.contain(*sequence, [&] {
      if (sequence->is_running()) slots_.clear(sequence->slot);
      ends_.finish(*sequence, FinishReason::error, lost_error(context_->loss()));
    });
  }
  transfers_.give_up();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_empty()) slots_.clear(i);
  }
  if (!std::exchange(has_told_loss_, true) && options_.on_lost) options_.on_lost();
  return end_step(false, kNever);
}

// False: there is work, of this worker or of another one, or nothing to warm up.
bool Lane::warm() {
  const bool is_idle = sequences_.is_empty() && !cores_.others_compute();
  if (!is_idle) warm_up_.interrupt();
  const bool has_work = is_idle ? warm_up_.is_wanted() : warm_up_.holds_requests();
  if (has_work) warm_up_.advance();
  if (has_work && calls_.take_unsound()) preemption_.clear_context();
  if (warm_up_.is_over()) tell_warm();
  return has_work;
}

void Lane::tell_warm() {
  if (!std::exchange(has_told_warm_, true) && options_.on_warm) options_.on_warm();
}

StepOutcome Lane::end_step(bool did_work, TimePoint wake) {
  sequences_.remove_finished();
  slots_.publish();
  stats().sequences_active.set(slots_.running());
  stats().hot_sessions.set(slots_.hot_sessions());
  stats().cells_used.set(slots_.cells_used());
  const auto first_in_line = std::ranges::find_if(sequences_, [](const SequencePtr& sequence) { return !sequence->in_batch; });
  stats().waiting_since_us.set(first_in_line == sequences_.end() ? 0 : to_us((*first_in_line)->job.received));
  const bool must_end = context_->is_lost() && !has_told_loss_;  // The next step does so.
  activity_.note_step(did_work);
  return {.did_work = did_work || must_end || !commands_.empty(), .wake = std::min(wake, next_wake())};
}

TimePoint Lane::next_wake() const {
  return std::min(transfers_.next_wake(), admission_.expires_at());
}

// --- Commands

void Lane::take_commands() {
  inbox_->drain(inbox_taken_);
  for (LaneCommand& command : std::exchange(inbox_taken_, {})) commands_.push_back(std::move(command));
  for (std::size_t i = 0; i < kCommandsPerStep && !commands_.empty(); ++i) {
    // Taken out first, so that it does not run again if it throws.
    LaneCommand command = std::move(commands_.front());
    commands_.pop_front();
    run_noting([&] { std::visit([&](auto& each) { run(each); }, command); });
  }
  sequences_.remove_finished();
}

void Lane::contain(RequestId id, const std::function<void(Sequence*)>& work) {
  try {
    work(sequences_.find(id));
  } catch (...) {
    const Error error = thrown_error();
    if (Sequence* sequence = sequences_.find(id)) ends_.fail_thrown(*sequence, error);
  }
}

void Lane::run(StartCommand& command) {
  const RequestId id = command.job.id;
  try {
    add_sequence(std::move(command.job));
  } catch (...) {
    stats().queue_depth.add(-1);
    ends_.report_failed(id, FailureEvent{thrown_error()});
  }
}

void Lane::add_sequence(GenerationJob job) {
  UMA_CHECK(!job.tokens.empty() && job.tokens_max >= 0);
  UMA_CHECK(shortest_length(job.droppable, size_of(job.tokens)) < shape().sequence_cells_max);
  const std::span<const Token> banned = job.sampling.ignore_eos ? vocab_.end_of_generation() : std::span<const Token>();
  auto sequence = std::make_unique<Sequence>(std::move(job), vocab_, banned);
  sequence->times.arrived = sequence->times.waits_since = clock_.now();
  admission_.note_arrival(*sequence);
  stats().requests_total.add();
  if (!sequence->job.adapters.is_empty()) stats().adapter_requests_total.add();
  tenants_.shares.enter(sequence->job.flow);
  sequences_.add(std::move(sequence));
  sequences_.set_reordered();
}

void Lane::run(const CancelCommand& command) {
  contain(command.id, [&](Sequence* sequence) {
    if (sequence == nullptr || sequence->is_finished()) return;
    stats().requests_cancelled_total.add();
    ends_.finish(*sequence, FinishReason::cancelled);
  });
}

void Lane::run(const ForgetCommand& command) {
  for (Sequence* sequence : sequences_.find_of(command.session)) {
    ends_.contain(*sequence, [&] { ends_.finish(*sequence, FinishReason::cancelled); });
  }
  if (const auto slot = slots_.find_of(command.session)) slots_.clear(*slot);
  writer_.forget(command.session);
  if (options_.store != nullptr) options_.store->forget(command.session);  // A write may have begun since the router did so.
}

void Lane::run(CopyCommand& command) {
  eviction_.copy(std::move(command));
}

void Lane::run(PrefillReport& report) {
  contain(report.id, [&](Sequence*) { offload_.accept(std::move(report)); });
}

void Lane::run(FetchReport& report) {
  contain(report.id, [&](Sequence*) { admission_.accept_fetched(std::move(report)); });
}

// --- For tests

void Lane::check_invariants() {
  speculation_.check_invariants();
  sequences_.check_invariants();
  slots_.check_invariants();
  reuse_check_.check_invariants();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto owners = std::ranges::count_if(
        sequences_, [&](const SequencePtr& sequence) { return sequence->is_running() && sequence->slot == i; });
    UMA_CHECK(owners == (slots_[i].is_running ? 1 : 0));
  }
  for (const SequencePtr& sequence : sequences_) {
    UMA_CHECK(!sequence->is_running() || slots_[sequence->slot].adapters == sequence->job.adapters);
    if (!sequence->is_running() || sequence->is_on<Restore>()) continue;
    const std::vector<Token>& cached = slots_[sequence->slot].tokens;
    UMA_CHECK(cached.size() + (sequence->is_held() ? 0 : 1) <= sequence->chain.size());
    UMA_CHECK(std::ranges::equal(cached, std::span<const Token>(sequence->chain).first(cached.size())));
  }
}

}  // namespace uma::engine
