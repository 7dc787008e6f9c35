#include "engine/lane/run/embed_lane.h"

#include <algorithm>
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

constexpr TraceKind kEmbedSpan{.name = "embed", .numbers = {"rows", "texts"}};

// The minimum size of a call in rows. With fewer rows the fixed cost of a call would count as the cost of rows, and calls would
// become ever smaller.
constexpr double kRowsMin = 512;
constexpr double kRowsMinBesideStreams = 32;
// The weight of the last call in the mean time of a row.
constexpr double kNewest = 0.3;

Error cancelled() {
  return {ErrorCode::limit_wait, "the request was cancelled"};
}

}  // namespace

EmbedLane::EmbedLane(EmbedLaneOptions options, std::unique_ptr<llm::EmbeddingContext> context, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      context_(std::move(context)),
      cores_(options_.threads, 0, options_.workers),
      stats_(options_.stats ? options_.stats : std::make_shared<EmbedStats>()) {}

void EmbedLane::post(EmbedTask task) {
  UMA_CHECK(!task.texts.texts.empty());
  UMA_CHECK(task.images.empty() || (task.images.size() == task.texts.texts.size() && shape().reads_images));
  stats_->queue_depth.add(1);
  stats_->queue_bytes.add(static_cast<std::int64_t>(task.bytes()));
  stats_->queue_texts.add(std::ssize(task.texts.texts));
  inbox_->push(std::move(task));
}

std::int64_t EmbedLane::backlog() const {
  if (stats_->queue_depth.value() < 2) return 0;
  return std::max<std::int64_t>(0, stats_->queue_texts.value() - shape().batch_texts_max);
}

void EmbedLane::cancel(RequestId id) {
  inbox_->push(Cancel{id});
  if (alone_id_.load() == id.value) interrupt_.set(true);
}

void EmbedLane::close() {
  closed_.store(true);
  interrupt_.set(true);
  inbox_->close();
}

StepOutcome EmbedLane::step() {
  take_commands();
  if (context_->is_lost()) {
    end_lost();
    return {.did_work = false, .wake = kNever};
  }
  run_noting([this] { expire(clock_.now()); });
  prepare_images();
  drop_ended();
  pick_texts();
  cores_.set_decode_busy(!picked_.empty());
  if (picked_.empty()) return {.did_work = false, .wake = first_deadline()};

  const bool is_alone = std::ranges::all_of(picked_, [this](const Picked& text) { return text.job == picked_.front().job; });
  alone_id_.store(is_alone ? picked_.front().job->asked.id.value : 0);
  // A cancel from now on ends the next call. If an earlier cancel for another request ends the call, it is made again.
  interrupt_.set(false);
  if (closed_.load()) interrupt_.set(true);
  try {
    const auto computed = run_call(picked_);
    if (!computed && context_->is_lost()) {
      log_warning("embedding lane {}: {}", options_.index, computed.error().message);  // The next step ends all requests.
    } else if (!computed) {
      picked_.size() == 1 ? fail_text(picked_.front(), computed.error()) : run_one_by_one();
    } else if (*computed) {
      keep_outputs(picked_);
    }
  } catch (...) {
    const Error error = thrown_error();
    for (const Picked& text : picked_) {
      if (!text.job->asked.done) continue;
      stats_->requests_failed_total.add();
      run_noting([&] { end(*text.job, std::unexpected(error)); });
    }
  }
  alone_id_.store(0);
  drop_ended();
  return {.did_work = true, .wake = kNever};
}

void EmbedLane::take_commands() {
  inbox_->drain(inbox_taken_);
  // The commands are taken out first, so that none runs again if another one throws.
  for (Command& command : std::exchange(inbox_taken_, {})) run_noting([&] { run(command); });
  warn_of_depth();
}

void EmbedLane::run(Command& command) {
  std::visit([this](auto& each) { run(each); }, command);
}

void EmbedLane::run(EmbedTask& task) {
  auto job = std::make_unique<Job>(Job{.asked = std::move(task), .outputs = {}});
  share_.enter(job->asked.flow);
  jobs_.push_back(std::move(job));
}

void EmbedLane::run(const Cancel& cancel) {
  const auto job = std::ranges::find(jobs_, cancel.id, [](const auto& each) { return each->asked.id; });
  if (job == jobs_.end() || !(*job)->asked.done) return;
  stats_->requests_cancelled_total.add();
  end(**job, std::unexpected(cancelled()));
}

void EmbedLane::warn_of_depth() {
  if (options_.queue_depth_warn == 0) return;
  if (jobs_.size() < options_.queue_depth_warn) {
    has_warned_ = has_warned_ && 2 * jobs_.size() >= options_.queue_depth_warn;
  } else if (!std::exchange(has_warned_, true)) {
    log_warning("embedding lane {}: {} requests wait", options_.index, jobs_.size());
  }
}

// A device of the model is lost: ends all requests.
void EmbedLane::end_lost() {
  for (const auto& job : jobs_) {
    if (!job->asked.done) continue;
    stats_->requests_failed_total.add();
    run_noting([&] { end(*job, std::unexpected(lost_error(context_->loss()))); });
  }
  cores_.set_decode_busy(false);
  drop_ended();
  if (!std::exchange(has_told_loss_, true) && options_.on_lost) options_.on_lost();
}

void EmbedLane::expire(TimePoint now) {
  for (const auto& job : jobs_) {
    if (!job->asked.done || now < job->asked.deadline) continue;
    stats_->requests_failed_total.add();
    end(*job, fail(ErrorCode::limit_wait,
                   std::format("the request's deadline passed after {} of {} texts, and {} requests wait: try again later, or "
                               "with a longer deadline_ms",
                               job->texts_done, job->asked.texts.texts.size(), jobs_.size())));
  }
}

TimePoint EmbedLane::first_deadline() const {
  TimePoint first = kNever;
  for (const auto& job : jobs_) first = std::min(first, job->asked.deadline);
  return first;
}

// --- Images

std::span<image::ImageRun> EmbedLane::images_of(Job& job, std::size_t text) {
  return job.asked.images.empty() ? std::span<image::ImageRun>() : std::span(job.asked.images[text]);
}

bool EmbedLane::is_ready(Job& job) {
  return std::ranges::all_of(images_of(job, job.texts_done), [](const image::ImageRun& run) { return run.encoded != nullptr; });
}

// Requests the encodings that the next texts of some jobs need, and ends those that no job needs any more.
void EmbedLane::prepare_images() {
  for (const bool is_background : {false, true}) choose_prepared(is_background);
  for (const auto& job : jobs_) {
    if (job->asked.done && job->is_prepared) request_encodings(*job);
  }
  for (auto& [asked, end] : encoding_) {
    if (!is_needed(asked)) end.request_stop();
  }
}

// The classes do not wait for each other. In a class the request that pick_among() would take is prepared next.
void EmbedLane::choose_prepared(bool is_background) {
  std::vector<Job*> candidates;
  std::size_t prepared = 0;
  for (const auto& job : jobs_) {
    if (!job->asked.done || job->asked.is_background != is_background || images_of(*job, job->texts_done).empty()) continue;
    if (job->is_prepared) {
      ++prepared;
    } else {
      candidates.push_back(job.get());
    }
  }
  for (; prepared < kPreparedMax && !candidates.empty(); ++prepared) {
    const auto next = std::ranges::min_element(
        candidates, {}, [this](const Job* job) { return std::tuple(share_.rank(job->asked.flow), job->tokens_done); });
    (*next)->is_prepared = true;
    candidates.erase(next);
  }
}

void EmbedLane::request_encodings(Job& job) {
  for (const image::ImageRun& run : images_of(job, job.texts_done)) {
    if (run.encoded) continue;
    const AskedImage wanted{{job.asked.flow.tenant}, run.image};
    const auto [asked, is_new] = encoding_.try_emplace(wanted);
    if (!is_new) continue;
    try {
      UMA_CHECK(options_.encode != nullptr);
      options_.encode(wanted.tenant, wanted.image, asked->second.get_token(),
                      [inbox = inbox_, wanted](Expected<image::EncodedPtr> encoded) {
                        inbox->push(EncodedReport{wanted, std::move(encoded)});
                      });
    } catch (...) {
      const Error error = thrown_error();
      encoding_.erase(asked);
      stats_->requests_failed_total.add();
      return end(job, std::unexpected(error));
    }
  }
}

bool EmbedLane::is_needed(const AskedImage& asked) const {
  return std::ranges::any_of(jobs_, [&](const auto& job) {
    return job->asked.done && job->is_prepared && job->asked.flow.tenant == asked.tenant.value &&
           std::ranges::any_of(images_of(*job, job->texts_done),
                               [&](const image::ImageRun& run) { return run.image == asked.image && !run.encoded; });
  });
}

void EmbedLane::run(const EncodedReport& report) {
  const auto asked = encoding_.find(report.asked);
  const bool was_ended = asked != encoding_.end() && asked->second.stop_requested();
  if (asked != encoding_.end()) encoding_.erase(asked);
  // A request that came meanwhile asks again.
  if (was_ended && !report.encoded) return;
  for (const auto& job : jobs_) {
    if (!job->asked.done || !job->is_prepared || job->asked.flow.tenant != report.asked.tenant.value) continue;
    Expected<Unit> fits;
    for (image::ImageRun& run : images_of(*job, job->texts_done)) {
      if (run.image != report.asked.image || !fits) continue;
      fits = report.encoded
                 ? image::check_encoded(run, **report.encoded, image::call_rows_max(**report.encoded, shape()), false)
                 : Expected<Unit>(std::unexpected(report.encoded.error()));
      if (fits) run.encoded = *report.encoded;
    }
    if (fits) continue;
    stats_->requests_failed_total.add();
    end(*job, std::unexpected(fits.error()));
  }
}

// The rows of each image of the text, by calls.
std::vector<llm::ImageRows> EmbedLane::rows_of(const Picked& text) const {
  std::vector<llm::ImageRows> rows;
  const std::vector<Token>& tokens = text.job->asked.texts.texts[text.text].tokens;
  for (const image::ImageRun& run : images_of(*text.job, text.text)) {
    const std::int32_t rows_max = image::call_rows_max(*run.encoded, shape());
    for (std::int32_t begin = run.begin; begin < run.end();) {
      const std::int32_t end = image::call_end(run, begin, rows_max);
      rows.push_back(image::call_rows(run, tokens, begin, end));
      begin = end;
    }
  }
  return rows;
}

// --- Calls

// Chooses the texts of the next call; none if all wait for images.
void EmbedLane::pick_texts() {
  picked_.clear();
  for (const auto& job : jobs_) job->texts_taken = 0;
  const std::int32_t rows_max = rows_allowed();
  std::int32_t rows = 0;
  pick_among(/*is_background=*/false, rows_max, rows);
  pick_among(/*is_background=*/true, rows_max, rows);
}

// The first text is taken whatever its length, later ones if they fit. A text with images stays alone.
void EmbedLane::pick_among(bool is_background, std::int32_t rows_max, std::int32_t& rows) {
  if (!picked_.empty() && !images_of(*picked_.front().job, picked_.front().text).empty()) return;
  struct Candidate {
    Job* job;
    sched::FairShare::Rank rank;
    std::int64_t tokens;  // Computed, and taken into the next call.
  };
  std::vector<Candidate> candidates;
  for (const auto& job : jobs_) {
    if (job->asked.is_background == is_background && is_ready(*job)) {
      candidates.push_back({job.get(), share_.rank(job->asked.flow), job->tokens_done});
    }
  }
  while (!candidates.empty() && picked_.size() < static_cast<std::size_t>(shape().batch_texts_max)) {
    // Within a flow the request with the fewest computed tokens goes first; among equals the older one.
    const auto next = std::ranges::min_element(candidates, [](const Candidate& a, const Candidate& b) {
      return std::tie(a.rank, a.tokens) < std::tie(b.rank, b.tokens);
    });
    Job& job = *next->job;
    const std::size_t text = job.texts_done + job.texts_taken;
    const auto size = static_cast<std::int32_t>(job.asked.texts.texts[text].tokens.size());
    const bool has_images = !images_of(job, text).empty();
    if (!picked_.empty() && (has_images || rows + size > rows_max)) {
      candidates.erase(next);
      continue;
    }
    rows += size;
    picked_.push_back({&job, text});
    share_.charge(job.asked.flow, size);
    next->tokens += size;
    ++job.texts_taken;
    if (has_images) return;
    const bool is_last = text + 1 == job.asked.texts.texts.size();
    for (Candidate& other : candidates) {
      if (other.job->asked.flow == job.asked.flow) other.rank = share_.rank(job.asked.flow);
    }
    if (is_last) candidates.erase(next);
  }
}

std::int32_t EmbedLane::rows_allowed() const {
  const auto rows_max = static_cast<double>(shape().batch_rows_max);
  if (row_ms_ <= 0) return shape().batch_rows_max;
  const bool has_streams = options_.has_streams && options_.has_streams();
  const double rows = has_streams ? std::max(options_.call_ms_beside_streams / row_ms_, kRowsMinBesideStreams)
                                  : std::max(options_.call_ms_max / row_ms_, kRowsMin);
  return static_cast<std::int32_t>(std::min(rows, rows_max));
}

// False: the call was interrupted.
Expected<bool> EmbedLane::run_call(std::span<const Picked> texts) {
  if (const std::int32_t threads = cores_.decode_threads(); threads != threads_) {
    context_->set_threads(threads);
    threads_ = threads;
    stats_->threads.set(threads);
  }
  texts_.clear();
  std::size_t rows = 0;
  for (const Picked& text : texts) {
    texts_.emplace_back(text.job->asked.texts.texts[text.text].tokens);
    rows += texts_.back().size();
  }
  const TimePoint began = clock_.now();
  const std::vector<llm::ImageRows> images = rows_of(texts.front());
  auto computed = images.empty() ? context_->compute(texts_, &interrupt_, outputs_)
                                 : context_->compute_with_images(texts_.front(), images, &interrupt_, outputs_);
  const TimePoint ended = clock_.now();
  stats_->last_call_us.set(to_us(ended));
  if (!computed || !*computed) return computed;
  const double ms = to_ms(ended - began);
  const double row_ms = ms / static_cast<double>(rows);
  row_ms_ = row_ms_ <= 0 ? row_ms : row_ms_ + kNewest * (row_ms - row_ms_);
  stats_->call.record_ms(ms);
  record_span(kEmbedSpan, began, ended, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(texts.size())});
  stats_->calls_total.add();
  stats_->texts_total.add(texts.size());
  stats_->tokens_total.add(rows);
  return computed;
}

