#include "engine/prefill_lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/state_transfer.h"
#include "llm/logits.h"
#include "sched/plan_batch.h"

namespace uma::engine {
namespace {

// What a call may take, and, where streams wait for its cores, how much of it a layer may take: they wait for the end of a
// step, and the attention of a layer is the longest. Larger calls are faster (134 M Q8_0, a prompt of 1,920 tokens, calls of
// 64 / 128 / 256 / 512 rows: 480 / 482 / 509 / 538 tokens/s on one thread, 759 / 927 / 1,021 / 1,017 on two).
constexpr double kChunkMs = 400;
constexpr double kLayerMs = 12;

// Inside the gate, and on cores of its own, until it is destroyed.
class InCall {
 public:
  explicit InCall(CoreShare& cores) : cores_(cores) { cores_.gate().enter(); }
  ~InCall() {
    cores_.set_prefill_call(0);
    cores_.gate().leave();
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  CoreShare& cores_;
};

}  // namespace

PrefillLane::PrefillLane(std::unique_ptr<llm::Context> context, const PrefillOptions& options, kv::BytePool& pool,
                         CoreShare& cores, sched::BandwidthBudget& bandwidth, LaneStats& stats, const Clock& clock,
                         OnReport on_report)
    : options_(options),
      pool_(pool),
      cores_(cores),
      bandwidth_(bandwidth),
      stats_(stats),
      clock_(clock),
      on_report_(std::move(on_report)),
      context_(std::move(context)),
      interrupt_(&cores.gate()) {}

void PrefillLane::cancel(RequestId id) {
  inbox_.push(Cancel{id});
  if (resident_id_.load() == id.value) interrupt_.set(true);
}

void PrefillLane::close() {
  closed_.store(true);
  interrupt_.set(true);
  inbox_.close();
}

StepOutcome PrefillLane::step() {
  interrupt_.set(is_closed());
  take_commands();
  if (jobs_.empty()) return {};
  if (const TimePoint free_at = TimePoint() + from_ms(bandwidth_.free_at_ms()); clock_.now() < free_at) {
    return {.did_work = false, .wake = free_at};
  }
  Job& job = choose();
  try {
    if (bring_in(job)) run_chunk(job);
  } catch (...) {
    const Error error = thrown_error();
    run_noting([&] {
      if (std::ranges::contains(jobs_, &job, &std::unique_ptr<Job>::get)) fail_job(job, error);
    });
  }
  return {.did_work = true, .wake = kNever};
}

void PrefillLane::take_commands() {
  inbox_.drain(inbox_taken_);
  for (Command& command : inbox_taken_) {
    if (auto* job = std::get_if<PrefillJob>(&command)) {
      UMA_CHECK(!job->tokens.empty());
      jobs_.push_back(std::make_unique<Job>(std::move(*job)));
      Job& added = *jobs_.back();
      if (added.asked.image) added.tokens_done = static_cast<std::int32_t>(added.asked.image->tokens.size());
      UMA_CHECK(added.tokens_done < static_cast<std::int32_t>(added.asked.tokens.size()));
    } else {
      forget(std::get<Cancel>(command).id);
    }
  }
  inbox_taken_.clear();
}

void PrefillLane::forget(RequestId id) {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& job) { return job->asked.id == id; });
  if (found != jobs_.end()) remove(**found);
}

void PrefillLane::forget_all() {
  take_commands();
  while (!jobs_.empty()) remove(*jobs_.front());
}

void PrefillLane::remove(const Job& job) {
  if (&job == resident_) {
    UMA_CHECK(context_->truncate(0, 0));
    set_resident(nullptr);
  }
  std::erase_if(jobs_, [&](const auto& other) { return other.get() == &job; });
  cores_.prefill_job_ended();
}

PrefillLane::Job& PrefillLane::choose() const {
  const TimePoint now = clock_.now();
  const auto rank = [&](const std::unique_ptr<Job>& job) {
    const std::int32_t pending = static_cast<std::int32_t>(job->asked.tokens.size()) - job->tokens_done;
    const double due_ms = job->asked.due == kNever ? sched::kNotDue : to_ms(job->asked.due - now);
    return sched::prefill_rank({.pending_tokens = pending,
                                .is_background = job->asked.is_background,
                                .waited_ms = to_ms(now - job->asked.received),
                                .placed_ms = to_ms(now - job->asked.placed),
                                .due_ms = due_ms},
                               step_model_);
  };
  return **std::ranges::min_element(jobs_, {}, rank);
}

