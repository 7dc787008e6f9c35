#include "engine/lane/run/prefill_lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/trace.h"
#include "engine/lane/move/state_transfer.h"
#include "llm/sampling/logits.h"
#include "sched/plan_batch.h"

namespace uma::engine {
namespace {

constexpr TraceKind kChunkSpan{.name = "prefill", .numbers = {"rows", "tokens_before", "without_waits_us", "request"}};

// The maximum time of a call, and of one layer in it while streams wait for its cores: the streams wait for the end of a
// computation step, and the attention of a layer is the longest one. Larger calls are faster (134 M Q8_0, a prompt of 1,920
// tokens, calls of 64 / 128 / 256 / 512 rows: 480 / 482 / 509 / 538 tokens/s on one thread, 759 / 927 / 1,021 / 1,017 on two).
constexpr double kChunkMs = 400;
constexpr double kLoneChunkMs = 1000;  // While there is no stream and no other prompt.
constexpr double kLayerMs = 12;

// Several threads share the attention of 64 rows unevenly: behind 16,000 tokens calls of 64 / 128 / 256 / 512 rows compute 57 /
// 76 / 75 / 81 tokens/s on two threads, and 37 to 39 on one (134 M Q8_0, llama-bench -fa 1).
constexpr std::int32_t kSharedRows = 2 * sched::kFastChunk;

// A wider context has room for a prompt a quarter longer than the one it is made for, so that a conversation does not need a
// new one at each turn, and stays for this time after the last prompt that needed it.
constexpr std::int32_t kWiderShare = 4;
constexpr double kWideMs = 5 * 60 * 1000;

// The scope of a call: inside the gate, with cores reserved for the call.
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
      first_shape_(context->shape()),
      context_(std::move(context)),
      cells_(first_shape_.sequence_cells_max),
      interrupt_(&cores.gate()) {}

llm::ContextShape PrefillLane::shape_for(std::int32_t tokens) const {
  llm::ContextShape shape = first_shape_;
  const std::int32_t first = shape.sequence_cells_max;
  if (tokens <= first) return shape;
  shape.sequence_cells_max = std::max(tokens, std::min(cells_max(), tokens + tokens / kWiderShare));
  // Further cells take keys and values only: the rest of the memory does not grow, nor do states.
  const std::int32_t more = shape.sequence_cells_max - first;
  const std::int32_t parts = std::max(1, shape.cells / first);
  shape.cells += more * parts;
  shape.sequence_bytes_max += static_cast<std::uint64_t>(more) * shape.kv_bytes_per_token;
  shape.memory_bytes += static_cast<std::uint64_t>(more) * static_cast<std::uint64_t>(parts) * shape.kv_bytes_per_token;
  return shape;
}

void PrefillLane::cancel(RequestId id) {
  inbox_.push(Cancel{id});
  const MutexLock lock(resident_mutex_);
  if (resident_id_ == id) interrupt_.set(true);
}

void PrefillLane::close() {
  closed_.store(true);
  interrupt_.set(true);
  inbox_.close();
}

StepOutcome PrefillLane::step() {
  interrupt_.set(is_closed());
  take_commands();
  if (jobs_.empty()) return rest();
  if (const TimePoint free_at = TimePoint() + from_ms(bandwidth_.free_at_ms()); clock_.now() < free_at) {
    return {.did_work = false, .wake = free_at};
  }
  Job& job = choose();
  try {
    if (make_resident(job)) run_chunk(job);
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
      if (added.asked.snapshot) added.tokens_done = static_cast<std::int32_t>(added.asked.snapshot->tokens.size());
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

void PrefillLane::remove(Job& job) {
  if (&job == resident_) {
    UMA_CHECK(context_->truncate(0, 0));
    set_resident(nullptr);
  }
  const auto found = std::ranges::find(jobs_, &job, &std::unique_ptr<Job>::get);
  drop_snapshot(**found);
  jobs_.erase(found);
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

bool PrefillLane::make_resident(Job& job) {
  if (resident_ == &job) return true;
  if (resident_ != nullptr) save_resident();
  const auto length = static_cast<std::int32_t>(job.asked.tokens.size());
  if (length > cells()) {
    const std::int32_t cells_wanted = shape_for(length).sequence_cells_max;
    if (auto wider = replace_context(cells_wanted, std::move(job.asked.wider_context)); !wider) {
      fail_job(job, wider.error());
      return false;
    }
  }
  if (length > first_shape_.sequence_cells_max) wide_until_ = clock_.now() + from_ms(kWideMs);
  job.asked.wider_context = {};
  if (job.asked.snapshot) {
    if (auto restored = restore_sequence(*context_, 0, job.asked.adapters, *job.asked.snapshot); !restored) {
      fail_job(job, restored.error());
      return false;
    }
    if (!context_->shape().knows_pieces()) drop_snapshot(job);
  }
  set_resident(&job);
  return true;
}

// Puts a context of so many cells in place of the present one, which is empty. `room` is the memory for the new one; its part
// beyond the first context's memory, which belongs to the model, is kept.
Expected<Unit> PrefillLane::replace_context(std::int32_t cells, ByteBudget::Share room) {
  UMA_CHECK(resident_ == nullptr && options_.make_wider);
  auto made = contain([&] { return options_.make_wider(cells); });
  if (!made) return std::unexpected(made.error());
  UMA_CHECK((*made)->state_identity() == context_->state_identity());
  log_debug("prefill lane: a context of {} cells replaces one of {}", cells, context_->shape().sequence_cells_max);
  context_ = std::move(*made);
  const std::uint64_t bytes = context_->shape().memory_bytes;
  pool_.correct(room, bytes - std::min(bytes, first_shape_.memory_bytes));
  wider_room_ = std::move(room);
  threads_ = 0;
  cells_.store(context_->shape().sequence_cells_max);
  return Unit{};
}

// Without jobs: returns the memory of a wider context that has not been needed for a while.
StepOutcome PrefillLane::rest() {
  if (cells() <= first_shape_.sequence_cells_max) return {};
  if (clock_.now() < wide_until_) return {.did_work = false, .wake = wide_until_};
  if (auto narrow = replace_context(first_shape_.sequence_cells_max, {}); narrow) return {.did_work = true, .wake = kNever};
  wide_until_ = clock_.now() + from_ms(kWideMs);
  return {.did_work = false, .wake = wide_until_};
}

void PrefillLane::set_resident(Job* job) {
  resident_ = job;
  const MutexLock lock(resident_mutex_);
  resident_id_ = job == nullptr ? RequestId{} : job->asked.id;
  interrupt_.set(is_closed());  // An interruption of the former job does not concern this one.
}

void PrefillLane::save_resident() {
  Job& job = *resident_;
  set_resident(nullptr);
  // Without a snapshot the job begins again.
  if (const std::int32_t done = std::exchange(job.tokens_done, 0); done > 0) {
    auto snapshot = save(job, done);
    if (snapshot) {
      job.asked.snapshot = std::move(*snapshot);
      job.tokens_done = done;
    } else {
      log_warning("request {}: the state of its unfinished prompt could not be saved and is computed again: {}",
                  job.asked.id.value, snapshot.error().message);
    }
  }
  UMA_CHECK(context_->truncate(0, 0));
}

// Saves the state of the job's first `count` tokens, which are in the context. After a failure the job keeps its reservation.
Expected<kv::Snapshot> PrefillLane::save(Job& job, std::int32_t count) {
  kv::Snapshot begun;
  if (job.asked.snapshot) {
    begun = std::move(*job.asked.snapshot);
    job.asked.snapshot.reset();
  } else {
    begun.room = std::move(job.asked.reservation);
  }
  const auto tokens = std::span<const Token>(job.asked.tokens).first(static_cast<std::size_t>(count));
  SequenceSave save(*context_, tokens, job.asked.adapters, std::move(begun));
  auto snapshot = contain([&] { return save.finish(*context_, 0, pool_); });
  if (!snapshot) job.asked.reservation = save.give_up(pool_);
  return snapshot;
}

void PrefillLane::drop_snapshot(Job& job) {
  if (!job.asked.snapshot) return;
  job.asked.reservation = std::move(job.asked.snapshot->room);
  kv::recycle(std::move(*job.asked.snapshot), pool_);
  job.asked.snapshot.reset();
}

std::int32_t PrefillLane::chunk_rows(const Job& job) const {
  const std::int32_t left = static_cast<std::int32_t>(job.asked.tokens.size()) - job.tokens_done;
  const bool holds_up_streams = cores_.decode_is_busy() && !cores_.is_split();
  const bool is_alone = jobs_.size() == 1 && !cores_.decode_is_busy();
  const double chunk_ms = is_alone           ? kLoneChunkMs
                          : holds_up_streams ? std::min(kChunkMs, kLayerMs * context_->shape().layers)
                                             : kChunkMs;
  const std::int32_t rows_max = std::min(context_->shape().ubatch_rows_max, context_->shape().batch_rows_max);
  if (options_.is_reproducible) return sched::grid_rows(left, step_model_.rows_within(chunk_ms, job.tokens_done, rows_max));
  const std::int32_t rows_least = cores_.prefill_threads() > 1 && !holds_up_streams ? kSharedRows : sched::kFastChunk;
  return sched::aligned_rows(step_model_, chunk_ms, job.tokens_done, left, rows_max, rows_least);
}

void PrefillLane::run_chunk(Job& job) {
  const auto length = static_cast<std::int32_t>(job.asked.tokens.size());
  const image::ImageRun* image = image::run_at(job.asked.images, job.tokens_done);
  // A job that begins again can meet an image of the cached beginning, whose encoding was not needed.
  if (image != nullptr && !image->encoded)
    return fail_job(job, {ErrorCode::runtime_decode, "the prompt begins again, with an image that is not encoded"});
  const std::int32_t end =
      image != nullptr ? image::call_end(*image, job.tokens_done, image::call_rows_max(*image->encoded, context_->shape()))
                       : std::min(job.tokens_done + std::min(chunk_rows(job), context_->shape().batch_rows_max),
                                  image::text_end(job.asked.images, job.tokens_done, length));
  const std::int32_t rows = end - job.tokens_done;
  const Call call = decode_chunk(job, image, end);
  stats_.record_call_ended(call.ended, false);
  stats_.batch_calls_total.add();
  log_debug("prefill lane: {} rows at {} of request {} took {:.2f} ms on {} threads", rows, job.tokens_done, job.asked.id.value,
            call.ms, threads_);
  if (!call.status) return fail_job(job, call.status.error());
  if (*call.status == llm::DecodeStatus::out_of_cells)
    return fail_job(job, {ErrorCode::runtime_decode, "the prefill context has no free cells for this prompt"});
  if (*call.status == llm::DecodeStatus::interrupted) return keep_computed_rows(job);
  record_chunk(job, rows, call);
  job.tokens_done = end;
  if (job.tokens_done == length) {
    hand_over(job, rows - 1);
  } else {
    on_report_(
        {.id = job.asked.id, .tokens_done = job.tokens_done, .began = job.began, .snapshot = {}, .logits = {}, .error = {}});
  }
}

// Computes the tokens up to `end`, all of which are text, or all of the image.
PrefillLane::Call PrefillLane::decode_chunk(Job& job, const image::ImageRun* image, std::int32_t end) {
  const std::int32_t begin = job.tokens_done;
  const auto length = static_cast<std::int32_t>(job.asked.tokens.size());
  rows_.clear();
  for (std::int32_t i = begin; i < end && image == nullptr; ++i) {
    rows_.push_back({.token = job.asked.tokens[static_cast<std::size_t>(i)],
                     .position = i,
                     .sequence = 0,
                     .wants_logits = i + 1 == length});
  }
  const InCall in_call(cores_);
  // The library divides the cells of a single row among its threads (BatchRunner::needs_one_thread).
  const bool is_lone_row = options_.is_reproducible && end - begin == 1;
  if (const std::int32_t threads = is_lone_row ? 1 : cores_.prefill_threads(); threads != threads_) {
    threads_ = threads;
    context_->set_threads(threads);
    step_model_.set_threads(threads);
  }
  cores_.set_prefill_call(threads_);
  context_->use_adapters(job.asked.adapters);
  const TimePoint began = clock_.now();
  if (job.began == TimePoint{}) job.began = began;
  const auto compute = [&] {
    if (image == nullptr) return context_->decode(rows_, &interrupt_);
    llm::ImageRows rows = image::call_rows(*image, job.asked.tokens, begin, end);
    rows.wants_logits = end == length;
    return context_->decode_image(rows, &interrupt_);
  };
  auto status = compute();
  const TimePoint ended = clock_.now();
  return {.status = std::move(status), .began = began, .ended = ended, .ms = to_ms(ended - began - interrupt_.take_waited())};
}

// After an interrupted call: the job goes on behind the rows that were computed.
void PrefillLane::keep_computed_rows(Job& job) {
  const auto length = static_cast<std::int32_t>(job.asked.tokens.size());
  job.tokens_done = std::min(context_->sequence_length(0), length - 1);
  if (const image::ImageRun* run = image::run_at(job.asked.images, job.tokens_done))
    job.tokens_done = image::call_begin(*run, job.tokens_done);
  if (context_->sequence_length(0) > job.tokens_done && !context_->truncate(0, job.tokens_done)) {
    UMA_CHECK(context_->truncate(0, 0));
    job.tokens_done = 0;
  }
  if (job.asked.snapshot && job.tokens_done < static_cast<std::int32_t>(job.asked.snapshot->tokens.size())) drop_snapshot(job);
}

void PrefillLane::record_chunk(const Job& job, std::int32_t rows, const Call& call) {
  sched::StepShape shape;
  shape.add_chunk(rows, job.tokens_done);
  step_model_.observe(shape, call.ms);
  const double kv_tokens = static_cast<double>(job.tokens_done + rows) * sched::attention_tiles(rows);
  const double bytes = sched::bytes_of_call(options_.weights, rows, kv_tokens, context_->shape().kv_bytes_per_token);
  stats_.record_bytes_moved(bytes, call.ms);
  bandwidth_.charge(bytes, to_ms(call.began.time_since_epoch()));
  stats_.prefill_call.record_ms(call.ms);
  record_span(
      kChunkSpan, call.began, call.ended,
      {rows, job.tokens_done, static_cast<std::int64_t>(call.ms * 1000), static_cast<std::int64_t>(job.asked.id.value)});
  stats_.prompt_tokens_total.add(static_cast<std::uint64_t>(rows));
}

void PrefillLane::hand_over(Job& job, std::int32_t row) {
  const std::span<const float> logits = context_->logits(row);
  if (logits.empty()) return fail_job(job, {ErrorCode::runtime_decode, "the library returned no logits for a token"});
  if (!llm::are_sound(logits)) {
    fail_job(job, {ErrorCode::runtime_decode, "the logits of the prompt are not finite"});
    return context_->clear();
  }
  auto snapshot = save(job, job.tokens_done);
  if (!snapshot) return fail_job(job, snapshot.error());
  PrefillReport report{.id = job.asked.id,
                       .tokens_done = job.tokens_done,
                       .began = job.began,
                       .snapshot = std::move(*snapshot),
                       .logits = std::vector<float>(logits.begin(), logits.end()),
                       .error = {}};
  remove(job);
  cores_.handover_sent();
  on_report_(std::move(report));
}

void PrefillLane::fail_job(Job& job, Error error) {
  PrefillReport report{
      .id = job.asked.id, .tokens_done = 0, .began = job.began, .snapshot = {}, .logits = {}, .error = std::move(error)};
  set_resident(&job);  // remove() also clears the context of a resident job.
  remove(job);
  cores_.handover_sent();
  on_report_(std::move(report));
}

void PrefillLane::check_invariants() {
  UMA_CHECK(context_->sequence_length(0) == (resident_ == nullptr ? 0 : resident_->tokens_done));
  for (const auto& job : jobs_) {
    UMA_CHECK(job->tokens_done < static_cast<std::int32_t>(job->asked.tokens.size()));
    const auto saved = job->asked.snapshot ? static_cast<std::int32_t>(job->asked.snapshot->tokens.size()) : 0;
    UMA_CHECK(job.get() == resident_ ? saved <= job->tokens_done : saved == job->tokens_done);
  }
}

}  // namespace uma::engine
