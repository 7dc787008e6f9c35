// The sessions there are: what was committed of each, who waits until a change is done, what their tenants keep, when they end.
// Of the router, on its thread.
//
// Invariants: (1) A session's record is replaced only after the catalog has committed the new one, and a session forgotten only
// after the catalog has forgotten it. (2) A session that is locked, or has a request running, stays in the table. (3) The
// record of a session in use is in memory; those of the others as far as record_bytes_max allows, the last used ones first, and
// the rest is read from the catalog when it is needed. (4) A session that a response has made is in the catalog once the
// response has ended, and until then nothing but its reply is under way.
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
#include "core/request.h"
#include "core/service.h"
#include "kv/catalog.h"

namespace uma::engine {

[[nodiscard]] Error unknown_session(const std::string& session);

// A response that is being made.
struct ResponseDraft {
  kv::RecordPtr record;  // of the session, with the response's input pending; shared with the preparer's jobs
  ResponseRequest response;
  std::int64_t created_s = 0;
};

// Small: there may be a hundred thousand, most of which do nothing.
struct Session {
  // What was wanted while it was locked; an error where it has ended meanwhile.
  using Then = std::move_only_function<void(Expected<Session*>)>;
  // One that nobody uses, with its record in memory.
  struct Resting {
    Session* session = nullptr;
    std::size_t bytes = 0;
  };

  kv::SessionSummary summary;  // as committed
  kv::RecordPtr record;        // the same with all that was said; null: it is in the catalog only
  std::size_t lane = 0;        // means something once there are lanes
  SessionId forked_from;       // empty: none
  RequestId running;           // zero: none
  bool is_locked = false;      // its record is being read, input prepared or a change committed; commands wait their turn
  bool is_new = false;         // made by the response that runs: not in the catalog yet
  std::unique_ptr<ResponseDraft> draft;  // of the response that runs; null: none does
  std::vector<Then> waiting;
  std::optional<std::list<Resting>::iterator> resting;
  std::vector<Reply<Unit>> ends;  // it is to end, as soon as nothing of it is under way
  TimePoint expires = kNever;
};

struct SessionTableOptions {
  Limits limits;
  std::function<std::uint64_t()> random;  // of ids
  std::size_t record_bytes_max = 0;       // of memory for what was said in sessions that nobody uses
  // Brings what the catalog answers to the router's thread.
  std::function<void(std::move_only_function<void()>)> post;
  // A change of a session is in the catalog; before anybody hears of it.
  std::function<void(const kv::SessionRecord&)> on_committed;
  // A session has ended; before anybody hears of it.
  std::function<void(const Session&)> on_ended;
};

class SessionTable;

// A session's lock (SessionTable::lock). Destroyed without release(), as an exception or a closed queue does, it posts a
// command that unlocks the session.
class SessionLock {
 public:
  SessionLock(SessionTable& table, SessionId id) : table_(&table), id_(std::move(id)) {}
  SessionLock(SessionLock&& other) noexcept : table_(std::exchange(other.table_, nullptr)), id_(std::move(other.id_)) {}
  SessionLock& operator=(SessionLock&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SessionLock();

  // Unlocks it, and runs what has waited for that.
  void release();
  // It is gone, and its lock with it.
  void forget() { table_ = nullptr; }

 private:
  SessionTable* table_;  // null: it is not locked by this any more
  SessionId id_;
};

class SessionTable {
 public:
  // Begins with the sessions that the catalog has kept, which outlives the table, as the clock does.
  SessionTable(SessionTableOptions options, kv::Catalog& catalog, const Clock& clock);

  // Null: there is none.
  [[nodiscard]] Session* find(const SessionId& id);
  [[nodiscard]] const Session* find(const SessionId& id) const;
  // By its name or id, of this tenant.
  [[nodiscard]] Session* find(const TenantId& tenant, const std::string& session);
  // Runs `then` with the session once nothing changes it and its record is in memory, or with why it cannot be used.
  void with(const TenantId& tenant, const std::string& session, Session::Then then);
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
  // A new session, which is not in the catalog yet. It counts for its tenant from now on.
  Session& add(kv::RecordPtr record, std::size_t lane, SessionId forked_from);

  // What comes to a locked session waits.
  [[nodiscard]] SessionLock lock(Session& session);
  // `then` goes before what waits for the locked session.
  void put_first(const SessionId& id, Session::Then then);
  // Commits `record` in the place of `before` (null: there is nothing in the catalog), then runs `then`. REQUIRES: its session
  // is locked until then. It is counted at once, so that what is committed at the same time does not pass a quota together.
  void commit(kv::RecordPtr record, kv::RecordPtr before, std::move_only_function<void(Expected<Unit>)> then);

  // A request runs in it, or none any more.
  void begin_run(Session& session, RequestId id);
  void end_run(Session& session);
  // It was used: its time to live begins anew.
  void touch(Session& session);

  // Ends it as soon as nothing of it is under way; replies when the catalog has forgotten it, or could not.
  void end(Session& session, Reply<Unit> reply);
  // As end() has asked, if nothing of it is under way now.
  void end_when_idle(Session& session);
  // Forgets a session that the catalog does not have.
  void erase(const SessionId& id);
  // Nobody waits any more for a session to end.
  void refuse_ends(const Error& error);

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
  void unlock(const SessionId& id);
  void unlock_later(SessionId id);
  void on_read(const SessionId& id, Expected<kv::RecordPtr> record, SessionLock lock);
  void rest(Session& session);
  void wake(Session& session);
  void remove(Session& session);

  const SessionTableOptions options_;
  kv::Catalog& catalog_;
  const Clock& clock_;

  std::unordered_map<SessionId, Session> sessions_;
  std::list<Session::Resting> resting_;  // the last used one at the end
  std::size_t resting_bytes_ = 0;
  std::map<std::pair<TenantId, std::string>, SessionId> names_;
  std::map<TenantId, Account> accounts_;  // of those that have sessions
  TimePoint next_expiry_ = kNever;
  Gauge count_;
};

}  // namespace uma::engine