bool PrefillLane::bring_in(Job& job) {
  if (resident_ == &job) return true;
  if (resident_ != nullptr) put_aside();
  if (job.asked.image) {
    kv::StateImage image = std::move(*job.asked.image);
    job.asked.image.reset();
    job.asked.room = std::move(image.room);
    if (auto restored = restore_sequence(*context_, 0, image); !restored) {
      fail_job(job, restored.error());
      return false;
    }
    kv::recycle(std::move(image), pool_);
  }
  set_resident(&job);
  return true;
}

void PrefillLane::set_resident(Job* job) {
  resident_ = job;
  resident_id_.store(job == nullptr ? 0 : job->asked.id.value);
}

void PrefillLane::put_aside() {
  Job& job = *resident_;
  set_resident(nullptr);
  // Without an image it begins anew.
  if (const std::int32_t done = std::exchange(job.tokens_done, 0); done > 0) {
    auto image = contain([&] {
      return save_sequence(*context_, 0, std::span<const Token>(job.asked.tokens).first(static_cast<std::size_t>(done)), pool_,
                           std::move(job.asked.room));
    });
    if (image) {
      job.asked.image = std::move(*image);
      job.tokens_done = done;
    } else {
      log_warning("request {}: its half-computed prompt could not be kept and is computed again: {}", job.asked.id.value,
                  image.error().message);
    }
  }
  UMA_CHECK(context_->truncate(0, 0));
}

// Multiples of 64 tokens, from where on the library computes fastest. What is left over comes first, where few tokens are
// before it: at the end of 1,900 others 45 rows take as long as 64 (190 ms on one core, 134 M Q8_0). Where bits count, it is
// the last.
std::int32_t PrefillLane::chunk_rows(const Job& job) const {
  constexpr std::int32_t kGrid = sched::kFastChunk;
  const std::int32_t left = static_cast<std::int32_t>(job.asked.tokens.size()) - job.tokens_done;
  if (left < kGrid) return left;
  const bool holds_up_streams = cores_.decode_is_busy() && !cores_.is_split();
  const double chunk_ms = holds_up_streams ? std::min(kChunkMs, kLayerMs * context_->shape().layers) : kChunkMs;
  const std::int32_t rows_max = std::min(context_->shape().ubatch_rows_max, context_->shape().batch_rows_max);
  const std::int32_t fitting = step_model_.rows_within(chunk_ms, job.tokens_done, std::max(rows_max, kGrid));
  if (options_.is_reproducible) return sched::grid_rows(left, fitting);
  const std::int32_t rest = left % kGrid;
  return rest > 0 ? rest : std::min(std::max(fitting / kGrid * kGrid, kGrid), left);
}

