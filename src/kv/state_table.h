// The table of stored states: owners, tokens, families, tiers, and the bytes in each tier. Pure bookkeeping: a change returns
// the names of files that are not needed any more. Not thread-safe.
//
// Invariants, checked by check_invariants(): (1) An entry is warm, cold, shared, or several of these. (2) The bytes of a tier,
// and of a tenant in it, are the sum of the entries' bytes, where parts that several entries share count once. (3) Every entry
// of a session is found by that session, oldest first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/usage.h"
#include "kv/disk/cold_store.h"
#include "kv/prefix_index.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"
#include "kv/store_stats.h"
#include "kv/tier_policy.h"

namespace uma::kv {

using StateId = std::uint64_t;
using FamilyId = std::uint32_t;

// The requester of a state.
struct PrefixQuery {
  FamilyId family = 0;  // 0: its states are not stored.
  TenantId tenant;
  SessionId session;         // Empty: a one-shot request.
  SessionId forked_from;     // Empty: none.
  bool takes_others = true;  // False: only the states of these two sessions.
};

class StateTable {
 public:
  // States of one identity, which fit the same contexts.
  struct Family {
    FamilyId id = 0;
    bool is_joined = false;
    bool is_outdated = false;  // The model was loaded with other settings; other adapters are not other settings.
    bool can_cut = true;
  };
  using Families = std::map<std::string, Family>;  // Keyed by identity, so that many states share one long text.
  struct Entry {
    StateId id = 0;  // Set by add().
    StateOwner owner;
    Families::const_pointer family = nullptr;  // See family_of().
    std::vector<Token> tokens;
    SnapshotPtr snapshot;          // Null: cold or shared.
    std::string file;              // Empty: not cold.
    std::uint64_t file_bytes = 0;  // Without its parts.
    std::vector<ColdPart> parts;   // Parts of the file.
    std::string shared;            // Its name in the shared store, from which it may vanish; empty: it is not there.
    std::uint64_t shared_bytes = 0;
    bool is_let_go = false;  // Another daemon may have continued its session: it is not written to the shared store.
    std::uint32_t uses = 0;
    TimePoint last_used{};
    bool is_busy = false;         // A thread is writing or reading it.
    bool is_forgotten = false;    // To be removed as soon as it is not busy.
    bool must_leave = false;      // A claim waits for its memory, or its context has it: it leaves memory, also if it is used.
    bool was_read_ahead = false;  // From the shared store, and not used yet.
    // It was read before a request asked for it, and cannot be used: the first request that does is told so.
    bool is_refused = false;
    bool is_for_memory = false;  // Computing it is faster than reading it from disk.

    [[nodiscard]] std::uint64_t warm_bytes() const { return snapshot ? snapshot->bytes() : 0; }
    [[nodiscard]] bool is_shared_only() const { return !snapshot && file.empty(); }
    [[nodiscard]] Tier tier() const { return snapshot ? Tier::warm : file.empty() ? Tier::shared : Tier::cold; }
    [[nodiscard]] std::uint64_t cold_bytes() const;
    // The size of what is read to have it in memory.
    [[nodiscard]] std::uint64_t bytes_to_read() const { return snapshot ? 0 : file.empty() ? shared_bytes : cold_bytes(); }
  };
  using Entries = std::unordered_map<StateId, Entry>;
  enum class Place : std::uint8_t { memory, disk };
  // Bytes of states per tier.
  struct TierBytes {
    std::uint64_t warm = 0;
    std::uint64_t cold = 0;

    [[nodiscard]] std::uint64_t in(Place place) const { return place == Place::memory ? warm : cold; }
    [[nodiscard]] std::uint64_t total() const { return warm + cold; }
    friend bool operator==(const TierBytes&, const TierBytes&) = default;
  };

  // Updates the gauges of `stats`, which outlives the table, as `clock` does.
  StateTable(EvictionOrder eviction, const Clock& clock, StoreStats& stats)
      : eviction_(eviction), clock_(clock), stats_(stats) {}

  // --- Families
  [[nodiscard]] Families::pointer family_of(std::string identity);
  [[nodiscard]] const Family& family_of(FamilyId id) const;
  // Registers that contexts of this identity exist. Returns how many states of its model for other settings could be found
  // until now.
  std::ptrdiff_t join(const std::string& identity, bool can_cut);

  // The identities of contexts that exist.
  [[nodiscard]] std::vector<std::string> joined_identities() const;

