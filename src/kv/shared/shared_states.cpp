#include "kv/shared/shared_states.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "base/trace.h"

namespace uma::kv {
namespace {

constexpr TraceKind kReadSharedSpan{.name = "read shared state", .numbers = {"bytes"}};
constexpr TraceKind kWriteSharedSpan{.name = "write shared state", .numbers = {"bytes"}};

constexpr double kSharedMegabyte = 1e6;
// Until the first one was read: a network of 1 Gbit/s.
constexpr double kMsPerMegabyte = 8;
constexpr double kFirstMs = 5;
// After a failure requests do not ask again for so long, and nothing is written for so long.
constexpr Duration kSharedReadPause = std::chrono::seconds(5);
constexpr Duration kSharedWritePause = std::chrono::seconds(30);
constexpr Duration kCleanEvery = std::chrono::minutes(10);
constexpr std::uint64_t kCleanAfterBytes = std::uint64_t{4} << 30;  // Or after so much was written.
// The time limits of calls. A read has the time that its request gives it.
constexpr Duration kFindMax = std::chrono::seconds(2);
constexpr Duration kSharedWriteMax = std::chrono::minutes(2);  // Or longer, at this rate.
constexpr double kSharedWriteRateMin = 10e6;                   // Bytes per second.
constexpr Duration kSharedRemoveMax = std::chrono::seconds(10);
constexpr Duration kCleanMax = std::chrono::minutes(2);
constexpr Duration kLateKnown = std::chrono::minutes(5);
constexpr double kHangsMs = 1e12;
constexpr std::size_t kSharedWritesMax = 4096;  // Writes that wait; others are given up.

Duration write_limit(std::uint64_t bytes) {
  return std::max<Duration>(kSharedWriteMax, from_ms(1000 * static_cast<double>(bytes) / kSharedWriteRateMin));
}

Error not_used(std::string_view why) {
  return {ErrorCode::io_failed, std::format("the shared store is not used: {}", why)};
}

}  // namespace

SharedReader::SharedReader(std::unique_ptr<SharedStore> store, SharedStats& stats, const Clock& clock)
    : store_(std::move(store)),
      stats_(stats),
      clock_(clock),
      ms_per_mb_(kMsPerMegabyte),
      first_ms_(kFirstMs),
      pause_(clock, kSharedReadPause) {
  store_->give_up_when([this] { return is_closed_ || limit_.is_over(); });
}

void SharedReader::look_up(TenantId tenant, SessionId session, std::vector<std::string> identities, OnFound on_found) {
  if (limit_.hangs()) return on_found({});
  Job job;
  job.tenant = std::move(tenant);
  job.session = std::move(session);
  job.identities = std::move(identities);
  job.on_found = std::move(on_found);
  inbox_.push(std::move(job));
}

void SharedReader::read(ColdHead head, BytePool& pool, TimePoint until, OnRead on_read) {
  if (limit_.hangs()) return on_read(std::unexpected(not_used("it does not answer")), 0);
  if (is_closed_) return on_read(std::unexpected(not_used("the daemon is stopping")), 0);
  queued_bytes_ += head.bytes;
  Job job;
  job.until = until;
  job.head = std::move(head);
  job.pool = &pool;
  job.on_read = std::move(on_read);
  inbox_.push(std::move(job));
}

double SharedReader::read_ms(std::uint64_t bytes) const {
  if (limit_.hangs()) return kHangsMs;
  const bool was_late = to_us(clock_.now()) < late_until_us_;
  const double ms_per_mb = was_late ? std::max<double>(ms_per_mb_, late_ms_per_mb_) : ms_per_mb_.load();
  return first_ms_ + ms_per_mb * static_cast<double>(queued_bytes_ + bytes) / kSharedMegabyte;
}

void SharedReader::close() {
  is_closed_ = true;
  inbox_.close();
}

bool SharedReader::step() {
  inbox_.drain(taken_);
  const bool any = !taken_.empty();
  // Lookups are short, and a request waits for each.
  std::ranges::stable_partition(taken_, [](const Job& job) { return !job.head; });
  for (Job& job : std::exchange(taken_, {})) run_noting([&] { run(std::move(job)); });
  return any;
}

bool SharedReader::wait() {
  return inbox_.wait_drain(taken_, kNever);
}

void SharedReader::run(Job job) {
  if (job.head) return read(std::move(job));
  job.on_found(look_up(job));
}

std::vector<ColdHead> SharedReader::look_up(const Job& job) {
  if (is_closed_ || !pause_.is_over()) return {};
  stats_.lookups_total.add();
  auto found = limit_.run(clock_.now() + kFindMax, [&] { return store_->find(job.tenant, job.session, job.identities); });
  if (!found) {
    note(found.error());
    return {};
  }
  if (pause_.note_success()) log_info("kv: states are read from {} again", store_->text());
  if (!found->empty()) stats_.found_total.add();
  return std::move(*found);
}

void SharedReader::read(Job job) {
  const std::uint64_t bytes = job.head->bytes;
  if (is_closed_) {
    queued_bytes_ -= bytes;
    return job.on_read(std::unexpected(not_used("the daemon is stopping")), 0);
  }
  const TimePoint began = clock_.now();
  // Nobody waits for it any more.
  const bool is_late = began >= job.until;
  if (is_late || !pause_.is_over()) {
    queued_bytes_ -= bytes;
    return job.on_read(std::unexpected(not_used(is_late ? "other reads took too long" : "it has failed a moment ago")), 0);
  }
  auto found = limit_.run(job.until, [&] { return store_->read(job.head->name, job.head->owner, bytes, *job.pool); });
  const TimePoint ended = clock_.now();
  const double ms = to_ms(ended - began);
  queued_bytes_ -= bytes;
  record_span(kReadSharedSpan, began, ended, {static_cast<std::int64_t>(found && *found ? bytes : 0)});
  Expected<Snapshot> snapshot = std::unexpected(not_used("another node has removed the state"));
  if (found && *found) snapshot = std::move(**found);
  if (!found) snapshot = std::unexpected(found.error());
  if (snapshot) {
    stats_.reads_total.add();
    stats_.read_bytes_total.add(bytes);
  } else if (!found) {
    note(found.error());
  }
  if (snapshot || ended >= job.until) observe(bytes, ms, ended >= job.until);
  job.on_read(std::move(snapshot), ms);
}

// A small state tells the time to the first byte, a large one the rate. `is_late`: it was not read in time, or given up.
void SharedReader::observe(std::uint64_t bytes, double ms, bool is_late) {
  const double megabytes = static_cast<double>(bytes) / kSharedMegabyte;
  const double ms_per_mb = std::max(0.0, ms - first_ms_) / megabytes;
  if (is_late) {
    if (megabytes < 1) return;
    late_ms_per_mb_ = ms_per_mb;
    late_until_us_ = to_us(clock_.now() + kLateKnown);
  } else if (megabytes < 1) {
    first_ms_ = first_ms_ + (ms - first_ms_) / 4;
  } else {
    ms_per_mb_ = ms_per_mb_ + (ms_per_mb - ms_per_mb_) / 4;
    late_until_us_ = 0;
  }
}

void SharedReader::note(const Error& error) {
  if (error.code == ErrorCode::runtime_decode) {
    stats_.refused_total.add();
    return;  // The user of the state logs it.
  }
  stats_.failed_total.add();
  if (pause_.note_failure()) log_warning("kv: shared states cannot be read, and their tokens are computed: {}", error.message);
}

// --- Writing

SharedWriter::SharedWriter(std::unique_ptr<SharedStore> store, SharedStats& stats, const Clock& clock)
    : store_(std::move(store)), stats_(stats), clock_(clock), pause_(clock, kSharedWritePause), clean_at_(clock.now()) {
  store_->give_up_when([this] { return limit_.is_over() || is_closing_late(); });
}

void SharedWriter::write(StateOwner owner, TakeState take, Urgency urgency, OnWritten on_written) {
  if (limit_.hangs()) return on_written(std::unexpected(not_used("it does not answer")));
  Job job{.urgency = urgency, .owner = std::move(owner), .take = std::move(take), .on_written = std::move(on_written)};
  inbox_.push(std::move(job));
}

void SharedWriter::remove(TenantId tenant, SessionId session) {
  if (limit_.hangs()) return;  // The states end with their time to live.
  Job job;
  job.owner.tenant = std::move(tenant);
  job.owner.session = std::move(session);
  inbox_.push(std::move(job));
}

void SharedWriter::close(TimePoint deadline) {
  closes_at_us_ = std::max<std::int64_t>(1, to_us(deadline));
  inbox_.close();
}

bool SharedWriter::step() {
  inbox_.drain(taken_);
  for (Job& job : std::exchange(taken_, {})) {
    const bool is_urgent = job.urgency == Urgency::soon;
    const auto place = is_urgent ? std::ranges::find(waiting_, Urgency::when_idle, &Job::urgency) : waiting_.end();
    waiting_.insert(place, std::move(job));
  }
  if (!waiting_.empty()) {
    Job job = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    run_noting([&] { run(std::move(job)); });
    return true;
  }
  if (closes_at_us_ == 0 && (clock_.now() >= clean_at_ || written_since_ >= kCleanAfterBytes)) run_noting([this] { clean(); });
  return false;
}

bool SharedWriter::wait() {
  return inbox_.wait_drain(taken_, clean_at_);
}

bool SharedWriter::is_closing_late() const {
  const std::int64_t closes_at_us = closes_at_us_;
  return closes_at_us != 0 && to_us(clock_.now()) >= closes_at_us;
}

void SharedWriter::run(Job job) {
  // At the end it is tried once more.
  const bool may_try = !is_closing_late() && (pause_.is_over() || closes_at_us_ != 0) && waiting_.size() < kSharedWritesMax;
  if (job.take) {
    auto written = may_try ? write(job) : Expected<ColdHead>(std::unexpected(not_used("it has failed a moment ago")));
    return job.on_written(std::move(written));
  }
  if (!may_try) return;  // The states end with their time to live.
  const auto removed =
      limit_.run(clock_.now() + kSharedRemoveMax, [&] { return store_->remove(job.owner.tenant, job.owner.session); });
  if (!removed) note(removed.error());
}

Expected<ColdHead> SharedWriter::write(Job& job) {
  const SnapshotPtr snapshot = job.take();
  if (snapshot == nullptr) return std::unexpected(not_used("the state has left the memory"));
  const TimePoint began = clock_.now();
  auto written = limit_.run(began + write_limit(snapshot->bytes()), [&] { return store_->write(job.owner, *snapshot); });
  record_span(kWriteSharedSpan, began, clock_.now(), {static_cast<std::int64_t>(snapshot->bytes())});
  if (!written) {
    note(written.error());
    return written;
  }
  if (pause_.note_success()) log_info("kv: states are written to {} again", store_->text());
  stats_.writes_total.add();
  stats_.written_bytes_total.add(written->bytes);
  written_since_ += written->bytes;
  return written;
}

void SharedWriter::clean() {
  clean_at_ = clock_.now() + kCleanEvery;
  written_since_ = 0;
  const auto removed = limit_.run(clock_.now() + kCleanMax, [&] { return store_->clean(); });
  if (!removed) return note(removed.error());
  if (*removed > 0) log_info("kv: removed {} states from {} that were old, or too many", *removed, store_->text());
}

void SharedWriter::note(const Error& error) {
  stats_.failed_total.add();
  if (error.code == ErrorCode::limit_quota) return log_info("kv: a state is not shared: {}", error.message);
  if (pause_.note_failure()) log_warning("kv: states are not written to the shared store for a while: {}", error.message);
}

}  // namespace uma::kv
