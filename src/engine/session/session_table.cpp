#include "engine/session/session_table.h"

#include <algorithm>
#include <format>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thrown.h"
#include "engine/session/record_edits.h"

namespace uma::engine {
namespace {

// The time before the next try to remove a session whose time to live is over.
constexpr Duration kRemoveRetry = std::chrono::minutes(1);
constexpr std::size_t kNeverMuch = 64ul << 20;  // Bytes of a tenant, however full the disk is.
constexpr std::size_t kReserve = 16;  // The last one of so many sessions is for tenants with less than an equal share.
constexpr std::size_t kWaitingForReplyMax = 64;  // Requests that wait for one reply.

}  // namespace

Error unknown_session(const std::string& session) {
  return {ErrorCode::session_unknown, std::format("no session \"{}\": it was never created, or it has ended", session)};
}

SessionTable::SessionTable(SessionTableOptions options, kv::Catalog& catalog, TaskRunner& tasks, const Clock& clock)
    : options_(std::move(options)),
      catalog_(catalog),
      tasks_(tasks),
      clock_(clock),
      expiry_(tasks.timers()),
      question_(tasks.timers()) {
  for (kv::SessionSummary& summary : catalog_.load()) adopt(std::move(summary));
  if (catalog_.is_shared()) ask_others(Duration());
}

// Adds a session of an earlier daemon. Its time to live has continued by the wall clock; if it is over, the session ends with
// the first step.
void SessionTable::adopt(kv::SessionSummary summary) {
  Session& session = sessions_[summary.id];
  if (!summary.name.empty()) names_[{summary.tenant, summary.name}] = summary.id;
  session.summary = std::move(summary);
  set_expiry(session);
  Account& account = accounts_[session.summary.tenant];
  account.made.insert(&session);
  account.used.insert(&session);
  count_stored(session.summary, true);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
}

// The time to live as it was stored.
void SessionTable::set_expiry(Session& session) {
  const kv::SessionSummary& summary = session.summary;
  if (summary.ttl_s == 0) return expire_at(session, kNever);
  const std::int64_t unused_s = std::clamp<std::int64_t>(clock_.unix_s() - summary.last_used_s, 0, summary.ttl_s);
  expire_at(session, clock_.now() + std::chrono::seconds(summary.ttl_s - unused_s));
}

void SessionTable::expire_at(Session& session, TimePoint time) {
  if (session.expires != kNever) expiring_.erase({session.expires, &session});
  session.expires = time;
  if (time == kNever) return;
  expiring_.emplace(time, &session);
  expiry_.set_by(time, [this] { expire(); });
}

// --- Finding one

Session* SessionTable::find(const SessionId& id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

const Session* SessionTable::find(const SessionId& id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

Session* SessionTable::find(const TenantId& tenant, const std::string& session) {
  if (const auto name = names_.find({tenant, session}); name != names_.end()) return find(name->second);
  Session* found = find(SessionId{session});
  return found != nullptr && found->summary.tenant == tenant ? found : nullptr;
}

// --- New ones, and what they count

SessionId SessionTable::new_id() {
  SessionId id;
  do {
    id.value = std::format("{:016x}{:016x}", options_.random(), options_.random());
  } while (sessions_.contains(id));
  return id;
}

SessionLock SessionTable::add(kv::SessionRecord made, std::size_t lane) {
  Session& session = sessions_[made.id];
  session.summary = kv::summary_of(made);
  session.record = std::make_shared<const kv::SessionRecord>(std::move(made));
  session.is_new = true;
  session.lane = lane;
  const kv::SessionSummary& summary = session.summary;
  if (!summary.name.empty()) names_[{summary.tenant, summary.name}] = summary.id;
  Account& account = accounts_[summary.tenant];
  account.made.insert(&session);
  account.used.insert(&session);
  count_stored(summary, true);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
  touch(session);
  return lock_now(session);
}

// Requires: the session is in the account of its tenant.
void SessionTable::count_stored(const kv::SessionSummary& summary, bool has_come) {
  Account& account = accounts_.at(summary.tenant);
  const auto tokens = static_cast<std::size_t>(summary.tokens_count) + static_cast<std::size_t>(summary.pending_tokens_count);
  const auto bytes = static_cast<std::size_t>(summary.bytes_stored);
  account.tokens = has_come ? account.tokens + tokens : account.tokens - tokens;
  account.bytes = has_come ? account.bytes + bytes : account.bytes - bytes;
  bytes_.add(has_come ? summary.bytes_stored : -summary.bytes_stored);
}

Stored stored_of(const kv::SessionRecord& record) {
  return {.sessions = 1, .tokens = tokens_count(record), .bytes = kv::stored_bytes(record)};
}

Stored growth(const kv::SessionRecord& before, const kv::SessionRecord& after) {
  const Stored was = stored_of(before);
  const Stored is = stored_of(after);
  return {.tokens = is.tokens - std::min(is.tokens, was.tokens), .bytes = is.bytes - std::min(is.bytes, was.bytes)};
}

Expected<Unit> SessionTable::check_quota(const TenantId& tenant, const Stored& added) const {
  const Limits& limits = options_.limits;
  if (added.sessions > 0 && sessions_.size() + added.sessions > limits.max_sessions) {
    return fail(ErrorCode::limit_sessions,
                std::format("there are {} sessions, as many as limits.max_sessions allows: end some", sessions_.size()));
  }
  const auto found = accounts_.find(tenant);
  const Stored kept = found == accounts_.end() ? Stored() : found->second.stored();
  const auto exceeds = [](std::size_t max, std::size_t has, std::size_t more) {
    return max > 0 && more > 0 && has + more > max;
  };
  const std::size_t equal_share = limits.max_sessions / (accounts_.size() + 1);
  if (kept.sessions > equal_share &&
      exceeds(limits.max_sessions - limits.max_sessions / kReserve, sessions_.size(), added.sessions)) {
    return fail(ErrorCode::limit_sessions,
                std::format("there are {} sessions, and limits.max_sessions is {}: what is left is for tenants with fewer than "
                            "your {}. End some",
                            sessions_.size(), limits.max_sessions, kept.sessions));
  }
  if (exceeds(limits.tenant_sessions_max, kept.sessions, added.sessions)) {
    return fail(ErrorCode::limit_quota,
                std::format("you have {} sessions, as many as limits.tenant_sessions_max allows: end some", kept.sessions));
  }
  if (exceeds(limits.tenant_tokens_max, kept.tokens, added.tokens)) {
    return fail(
        ErrorCode::limit_quota,
        std::format("your sessions keep {} tokens, and {} more exceed limits.tenant_tokens_max, which is {}: end or rewind "
                    "some",
                    kept.tokens, added.tokens, limits.tenant_tokens_max));
  }
  if (exceeds(limits.tenant_bytes_max, kept.bytes, added.bytes)) {
    return fail(
        ErrorCode::limit_quota,
        std::format("your sessions keep {}, and {} more exceed limits.tenant_bytes_max, which is {}: end or rewind some",
                    readable_bytes(kept.bytes), readable_bytes(added.bytes), readable_bytes(limits.tenant_bytes_max)));
  }
  // Whoever keeps little has not filled the disk.
  const std::size_t share =
      std::max(kNeverMuch, static_cast<std::size_t>(bytes_.value()) / std::max<std::size_t>(1, accounts_.size()));
  if (added.bytes > 0 && kept.bytes > share && catalog_.is_nearly_full()) {
    return fail(ErrorCode::limit_quota,
                std::format("the disk is nearly full, and your sessions keep {} of it, more than an equal share: end some",
                            readable_bytes(kept.bytes)));
  }
  return Unit{};
}

// --- Locks

void SessionLock::release() noexcept {
  if (Session* session = std::exchange(session_, nullptr)) run_noting([&] { table_->unlock(*session); });
}

Task<Expected<SessionLock>> SessionTable::lock(TenantId tenant, std::string name) {
  while (true) {
    if (auto learnt = co_await learn(tenant, name); !learnt) co_return learnt.error();
    Session* session = find(tenant, name);
    if (session == nullptr) co_return unknown_session(name);
    const bool was_new = session->is_new;
    auto locked = co_await lock(*session);
    // A session whose first commit has failed says nothing about the name, which another daemon's session may have. If the
    // outcome of that commit is unknown, the database may have the session itself.
    if (!locked && was_new && locked.error().code == ErrorCode::session_unknown) continue;
    // It may have been renamed meanwhile.
    if (!locked || find(tenant, name) == session) co_return std::move(locked);
  }
}

Task<Expected<SessionLock>> SessionTable::lock(Session& session) {
  SessionLock lock;
  if (session.is_locked) {
    auto granted =
        co_await tasks_.ask<SessionLock>([&](Promise<SessionLock> reply) { session.waiting.push_back(std::move(reply)); });
    if (!granted) co_return granted.error();
    lock = std::move(*granted);
  } else {
    lock = lock_now(session);
  }
  if (session.is_gone) co_return unknown_session(session.summary.id.value);
  if (session.record == nullptr && !is_foreign(session)) {
    auto record = co_await tasks_.ask<kv::RecordPtr>(
        [&](Promise<kv::RecordPtr> reply) { catalog_.read(session.summary.id, std::move(reply)); });
    if (!record) co_return record.error();
    if (!catalog_.is_shared() || kv::summary_of(**record) == session.summary) {
      session.record = std::move(*record);
    } else {
      session.lease = 0;  // Another daemon has changed it, or the database has lost a change.
    }
  }
  if (is_foreign(session)) {
    auto owned = co_await own(session);
    // Requests that wait behind this one would ask in vain for as long.
    if (!owned) refuse_locks(session, owned.error());
    if (!owned) co_return owned.error();
  }
  co_return std::move(lock);
}

SessionLock SessionTable::lock_now(Session& session) {
  UMA_CHECK(!session.is_locked);
  set_used(session);
  session.is_locked = true;
  return {*this, session};
}

void SessionTable::unlock(Session& session) {
  UMA_CHECK(session.is_locked);
  session.is_locked = false;
  settle(session);
}

// Called when a lock or a run has ended: ends the session, grants the next lock or marks the session as unused.
void SessionTable::settle(Session& session) {
  if (session.is_locked) return;
  if (!session.is_running() && (session.is_new || session.is_gone)) return erase(session);
  if (!session.is_running() && !session.ends.empty()) {
    tasks_.start(remove(lock_now(session)));
  } else if (!session.waiting.empty()) {
    // However many requests wait here, another daemon has its turn. They ask for the session then, as it has done.
    if (session.is_wanted && !session.is_running()) {
      const bool is_handed_over = must_publish(session);  // Its lock comes here again.
      give_up(session);
      if (is_handed_over) return;
    }
    Promise<SessionLock> next = std::move(session.waiting.front());
    session.waiting.erase(session.waiting.begin());
    next(lock_now(session));
  } else {
    set_unused(session);
  }
}

// --- Changes

Task<Expected<Unit>> SessionTable::commit(Session& session, kv::RecordPtr record) {
  UMA_CHECK(session.is_locked);
  kv::SessionSummary summary = kv::summary_of(*record);
  const auto count_instead = [this](const kv::SessionSummary& counted, const kv::SessionSummary& now) {
    count_stored(counted, false);
    count_stored(now, true);
  };
  if (session.is_running() && session.run->losses != session.losses) {
    co_return Error{ErrorCode::limit_wait, "another node has continued the session meanwhile: try again"};
  }
  count_instead(session.summary, summary);
  const bool is_renamed = summary.name != session.summary.name;
  if (is_renamed && !summary.name.empty()) {
    UMA_CHECK(names_.try_emplace({summary.tenant, summary.name}, summary.id).second);
  }
  const auto take_back = [&] {
    count_instead(summary, session.summary);
    if (is_renamed) forget_name(summary);
  };
  Expected<Unit> done;
  const std::uint64_t lease = catalog_.lease();
  try {
    done = co_await tasks_.ask<Unit>(
        [&](Promise<Unit> reply) { catalog_.commit(record, session.is_new ? nullptr : session.record, std::move(reply)); });
  } catch (...) {
    take_back();
    throw;
  }
  if (done) {
    if (is_renamed) forget_name(session.summary);
    set_summary(session, std::move(summary));
    session.record = record;
    if (session.is_new) session.lease = lease;
    session.is_new = false;
    session.sharing = Sharing::not_shared;
    run_noting([&] { options_.on_committed(*record); });
  } else {
    take_back();
    if (catalog_.is_shared() && kv::must_take_again(done.error())) session.lease = 0;
  }
  co_return done;
}

void SessionTable::forget_name(const kv::SessionSummary& named) {
  const auto found = names_.find({named.tenant, named.name});
  if (found != names_.end() && found->second == named.id) names_.erase(found);
}

// Replaces the summary, by which the session is ordered.
void SessionTable::set_summary(Session& session, kv::SessionSummary summary) {
  Account& account = accounts_.at(session.summary.tenant);
  UMA_CHECK(summary.created_s == session.summary.created_s && account.used.erase(&session) == 1);
  session.summary = std::move(summary);
  account.used.insert(&session);
}

// --- Use

void SessionTable::begin_run(Session& session, RequestId id, std::string response) {
  session.run =
      std::make_unique<SessionRun>(SessionRun{.request = id, .response = std::move(response), .losses = session.losses});
  session.sharing = Sharing::not_shared;
  set_used(session);
  touch(session);
}

void SessionTable::end_run(Session& session) {
  const std::unique_ptr<SessionRun> ended = std::move(session.run);
  settle(session);
  for (Promise<Unit>& reply : *ended->waiting) reply(Unit{});
}

Task<Expected<Unit>> SessionTable::until_idle(Session& session) {
  if (!session.is_running()) co_return Unit{};
  using Waiting = std::list<Promise<Unit>>;
  const std::shared_ptr<Waiting> waiting = session.run->waiting;
  if (waiting->size() >= kWaitingForReplyMax) {
    co_return Error{ErrorCode::limit_wait, std::format("{} requests wait for the reply in progress in the conversation, "
                                                       "which is the limit: try again when the reply has ended",
                                                       kWaitingForReplyMax)};
  }
  struct Place {
    Waiting& list;
    Waiting::iterator entry;
    ~Place() { list.erase(entry); }
  } const place{*waiting, waiting->emplace(waiting->end())};
  co_return co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { *place.entry = std::move(reply); });
}

Task<Expected<SessionLock>> SessionTable::lock_idle(TenantId tenant, std::string name) {
  while (true) {
    auto locked = co_await lock(tenant, name);
    if (!locked || !(*locked)->is_running()) co_return std::move(locked);
    Session& session = **locked;
    locked->release();
    const auto idle = co_await until_idle(session);
    if (!idle) co_return idle.error();
  }
}

void SessionTable::touch(Session& session) {
  const std::int64_t ttl_s = session.summary.ttl_s;
  expire_at(session, ttl_s > 0 ? clock_.now() + std::chrono::seconds(ttl_s) : kNever);
}

// The record of an idle session stays in memory until records of more recently used sessions need the memory.
void SessionTable::set_unused(Session& session) {
  if (session.is_locked || session.is_running()) return;
  if (session.is_wanted) return give_up(session);
  if (options_.publish && session.sharing == Sharing::not_shared && !session.is_queued) {
    session.is_queued = true;
    unpublished_.emplace_back(session.summary.id, clock_.now());
  }
  if (session.record == nullptr) return;
  set_used(session);
  const std::size_t bytes = kv::bytes_of(*session.record);
  session.unused = unused_.insert(unused_.end(), {&session, bytes, clock_.now()});
  unused_bytes_ += bytes;
  while (unused_bytes_ > options_.record_bytes_max) {
    Session& oldest = *unused_.front().session;
    set_used(oldest);
    oldest.record.reset();
  }
}

void SessionTable::set_used(Session& session) {
  if (!session.unused) return;
  unused_bytes_ -= (*session.unused)->bytes;
  unused_.erase(*session.unused);
  session.unused.reset();
}

// --- Ends

void SessionTable::end(Session& session, Promise<Unit> reply) {
  session.ends.push_back(std::move(reply));
  settle(session);
}

// Removes an idle session after the catalog has removed it. If the catalog cannot, the session stays unchanged.
Task<> SessionTable::remove(SessionLock lock) {
  Session& session = *lock;
  Expected<Unit> removed;
  const bool has_expired = session.ends.empty();
  try {
    if (is_foreign(session)) removed = co_await own(session);
    if (removed && has_expired && session.expires > clock_.now()) co_return;  // Another daemon has used it.
    if (removed)
      removed = co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { catalog_.remove(session.summary.id, std::move(reply)); });
  } catch (...) {
    removed = std::unexpected(thrown_error());
  }
  if (removed || session.is_gone) {
    session.is_gone = true;
    co_return;
  }
  if (catalog_.is_shared() && kv::must_take_again(removed.error())) session.lease = 0;
  for (Promise<Unit>& reply : std::exchange(session.ends, {})) reply(std::unexpected(removed.error()));
  if (session.expires <= clock_.now()) expire_at(session, clock_.now() + kRemoveRetry);
}

void SessionTable::erase(Session& session) {
  set_used(session);
  const auto account = accounts_.find(session.summary.tenant);
  count_stored(session.summary, false);
  UMA_CHECK(account->second.made.erase(&session) == 1 && account->second.used.erase(&session) == 1);
  if (account->second.made.empty()) accounts_.erase(account);
  auto node = sessions_.extract(session.summary.id);
  if (!session.summary.name.empty()) forget_name(session.summary);
  expire_at(session, kNever);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
  run_noting([&] { options_.on_ended(session); });
  const Error unknown = unknown_session(session.summary.id.value);
  for (Promise<Unit>& reply : session.ends) reply(session.is_gone ? Expected<Unit>() : std::unexpected(unknown));
  for (Promise<SessionLock>& reply : session.waiting) reply(std::unexpected(unknown));
}

void SessionTable::refuse_locks(Session& session, const Error& error) {
  for (Promise<SessionLock>& reply : std::exchange(session.waiting, {})) reply(std::unexpected(error));
}

void SessionTable::refuse_waiting(const Error& error) {
  for (auto& [id, session] : sessions_) {
    for (Promise<Unit>& reply : std::exchange(session.ends, {})) reply(std::unexpected(error));
    refuse_locks(session, error);
  }
}

// Ends the sessions whose time to live is over.
void SessionTable::expire() {
  const TimePoint now = clock_.now();
  std::vector<SessionId> expired;
  for (auto next = expiring_.begin(); next != expiring_.end() && next->first <= now;) {
    Session& session = *(next++)->second;
    if (session.is_running() || session.is_locked) {
      touch(session);
    } else {
      expired.push_back(session.summary.id);
    }
  }
  for (const SessionId& id : expired) {
    Session& session = *find(id);
    log_info("session {}: ends after its ttl of {} s without use", id.value, session.summary.ttl_s);
    tasks_.start(remove(lock_now(session)));
  }
  if (const auto next = expiring_.lower_bound({now + Duration(1), nullptr}); next != expiring_.end()) {
    expiry_.set_by(next->first, [this] { expire(); });
  }
}

void SessionTable::check_invariants() const {
  std::size_t counted = 0;
  for (const auto& [tenant, account] : accounts_) {
    counted += account.made.size();
    UMA_CHECK(account.used.size() == account.made.size());
    Stored kept{.sessions = account.made.size()};
    bool is_changing = false;
    for (const Session* session : account.made) {
      is_changing |= session->is_locked;
      kept.tokens += static_cast<std::size_t>(session->summary.tokens_count + session->summary.pending_tokens_count);
      kept.bytes += static_cast<std::size_t>(session->summary.bytes_stored);
    }
    UMA_CHECK(is_changing || kept == account.stored());
  }
  UMA_CHECK(counted == sessions_.size());
  std::size_t unused_bytes = 0;
  for (const auto& [id, session] : sessions_) {
    UMA_CHECK(session.summary.id == id);
    UMA_CHECK(accounts_.at(session.summary.tenant).used.contains(&session));
    // Another daemon may have given the name to a session that is known already, while this one is not read anew yet.
    const bool has_name = !session.summary.name.empty() && !catalog_.is_shared();
    if (has_name) UMA_CHECK(names_.at({session.summary.tenant, session.summary.name}) == id);
    const bool is_used = session.is_locked || session.is_running();
    UMA_CHECK(is_used || session.ends.empty());
    UMA_CHECK(is_used || !session.is_new);
    UMA_CHECK(session.is_locked || session.waiting.empty());
    UMA_CHECK(session.record != nullptr || !session.is_running());
    // Every record in memory that is not in use can be evicted.
    UMA_CHECK(session.unused.has_value() == (session.record != nullptr && !is_used));
    if (session.unused) unused_bytes += (*session.unused)->bytes;
    UMA_CHECK(session.record == nullptr || session.summary == kv::summary_of(*session.record));
  }
  UMA_CHECK(unused_bytes == unused_bytes_ && unused_bytes <= options_.record_bytes_max);
  for (const auto& [name, id] : names_) UMA_CHECK(sessions_.contains(id));
}

}  // namespace uma::engine
