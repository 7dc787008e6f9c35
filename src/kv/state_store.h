// Stored KV of all models outside of contexts: warm states in memory, cold states on disk, found by their tokens. It outlives
// the workers, so a session can continue in any worker of its model, and after the model was unloaded.
//
// States of one identity, which fit the same contexts, form a family. States of a family that was not loaded since the start
// are kept, but not found.
//
// Thread rule: open(), step(), wait() and save_all() belong to the store's own thread, the only one that waits for the disk;
// all other functions may be called from any thread and do not block.
//
// Invariants, checked by check_invariants(): those of StateTable; (1) While an entry is written or read, it belongs to the
// thread that does it and is neither evicted nor removed. (2) Memory at rest, including the pool's, is within its limit.
// Together with states being written to disk it is within the total limit, except for states that the store's thread holds.
// Every snapshot of an entry has a reservation of the pool, which is made before the snapshot is saved or read. (3) A tenant's
// states are within its quota, except for states that the store's thread holds.
//
// Tenants share a tier equally: space is taken from tenants that use more than the tier's limit divided by the number of
// tenants with states there, and among their states from the least valuable one (docs/decisions/0020).
//
// With a shared store (SharedStates) a state may also be where other daemons find it. look_up() makes entries of what they have
// stored there, publish() stores a state there for them. Its two threads call back into this class.
//
// The class is large because both tiers share one table, one lock and one limit, and because any thread may use it: every lane,
// the router and the pool call it. What needs no lock is elsewhere: StateTable, tier_policy.h, ColdStore, SharedStates,
// PoolPreparation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/usage.h"
#include "kv/disk/cold_store.h"
#include "kv/disk/day_bytes.h"
#include "kv/pool_preparation.h"
#include "kv/shared/shared_states.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"
#include "kv/state_table.h"
#include "kv/store_stats.h"
#include "kv/tier_policy.h"

namespace uma::kv {

struct StoreOptions {
  std::uint64_t warm_bytes_max = 0;
  std::uint64_t cold_bytes_max = 0;
  std::uint64_t tenant_bytes_max = 0;  // Quota of one tenant, both tiers together; 0: none.
  EvictionOrder eviction = EvictionOrder::value;
  Duration archive_after = std::chrono::minutes(60);  // A state unused for this time moves to disk.
  Duration ttl{0};                                    // A state unused for this time is removed; 0: never.
  // A turn's state is on disk so long after its end; 0: only states that leave memory, or umad, are written.
  Duration write_within{0};
  // Tenants write no more than this for `write_within` in 24 hours, and share it equally; 0: no limit.
  std::uint64_t day_bytes_max = 0;
  std::size_t shared_tokens_min = 256;  // A shorter state is not stored for other daemons.
  // Whether a model computes, so that memory is prepared slowly; any thread; null: never.
  std::function<bool()> is_busy = nullptr;
};

// How less valuable states are evicted: those that can move to disk go there first, which takes a while; or all are dropped at
// once.
enum class GiveWay : std::uint8_t { by_disk, at_once };

// Where a state may be kept: only in memory if computing it is faster than reading it from disk.
enum class Keep : std::uint8_t { anywhere, in_memory };

// Limits of the memory for states, in bytes.
struct MemoryLimit {
  std::uint64_t at_rest = 0;
  std::uint64_t in_all = 0;
};

// A write of a state that stays in its context.
struct EarlyWrite {
  std::uint64_t id = 0;    // 0: it need not be written, or not now.
  std::size_t known = 0;   // So many of its first pieces are on disk.
  Duration again_after{};  // If id is 0: when to ask again; 0: never.
};

// A stored state that shares a prefix with a chain.
struct StoredMatch {
  StateId id = 0;
  std::int32_t tokens_count = 0;  // Length of the common prefix.
  std::int32_t tokens_stored = 0;
  Tier tier = Tier::warm;
  std::uint64_t bytes = 0;
  double fetch_ms = 0;          // Estimated time until it is warm.
  bool is_own = false;          // Belongs to the session that asks.
  bool was_read_ahead = false;  // It is warm because it was just read from the shared store.
};

// The stored states of a session.
struct SessionStates {
  Tier tier = Tier::none;  // Tier of its newest usable state, or none.
  std::uint64_t warm_bytes = 0;
  std::uint64_t cold_bytes = 0;  // Includes states for other settings.
};

class StateStore {
 public:
  using OnFetched = MoveOnlyFunction<void(Expected<SnapshotPtr>)>;

