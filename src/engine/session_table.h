// The table of sessions: what was committed of each, who may change it, what its tenant keeps, when it ends. Owned by the
// router's thread.
//
// Invariants: (1) A session's record is replaced only after the catalog has committed the new one, and a session is forgotten
// only after the catalog has forgotten it. (2) A session that is locked or running stays in the table. (3) The record of a
// session in use is in memory; records of other sessions stay as far as record_bytes_max allows, those used last first, and are
// read from the catalog when they are needed again. (4) Locks are granted in the order in which they were asked for.
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "core/error.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/reply.h"
#include "core/request.h"
#include "core/task.h"
#include "kv/catalog.h"

namespace uma::engine {

[[nodiscard]] Error unknown_session(const std::string& session);

class SessionTable;
struct Session;

// The right to change a session, or to read a record that nobody changes; what else comes to the session waits until it ends.
class SessionLock {
 public:
  SessionLock() = default;  // of no session
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
  Session* session_ = nullptr;  // null: nothing is locked
};

// A reply that is being made in a session.
struct SessionRun {
  RequestId request;
  std::string response;  // the id that it will have as a response (ResponseRequest::id); empty: it is none
  // Those who wait for its end. Shared with them: one who gives up takes its own entry out.
  std::shared_ptr<std::list<Reply<Unit>>> waiting = std::make_shared<std::list<Reply<Unit>>>();
};

// Small: there may be a hundred thousand, most of which do nothing.
struct Session {
  // A session that nobody uses, with its record in memory.
  struct Unused {
    Session* session = nullptr;
    std::size_t bytes = 0;
  };

  kv::SessionSummary summary;       // as committed
  kv::RecordPtr record;             // the same with all that was said; null: only the catalog has it
  std::size_t lane = 0;             // index of its lane among those of its model, where that is loaded
  SessionId forked_from;            // empty: it is no fork
  std::unique_ptr<SessionRun> run;  // null: no reply is being made
  bool is_locked = false;
  bool is_new = false;  // not in the catalog yet: it ends with its lock and its run, where none of them has committed it
  std::vector<Reply<SessionLock>> waiting;  // for the lock
  std::optional<std::list<Unused>::iterator> unused;
  std::vector<Reply<Unit>> ends;  // it is to end, as soon as nobody has its lock and no reply is being made
  TimePoint expires = kNever;

  [[nodiscard]] bool is_running() const { return run != nullptr; }
};

struct SessionTableOptions {
  Limits limits;
  std::function<std::uint64_t()> random;  // of ids
  std::size_t record_bytes_max = 0;       // of memory for what was said in sessions that nobody uses
  // A change of a session is in the catalog; before anybody hears of it.
  std::function<void(const kv::SessionRecord&)> on_committed;
  // A session has ended; before anybody hears of it.
  std::function<void(const Session&)> on_ended;
};

class SessionTable {
 public:
  // Begins with the sessions that the catalog has kept. The references outlive the table.
  SessionTable(SessionTableOptions options, kv::Catalog& catalog, TaskRunner& tasks, const Clock& clock);

  // Null: there is none.
  [[nodiscard]] Session* find(const SessionId& id);
  [[nodiscard]] const Session* find(const SessionId& id) const;
  // By its name or id, of this tenant.
  [[nodiscard]] Session* find(const TenantId& tenant, const std::string& session);
  // Waits for its turn among those who want the session's lock, and for its record, which is then in memory. Errors:
  // E_SESSION_001, also where the session ends meanwhile; E_IO_001 where the record cannot be read.
  [[nodiscard]] Task<Expected<SessionLock>> lock(TenantId tenant, std::string session);
  [[nodiscard]] Task<Expected<SessionLock>> lock(Session& session);
  [[nodiscard]] std::size_t size() const { return sessions_.size(); }
  // The same from any thread.
  [[nodiscard]] std::int64_t count() const { return count_.value(); }
  void for_each(auto&& visit) {
    for (auto& [id, session] : sessions_) visit(session);
  }
  void for_each(auto&& visit) const {
    for (const auto& [id, session] : sessions_) visit(session);
  }

  // Visits the tenant's sessions, those made first at the beginning, behind `after` (null: from the first one), until visit()
  // returns false. Returns whether it did.
  bool for_each_of(const TenantId& tenant, const Session* after, auto&& visit) const {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end()) return false;
    const auto& made = found->second.made;
    for (auto session = after == nullptr ? made.begin() : made.upper_bound(after); session != made.end(); ++session) {
      if (!visit(**session)) return true;
    }
    return false;
  }

  [[nodiscard]] SessionId new_id();
  // Errors: E_LIMIT_002, E_LIMIT_005: so many sessions or tokens more are too many.
  [[nodiscard]] Expected<Unit> check_quota(const TenantId& tenant, std::size_t sessions_added, std::size_t tokens_added) const;
  // A new session, locked; commit() gives it to the catalog. It counts for its tenant from now on, and is gone again when it is
  // neither locked nor running and was not committed.
  [[nodiscard]] SessionLock add(kv::SessionRecord record, std::size_t lane, SessionId forked_from);

  // Commits `next` in the place of the session's record. It is counted at once, so that changes that are committed at the same
  // time do not pass a quota together. REQUIRES: the caller has the session's lock, and is not ended before the answer.
  // Errors: E_IO_001, and nothing has changed.
  [[nodiscard]] Task<Expected<Unit>> commit(Session& session, kv::RecordPtr next);
  [[nodiscard]] Task<Expected<Unit>> commit(Session& session, kv::SessionRecord next) {
    return commit(session, std::make_shared<const kv::SessionRecord>(std::move(next)));
  }

  // A reply is being made in it, or is not any more.
  void begin_run(Session& session, RequestId id, std::string response = "");
  void end_run(Session& session);
  // Waits until no reply is being made. Errors: E_LIMIT_003 where too many wait already; E_SESSION_001.
  [[nodiscard]] Task<Expected<Unit>> until_idle(Session& session);
  // Waits until no reply is being made, and for the lock. Errors: those of both.
  [[nodiscard]] Task<Expected<SessionLock>> lock_idle(TenantId tenant, std::string session);
  // It was used: its time to live begins anew.
  void touch(Session& session);

  // Ends it as soon as nothing of it is under way; replies when the catalog has forgotten it, or could not.
  void end(Session& session, Reply<Unit> reply);
  // Who waits for a lock or for an end is refused.
  void refuse_waiting(const Error& error);

  // When the next session's time to live is over, if nobody uses it.
  [[nodiscard]] TimePoint next_expiry() const { return next_expiry_; }
  // Ends those whose time is over.
  void expire();

  void check_invariants() const;

 private:
  friend class SessionLock;

  struct IsOlder {
    bool operator()(const Session* a, const Session* b) const {
      return std::tie(a->summary.created_s, a->summary.id) < std::tie(b->summary.created_s, b->summary.id);
    }
  };
  // What a tenant keeps.
  struct Account {
    std::set<const Session*, IsOlder> made;
    std::size_t tokens = 0;  // with those that are being committed
  };

  void adopt(kv::SessionSummary summary);
  void count_tokens(const kv::SessionSummary& summary, bool has_come);
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
  std::list<Session::Unused> unused_;  // the last used one at the end
  std::size_t unused_bytes_ = 0;
  std::map<std::pair<TenantId, std::string>, SessionId> names_;
  std::map<TenantId, Account> accounts_;  // of those that have sessions
  TimePoint next_expiry_ = kNever;
  Gauge count_;
};

}  // namespace uma::engine
