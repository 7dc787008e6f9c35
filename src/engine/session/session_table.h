// The table of sessions: their committed records, their locks, their tenants' quotas and their times to live. Owned by the
// router's thread.
//
// Invariants: (1) A session's record is replaced after the catalog has committed the new one, and a session is removed after
// the catalog has removed it. (2) A session that is locked or running stays in the table. (3) The record of a session in use is
// in memory. Records of idle sessions stay in memory up to record_bytes_max, the most recently used ones first, and are read
// from the catalog when they are needed again. (4) Locks are granted in the order of the requests for them. (5) Of metadata the
// table holds what lists show (SessionSummary::metadata), which is at most kListedMetadataBytesMax for a session; the rest is
// part of its record.
//
// A catalog that several daemons share (kv::Catalog::is_shared) has more: the table lists the sessions of all of them, as they
// were when it last asked (take_changes()). A lock takes a session that this daemon does not own and reads it anew. A session
// is given up when another daemon asks for it, as soon as no lock and no run uses it, or when it was not used for a while, and
// its record then leaves the memory. With a store of states that daemons share, its state is stored there before, and also when
// it was idle for some seconds. session_sharing.cpp has the functions for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/timers.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/session/session_listing.h"
#include "kv/catalog/catalog.h"

namespace uma::engine {

[[nodiscard]] Error unknown_session(const std::string& session);

class SessionTable;
struct Session;

// The right to change a session, or to read its record without concurrent changes. Other work on the session waits until the
// lock ends.
class SessionLock {
 public:
  SessionLock() = default;  // empty
  SessionLock(SessionTable& table, Session& session) : table_(&table), session_(&session) {}
  SessionLock(SessionLock&& other) noexcept : table_(other.table_), session_(std::exchange(other.session_, nullptr)) {}
  SessionLock& operator=(SessionLock&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(session_, other.session_);
    return *this;
  }
  ~SessionLock() { release(); }

  void release() noexcept;
  [[nodiscard]] bool is_empty() const { return session_ == nullptr; }
  [[nodiscard]] Session& operator*() const { return *session_; }
  [[nodiscard]] Session* operator->() const { return session_; }

 private:
  SessionTable* table_ = nullptr;
  Session* session_ = nullptr;  // Null: nothing is locked.
};

// A reply in progress in a session.
struct SessionRun {
  RequestId request;
  std::string response;      // Its id as a response (ResponseRequest::id); empty: the reply is not a response.
  std::uint32_t losses = 0;  // Session::losses at its beginning.
  // Replies to requests that wait for the end of this one. Shared with those requests: a request that stops waiting removes its
  // own entry.
  std::shared_ptr<std::list<Promise<Unit>>> waiting = std::make_shared<std::list<Promise<Unit>>>();
};

// Whether the state of a session is where other daemons find it.
enum class Sharing : std::uint8_t {
  not_shared,    // It is new, or was changed.
  being_shared,  // It is being stored.
  shared,        // It was stored, or could not be.
};

// Kept small: there may be a hundred thousand sessions, most of which are idle.
struct Session {
  // An idle session with its record in memory.
  struct Unused {
    Session* session = nullptr;
    std::size_t bytes = 0;
    TimePoint since{};
  };

  kv::SessionSummary summary;       // Summary of the committed record.
  kv::RecordPtr record;             // The committed record; null: only the catalog has it.
  std::size_t lane = 0;             // Index of its lane among the lanes of its model, if the model is loaded.
  std::unique_ptr<SessionRun> run;  // Null: no reply is in progress.
  bool is_locked = false;
  bool is_rewritten = false;  // Input that waits has made the template write the past differently.
  std::uint64_t lease = 0;    // Under which this daemon has taken it from a shared catalog; 0: it does not own it.
  bool is_gone = false;       // The catalog has it no more: it ends with its lock and its run.
  bool is_wanted = false;     // Another daemon asks for it: it is given up when no lock and no run uses it.
  bool is_queued = false;     // Among those whose state will be stored soon.
  Sharing sharing = Sharing::not_shared;
  std::uint32_t losses = 0;  // How often another daemon had it, and has changed it.
  bool is_new = false;       // Not in the catalog yet: the session ends with its lock and its run, if neither has committed it.
  std::vector<Promise<SessionLock>> waiting;  // Requests for the lock.
  std::optional<std::list<Unused>::iterator> unused;
  std::vector<Promise<Unit>> ends;  // Requests to end the session, which happens when it is idle.
  TimePoint expires = kNever;       // Changed by SessionTable::expire_at().