  // Without `cold`, states that do not fit memory are dropped; without `shared`, they stay on this daemon. `clock` outlives the
  // store, and so does `shared`, whose threads have ended when the store is destroyed.
  StateStore(StoreOptions options, std::unique_ptr<ColdStore> cold, const Clock& clock, SharedStates* shared = nullptr);
  ~StateStore();

  // --- Any thread.
  // Registers that contexts of this identity (llm::Context::state_identity) exist. `can_cut` states whether its states can be
  // cut to any prefix. The same identity gives the same family.
  [[nodiscard]] FamilyId join(const std::string& identity, bool can_cut);
  // The state with the longest usable prefix of `chain`, among the tenant's and public states. If states cannot be cut, the
  // whole state must be a prefix.
  [[nodiscard]] std::optional<StoredMatch> find(const PrefixQuery& query, std::span<const Token> chain) const;
  // Returns a warm state and marks it as used; null: it is not warm any more.
  [[nodiscard]] SnapshotPtr take(StateId id);
  // Like take(), but without marking it as used, since it may not be loaded. Its memory cannot be freed while it is held.
  [[nodiscard]] SnapshotPtr hold(StateId id) const;
  // The state is in a context now. If states can be cut, the session's own copy leaves memory.
  void settle(StateId id, const PrefixQuery& query);
  // Brings a state into memory and marks it as used. Calls back exactly once, from any thread, with an error if the state is
  // gone or damaged. A state of the shared store that is not read `until` then is given up; kNever: until a limit. Who asks for
  // one that is being read from there is told when that has ended.
  void fetch(StateId id, OnFetched on_fetched, TimePoint until = kNever);
  // Like fetch(), without a callback, for the state of a session that will be used soon.
  void prefetch(const SessionId& session);
  // Reserves memory for a state that will be saved or read, and evicts less valuable states if necessary. Nullopt: there is no
  // memory, or not yet if states first move to disk.
  [[nodiscard]] std::optional<ByteBudget::Share> make_room(std::uint64_t bytes, GiveWay how);
  // The estimated time to read a state of so many bytes from disk.
  [[nodiscard]] double read_ms(std::uint64_t bytes) const;
  // Whether put() keeps a state of this tenant, of so many bytes, without dropping it or another one.
  [[nodiscard]] bool has_place_for(const TenantId& tenant, std::uint64_t bytes, Keep keep) const;
  // Stores a state of a joined family in place of the session's former one.
  void put(StateOwner owner, Snapshot snapshot, Keep keep = Keep::anywhere);
  // Whether put() would drop a state of these tokens, since memory has them already. Marks that state as used.
  [[nodiscard]] bool has_in_memory(const StateOwner& owner, FamilyId family, std::span<const Token> tokens);
  // Begins to write a state to disk that stays in its context. `ends`: where its pieces end. `bytes`: about those of all of
  // them. The disk keeps the pieces that it has already until end_early(), which the caller calls exactly once.
  [[nodiscard]] EarlyWrite begin_early(const StateOwner& owner, const std::string& identity, std::span<const Token> tokens,
                                       std::span<const std::int32_t> ends, std::uint64_t bytes);
  // Writes some more of its pieces; those before them are in the snapshot without bytes. With the last piece the state is
  // complete. Calls back from the store's thread, unless the store is closed: false if it cannot be written, or is not wanted
  // any more. Requires: the call before it has called back.
  void write_early(std::uint64_t id, Snapshot snapshot, MoveOnlyFunction<void(bool is_written)> then);
  // Drops what is not part of a complete state; after write_early() as soon as that has called back.
  void end_early(std::uint64_t id);
  [[nodiscard]] Duration write_within() const { return options_.write_within; }
  // Counts a state that a lane had to drop for lack of memory.
  void note_dropped() { stats_.dropped_total.add(); }
  // Announces `pieces` states or pieces of `piece_bytes`, for which memory should be prepared.
  void expect(std::size_t piece_bytes, std::size_t pieces);
  // A lane waits for memory for a piece of `piece_bytes`.
  void want(std::size_t piece_bytes);
  // Memory for the states stored here.
  [[nodiscard]] BytePool& pool() { return pool_; }
  // Runs a task on the store's thread, where work on a whole state delays only the disk's queue.
  void run_later(MoveOnlyFunction<void()> task) { inbox_.push({.kind = JobKind::task, .task = std::move(task)}); }
  // Removes a state whose KV does not match its tokens, and all that share some of it, so that nobody uses it again.
  void discard(StateId id);
  // Removes the states of a deleted session.
  void forget(const SessionId& session);
  // Looks for the states that other daemons have stored for a session, makes entries of those that fit contexts here, and
  // begins to read the newest, if that does not take long. Calls back exactly once, from any thread.
  void look_up(const TenantId& tenant, const SessionId& session, MoveOnlyFunction<void()> then);
  // Stores the session's newest state where other daemons find it, unless it is there already. Calls back exactly once, from
  // any thread: also if that is not possible.
  void publish(const SessionId& session, SharedWriter::Urgency urgency, MoveOnlyFunction<void()> then);
  // The session may be continued by another daemon from now on: states of it that wait to be stored for others are not stored.
  void let_go(const SessionId& session) { set_let_go(session, true); }
  // The session is this daemon's again.
  void take_back(const SessionId& session) { set_let_go(session, false); }
  // Stores the newest states in memory of these sessions where other daemons find them, the most valuable first.
  void publish_all(const std::unordered_set<SessionId>& sessions);
  // Removes the states that are stored for other daemons.
  void remove_shared(const TenantId& tenant, const SessionId& session);
  // Looks for the state of a prefix (prefix_owner()) that another daemon has stored, and makes it an entry. `identity`: that of
  // the contexts which will use it. Calls back exactly once, from any thread.
  void look_up_prefix(const StateOwner& owner, std::string identity, MoveOnlyFunction<void()> then);
  // Stores the state of a prefix, which put() has stored here, for other daemons, as publish() does.
  void publish_prefix(const SessionId& prefix, MoveOnlyFunction<void()> then);
  // Whether the newest state of the session, or of the prefix, is known to be where other daemons find it.
  [[nodiscard]] bool is_shared(const SessionId& session) const;
  // The number of tokens that a state needs to be stored for other daemons.
  [[nodiscard]] std::size_t shared_tokens_min() const { return options_.shared_tokens_min; }
  // Describes the stored states of a session.
  [[nodiscard]] SessionStates states_of(const SessionId& session) const;
  [[nodiscard]] const StoreStats& stats() const { return stats_; }
  // Bytes of memory that states use or have reserved, here and in lanes, plus unused memory in the pool.
  [[nodiscard]] std::uint64_t memory_bytes() const;
  // Sets the limits: for states at rest here (at most StoreOptions::warm_bytes_max), and for all states together with those
  // being written and those of lanes. Before the first call, states of lanes are not limited. An excess at rest moves to disk
  // soon; an excess of the total is dropped at once.
  void limit_memory(MemoryLimit limit);
  // Whether no state is being written to disk.
  [[nodiscard]] bool is_at_rest() const;
  // Ends the loop around step(); later calls of put() are ignored.
  void close() { inbox_.close(); }