void PrefillLane::run_chunk(Job& job) {
  const auto length = static_cast<std::int32_t>(job.asked.tokens.size());
  const ImageRun* image = run_at(job.asked.images, job.tokens_done);
  const std::int32_t end = image != nullptr
                               ? call_end(*image, job.tokens_done, context_->shape().image_rows_max)
                               : std::min(job.tokens_done + std::min(chunk_rows(job), context_->shape().batch_rows_max),
                                          text_end(job.asked.images, job.tokens_done, length));
  const std::int32_t rows = end - job.tokens_done;
  rows_.clear();
  for (std::int32_t i = job.tokens_done; i < end && image == nullptr; ++i) {
    rows_.push_back({.token = job.asked.tokens[static_cast<std::size_t>(i)],
                     .position = i,
                     .sequence = 0,
                     .wants_logits = i + 1 == length});
  }
  TimePoint began;
  TimePoint ended;
  const auto status = [&] {
    const InCall in_call(cores_);
    // A row alone is divided among the threads in a way of its own (Lane::needs_one_thread).
    const bool is_lone_row = options_.is_reproducible && rows == 1;
    if (const std::int32_t threads = is_lone_row ? 1 : cores_.prefill_threads(); threads != threads_) {
      threads_ = threads;
      context_->set_threads(threads);
      step_model_.set_threads(threads);
    }
    cores_.set_prefill_call(threads_);
    began = clock_.now();
    if (job.began == TimePoint{}) job.began = began;
    auto decoded = image == nullptr
                       ? context_->decode(rows_, &interrupt_)
                       : context_->decode_image(
                             {.tokens = std::span<const Token>(job.asked.tokens)
                                            .subspan(static_cast<std::size_t>(job.tokens_done), static_cast<std::size_t>(rows)),
                              .values = rows_of(*image, job.tokens_done, end),
                              .position = job.tokens_done,
                              .sequence = 0,
                              .is_causal = image->encoded->is_causal,
                              .wants_logits = end == length},
                             &interrupt_);
    ended = clock_.now();
    return decoded;
  }();
  const double ms = to_ms(ended - began - interrupt_.take_held_up());
  stats_.note_call_ended(ended, false);
  stats_.batch_calls_total.add();
  log_debug("prefill lane: {} rows at {} of request {} took {:.2f} ms on {} threads", rows, job.tokens_done, job.asked.id.value,
            ms, threads_);
  if (!status) return fail_job(job, status.error());
  if (*status == llm::DecodeStatus::no_room)
    return fail_job(job, {ErrorCode::runtime_decode, "the prefill context has no room for this prompt"});
  if (*status == llm::DecodeStatus::interrupted) {
    job.tokens_done = std::min(context_->sequence_length(0), length - 1);
    if (const ImageRun* run = run_at(job.asked.images, job.tokens_done)) job.tokens_done = call_begin(*run, job.tokens_done);
    if (context_->sequence_length(0) > job.tokens_done && !context_->truncate(0, job.tokens_done)) {
      UMA_CHECK(context_->truncate(0, 0));
      job.tokens_done = 0;
    }
    return;
  }
  sched::StepShape call;
  call.add_chunk(rows, job.tokens_done);
  step_model_.observe(call, ms);
  const double kv_tokens = static_cast<double>(job.tokens_done + rows) * sched::attention_tiles(rows);
  const double bytes = sched::bytes_of_call(options_.weights, rows, kv_tokens, context_->shape().kv_bytes_per_token);
  stats_.note_bytes_moved(bytes, ms);
  bandwidth_.charge(bytes, to_ms(began.time_since_epoch()));
  stats_.prefill_call.record_ms(ms);
  stats_.prompt_tokens_total.add(static_cast<std::uint64_t>(rows));
  job.tokens_done += rows;
  if (job.tokens_done == length) {
    hand_over(job, rows - 1);
  } else {
    on_report_(
        {.id = job.asked.id, .tokens_done = job.tokens_done, .began = job.began, .image = {}, .logits = {}, .error = {}});
  }
}

void PrefillLane::hand_over(Job& job, std::int32_t row) {
  const std::span<const float> logits = context_->logits(row);
  if (logits.empty()) return fail_job(job, {ErrorCode::runtime_decode, "the engine gave no logits for a token"});
  if (!llm::are_sound(logits)) {
    fail_job(job, {ErrorCode::runtime_decode, "its logits are not finite"});
    return context_->clear();
  }
  auto image = save_sequence(*context_, 0, job.asked.tokens, pool_, std::move(job.asked.room));
  if (!image) return fail_job(job, image.error());
  PrefillReport report{.id = job.asked.id,
                       .tokens_done = job.tokens_done,
                       .began = job.began,
                       .image = std::move(*image),
                       .logits = std::vector<float>(logits.begin(), logits.end()),
                       .error = {}};
  remove(job);
  cores_.handover_sent();
  on_report_(std::move(report));
}

void PrefillLane::fail_job(Job& job, Error error) {
  PrefillReport report{
      .id = job.asked.id, .tokens_done = 0, .began = job.began, .image = {}, .logits = {}, .error = std::move(error)};
  set_resident(&job);  // whatever the context holds goes with it
  remove(job);
  cores_.handover_sent();
  on_report_(std::move(report));
}

void PrefillLane::check_invariants() {
  UMA_CHECK(context_->sequence_length(0) == (resident_ == nullptr ? 0 : resident_->tokens_done));
  for (const auto& job : jobs_) {
    UMA_CHECK(job->tokens_done < static_cast<std::int32_t>(job->asked.tokens.size()));
    if (job.get() != resident_) {
      UMA_CHECK(job->tokens_done == (job->asked.image ? static_cast<std::int32_t>(job->asked.image->tokens.size()) : 0));
    }
  }
}

}  // namespace uma::engine
