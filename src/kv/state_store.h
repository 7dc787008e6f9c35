// What the workers of all models have computed and no context holds: warm states in memory, cold ones on disk, found by their
// tokens. It outlives the workers, so a session goes on in any worker of its model, and after the model was unloaded.
//
// States of one identity, which fit the same contexts, are a family. Those of a family that nobody has loaded since the start
// are kept, but not found.
//
// Thread rule: open(), step(), wait() and save_all() belong to the store's own thread, the only one that waits for the disk;
// the other functions may be called from any thread and wait for nobody.
//
// Invariants, checked by check_invariants(): (1) An entry is warm, cold or both. While it is written or read the store's thread
// has it, and it is neither evicted nor removed. (2) The bytes of a tier are the sum of its entries' bytes. (3) Memory
// at rest, the pool's included, is within its limit; with what is on its way to disk it is within the limit of all, but for
// what the store's thread has. Every image of an entry has room of the pool's, and who saves or reads one reserves that first.
// (4) A session has one entry, or, where states cannot be cut, a few. (5) A tenant's states take no more than its quota, but
// for those that the store's thread has.
//
// Tenants share a tier equally: where room is needed, it comes from those that have more than the tier's limit divided by the
// number of tenants with states there, and among these from the least valuable state (docs/decisions/0020).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
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
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/usage.h"
#include "kv/cold_store.h"
#include "kv/prefix_index.h"
#include "kv/state_image.h"
#include "kv/state_owner.h"
#include "kv/tier_policy.h"

namespace uma::kv {

struct StoreOptions {
  std::uint64_t warm_bytes_max = 0;
  std::uint64_t cold_bytes_max = 0;
  std::uint64_t tenant_bytes_max = 0;  // of one tenant, in both tiers together; 0: no quota
  EvictionOrder eviction = EvictionOrder::value;
  Duration archive_after = std::chrono::minutes(60);  // unused for so long: to disk
  Duration ttl{0};                                    // unused for so long: removed; 0: never
  std::size_t cold_tokens_min = 256;                  // shorter states are computed as fast as they are read
  std::function<bool()> is_busy = nullptr;            // somebody computes: memory is prepared slowly; any thread; null: never
};

// How states that are less valuable give way: those that can go to disk go there first, which takes a while, or at once.
enum class GiveWay : std::uint8_t { by_disk, at_once };

// Of the memory for states, in bytes.
struct MemoryLimit {
  std::uint64_t at_rest = 0;
  std::uint64_t in_all = 0;
};

using StateId = std::uint64_t;
using FamilyId = std::uint32_t;
// What is stored of the beginning of a chain.
struct StoredMatch {
  StateId id = 0;
  std::int32_t tokens_count = 0;  // in common with the chain
  std::int32_t tokens_stored = 0;
  Tier tier = Tier::warm;
  std::uint64_t bytes = 0;
  double fetch_ms = 0;  // until it is warm, estimated
  bool is_own = false;  // of the session that asks
};

// What is stored of a session.
struct SessionStates {
  Tier tier = Tier::none;  // where its newest state is; none: it has none that can be used
  std::uint64_t warm_bytes = 0;
  std::uint64_t cold_bytes = 0;  // those of other settings too
};

// For whom a state is looked for.
struct Asker {
  FamilyId family = 0;
  TenantId tenant;
  SessionId session;         // empty: a one-shot request
  SessionId forked_from;     // empty: none
  bool takes_others = true;  // false: only the states of these two sessions
};

struct StoreStats {
  Gauge warm_states;
  Gauge warm_bytes;
  Gauge cold_states;
  Gauge cold_bytes;
  Counter dropped_total;  // states given up for want of room, or beyond their tenant's quota
  Counter expired_total;  // states removed because nobody had used them for StoreOptions::ttl
  Counter failed_total;   // reads and writes that failed
  LatencyHistogram read;
  LatencyHistogram write;
};

class StateStore {
 public:
  using OnFetched = std::move_only_function<void(Expected<ImagePtr>)>;

  // Without `cold` what does not fit into memory is given up. `clock` outlives the store.
  StateStore(StoreOptions options, std::unique_ptr<ColdStore> cold, const Clock& clock);
  ~StateStore();