  // --- The store's thread.
  // Called first: reads the states on disk, which can be found from then on. Removes states of sessions that are not in
  // `sessions`, the list of all sessions at the start.
  void open(const std::unordered_set<SessionId>& sessions);
  // Handles waiting and due work. Returns true if there was some.
  bool step();
  // Waits for work. Returns false once closed.
  bool wait();
  // Writes all states that are only in memory to disk, the most valuable first, until `deadline`. With a shared store they
  // stay in memory, because its thread may not have stored them yet.
  void save_all(TimePoint deadline);

  // For tests.
  void check_invariants() const;

 private:
  using Entry = StateTable::Entry;
  enum class JobKind : std::uint8_t { write, read, remove, expect, want, task };
  struct Job {
    JobKind kind = JobKind::write;
    StateId id = 0;                  // For write and read.
    bool stays_in_memory = false;    // For write.
    std::size_t bytes = 0;           // For read: size of the file. For expect and want: size of a piece.
    std::size_t count = 0;           // For expect.
    std::string file{};              // For remove.
    bool is_wrong = false;           // For remove: nobody may use it, even who wants to.
    OnFetched on_fetched = nullptr;  // For read.
    TimePoint began = kNever;        // Since when a read has waited for memory.
    TimePoint until = kNever;        // For read: see fetch().
    bool is_ahead = false;           // For read: no request waits for it.
    MoveOnlyFunction<void()> task = nullptr;
  };