  // --- Entries
  StateId add(Entry entry);
  [[nodiscard]] Entry* find(StateId id);
  [[nodiscard]] const Entry* find(StateId id) const;
  // Requires: it exists.
  [[nodiscard]] Entry& at(StateId id) { return entries_.at(id); }
  [[nodiscard]] const Entries& entries() const { return entries_; }
  // The states of a session, oldest first.
  [[nodiscard]] std::span<const StateId> of_session(const SessionId& session) const;
  // Removes an entry with its memory, or marks a busy entry for later removal. Returns the files that nobody needs any more.
  [[nodiscard]] std::vector<std::string> remove(StateId id);
  // Frees the memory of an entry that is not busy. An entry that is nowhere else is removed.
  void drop_snapshot(StateId id);
  // Makes the entry warm only. Returns the files that nobody needs any more.
  [[nodiscard]] std::vector<std::string> drop_file(Entry& entry);
  void set_snapshot(Entry& entry, SnapshotPtr snapshot);
  void set_file(Entry& entry, std::string file, std::uint64_t bytes, std::vector<ColdPart> parts);
  // The entry of exactly this owner and these tokens; null: there is none.
  [[nodiscard]] Entry* find_equal(const StateOwner& owner, const Family& family, std::span<const Token> tokens);

  // --- Parts of files
  // Counts one more user of each part, which a tenant is about to write; sets the bytes of those that are known. False, and
  // nothing has changed: the bytes of one are unknown.
  [[nodiscard]] bool hold_parts(const TenantId& tenant, std::vector<ColdPart>& parts);
  // Returns the parts that nobody uses any more.
  [[nodiscard]] std::vector<std::string> release_parts(const TenantId& tenant, std::span<const ColdPart> parts);
  [[nodiscard]] bool is_part_used(const std::string& name) const { return parts_.contains(name); }
  // The entries that have one of these parts.
  [[nodiscard]] std::vector<StateId> having(std::span<const std::string> parts) const;
  // Whether an entry has this file, or somebody uses this part.
  [[nodiscard]] bool is_file_used(const std::string& name) const { return files_.contains(name) || is_part_used(name); }

  // --- Lookups by tokens
  // The entry with the longest usable prefix of `chain`; a whole entry if states cannot be cut.
  [[nodiscard]] std::optional<PrefixIndex::Match> find(const PrefixQuery& query, std::span<const Token> chain) const;
  // The state that has these tokens and may be longer, if states can be cut: of the same session, or, without one, of any owner
  // in scope. Marks it as used. Null: there is none.
  [[nodiscard]] Entry* find_longer(const StateOwner& owner, const Family& family, std::span<const Token> tokens);
  // Removes the states that a new state replaces: the session's former state; if states cannot be cut, those that it does not
  // continue and all but the last few; for a state without a session, those that it continues. Returns the files of the removed
  // states.
  [[nodiscard]] std::vector<std::string> supersede(const StateOwner& owner, const Family& family,
                                                   std::span<const Token> tokens);

  // --- Bytes
  [[nodiscard]] const TierBytes& bytes() const { return bytes_; }
  // Bytes of the tenants that have states.
  [[nodiscard]] const std::map<TenantId, TierBytes>& tenants() const { return tenants_; }
  // Counts a file that is about to be written as if it existed already.
  void count_incoming_file(const TenantId& tenant, std::uint64_t bytes) { tenants_[tenant].cold += bytes; }
  void uncount_incoming_file(const TenantId& tenant, std::uint64_t bytes);

  // --- Eviction order
  [[nodiscard]] StateView view_of(StateId id, const Entry& entry, std::uint64_t bytes) const;
  // Whether the tenant uses more than its equal share of a tier with `place_bytes`.
  [[nodiscard]] bool is_over_share(const TenantId& tenant, Place place, std::uint64_t place_bytes) const;
  // The least valuable state that is not busy. With `is_nowhere_else`, states whose snapshot a lane still holds are skipped,
  // because their memory would not be freed.
  [[nodiscard]] std::optional<StateView> least_valuable_in(Place place, std::uint64_t place_bytes,
                                                           bool is_nowhere_else = false) const;
  // The least valuable state of a tenant that is not busy. A state in both tiers goes first.
  [[nodiscard]] std::optional<StateView> least_valuable_of(const TenantId& tenant) const;

  // For tests.
  void check_invariants() const;

 private:
  // The bytes that the disk would gain without the entry.
  [[nodiscard]] std::uint64_t freed_bytes(const Entry& entry) const;
  [[nodiscard]] std::uint64_t share_of(Place place, std::uint64_t place_bytes) const;
  void count(const TenantId& tenant, Place place, std::uint64_t bytes, bool has_come);
  void count_state(const Entry& entry, Place place, std::uint64_t bytes, bool has_come);
  [[nodiscard]] std::optional<PrefixIndex::Match> best_of(std::initializer_list<SessionId> sessions, const Family& family,
                                                          std::span<const Token> chain) const;

  const EvictionOrder eviction_;
  const Clock& clock_;
  StoreStats& stats_;
  Families families_;                          // Families of all entries since the start.
  std::vector<const Family*> families_by_id_;  // Ids begin at 1.
  Entries entries_;
  PrefixIndex index_;
  std::unordered_map<SessionId, std::vector<StateId>> of_session_;
  struct Part {
    std::size_t users = 0;
    std::uint64_t bytes = 0;
  };
  std::unordered_map<std::string, Part> parts_;
  std::unordered_set<std::string> files_;  // The files of all entries.
  StateId last_id_ = 0;
  TierBytes bytes_;
  std::map<TenantId, TierBytes> tenants_;
};

}  // namespace uma::kv