  // --- Any thread.
  // There are contexts of this identity (llm::Context::state_identity) now. `can_cut`: its states can be cut to any beginning
  // of themselves. The same identity is the same family.
  [[nodiscard]] FamilyId join(const std::string& identity, bool can_cut);
  // The best beginning of `chain` that is the tenant's or public, all of it where states cannot be cut.
  [[nodiscard]] std::optional<StoredMatch> find(const Asker& asker, std::span<const Token> chain) const;
  // A warm state, which counts as used; null: it is not warm any more.
  [[nodiscard]] ImagePtr take(StateId id);
  // The same, but it does not count as used: it may not be loaded in the end. While it is held its memory makes no room.
  [[nodiscard]] ImagePtr hold(StateId id) const;
  // It lives in a context now: the session's own leaves memory, where states can be cut.
  void settle(StateId id, const Asker& asker);
  // Brings a state into memory and then calls back, exactly once and from the store's thread, with an error where it is gone or
  // damaged. It counts as used.
  void fetch(StateId id, OnFetched on_fetched);
  // As fetch, for the session's state, if it has one, without telling anybody: the session is about to be used.
  void prefetch(const SessionId& session);
  // Memory for a state that is about to be saved or read, and that of less valuable states where it is needed. None: there is
  // none, or not yet, where they give way by disk.
  [[nodiscard]] std::optional<ByteBudget::Share> make_room(std::uint64_t bytes, GiveWay how);
  // Keeps a state of a family that was joined; it takes the place of the session's former one.
  void put(StateOwner owner, StateImage image);
  // A lane had to give up a state, for want of room.
  void note_dropped() { stats_.dropped_total.add(); }
  // Soon `pieces` states or pieces of so many bytes will be put: there should be memory for them.
  void expect(std::size_t piece_bytes, std::size_t pieces);
  // For the states that come here.
  [[nodiscard]] BytePool& pool() { return pool_; }
  // Runs a task on the store's thread, where work on the bytes of a whole state makes nobody wait but the disk's queue.
  void run_later(std::move_only_function<void()> task) { inbox_.push({.kind = JobKind::task, .task = std::move(task)}); }
  // It is not the state of its tokens: nobody gets it again.
  void discard(StateId id);
  // The session has ended.
  void forget(const SessionId& session);
  // What is stored of a session.
  [[nodiscard]] SessionStates states_of(const SessionId& session) const;
  [[nodiscard]] const StoreStats& stats() const { return stats_; }
  // Bytes of memory that states take, or may take that are about to be saved, here and with lanes; and what is kept for the
  // next ones.
  [[nodiscard]] std::uint64_t memory_bytes() const;
  // What they may take from now on: so much at rest here, or StoreOptions::warm_bytes_max where that is less, and with those on
  // their way to disk and those of lanes so much in all; before the first call nothing limits those of lanes. What is too much
  // at rest goes to disk, soon; what is too much in all is given up at once.
  void limit_memory(MemoryLimit limit);
  // Nothing is on its way to disk.
  [[nodiscard]] bool is_at_rest() const;
  // Ends the loop around step(); later puts are dropped.
  void close() { inbox_.close(); }

  // --- The store's thread.
  // First: reads what is on disk, which is found from then on. States of sessions that are not among `sessions`, which are all
  // there were at the start, are removed.
  void open(const std::unordered_set<SessionId>& sessions);
  // Does what waits and what is due. True when there was something.
  bool step();
  // Waits for something to do. False once closed.
  bool wait();
  // Writes all that is warm only, the most valuable first, until `deadline`.
  void save_all(TimePoint deadline);

  // For tests.
  void check_invariants() const;

 private:
  struct Family {
    FamilyId id = 0;
    bool is_joined = false;
    bool is_outdated = false;  // its model has been loaded, but with other settings
    bool can_cut = true;
  };
  using Families = std::map<std::string, Family>;  // by identity: a few long texts for many states
  struct Entry {
    StateOwner owner;
    Families::const_pointer family = nullptr;  // one of families_
    std::vector<Token> tokens;
    ImagePtr image;    // null: cold
    std::string file;  // empty: warm only
    std::uint64_t file_bytes = 0;
    std::uint32_t uses = 0;
    TimePoint last_used{};
    bool is_busy = false;       // the store's thread writes or reads it
    bool is_forgotten = false;  // it goes as soon as it is not busy
    bool must_leave = false;    // somebody waits for its memory: it leaves that even where disk does not take it

    [[nodiscard]] std::uint64_t warm_bytes() const { return image ? image->bytes() : 0; }
  };
  enum class JobKind : std::uint8_t { write, read, remove, expect, task };
  struct Job {
    JobKind kind = JobKind::write;
    StateId id = 0;                  // write, read
    std::size_t bytes = 0;           // read: of the file; expect
    std::size_t count = 0;           // expect
    std::string file{};              // remove
    OnFetched on_fetched = nullptr;  // read
    TimePoint began = kNever;        // read that waits for memory: since when
    std::move_only_function<void()> task = nullptr;
  };
  using Entries = std::unordered_map<StateId, Entry>;
  // What the states of a tenant take.
  struct TenantBytes {
    std::uint64_t warm = 0;
    std::uint64_t cold = 0;
  };