  void remove(StateId id) REQUIRES_LOCK(mutex_) { delete_later(table_.remove(id)); }
  void delete_later(std::vector<std::string> files);
  void mark_leaving(Entry& entry) REQUIRES_LOCK(mutex_) {
    entry.is_busy = true;
    leaving_bytes_ += entry.warm_bytes();
  }
  [[nodiscard]] bool begin_write(StateId id, bool stays_in_memory = false) REQUIRES_LOCK(mutex_);
  void make_tenant_room(const TenantId& tenant) REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::uint64_t bytes_here() const REQUIRES_LOCK(mutex_) { return table_.bytes().warm + pool_.idle_bytes(); }
  [[nodiscard]] std::uint64_t bytes_at_rest() const REQUIRES_LOCK(mutex_) { return bytes_here() - leaving_bytes_; }
  void make_warm_room() REQUIRES_LOCK(mutex_);
  // False: the state is not kept, and `snapshot` is unchanged.
  bool add(StateOwner owner, Snapshot& snapshot, Keep keep);
  void write_waiting() REQUIRES_LOCK(mutex_);
  // `bytes`: those that the disk does not count yet.
  [[nodiscard]] bool make_cold_room(StateView arrives, const TenantId& tenant, std::uint64_t bytes) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Expected<ColdHead> write_cold(const StateOwner& owner, const Snapshot& snapshot);
  void note_write_failed(const Error& error, std::size_t tokens) REQUIRES_LOCK(mutex_);
  void count_written(const TenantId& tenant) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool is_day_full(const TenantId& tenant) REQUIRES_LOCK(mutex_);
  // The parts are not on disk any more.
  void forget_lost(std::span<const std::string> parts) REQUIRES_LOCK(mutex_);
  // A state that is being written while it stays in its context. Erased by end_early(), or by the store's thread after it.
  struct Early {
    StateOwner owner;
    std::vector<StatePart> wanted{};  // All parts of the state.
    std::vector<ColdPart> parts{};    // The first of them, which are on disk, and held.
    std::uint64_t bytes_left = 0;     // About those of the others and of the last piece.
    std::size_t tokens_count = 0;
    bool is_busy = false;      // The store's thread writes.
    bool is_given_up = false;  // Its caller has ended it.
    bool is_void = false;      // Its session has ended, or a part is wrong: it becomes no entry.
  };
  [[nodiscard]] bool write_pieces(std::uint64_t id, Snapshot& snapshot);
  [[nodiscard]] bool write_piece(std::uint64_t id, const StateOwner& owner, const Snapshot& snapshot, const StatePart& part);
  [[nodiscard]] bool accept_early(Early& early, const Snapshot& snapshot, ColdHead written) REQUIRES_LOCK(mutex_);
  void remove_early(std::uint64_t id) REQUIRES_LOCK(mutex_);
  void make_void(std::span<const std::string> parts) REQUIRES_LOCK(mutex_);
  void drop_from_disk(StateId id) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool can_write(const Entry& entry) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool can_write(std::uint64_t bytes) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::optional<StateView> least_valuable_in_memory(bool is_nowhere_else = false) const REQUIRES_LOCK(mutex_) {
    return table_.least_valuable_in(StateTable::Place::memory, limit_.at_rest, is_nowhere_else);
  }
  [[nodiscard]] bool can_make_room(std::uint64_t bytes, GiveWay how) const REQUIRES_LOCK(mutex_);
  void end_busy(StateId id, bool leaves_memory) REQUIRES_LOCK(mutex_);
  [[nodiscard]] double disk_read_ms(std::uint64_t bytes) const REQUIRES_LOCK(mutex_);
  void observe_read(std::uint64_t bytes, double ms) REQUIRES_LOCK(mutex_);
  void maintain();
  void prepare();
  void run(Job job);
  [[nodiscard]] bool is_used(const std::string& file) const;
  void write(StateId id, bool may_leave_memory = true);
  void read(Job job);
  [[nodiscard]] bool read_here(Job& job);
  [[nodiscard]] bool read_shared(Job& job);
  [[nodiscard]] bool join_read(Job& job) REQUIRES_LOCK(mutex_);
  void end_shared_read(Job job, const Expected<SnapshotPtr>& snapshot);
  [[nodiscard]] std::uint64_t bytes_to_read(StateId id) const;
  void read_ahead(const SessionId& session);
  void end_read(Job job, Expected<SnapshotPtr> snapshot);
  // Upper bound of room_for() for the pieces of a state of so many bytes.
  [[nodiscard]] static std::uint64_t room_to_read(std::uint64_t bytes) { return bytes + bytes / 4; }
  // The place of a state that is being read, which is busy meanwhile.
  struct Reading {
    std::string file;
    std::vector<ColdPart> parts;  // Parts of the file.
    ColdHead shared;              // If `file` is empty.
    StateOwner owner;
    SnapshotPtr snapshot;  // It is in memory already.
  };
  [[nodiscard]] Expected<Reading> begin_read(StateId id) REQUIRES_LOCK(mutex_);
  // `file`: empty if it is from the shared store.
  [[nodiscard]] Expected<SnapshotPtr> accept_read(const Job& job, Expected<Snapshot> snapshot, ByteBudget::Share room,
                                                  const std::string& file, double ms);
  void add_shared(const SessionId& session, std::vector<ColdHead> heads);
  [[nodiscard]] const Entry* newest_usable(const SessionId& session, StateId& id) const REQUIRES_LOCK(mutex_);
  void set_let_go(const SessionId& session, bool is_let_go);
  [[nodiscard]] SnapshotPtr hold_unshared(StateId id) const;
  void write_shared(StateId id, StateOwner owner, SharedWriter::Urgency urgency, MoveOnlyFunction<void()> then);