  [[nodiscard]] bool is_running() const { return run != nullptr; }
};

// An amount that sessions keep in the catalog, or that is added to it.
struct Stored {
  std::size_t sessions = 0;
  std::size_t tokens = 0;
  std::size_t bytes = 0;  // kv::stored_bytes().
  bool operator==(const Stored&) const = default;
};
// The amount that a new session with this record adds.
[[nodiscard]] Stored stored_of(const kv::SessionRecord& record);
// The amount by which `after` exceeds `before`, without sessions.
[[nodiscard]] Stored growth(const kv::SessionRecord& before, const kv::SessionRecord& after);

struct SessionTableOptions {
  Limits limits;
  std::function<std::uint64_t()> random;  // Makes ids.
  std::size_t record_bytes_max = 0;       // Memory for the records of idle sessions.
  // Called when a change of a session is in the catalog, before any request gets a reply to it.
  std::function<void(const kv::SessionRecord&)> on_committed;
  // Called when a session has ended, before any request gets a reply to it.
  std::function<void(const Session&)> on_ended;
  // With a store of states that daemons share; null: there is none.
  // Called when a session was taken from another daemon, and when it was given up.
  std::function<void(const Session&)> on_taken = nullptr;
  std::function<void(const Session&)> on_given_up = nullptr;
  // Stores the state of an idle session where other daemons find it. Answers in a bounded time, whatever has become of it.
  std::function<void(const Session&, bool is_wanted, Promise<Unit>)> publish = nullptr;
};

class SessionTable {
 public:
  // Begins with the sessions of the catalog. The references outlive the table.
  SessionTable(SessionTableOptions options, kv::Catalog& catalog, TaskRunner& tasks, const Clock& clock);

  // Null: there is no such session.
  [[nodiscard]] Session* find(const SessionId& id);
  [[nodiscard]] const Session* find(const SessionId& id) const;
  // Finds a session of the tenant by its name or id.
  [[nodiscard]] Session* find(const TenantId& tenant, const std::string& session);
  // If the catalog is shared, looks for a session of the tenant that another daemon has made or renamed just now. Errors:
  // those of lock().
  [[nodiscard]] Task<Expected<Unit>> learn(TenantId tenant, std::string session);
  // Waits for the session's lock, behind earlier requests for it, and for its record, which is then in memory. Errors:
  // E_SESSION_001, also if the session ends meanwhile; E_SESSION_002 if another daemon does not give it up; E_IO_001 if the
  // record cannot be read.
  [[nodiscard]] Task<Expected<SessionLock>> lock(TenantId tenant, std::string session);
  [[nodiscard]] Task<Expected<SessionLock>> lock(Session& session);
  [[nodiscard]] std::size_t size() const { return sessions_.size(); }
  // The number of sessions, for any thread.
  [[nodiscard]] std::int64_t count() const { return count_.value(); }
  // The bytes that they keep in the catalog, for any thread.
  [[nodiscard]] std::int64_t bytes_stored() const { return bytes_.value(); }
  void for_each(auto&& visit) {
    for (auto& [id, session] : sessions_) visit(session);
  }
  void for_each(auto&& visit) const {
    for (const auto& [id, session] : sessions_) visit(session);
  }

  // Visits the tenant's sessions in this order, from the one behind `after` (nullopt: from the first), until visit() returns
  // false. True: visit() has returned false.
  bool for_each_of(const TenantId& tenant, SessionOrder order, const std::optional<ListPosition>& after, auto&& visit) const {
    const auto account = accounts_.find(tenant);
    if (account == accounts_.end()) return false;
    const auto walk = [&](const auto& sessions) {
      for (auto next = after ? sessions.upper_bound(*after) : sessions.begin(); next != sessions.end(); ++next) {
        if (!visit(**next)) return true;
      }
      return false;
    };
    return order == SessionOrder::oldest_first ? walk(account->second.made) : walk(account->second.used);
  }

  [[nodiscard]] SessionId new_id();
  // Checks that the tenant may add so much. On a disk that is nearly full, whoever keeps more than an equal share of it may add
  // nothing, so that the others still can. Errors: E_LIMIT_002, E_LIMIT_005.
  [[nodiscard]] Expected<Unit> check_quota(const TenantId& tenant, const Stored& added) const;
  // Adds a new session and locks it; commit() stores it in the catalog. It counts for its tenant from now on. It is removed
  // again when it is neither locked nor running and was not committed.
  [[nodiscard]] SessionLock add(kv::SessionRecord record, std::size_t lane);

  // Commits `next` as the session's record. It is counted at once, so that concurrent commits cannot exceed a quota together or
  // take one name. Requires: the caller has the session's lock, and waits for the result; no other session has the name of
  // `next`. Errors: E_IO_001, and nothing has changed; E_LIMIT_003 if another daemon has taken the session, too; E_IO_002 if it
  // is unknown whether the change is stored.
  [[nodiscard]] Task<Expected<Unit>> commit(Session& session, kv::RecordPtr next);
  [[nodiscard]] Task<Expected<Unit>> commit(Session& session, kv::SessionRecord next) {
    return commit(session, std::make_shared<const kv::SessionRecord>(std::move(next)));
  }