// After a failed call of several texts: computes each text alone; only the requests whose own texts fail again end.
void EmbedLane::run_one_by_one() {
  for (const Picked& text : picked_) {
    if (!text.job->asked.done) continue;  // An earlier text of the request has failed.
    const auto computed = run_call(std::span(&text, 1));
    if (computed && !*computed) return;  // Interrupted: the remaining texts wait.
    computed ? keep_outputs(std::span(&text, 1)) : fail_text(text, computed.error());
  }
}

void EmbedLane::fail_text(const Picked& text, const Error& error) {
  stats_->requests_failed_total.add();
  end(*text.job, std::unexpected(error));
}

// Gives the outputs of the last call to the requests.
void EmbedLane::keep_outputs(std::span<const Picked> texts) {
  const auto width = static_cast<std::size_t>(shape().dimensions);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    Job& job = *texts[i].job;
    const auto output = std::span(outputs_).subspan(i * width, width);
    job.outputs.insert(job.outputs.end(), output.begin(), output.end());
    for (image::ImageRun& run : images_of(job, job.texts_done)) run.encoded = nullptr;
    job.is_prepared = false;
    job.tokens_done += static_cast<std::int64_t>(job.asked.texts.texts[job.texts_done].tokens.size());
    stats_->queue_texts.add(-1);
    if (++job.texts_done < job.asked.texts.texts.size()) continue;
    stats_->request.record_ms(to_ms(clock_.now() - job.asked.received));
    end(job, std::move(job.outputs));
  }
}

// Delivers the request's result; drop_ended() removes the job.
void EmbedLane::end(Job& job, Expected<std::vector<float>> result) {
  stats_->requests_total.add();
  stats_->queue_depth.add(-1);
  stats_->queue_bytes.add(-static_cast<std::int64_t>(job.asked.bytes()));
  stats_->queue_texts.add(static_cast<std::int64_t>(job.texts_done) - std::ssize(job.asked.texts.texts));
  share_.leave(job.asked.flow);
  std::exchange(job.asked.done, nullptr)(job.asked.texts, std::move(result));
}

void EmbedLane::drop_ended() {
  std::erase_if(jobs_, [](const auto& job) { return !job->asked.done; });
  const auto waits = std::ranges::find(jobs_, 0u, [](const auto& job) { return job->texts_done; });
  stats_->waiting_since_us.set(waits == jobs_.end() ? 0 : to_us((*waits)->asked.received));
}

void EmbedLane::cancel_all() {
  take_commands();
  for (auto& [asked, end] : encoding_) end.request_stop();
  for (const auto& job : jobs_) {
    if (!job->asked.done) continue;
    stats_->requests_cancelled_total.add();
    end(*job, std::unexpected(cancelled()));
  }
  drop_ended();
}

}  // namespace uma::engine
