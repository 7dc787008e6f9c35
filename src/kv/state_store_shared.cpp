// StateStore's functions for the store that daemons share.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thrown.h"
#include "kv/shared/shared_limits.h"
#include "kv/state_store.h"

namespace uma::kv {
namespace {

constexpr Duration kSharedReadMax = std::chrono::seconds(30);  // For one that no request waits for.

}  // namespace

void StateStore::look_up(const TenantId& tenant, const SessionId& session, MoveOnlyFunction<void()> then) {
  if (shared_ == nullptr) return then();
  std::vector<std::string> identities;
  {
    const MutexLock lock(mutex_);
    identities = table_.joined_identities();
  }
  shared_->reader.look_up(tenant, session, std::move(identities),
                          [this, session, then = std::move(then)](std::vector<ColdHead> heads) mutable {
                            run_noting([&] {
                              add_shared(session, std::move(heads));
                              read_ahead(session);
                            });
                            then();
                          });
}

// Takes the result of a lookup in place of the one before it.
void StateStore::add_shared(const SessionId& session, std::vector<ColdHead> heads) {
  const MutexLock lock(mutex_);
  const auto owned = table_.of_session(session);
  for (const StateId id : std::vector(owned.begin(), owned.end())) {
    const Entry& entry = table_.at(id);
    if (entry.is_shared_only() && !entry.is_busy) remove(id);
  }
  for (ColdHead& head : heads) {
    const auto family = table_.family_of(std::move(head.identity));
    const auto known = table_.of_session(session);
    const auto is_known = [&](StateId id) REQUIRES_LOCK(mutex_) {
      const Entry& entry = table_.at(id);
      return entry.family == family && entry.tokens == head.tokens;
    };
    if (head.tokens.empty() || std::ranges::any_of(known, is_known)) continue;
    Entry entry;
    entry.owner = std::move(head.owner);
    entry.family = family;
    entry.tokens = std::move(head.tokens);
    entry.shared = std::move(head.name);
    entry.shared_bytes = head.bytes;
    entry.last_used = clock_.now();
    table_.add(std::move(entry));
  }
}

// Null: the session has no state that contexts here could load.
const StateStore::Entry* StateStore::newest_usable(const SessionId& session, StateId& id) const {
  const auto owned = table_.of_session(session);
  for (auto next = owned.rbegin(); next != owned.rend(); ++next) {
    const Entry& entry = *table_.find(*next);
    if (!entry.family->second.is_joined || entry.is_forgotten || entry.is_refused) continue;
    id = *next;
    return &entry;
  }
  return nullptr;
}

// A session comes here because a client uses it here, so its state will be needed when the prompt is ready. One that takes long
// is left to the lane, which may rather compute.
void StateStore::read_ahead(const SessionId& session) {
  Job job{.kind = JobKind::read, .is_ahead = true};
  {
    const MutexLock lock(mutex_);
    const Entry* const newest = newest_usable(session, job.id);
    if (newest == nullptr || !newest->is_shared_only()) return;
    if (shared_->reader.read_ms(newest->shared_bytes) > to_ms(kStateReadMax) / 2) return;
  }
  (void)read_shared(job);
}

// Sends a read to the shared store's thread, or lets it wait for one of the same state. Any thread. False: the state is not
// only in the shared store, or there is no memory for it now.
bool StateStore::read_shared(Job& job) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    if (join_read(job)) return true;
    const Entry* const entry = table_.find(job.id);
    if (entry == nullptr || !entry->is_shared_only()) return false;
    bytes = entry->shared_bytes;
  }
  auto room = make_room(room_to_read(bytes), GiveWay::by_disk);
  if (!room) return false;
  ColdHead head;
  {
    const MutexLock lock(mutex_);
    if (join_read(job)) return true;
    const Entry* const entry = table_.find(job.id);
    if (entry == nullptr || !entry->is_shared_only()) return false;
    auto reading = begin_read(job.id);
    if (!reading) return false;
    head = std::move(reading->shared);
    shared_reads_.try_emplace(job.id);
  }
  const TimePoint until = job.until == kNever ? clock_.now() + kSharedReadMax : job.until;
  shared_->reader.read(std::move(head), pool_, until,
                       [this, job = std::move(job), room = std::move(*room)](Expected<Snapshot> snapshot, double ms) mutable {
                         auto accepted = accept_read(job, std::move(snapshot), std::move(room), {}, ms);
                         end_shared_read(std::move(job), accepted);
                       });
  return true;
}

