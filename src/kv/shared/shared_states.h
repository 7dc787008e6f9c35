// The two ends of a shared store: SharedReader looks states up and reads them, SharedWriter writes and removes them. Each has a
// thread and a connection of its own, so that a request never waits behind a write. A store that fails is left alone for a
// while: a request that would have used it computes its tokens. Every call of the store has a limit of time, to which the store
// keeps if it can; while a call is far beyond it, as in a network file system that hangs, nothing is queued behind it.
//
// Thread rule: step() and wait() belong to the end's own thread, all other functions may be called from any thread and do not
// block. Callbacks run exactly once, on the end's thread; if that hangs, on the one that calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/shared/shared_store.h"
#include "kv/snapshot.h"

namespace uma::kv {

struct SharedStats {
  Counter lookups_total;
  Counter found_total;  // Lookups that found a state.
  Counter reads_total;
  Counter read_bytes_total;
  Counter writes_total;
  Counter written_bytes_total;
  Counter failed_total;   // Calls of the store that failed.
  Counter refused_total;  // States whose bytes were not those that were written.
};

// Remembers that a store has failed, and for how long it is left alone.
class StorePause {
 public:
  StorePause(const Clock& clock, Duration length) : clock_(clock), length_(length) {}
  [[nodiscard]] bool is_over() const { return clock_.now() >= until_; }
  // Returns whether it was not known, and so is worth a line in the log.
  bool note_failure() {
    until_ = clock_.now() + length_;
    return !std::exchange(has_failed_, true);
  }
  // Returns whether it had failed before.
  bool note_success() { return std::exchange(has_failed_, false); }

 private:
  const Clock& clock_;
  const Duration length_;
  TimePoint until_{};
  bool has_failed_ = false;
};

// The limit of the call of a store that is in progress.
class CallLimit {
 public:
  explicit CallLimit(const Clock& clock) : clock_(clock) {}

  // --- The thread that calls.
  // Runs a call, which may take until then.
  auto run(TimePoint until, auto&& call) {
    until_ = until;
    hangs_from_us_ = until == kNever ? kNoCall : to_us(until + kHangsAfter);
    auto result = contain(call);
    hangs_from_us_ = kNoCall;
    return result;
  }
  [[nodiscard]] bool is_over() const { return clock_.now() >= until_; }

  // --- Any thread.
  // The call has not returned although its limit is long over.
  [[nodiscard]] bool hangs() const { return to_us(clock_.now()) >= hangs_from_us_; }

 private:
  static constexpr Duration kHangsAfter = std::chrono::seconds(5);
  static constexpr std::int64_t kNoCall = std::numeric_limits<std::int64_t>::max();

  const Clock& clock_;
  TimePoint until_ = kNever;
  std::atomic<std::int64_t> hangs_from_us_{kNoCall};
};

class SharedReader {
 public:
  using OnFound = MoveOnlyFunction<void(std::vector<ColdHead>)>;
  using OnRead = MoveOnlyFunction<void(Expected<Snapshot>, double ms)>;

  // The references outlive the object.
  SharedReader(std::unique_ptr<SharedStore> store, SharedStats& stats, const Clock& clock);

  // Finds the states of a session with one of these identities; none if the store cannot be used.
  void look_up(TenantId tenant, SessionId session, std::vector<std::string> identities, OnFound on_found);
  // Reads a state, and gives up if that is not done `until` then; `ms` is the time that this took. The pool outlives the call
  // back.
  void read(ColdHead head, BytePool& pool, TimePoint until, OnRead on_read);
  // The estimated time until a state of this size is read, behind those that wait. Years while the store hangs.
  [[nodiscard]] double read_ms(std::uint64_t bytes) const;
  // Ends the loop around step(), the read in progress and what waits.
  void close();

  [[nodiscard]] bool step();
  [[nodiscard]] bool wait();

 private:
  struct Job {
    std::optional<ColdHead> head;  // Set: read it. Otherwise look up.
    BytePool* pool = nullptr;
    TimePoint until = kNever;
    OnRead on_read = nullptr;
    TenantId tenant;
    SessionId session;
    std::vector<std::string> identities;
    OnFound on_found = nullptr;
  };

  void run(Job job);
  [[nodiscard]] std::vector<ColdHead> look_up(const Job& job);
  void read(Job job);
  void observe(std::uint64_t bytes, double ms, bool is_late);
  void note(const Error& error);

  const std::unique_ptr<SharedStore> store_;
  SharedStats& stats_;
  const Clock& clock_;
  CallLimit limit_{clock_};
  Mailbox<Job> inbox_;
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> queued_bytes_{0};
  std::atomic<double> ms_per_mb_;
  std::atomic<double> first_ms_;
  // The time per MB that a read which was given up had needed at least. It counts for a while, so that the next reads are not
  // tried in vain.
  std::atomic<double> late_ms_per_mb_{0};
  std::atomic<std::int64_t> late_until_us_{0};
  // Owned by the thread.
  std::vector<Job> taken_;
  StorePause pause_;
};

class SharedWriter {
 public:
  // Gives the state when its turn has come; null: it is not wanted any more, or not in memory.
  using TakeState = MoveOnlyFunction<SnapshotPtr()>;
  using OnWritten = MoveOnlyFunction<void(Expected<ColdHead>)>;
  enum class Urgency : std::uint8_t { soon, when_idle };

  // The references outlive the object.
  SharedWriter(std::unique_ptr<SharedStore> store, SharedStats& stats, const Clock& clock);

  // Writes a state, after those that are more urgent.
  void write(StateOwner owner, TakeState take, Urgency urgency, OnWritten on_written);
  void remove(TenantId tenant, SessionId session);
  // Ends the loop around step() when all is written, but not later than `deadline`, at which the call in progress gives up.
  void close(TimePoint deadline);

  [[nodiscard]] bool step();
  [[nodiscard]] bool wait();

 private:
  struct Job {
    Urgency urgency = Urgency::soon;
    StateOwner owner;          // For a removal: whose states.
    TakeState take = nullptr;  // Null: remove.
    OnWritten on_written = nullptr;
  };

  void run(Job job);
  [[nodiscard]] Expected<ColdHead> write(Job& job);
  void clean();
  [[nodiscard]] bool is_closing_late() const;
  void note(const Error& error);

  const std::unique_ptr<SharedStore> store_;
  SharedStats& stats_;
  const Clock& clock_;
  CallLimit limit_{clock_};
  Mailbox<Job> inbox_;
  std::atomic<std::int64_t> closes_at_us_{0};  // 0: it is open.
  // Owned by the thread.
  std::vector<Job> taken_;
  std::vector<Job> waiting_;  // The most urgent first, and among equals in their order.
  StorePause pause_;
  TimePoint clean_at_{};
  std::uint64_t written_since_ = 0;  // Bytes since the store was last cleaned.
};

// The shared store of a daemon.
struct SharedStates {
  SharedStates(std::unique_ptr<SharedStore> reads, std::unique_ptr<SharedStore> writes, const Clock& clock)
      : reader(std::move(reads), stats, clock), writer(std::move(writes), stats, clock) {}

  SharedStats stats;
  SharedReader reader;
  SharedWriter writer;
};

}  // namespace uma::kv