  // A reply in the session begins, or has ended.
  void begin_run(Session& session, RequestId id, std::string response = "");
  void end_run(Session& session);
  // Waits until no reply is in progress. Errors: E_LIMIT_003 if too many requests wait already; E_SESSION_001.
  [[nodiscard]] Task<Expected<Unit>> until_idle(Session& session);
  // Waits until no reply is in progress, and for the lock. Errors: those of until_idle() and lock().
  [[nodiscard]] Task<Expected<SessionLock>> lock_idle(TenantId tenant, std::string session);
  // Records a use of the session: its time to live begins again.
  void touch(Session& session);

  // Ends the session when it is idle. Replies when the catalog has removed it, or could not. Errors: E_SESSION_001 if the
  // session was new and no commit has succeeded; if the outcome of one is unknown, a shared catalog may have it all the same.
  void end(Session& session, Promise<Unit> reply);
  // Refuses all requests that wait for a lock or for the end of a session.
  void refuse_waiting(const Error& error);

  // Others have done something: asks a shared catalog for it now.
  void hear_news();

  void check_invariants() const;

 private:
  friend class SessionLock;

  template <SessionOrder kOrder>
  struct InOrder {
    using is_transparent = void;
    static auto key(const Session* session) {
      const kv::SessionSummary& summary = session->summary;
      return std::tie(kOrder == SessionOrder::oldest_first ? summary.created_s : summary.last_used_s, summary.id);
    }
    static auto key(const ListPosition& position) { return std::tie(position.first, position.second); }
    bool operator()(const auto& a, const auto& b) const {
      return kOrder == SessionOrder::oldest_first ? key(a) < key(b) : key(b) < key(a);
    }
  };
  // The sessions of a tenant.
  struct Account {
    std::set<const Session*, InOrder<SessionOrder::oldest_first>> made;
    std::set<const Session*, InOrder<SessionOrder::last_used_first>> used;
    std::size_t tokens = 0;  // Including tokens that are being committed.
    std::size_t bytes = 0;   // Bytes, open commits included.

    [[nodiscard]] Stored stored() const { return {.sessions = made.size(), .tokens = tokens, .bytes = bytes}; }
  };

  void adopt(kv::SessionSummary summary);
  [[nodiscard]] Task<Expected<Unit>> own(Session& session);
  [[nodiscard]] bool is_foreign(const Session& session) const {
    return catalog_.is_shared() && !session.is_new && (session.lease == 0 || session.lease != catalog_.lease());
  }
  // Whether its state is to be stored before it is given up.
  [[nodiscard]] bool must_publish(const Session& session) const;
  void give_up(Session& session);
  [[nodiscard]] Task<> hand_over(SessionLock lock);
  [[nodiscard]] Session* next_unpublished();
  [[nodiscard]] Task<> publish_idle();
  void refuse_locks(Session& session, const Error& error);
  void forget_name(const kv::SessionSummary& named);
  void replace_summary(Session& session, kv::SessionSummary summary);
  void set_expiry(Session& session);
  void expire_at(Session& session, TimePoint time);
  void expire();
  void ask_others(Duration pause);
  [[nodiscard]] Task<> take_changes();
  void take(kv::CatalogChanges changes);
  void take(kv::SessionSummary changed);
  void set_summary(Session& session, kv::SessionSummary summary);
  void count_stored(const kv::SessionSummary& summary, bool has_come);
  [[nodiscard]] SessionLock lock_now(Session& session);
  void unlock(Session& session);
  void settle(Session& session);
  void erase(Session& session);
  void set_unused(Session& session);
  void set_used(Session& session);
  [[nodiscard]] Task<> remove(SessionLock lock);

  const SessionTableOptions options_;
  kv::Catalog& catalog_;
  TaskRunner& tasks_;
  const Clock& clock_;

  std::unordered_map<SessionId, Session> sessions_;
  std::list<Session::Unused> unused_;  // Least recently used first.
  std::size_t unused_bytes_ = 0;
  std::map<std::pair<TenantId, std::string>, SessionId> names_;
  std::map<TenantId, Account> accounts_;               // Accounts of the tenants that have sessions.
  std::set<std::pair<TimePoint, Session*>> expiring_;  // The sessions with a time to live, in the order of their ends.
  Timer expiry_;                                       // The first of these.
  Timer question_;                                     // A shared catalog is asked for the changes of others.
  bool is_asking_ = false;
  bool has_news_ = false;  // Since the question.
  bool is_sync_failing_ = false;
  std::deque<std::pair<SessionId, TimePoint>> unpublished_;  // Idle since then, the first one first.
  bool is_publishing_ = false;
  Gauge count_;
  Gauge bytes_;
};

}  // namespace uma::engine