  // Count what has come into a tier; what leaves it, before it does.
  void count_image(const Entry& entry, bool has_come) REQUIRES_LOCK(mutex_);
  void count_file(const Entry& entry, bool has_come) REQUIRES_LOCK(mutex_);
  void count_for_tenant(const Entry& entry, std::uint64_t TenantBytes::* tier, std::uint64_t bytes, bool has_come)
      REQUIRES_LOCK(mutex_);
  void add(Entry entry) REQUIRES_LOCK(mutex_);
  void remove(StateId id) REQUIRES_LOCK(mutex_);
  void drop_image(StateId id) REQUIRES_LOCK(mutex_);
  void drop_file(Entry& entry) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Families::pointer family_of(std::string identity) REQUIRES_LOCK(mutex_);
  [[nodiscard]] const Family& family_of(FamilyId id) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::optional<PrefixIndex::Match> best_of(std::initializer_list<SessionId> sessions, const Family& family,
                                                          std::span<const Token> chain) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool is_redundant(const StateOwner& owner, const Family& family, std::span<const Token> tokens)
      REQUIRES_LOCK(mutex_);
  void supersede(const StateOwner& owner, const Family& family, std::span<const Token> tokens) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool begin_write(StateId id) REQUIRES_LOCK(mutex_);
  void make_tenant_room(const TenantId& tenant) REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::uint64_t bytes_here() const REQUIRES_LOCK(mutex_) { return warm_bytes_ + pool_.idle_bytes(); }
  [[nodiscard]] std::uint64_t bytes_at_rest() const REQUIRES_LOCK(mutex_) { return bytes_here() - leaving_bytes_; }
  void make_warm_room() REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool make_cold_room(StateId incoming) REQUIRES_LOCK(mutex_);
  void drop_from_disk(StateId id) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool can_write(const Entry& entry) const REQUIRES_LOCK(mutex_);
  enum class Place : std::uint8_t { memory, disk };
  [[nodiscard]] bool is_over_share(const TenantId& tenant, Place place, std::uint64_t share) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::uint64_t share_of(Place place) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] StateView view_of(StateId id, const Entry& entry, std::uint64_t bytes) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::optional<StateView> least_valuable_in(Place place, bool is_nowhere_else = false) const
      REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool can_make_room(std::uint64_t bytes, GiveWay how) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::optional<StateView> least_valuable_of(const TenantId& tenant) const REQUIRES_LOCK(mutex_);
  void end_busy(StateId id, bool leaves_memory) REQUIRES_LOCK(mutex_);
  void maintain();
  void prepare();
  void run(Job job);
  void write(StateId id);
  void read(Job job);
  void end_read(Job job, Expected<ImagePtr> image);
  [[nodiscard]] Expected<ImagePtr> read(StateId id, ByteBudget::Share room);

  // Constant after construction.
  const StoreOptions options_;
  const std::unique_ptr<ColdStore> cold_;
  const Clock& clock_;

  // Owned by the store's thread.
  // Memory that is being used for the first time, for the pool.
  struct Preparation {
    std::size_t bytes = 0;
    std::size_t count = 0;
    Bytes memory{};
    ByteBudget::Share room{};
    std::size_t used = 0;
    TimePoint next = kNever;
  };
  std::vector<Job> taken_;
  std::vector<Job> waiting_reads_;  // for memory
  Preparation preparation_;
  TimePoint maintenance_at_{};

  // Shared.
  BytePool pool_;  // before the entries, whose memory goes there
  Mailbox<Job> inbox_;
  StoreStats stats_;
  mutable Mutex mutex_;
  bool is_open_ GUARDED_BY(mutex_) = false;
  std::unordered_set<SessionId> forgotten_ GUARDED_BY(mutex_);    // until it is open
  Families families_ GUARDED_BY(mutex_);                          // of all entries there ever were
  std::vector<const Family*> families_by_id_ GUARDED_BY(mutex_);  // ids begin at 1
  Entries entries_ GUARDED_BY(mutex_);
  PrefixIndex index_ GUARDED_BY(mutex_);
  std::unordered_map<SessionId, std::vector<StateId>> of_session_ GUARDED_BY(mutex_);  // oldest first
  StateId last_id_ GUARDED_BY(mutex_) = 0;
  MemoryLimit limit_ GUARDED_BY(mutex_);
  std::uint64_t warm_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t leaving_bytes_ GUARDED_BY(mutex_) = 0;  // of them, on their way to disk
  std::uint64_t cold_bytes_ GUARDED_BY(mutex_) = 0;
  std::map<TenantId, TenantBytes> tenants_ GUARDED_BY(mutex_);  // that have states
  TimePoint writes_from_ GUARDED_BY(mutex_){};                  // after a failed write none is tried for a while
  double read_ms_per_mb_ GUARDED_BY(mutex_) = 1;
  std::uint64_t queued_bytes_ GUARDED_BY(mutex_) = 0;  // of reads that have been asked for
};

}  // namespace uma::kv
