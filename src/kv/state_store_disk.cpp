// StateStore's functions for the disk: what is written to it, read from it, and removed.
#include <algorithm>
#include <chrono>
#include <format>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "base/trace.h"
#include "kv/state_store.h"

namespace uma::kv {
namespace {

constexpr TraceKind kReadSpan{.name = "read state", .numbers = {"bytes"}};
constexpr TraceKind kWriteSpan{.name = "write state", .numbers = {"bytes"}};

constexpr Duration kWritePause = std::chrono::minutes(1);    // Pause after a failed write.
constexpr Duration kReadPatience = std::chrono::seconds(2);  // Time to wait for memory in use.
constexpr double kMegabyte = 1e6;
constexpr double kReadMs = 2;  // Approximate time of a read before the first byte.

}  // namespace

// --- Room

bool StateStore::can_write(const Entry& entry) const {
  return !entry.is_for_memory && can_write(entry.warm_bytes());
}

bool StateStore::can_write(std::uint64_t bytes) const {
  return cold_ != nullptr && clock_.now() >= writes_from_ && bytes <= options_.cold_bytes_max;
}

// Evicts less valuable files so that the file of a state fits; returns false if that does not suffice.
bool StateStore::make_cold_room(StateView arrives, const TenantId& tenant, std::uint64_t bytes) {
  if (arrives.bytes > options_.cold_bytes_max) return false;
  table_.count_incoming_file(tenant, bytes);
  bool has_room = true;
  while (has_room && table_.bytes().cold + bytes > options_.cold_bytes_max) {
    arrives.is_over_share = table_.is_over_share(tenant, StateTable::Place::disk, options_.cold_bytes_max);
    const auto least = table_.least_valuable_in(StateTable::Place::disk, options_.cold_bytes_max);
    const StateView both[] = {arrives, least.value_or(arrives)};
    has_room = least && least_valuable(both, options_.eviction)->id != arrives.id;
    if (has_room) drop_from_disk(least->id);
  }
  table_.uncount_incoming_file(tenant, bytes);
  return has_room;
}

// Removes the file of a state that is not busy; an entry without a snapshot is removed.
void StateStore::drop_from_disk(StateId id) {
  Entry& entry = table_.at(id);
  if (entry.snapshot) {
    delete_later(table_.drop_file(entry));
  } else {
    stats_.dropped_total.add();
    remove(id);
  }
}

// --- Removing

void StateStore::discard(StateId id) {
  const MutexLock lock(mutex_);
  const Entry* const entry = table_.find(id);
  if (entry == nullptr) return;
  std::vector<std::string> parts;
  for (const ColdPart& part : entry->parts) parts.push_back(part.name);
  // The states that its tenant writes now may be from the same cells.
  for (auto& [early_id, early] : early_) early.is_void |= early.owner.tenant == entry->owner.tenant;
  // Also those in memory: they may have been read from these parts.
  for (const StateId other : table_.having(parts)) remove(other);
  if (table_.find(id) != nullptr) remove(id);
  // States that are written now may still count on the parts.
  for (std::string& part : parts) inbox_.push({.kind = JobKind::remove, .file = std::move(part), .is_wrong = true});
}

// States in memory, whose bytes are right, are written again.
void StateStore::forget_lost(std::span<const std::string> parts) {
  make_void(parts);
  for (const StateId id : table_.having(parts)) {
    Entry& entry = table_.at(id);
    if (entry.snapshot && !entry.is_busy) {
      delete_later(table_.drop_file(entry));
      if (options_.write_within > Duration(0)) unwritten_.push_back(id);
    } else {
      remove(id);
    }
  }
  write_waiting();
}

// Whether a file was needed again after its removal was decided.
bool StateStore::is_used(const std::string& file) const {
  const MutexLock lock(mutex_);
  return table_.is_file_used(file);
}

// --- Writing and reading

// Writes a state to disk. If the disk has no space, the state stays in memory if that has.
void StateStore::write(StateId id, bool may_leave_memory) {
  SnapshotPtr snapshot;
  StateOwner owner;
  {
    const MutexLock lock(mutex_);
    const Entry& entry = table_.at(id);
    UMA_CHECK(entry.is_busy && entry.snapshot);
    snapshot = entry.snapshot;
    owner = entry.owner;
  }
  std::vector<ColdPart> parts = cold_->parts_of(owner, *snapshot);
  TimePoint used;
  {
    const MutexLock lock(mutex_);
    Entry& entry = table_.at(id);
    const std::uint64_t before = table_.bytes().cold;
    const bool is_held = table_.hold_parts(owner.tenant, parts);
    const std::uint64_t rest = snapshot->pieces.back().bytes.size() + snapshot->tokens.size() * sizeof(Token);
    const std::uint64_t added = table_.bytes().cold - before + rest;
    const bool has_room =
        is_held && !entry.is_forgotten && make_cold_room(table_.view_of(id, entry, added), owner.tenant, rest);
    if (!has_room) {
      if (is_held) delete_later(table_.release_parts(owner.tenant, parts));
      leaving_bytes_ -= entry.warm_bytes();
      if (!entry.is_forgotten && (entry.must_leave || bytes_at_rest() > limit_.at_rest)) {
        stats_.dropped_total.add();
        entry.is_forgotten = true;
      }
      snapshot.reset();
      end_busy(id, false);
      return;
    }
    used = entry.last_used;
  }
  auto written = write_cold(owner, *snapshot);
  snapshot.reset();  // Its memory is freed with the entry's.

  const MutexLock lock(mutex_);
  Entry& entry = table_.at(id);
  leaving_bytes_ -= entry.warm_bytes();
  if (written) table_.set_file(entry, std::move(written->name), written->bytes, std::move(written->parts));
  delete_later(table_.release_parts(owner.tenant, parts));
  end_busy(id, written && (entry.must_leave || (may_leave_memory && entry.last_used == used)));
}

Expected<ColdHead> StateStore::write_cold(const StateOwner& owner, const Snapshot& snapshot) {
  const TimePoint began = clock_.now();
  const std::uint64_t before = cold_->written_bytes();
  auto written = contain([&] { return cold_->write(owner, snapshot); });
  const TimePoint ended = clock_.now();
  stats_.write.record_ms(to_ms(ended - began));
  record_span(kWriteSpan, began, ended, {static_cast<std::int64_t>(cold_->written_bytes() - before)});
  const MutexLock lock(mutex_);
  count_written(owner.tenant);
  if (!written) note_write_failed(written.error(), snapshot.tokens.size());
  return written;
}

void StateStore::note_write_failed(const Error& error, std::size_t tokens) {
  log_warning("kv: a state of {} tokens could not be stored: {}", tokens, error.message);
  stats_.failed_total.add();
  if (error.code == ErrorCode::io_failed) writes_from_ = clock_.now() + kWritePause;
}

// Counts what the disk has written since the last call.
void StateStore::count_written(const TenantId& tenant) {
  const std::uint64_t bytes = cold_->written_bytes() - written_bytes_;
  written_bytes_ += bytes;
  written_.add(tenant, bytes, clock_.now());
  stats_.written_bytes_total.add(bytes);
  stats_.written_day_bytes.set(static_cast<std::int64_t>(written_.total(clock_.now())));
}

bool StateStore::is_day_full(const TenantId& tenant) {
  return options_.day_bytes_max > 0 && written_.is_full(tenant, options_.day_bytes_max, clock_.now());
}

double StateStore::disk_read_ms(std::uint64_t bytes) const {
  return kReadMs + read_ms_per_mb_ * static_cast<double>(bytes) / kMegabyte;
}

// A small state says little about the time of a megabyte.
void StateStore::observe_read(std::uint64_t bytes, double ms) {
  const double megabytes = std::max(static_cast<double>(bytes) / kMegabyte, 1e-3);
  const double weight = std::min(megabytes / 16, 1.0 / 4);
  read_ms_per_mb_ += weight * (std::max(0.0, ms - kReadMs) / megabytes - read_ms_per_mb_);
}

// Reads a state, or waits until other states or lanes have freed enough memory.
void StateStore::read(Job job) {
  if (read_shared(job) || read_here(job)) return;
  if (job.began == kNever) job.began = clock_.now();
  const bool may_fit = room_to_read(bytes_to_read(job.id)) <= pool_.bytes_max();
  if (!may_fit || clock_.now() >= job.began + kReadPatience) {
    return end_read(std::move(job), fail(ErrorCode::limit_wait, "there is not enough memory for it"));
  }
  waiting_reads_.push_back(std::move(job));
}

std::uint64_t StateStore::bytes_to_read(StateId id) const {
  const MutexLock lock(mutex_);
  const Entry* const entry = table_.find(id);
  return entry == nullptr ? 0 : entry->bytes_to_read();
}

// Takes a state that is in memory, or reads it from the disk. False: it is not here, or there is no memory for it now.
bool StateStore::read_here(Job& job) {
  const std::uint64_t bytes = bytes_to_read(job.id);
  auto room = bytes > 0 ? make_room(room_to_read(bytes), GiveWay::by_disk) : ByteBudget::Share();
  if (!room) return false;
  Expected<Reading> reading;
  {
    const MutexLock lock(mutex_);
    if (const Entry* const entry = table_.find(job.id); entry != nullptr && entry->is_shared_only()) return false;
    reading = begin_read(job.id);
  }
  if (!reading || reading->snapshot) {
    end_read(std::move(job), std::move(reading).transform([](Reading at) { return std::move(at.snapshot); }));
    return true;
  }
  const TimePoint began = clock_.now();
  auto snapshot = contain([&] { return cold_->read(reading->file, reading->owner, pool_); });
  const TimePoint ended = clock_.now();
  if (snapshot) cold_->touch(reading->file);
  record_span(kReadSpan, began, ended, {snapshot ? static_cast<std::int64_t>(snapshot->bytes()) : 0});
  const std::vector<std::string> lost = snapshot ? std::vector<std::string>() : cold_->lost(reading->parts);
  auto accepted = accept_read(job, std::move(snapshot), std::move(*room), reading->file, to_ms(ended - began));
  if (!lost.empty()) {
    const MutexLock lock(mutex_);
    forget_lost(lost);
  }
  end_read(std::move(job), std::move(accepted));
  return true;
}

void StateStore::end_read(Job job, Expected<SnapshotPtr> snapshot) {
  {
    const MutexLock lock(mutex_);
    queued_bytes_ -= job.bytes;
  }
  if (job.on_fetched) job.on_fetched(std::move(snapshot));
}

Expected<StateStore::Reading> StateStore::begin_read(StateId id) {
  Entry* const entry = table_.find(id);
  if (entry == nullptr || entry->is_forgotten) return fail(ErrorCode::runtime_decode, "the stored state is gone");
  if (entry->is_refused) {
    remove(id);
    return fail(ErrorCode::runtime_decode, "the stored state could not be read");
  }
  entry->last_used = clock_.now();
  ++entry->uses;
  Reading reading;
  reading.snapshot = entry->snapshot;
  if (reading.snapshot) return reading;
  entry->is_busy = true;
  reading.file = entry->file;
  reading.parts = entry->parts;
  reading.owner = entry->owner;
  reading.shared.name = entry->shared;
  reading.shared.owner = entry->owner;
  reading.shared.bytes = entry->shared_bytes;
  return reading;
}

// Takes a state that was read, in `ms`, or why it could not be read.
Expected<SnapshotPtr> StateStore::accept_read(const Job& job, Expected<Snapshot> snapshot, ByteBudget::Share room,
                                              const std::string& file, double ms) {
  const MutexLock lock(mutex_);
  const StateId id = job.id;
  Entry& entry = table_.at(id);
  if (snapshot && (snapshot->identity != entry.family->first || snapshot->tokens != entry.tokens)) {
    snapshot = fail(ErrorCode::runtime_decode, std::format("stored state {}: its content is not the one that was written",
                                                           file.empty() ? entry.shared : file));
  }
  if (!snapshot) {
    log_warning("kv: a stored state of {} tokens cannot be used: {}", entry.tokens.size(), snapshot.error().message);
    if (!file.empty()) stats_.failed_total.add();
    const auto joined = shared_reads_.find(id);
    const bool is_asked_for = job.on_fetched || (joined != shared_reads_.end() && !joined->second.empty());
    (is_asked_for ? entry.is_forgotten : entry.is_refused) = true;
    end_busy(id, false);
    return std::unexpected(snapshot.error());
  }
  room.correct(snapshot->bytes());
  snapshot->room = std::move(room);
  SnapshotPtr read = share_snapshot(std::move(*snapshot), pool_);
  if (!file.empty()) {
    stats_.read.record_ms(ms);
    stats_.read_bytes_total.add(read->bytes());
    observe_read(read->bytes(), ms);
  }
  table_.set_snapshot(entry, read);
  end_busy(id, false);
  return read;
}

void StateStore::save_all(TimePoint deadline) {
  std::vector<std::pair<double, StateId>> unsaved;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : table_.entries()) {
      if (!entry.snapshot || !entry.file.empty() || entry.is_busy) continue;
      unsaved.emplace_back(value_of(table_.view_of(id, entry, entry.warm_bytes())), id);
    }
    writes_from_ = clock_.now();  // A disk that was full may have space now, and this is the last attempt.
  }
  std::ranges::sort(unsaved, std::greater());
  std::size_t saved = 0;
  for (const auto& [value, id] : unsaved) {
    if (clock_.now() >= deadline) break;
    {
      const MutexLock lock(mutex_);
      // Meanwhile its session may have ended, or it may have left the memory.
      Entry* const entry = table_.find(id);
      if (entry == nullptr || !entry->snapshot || !entry->file.empty() || entry->is_busy || !can_write(*entry)) continue;
      mark_leaving(*entry);
    }
    write(id, shared_ == nullptr);
    ++saved;
  }
  if (!unsaved.empty()) log_info("kv: wrote {} of {} states in memory to disk", saved, unsaved.size());
}

}  // namespace uma::kv