  // Constant after construction.
  const StoreOptions options_;
  const std::unique_ptr<ColdStore> cold_;
  const Clock& clock_;
  SharedStates* const shared_;

  // Owned by the store's thread.
  std::vector<Job> taken_;
  std::vector<Job> waiting_reads_;  // Waiting for memory.
  TimePoint maintenance_at_{};
  std::uint64_t written_bytes_ = 0;  // Bytes of ColdStore::written_bytes() that are counted.

  // Shared.
  BytePool pool_;                       // Declared before the entries, whose memory returns to it.
  PoolPreparation preparation_{pool_};  // Owned by the store's thread.
  Mailbox<Job> inbox_;
  StoreStats stats_;
  mutable Mutex mutex_;
  bool is_open_ GUARDED_BY(mutex_) = false;
  std::unordered_set<SessionId> forgotten_ GUARDED_BY(mutex_);  // Used until open() has finished.
  StateTable table_ GUARDED_BY(mutex_);
  MemoryLimit limit_ GUARDED_BY(mutex_);
  std::uint64_t leaving_bytes_ GUARDED_BY(mutex_) = 0;  // Bytes of states being written to disk.
  TimePoint writes_from_ GUARDED_BY(mutex_){};          // After a failed write, no other is tried before this time.
  std::map<std::uint64_t, Early> early_ GUARDED_BY(mutex_);
  std::uint64_t last_early_ GUARDED_BY(mutex_) = 0;
  std::vector<StateId> unwritten_ GUARDED_BY(mutex_);  // To be written while they stay in memory, the newest last.
  DayBytes written_ GUARDED_BY(mutex_);
  double read_ms_per_mb_ GUARDED_BY(mutex_) = 1;
  std::uint64_t queued_bytes_ GUARDED_BY(mutex_) = 0;                              // Bytes of reads that were requested.
  std::unordered_map<StateId, std::vector<Job>> shared_reads_ GUARDED_BY(mutex_);  // In progress, and who else waits for each.
};

}  // namespace uma::kv
