#include "engine/lane/run/picture_lane.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "base/trace.h"
#include "engine/lane/run/lost_error.h"

namespace uma::engine {
namespace {

constexpr TraceKind kDrawSpan{.name = "draw", .numbers = {"rows", "pictures"}};
constexpr TraceKind kEncodeSpan{.name = "encode_picture", .numbers = {"width", "height"}};
constexpr TraceKind kDecodeSpan{.name = "decode_picture", .numbers = {"width", "height"}};

// The weight of the last call in the mean time of a row.
constexpr double kNewest = 0.3;
// The cost of decoding or encoding a picture, in rows.
constexpr std::int32_t kRowsOfDecoding = 3;

// The rows of a call for one step of the task's pictures.
std::int32_t rows_of(const PictureTask& task) {
  return task.drawing.guidance == 1 ? 1 : 2;
}

}  // namespace

PictureLane::PictureLane(PictureLaneOptions options, std::unique_ptr<llm::PictureContext> context, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      context_(std::move(context)),
      cores_(options_.threads, 0, options_.workers),
      stats_(options_.stats ? options_.stats : std::make_shared<PictureStats>()) {
  UMA_CHECK(context_->rows_max() >= 2);
}

void PictureLane::post(PictureTask task) {
  UMA_CHECK(task.count > 0 && task.first_step >= 0 && task.drawing.steps > task.first_step);
  stats_->queue_depth.add(1);
  inbox_.push(std::move(task));
}

void PictureLane::cancel(RequestId id) {
  inbox_.push(Cancel{id});
  if (alone_id_.load() == id.value) interrupt_.set(true);
}

void PictureLane::close() {
  closed_.store(true);
  interrupt_.set(true);
  inbox_.close();
}

StepOutcome PictureLane::step() {
  take_commands();
  if (context_->is_lost()) {
    end_lost();
    return {.did_work = false, .wake = kNever};
  }
  run_noting([this] { expire(clock_.now()); });
  drop_ended();
  pick();
  cores_.set_decode_busy(!picked_.empty());
  if (picked_.empty()) return {.did_work = false, .wake = first_deadline()};

  const bool is_alone = std::ranges::all_of(picked_, [this](const Picked& each) { return each.job == picked_.front().job; });
  alone_id_.store(is_alone ? picked_.front().job->asked.id.value : 0);
  // A cancel from now on ends the next call. If an earlier cancel for another request ends the call, it is made again.
  interrupt_.set(false);
  interrupt_.set_deadline(clock_, is_alone ? picked_.front().job->asked.deadline : kNever);
  if (closed_.load()) interrupt_.set(true);
  run_picked();
  alone_id_.store(0);
  drop_ended();
  return {.did_work = true, .wake = kNever};
}

void PictureLane::take_commands() {
  inbox_.drain(inbox_taken_);
  // The commands are taken out first, so that none runs again if another one throws.
  for (Command& command : std::exchange(inbox_taken_, {})) {
    run_noting([&] { std::visit([this](auto& each) { run(each); }, command); });
  }
  warn_of_depth();
}

void PictureLane::run(PictureTask& task) {
  auto job = std::make_unique<Job>(Job{.asked = std::move(task)});
  job->drawings.resize(static_cast<std::size_t>(job->asked.count));
  share_.enter(job->asked.flow);
  jobs_.push_back(std::move(job));
}

void PictureLane::run(const Cancel& cancel) {
  const auto job = std::ranges::find(jobs_, cancel.id, [](const auto& each) { return each->asked.id; });
  if (job == jobs_.end() || !(*job)->asked.done) return;
  stats_->requests_cancelled_total.add();
  end(**job, {.end = PictureOutcome::End::cancelled});
}

void PictureLane::warn_of_depth() {
  if (options_.queue_depth_warn == 0) return;
  if (jobs_.size() < options_.queue_depth_warn) {
    has_warned_ = has_warned_ && 2 * jobs_.size() >= options_.queue_depth_warn;
  } else if (!std::exchange(has_warned_, true)) {
    log_warning("picture lane {}: {} requests wait", options_.index, jobs_.size());
  }
}

// A device of the model is lost: ends all requests.
void PictureLane::end_lost() {
  for (const auto& job : jobs_) {
    if (job->asked.done) fail(*job, lost_error(context_->loss()));
  }
  cores_.set_decode_busy(false);
  drop_ended();
  if (!std::exchange(has_told_loss_, true) && options_.on_lost) options_.on_lost();
}

void PictureLane::expire(TimePoint now) {
  for (const auto& job : jobs_) {
    if (!job->asked.done || now < job->asked.deadline) continue;
    stats_->requests_failed_total.add();
    Error error{
        ErrorCode::limit_wait,
        std::format("the request's deadline passed after {} of {} pictures, and {} requests wait: try again later, with "
                    "fewer steps, or with a longer deadline_ms",
                    job->finished, job->asked.count, jobs_.size())};
    end(*job, {.end = PictureOutcome::End::failed, .error = std::move(error)});
  }
}

TimePoint PictureLane::first_deadline() const {
  TimePoint first = kNever;
  for (const auto& job : jobs_) first = std::min(first, job->asked.deadline);
  return first;
}

// --- Calls

PictureLane::Work PictureLane::work_of(const Picked& picture) {
  if (!picture.job->asked.begin.empty() && !picture.job->begin) return Work::encoding;
  const auto& drawing = picture.job->drawings[static_cast<std::size_t>(picture.picture)];
  return drawing != nullptr && drawing->wants_decoding() ? Work::decoding : Work::step;
}

// Chooses the pictures of the next call.
void PictureLane::pick() {
  picked_.clear();
  const std::int32_t rows_max = rows_allowed();
  pick_among(/*is_background=*/false, rows_max);
  pick_among(/*is_background=*/true, rows_max);
}

// The first picture is taken in any case, later ones if their rows fit. One that is to be encoded or decoded is alone in its
// call.
void PictureLane::pick_among(bool is_background, std::int32_t rows_max) {
  if (!picked_.empty() && work_of(picked_.front()) != Work::step) return;
  struct Candidate {
    Job* job;
    sched::FairShare::Rank rank;
    std::int32_t next;  // Picture.
  };
  std::vector<Candidate> candidates;
  for (const auto& job : jobs_) {
    if (job->asked.is_background == is_background)
      candidates.push_back({job.get(), share_.rank(job->asked.flow), job->finished});
  }
  std::int32_t rows = 0;
  for (const Picked& each : picked_) rows += rows_of(each.job->asked);
  while (!candidates.empty()) {
    // Within a flow the request with the fewest steps done goes first; among equals the older one.
    const auto next = std::ranges::min_element(candidates, [](const Candidate& a, const Candidate& b) {
      return std::tie(a.rank, a.job->steps_done) < std::tie(b.rank, b.job->steps_done);
    });
    Job& job = *next->job;
    const std::int32_t more = rows_of(job.asked);
    if (work_of({&job, next->next}) != Work::step) {
      if (!picked_.empty()) return;
      picked_.push_back({&job, next->next});
      return share_.charge(job.asked.flow, kRowsOfDecoding * job.asked.places);
    }
    if (!picked_.empty() && rows + more > rows_max) return;
    rows += more;
    picked_.push_back({&job, next->next});
    share_.charge(job.asked.flow, more * job.asked.places);
    for (Candidate& other : candidates) {
      if (other.job->asked.flow == job.asked.flow) other.rank = share_.rank(job.asked.flow);
    }
    if (++next->next == job.asked.count) candidates.erase(next);
  }
}

std::int32_t PictureLane::rows_allowed() const {
  if (row_ms_ <= 0) return 2;
  const bool has_streams = options_.has_streams && options_.has_streams();
  const double target = has_streams ? options_.call_ms_beside_streams : options_.call_ms_max;
  return static_cast<std::int32_t>(std::clamp(target / row_ms_, 2.0, static_cast<double>(context_->rows_max())));
}

// Does a step of each picked picture. If that fails, each is computed alone, and only the requests whose own pictures fail
// again end.
void PictureLane::run_picked() {
  const auto run = [this](std::span<const Picked> pictures) { return contain([&] { return run_call(pictures); }); };
  auto drawn = run(picked_);
  if (drawn || context_->is_lost()) {  // The next step ends all requests of a lost device.
    if (!drawn) log_warning("picture lane {}: {}", options_.index, drawn.error().message);
    return;
  }
  for (const Picked& each : picked_) {
    if (!each.job->asked.done) continue;
    if (picked_.size() > 1) drawn = run(std::span(&each, 1));
    if (drawn && !*drawn) return;  // Interrupted: the remaining pictures wait.
    if (drawn || context_->is_lost()) continue;
    fail(*each.job, drawn.error());
  }
}

// False: the call was interrupted.
Expected<bool> PictureLane::run_call(std::span<const Picked> pictures) {
  if (const std::int32_t threads = cores_.decode_threads(); threads != threads_) {
    context_->set_threads(threads);
    threads_ = threads;
    stats_->threads.set(threads);
  }
  switch (work_of(pictures.front())) {
    case Work::encoding:
      return encode(*pictures.front().job);
    case Work::decoding:
      return decode(pictures.front());
    case Work::step:
      break;
  }
  const TimePoint began = clock_.now();
  for (const Picked& each : pictures) {
    if (each.job->began == TimePoint()) each.job->began = began;
    auto read = read_captions(*each.job);
    if (!read || !*read) return read;
  }
  rows_.clear();
  for (const Picked& each : pictures) {
    Job& job = *each.job;
    auto& drawing = job.drawings[static_cast<std::size_t>(each.picture)];
    if (!drawing) {
      llm::DrawingOptions options = job.asked.drawing;
      options.seed += static_cast<std::uint64_t>(each.picture);
      const auto begin = job.begin ? std::span<const float>(*job.begin) : std::span<const float>();
      drawing = context_->new_drawing(options, {.picture = begin, .first_step = job.asked.first_step});
    }
    llm::DenoiseRow row{.noisy = drawing->noisy(),
                        .time = drawing->time(),
                        .width = drawing->options().width,
                        .height = drawing->options().height,
                        .caption = &*job.caption};
    rows_.push_back(row);
    if (!drawing->needs_negative()) continue;
    row.caption = &*job.negative;
    rows_.push_back(row);
  }
  const TimePoint computes = clock_.now();
  auto computed = context_->denoise(rows_, &interrupt_, predicted_);
  const TimePoint ended = clock_.now();
  stats_->last_call_us.set(to_us(ended));
  if (!computed || !*computed) return computed;
  const double ms = to_ms(ended - computes);
  const double row_ms = ms / static_cast<double>(rows_.size());
  row_ms_ = row_ms_ <= 0 ? row_ms : row_ms_ + kNewest * (row_ms - row_ms_);
  stats_->call.record_ms(ms);
  stats_->calls_total.add();
  stats_->steps_total.add(pictures.size());
  record_span(kDrawSpan, computes, ended,
              {static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(pictures.size())});
  for (const Picked& each : pictures) ++each.job->steps_done;
  std::size_t row = 0;
  for (const Picked& each : pictures) advance(each, row);
  return true;
}

// Converts the picture that the job's drawings begin with. False: it was interrupted.
Expected<bool> PictureLane::encode(Job& job) {
  const llm::DrawingOptions& options = job.asked.drawing;
  const TimePoint began = clock_.now();
  if (job.began == TimePoint()) job.began = began;
  std::vector<float> picture;
  auto encoded = context_->encode(job.asked.begin, options.width, options.height, &interrupt_, picture);
  const TimePoint ended = clock_.now();
  stats_->last_call_us.set(to_us(ended));
  if (!encoded || !*encoded) return encoded;
  job.begin = std::move(picture);
  stats_->call.record_ms(to_ms(ended - began));
  stats_->calls_total.add();
  record_span(kEncodeSpan, began, ended, {options.width, options.height});
  return true;
}

// Finishes a picture whose steps are done. False: it was interrupted.
Expected<bool> PictureLane::decode(const Picked& picture) {
  llm::PictureDrawing& drawing = *picture.job->drawings[static_cast<std::size_t>(picture.picture)];
  const TimePoint began = clock_.now();
  auto decoded = context_->decode(drawing, &interrupt_);
  const TimePoint ended = clock_.now();
  stats_->last_call_us.set(to_us(ended));
  if (!decoded || !*decoded) return decoded;
  stats_->call.record_ms(to_ms(ended - began));
  stats_->calls_total.add();
  record_span(kDecodeSpan, began, ended, {drawing.options().width, drawing.options().height});
  ++picture.job->decoded;
  tell(picture, true);
  return true;
}

// Reads what the job's drawings need. False: it was interrupted.
Expected<bool> PictureLane::read_captions(Job& job) {
  const auto read = [&](const llm::CaptionTokens& tokens, std::optional<llm::Caption>& out) -> Expected<bool> {
    if (out) return true;
    llm::Caption caption;
    auto done = context_->read_caption(tokens, &interrupt_, caption);
    if (done && *done) out = std::move(caption);
    return done;
  };
  auto done = read(job.asked.caption, job.caption);
  if (!done || !*done || rows_of(job.asked) == 1) return done;
  return read(job.asked.negative, job.negative);
}

// Gives the predicted rows from `row` on to the picture, and reports its step.
void PictureLane::advance(const Picked& picture, std::size_t& row) {
  Job& job = *picture.job;
  auto& drawing = *job.drawings[static_cast<std::size_t>(picture.picture)];
  const std::size_t numbers = drawing.noisy().size();
  const std::size_t rows = drawing.needs_negative() ? 2 : 1;
  const auto own = std::span(predicted_).subspan(row * numbers, rows * numbers);
  row += rows;
  if (!job.asked.done) return;  // An earlier picture of the request has ended it.
  if (!std::ranges::all_of(own, [](float number) { return std::isfinite(number); })) {
    return fail(job, {ErrorCode::runtime_decode, "the model computed numbers that are not finite: its file may be damaged"});
  }
  drawing.advance(own.first(numbers), own.subspan(numbers));
  tell(picture, false);
}

// Reports a step or the decoding of a picture, and ends its request if that was the last one.
void PictureLane::tell(const Picked& picture, bool is_decoding) {
  Job& job = *picture.job;
  const llm::PictureDrawing& drawing = *job.drawings[static_cast<std::size_t>(picture.picture)];
  const TimePoint now = clock_.now();
  // Decoding counts as the steps that it takes the time of.
  const double decoding = drawing.is_decoded() ? static_cast<double>(kRowsOfDecoding) / rows_of(job.asked) : 0;
  const double all = job.asked.count * (job.asked.drawing.steps - job.asked.first_step + decoding);
  const double done = static_cast<double>(job.steps_done) + job.decoded * decoding;
  const double eta_ms = to_ms(now - job.began) * (all - done) / done;
  const auto told = contain([&]() -> Expected<bool> {
    return job.asked.on_step({.picture = picture.picture, .drawing = drawing, .eta_ms = eta_ms, .is_decoding = is_decoding});
  });
  if (!told) return fail(job, told.error());
  if (!*told) {
    stats_->requests_failed_total.add();
    return end(job, {.end = PictureOutcome::End::slow_consumer});
  }
  if (!drawing.is_done()) return;
  job.drawings[static_cast<std::size_t>(picture.picture)].reset();
  stats_->pictures_total.add();
  if (++job.finished < job.asked.count) return;
  stats_->request.record_ms(to_ms(now - job.asked.received));
  end(job, {});
}

void PictureLane::fail(Job& job, const Error& error) {
  stats_->requests_failed_total.add();
  run_noting([&] { end(job, {.end = PictureOutcome::End::failed, .error = error}); });
}

// Delivers the request's outcome; drop_ended() removes the job.
void PictureLane::end(Job& job, PictureOutcome outcome) {
  const TimePoint now = clock_.now();
  const TimePoint began = job.began == TimePoint() ? now : job.began;
  outcome.queue_ms = to_ms(began - job.asked.received);
  outcome.draw_ms = to_ms(now - began);
  outcome.steps_done = job.steps_done;
  stats_->queue_depth.add(-1);
  share_.leave(job.asked.flow);
  std::exchange(job.asked.done, nullptr)(outcome);
}

void PictureLane::drop_ended() {
  std::erase_if(jobs_, [](const auto& job) { return !job->asked.done; });
  const auto waits = std::ranges::find(jobs_, 0, [](const auto& job) { return job->steps_done; });
  stats_->waiting_since_us.set(waits == jobs_.end() ? 0 : to_us((*waits)->asked.received));
}

void PictureLane::cancel_all() {
  take_commands();
  for (const auto& job : jobs_) {
    if (!job->asked.done) continue;
    stats_->requests_cancelled_total.add();
    end(*job, {.end = PictureOutcome::End::cancelled});
  }
  drop_ended();
}

}  // namespace uma::engine