// False: nobody reads the state from the shared store.
bool StateStore::join_read(Job& job) {
  const auto reading = shared_reads_.find(job.id);
  if (reading == shared_reads_.end()) return false;
  reading->second.push_back(std::move(job));
  return true;
}

void StateStore::end_shared_read(Job job, const Expected<SnapshotPtr>& snapshot) {
  std::vector<Job> jobs;
  {
    const MutexLock lock(mutex_);
    jobs = std::move(shared_reads_.extract(job.id).mapped());
    if (Entry* const entry = table_.find(job.id); entry != nullptr && snapshot)
      entry->was_read_ahead = job.is_ahead && jobs.empty();
  }
  jobs.insert(jobs.begin(), std::move(job));
  for (Job& each : jobs) run_noting([&] { end_read(std::move(each), snapshot); });
}

void StateStore::publish(const SessionId& session, SharedWriter::Urgency urgency, MoveOnlyFunction<void()> then) {
  StateId id = 0;
  StateOwner owner;
  bool is_warm = false;
  {
    const MutexLock lock(mutex_);
    const Entry* const entry = shared_ == nullptr ? nullptr : newest_usable(session, id);
    if (entry == nullptr || !entry->shared.empty() || entry->is_let_go || entry->tokens.size() < options_.shared_tokens_min)
      id = 0;
    if (id != 0) {
      owner = entry->owner;
      is_warm = entry->snapshot != nullptr;
    }
  }
  if (id == 0) return then();
  if (is_warm) return write_shared(id, std::move(owner), urgency, std::move(then));
  fetch(id, [this, id, owner = std::move(owner), urgency, then = std::move(then)](const Expected<SnapshotPtr>& read) mutable {
    if (!read) return then();
    write_shared(id, std::move(owner), urgency, std::move(then));
  });
}

// A snapshot is held when its turn has come: while it waits its memory can be freed, and its session can end or move on.
void StateStore::write_shared(StateId id, StateOwner owner, SharedWriter::Urgency urgency, MoveOnlyFunction<void()> then) {
  shared_->writer.write(
      std::move(owner), [this, id] { return hold_unshared(id); }, urgency,
      [this, id, then = std::move(then)](Expected<ColdHead> written) mutable {
        if (written) {
          const MutexLock lock(mutex_);
          if (Entry* const entry = table_.find(id); entry != nullptr && entry->tokens == written->tokens) {
            entry->shared = std::move(written->name);
            entry->shared_bytes = written->bytes;
          }
        }
        then();
      });
}

// Null: it has left the memory, is stored already, or may be older than what the session's next owner has stored.
SnapshotPtr StateStore::hold_unshared(StateId id) const {
  const MutexLock lock(mutex_);
  const Entry* const entry = table_.find(id);
  return entry == nullptr || entry->is_let_go || !entry->shared.empty() ? nullptr : entry->snapshot;
}

void StateStore::set_let_go(const SessionId& session, bool is_let_go) {
  if (shared_ == nullptr) return;
  const MutexLock lock(mutex_);
  for (const StateId id : table_.of_session(session)) table_.at(id).is_let_go = is_let_go;
}

void StateStore::publish_all(const std::unordered_set<SessionId>& sessions) {
  if (shared_ == nullptr) return;
  struct Unsaved {
    double value;
    StateId id;
    StateOwner owner;
  };
  std::vector<Unsaved> unsaved;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : table_.entries()) {
      StateId newest = 0;
      if (!sessions.contains(entry.owner.session) || !entry.snapshot || !entry.shared.empty()) continue;
      if (entry.tokens.size() < options_.shared_tokens_min || newest_usable(entry.owner.session, newest) != &entry) continue;
      unsaved.push_back({value_of(table_.view_of(id, entry, entry.warm_bytes())), id, entry.owner});
    }
  }
  std::ranges::sort(unsaved, std::greater(), &Unsaved::value);
  for (Unsaved& each : unsaved) write_shared(each.id, std::move(each.owner), SharedWriter::Urgency::soon, [] {});
  if (!unsaved.empty()) log_info("kv: {} states in memory are written to the shared store", unsaved.size());
}

void StateStore::remove_shared(const TenantId& tenant, const SessionId& session) {
  if (shared_ != nullptr) shared_->writer.remove(tenant, session);
}

}  // namespace uma::kv
