#include "engine/session_table.h"

#include <algorithm>
#include <format>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"

namespace uma::engine {
namespace {

constexpr Duration kRemoveRetry = std::chrono::minutes(1);  // of a session whose time to live is over

}  // namespace

Error unknown_session(const std::string& session) {
  return {ErrorCode::session_unknown, std::format("no session \"{}\": it was never created, or it has ended", session)};
}

SessionTable::SessionTable(SessionTableOptions options, kv::Catalog& catalog, const Clock& clock)
    : options_(std::move(options)), catalog_(catalog), clock_(clock) {
  for (kv::SessionSummary& summary : catalog_.load()) adopt(std::move(summary));
}

// A session of an earlier life. Its time to live has gone on by the wall clock; one that is over ends with the first step.
void SessionTable::adopt(kv::SessionSummary summary) {
  Session& session = sessions_[summary.id];
  if (!summary.name.empty()) names_[{summary.tenant, summary.name}] = summary.id;
  if (summary.ttl_s > 0) {
    const std::int64_t unused_s = std::clamp<std::int64_t>(clock_.unix_s() - summary.last_used_s, 0, summary.ttl_s);
    session.expires = clock_.now() + std::chrono::seconds(summary.ttl_s - unused_s);
    next_expiry_ = std::min(next_expiry_, session.expires);
  }
  session.summary = std::move(summary);
  accounts_[session.summary.tenant].made.insert(&session);
  count_tokens(session.summary, true);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
}

// --- Finding one
// ----------------------------------------------------------------------------------------------------------------

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

void SessionTable::with(const TenantId& tenant, const std::string& name, Session::Then then) {
  Session* session = find(tenant, name);
  if (session == nullptr) return then(std::unexpected(unknown_session(name)));
  if (session->record == nullptr && !session->is_locked) {
    catalog_.read(session->summary.id,
                  [this, id = session->summary.id, held = lock(*session)](Expected<kv::RecordPtr> record) mutable {
                    options_.post([this, id = std::move(id), record = std::move(record), held = std::move(held)]() mutable {
                      on_read(id, std::move(record), std::move(held));
                    });
                  });
  }
  if (session->is_locked) {
    session->waiting.push_back(std::move(then));
  } else {
    then(session);
  }
}

void SessionTable::on_read(const SessionId& id, Expected<kv::RecordPtr> record, SessionLock held) {
  Session& session = *find(id);
  std::vector<Session::Then> refused;
  if (record) {
    session.record = std::move(*record);
  } else {
    refused = std::exchange(session.waiting, {});
  }
  held.release();
  for (Session::Then& next : refused) run_noting([&] { next(std::unexpected(record.error())); });
}

// --- New ones, and what they count
// ------------------------------------------------------------------------------------------------------

SessionId SessionTable::new_id() {
  SessionId id;
  do {
    id.value = std::format("{:016x}{:016x}", options_.random(), options_.random());
  } while (sessions_.contains(id));
  return id;
}

Session& SessionTable::add(kv::RecordPtr record, std::size_t lane, SessionId forked_from) {
  Session& session = sessions_[record->id];
  session.summary = kv::summary_of(*record);
  session.record = std::move(record);
  session.lane = lane;
  session.forked_from = std::move(forked_from);
  const kv::SessionSummary& summary = session.summary;
  if (!summary.name.empty()) names_[{summary.tenant, summary.name}] = summary.id;
  accounts_[summary.tenant].made.insert(&session);
  count_tokens(summary, true);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
  return session;
}

// REQUIRES: the session is in the account of its tenant.
void SessionTable::count_tokens(const kv::SessionSummary& summary, bool has_come) {
  Account& account = accounts_.at(summary.tenant);
  const auto tokens = static_cast<std::size_t>(summary.tokens_count) + static_cast<std::size_t>(summary.pending_tokens_count);
  account.tokens = has_come ? account.tokens + tokens : account.tokens - tokens;
}

Expected<Unit> SessionTable::check_quota(const TenantId& tenant, std::size_t sessions_added, std::size_t tokens_added) const {
  const Limits& limits = options_.limits;
  if (sessions_added > 0 && sessions_.size() + sessions_added > limits.max_sessions) {
    return fail(ErrorCode::limit_sessions,
                std::format("there are {} sessions, as many as limits.max_sessions allows: end some", sessions_.size()));
  }
  const auto found = accounts_.find(tenant);
  const std::size_t sessions = found == accounts_.end() ? 0 : found->second.made.size();
  const std::size_t tokens = found == accounts_.end() ? 0 : found->second.tokens;
  if (limits.tenant_sessions_max > 0 && sessions_added > 0 && sessions + sessions_added > limits.tenant_sessions_max) {
    return fail(ErrorCode::limit_quota,
                std::format("you have {} sessions, as many as limits.tenant_sessions_max allows: end some", sessions));
  }
  if (limits.tenant_tokens_max > 0 && tokens_added > 0 && tokens + tokens_added > limits.tenant_tokens_max) {
    return fail(
        ErrorCode::limit_quota,
        std::format("your sessions keep {} tokens, {} more are beyond limits.tenant_tokens_max, which is {}: end or rewind "
                    "some",
                    tokens, tokens_added, limits.tenant_tokens_max));
  }
  return Unit{};
}

// --- Changes
// --------------------------------------------------------------------------------------------------------------------

SessionLock::~SessionLock() {
  if (table_ != nullptr) run_noting([this] { table_->unlock_later(std::move(id_)); });
}

void SessionLock::release() {
  std::exchange(table_, nullptr)->unlock(id_);
}

SessionLock SessionTable::lock(Session& session) {
  UMA_CHECK(!session.is_locked);
  wake(session);
  session.is_locked = true;
  return {*this, session.summary.id};
}

void SessionTable::unlock_later(SessionId id) {
  options_.post([this, id = std::move(id)] {
    Session* session = find(id);
    if (session == nullptr || !session->is_locked) return;
    // Its end may be what has thrown: it is not tried again and again.
    for (Reply<Unit>& reply : std::exchange(session->ends, {})) {
      reply(fail(ErrorCode::runtime_decode, "the session could not be ended: end it again"));
    }
    unlock(id);
  });
}

void SessionTable::unlock(const SessionId& id) {
  Session* session = find(id);
  UMA_CHECK(session != nullptr && session->is_locked);
  session->is_locked = false;
  end_when_idle(*session);
  // Commands may lock it again. Those of a session that is to end wait until it has, or could not.
  while (!session->is_locked && session->ends.empty() && !session->waiting.empty()) {
    Session::Then next = std::move(session->waiting.front());
    session->waiting.erase(session->waiting.begin());
    run_noting([&] {
      if (session->record != nullptr) return next(session);
      next(fail(ErrorCode::runtime_decode, "the session could not be read: try again"));  // reading it has thrown
    });
  }
  rest(*session);
}

void SessionTable::put_first(const SessionId& id, Session::Then then) {
  std::vector<Session::Then>& waiting = find(id)->waiting;
  waiting.insert(waiting.begin(), std::move(then));
}

void SessionTable::commit(kv::RecordPtr record, kv::RecordPtr before, std::move_only_function<void(Expected<Unit>)> then) {
  const SessionId id = record->id;
  kv::SessionSummary next = kv::summary_of(*record);
  count_tokens(find(id)->summary, false);
  count_tokens(next, true);
  try {
    catalog_.commit(record, std::move(before), [this, record, next, then = std::move(then)](Expected<Unit> done) mutable {
      options_.post(
          [this, record = std::move(record), next = std::move(next), done = std::move(done), then = std::move(then)]() mutable {
            Session& session = *find(next.id);
            if (done) {
              session.summary = std::move(next);
              session.record = std::move(record);
              run_noting([&] { options_.on_committed(*session.record); });
            } else {
              count_tokens(next, false);
              count_tokens(session.summary, true);
            }
            then(std::move(done));
          });
    });
  } catch (...) {
    count_tokens(next, false);
    count_tokens(find(id)->summary, true);
    throw;
  }
}

// --- Use
// ------------------------------------------------------------------------------------------------------------------------

void SessionTable::begin_run(Session& session, RequestId id) {
  session.running = id;
  wake(session);
  touch(session);
}

void SessionTable::end_run(Session& session) {
  session.running = {};
  rest(session);
}

void SessionTable::touch(Session& session) {
  const std::int64_t ttl_s = session.summary.ttl_s;
  session.expires = ttl_s > 0 ? clock_.now() + std::chrono::seconds(ttl_s) : kNever;
  next_expiry_ = std::min(next_expiry_, session.expires);
}

// The record of a session that is not in use any more stays in memory until there is no room for it.
void SessionTable::rest(Session& session) {
  if (session.is_locked || session.running != RequestId{} || session.record == nullptr) return;
  wake(session);
  const std::size_t bytes = kv::bytes_of(*session.record);
  session.resting = resting_.insert(resting_.end(), {&session, bytes});
  resting_bytes_ += bytes;
  while (resting_bytes_ > options_.record_bytes_max) {
    Session& oldest = *resting_.front().session;
    wake(oldest);
    oldest.record.reset();
  }
}

// The session is used: its record stays.
void SessionTable::wake(Session& session) {
  if (!session.resting) return;
  resting_bytes_ -= (*session.resting)->bytes;
  resting_.erase(*session.resting);
  session.resting.reset();
}

// --- Ends
// -----------------------------------------------------------------------------------------------------------------------

void SessionTable::end(Session& session, Reply<Unit> reply) {
  session.ends.push_back(std::move(reply));
  end_when_idle(session);
}

void SessionTable::end_when_idle(Session& session) {
  if (!session.ends.empty() && !session.is_locked && session.running == RequestId{}) remove(session);
}

// Forgets a session of which nothing is under way once the catalog has. Where that fails it is as it was.
void SessionTable::remove(Session& session) {
  const SessionId id = session.summary.id;
  catalog_.remove(id, [this, id, held = lock(session)](Expected<Unit> done) mutable {
    options_.post([this, id, done = std::move(done), held = std::move(held)]() mutable {
      if (done) {
        held.forget();
        return erase(id);
      }
      Session& kept = *find(id);
      for (Reply<Unit>& reply : std::exchange(kept.ends, {})) reply(std::unexpected(done.error()));
      if (kept.expires <= clock_.now()) kept.expires = clock_.now() + kRemoveRetry;
      next_expiry_ = std::min(next_expiry_, kept.expires);
      held.release();
    });
  });
}

void SessionTable::erase(const SessionId& id) {
  const auto found = sessions_.find(id);
  UMA_CHECK(found != sessions_.end());
  wake(found->second);
  const auto account = accounts_.find(found->second.summary.tenant);
  count_tokens(found->second.summary, false);
  UMA_CHECK(account->second.made.erase(&found->second) == 1);
  if (account->second.made.empty()) accounts_.erase(account);
  Session session = std::move(found->second);
  if (!session.summary.name.empty()) names_.erase({session.summary.tenant, session.summary.name});
  sessions_.erase(found);
  count_.set(static_cast<std::int64_t>(sessions_.size()));
  options_.on_ended(session);
  for (Reply<Unit>& reply : session.ends) reply(Unit{});
  for (Session::Then& next : session.waiting)
    run_noting([&] { next(std::unexpected(unknown_session(session.summary.id.value))); });
}

void SessionTable::refuse_ends(const Error& error) {
  for (auto& [id, session] : sessions_) {
    for (Reply<Unit>& reply : std::exchange(session.ends, {})) reply(std::unexpected(error));
  }
}

void SessionTable::expire() {
  const TimePoint now = clock_.now();
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  std::vector<SessionId> expired;
  for (auto& [id, session] : sessions_) {
    const bool is_used = session.running != RequestId{} || session.is_locked;
    if (is_used && session.expires <= now) touch(session);
    if (session.expires <= now) {
      expired.push_back(id);
    } else {
      next_expiry_ = std::min(next_expiry_, session.expires);
    }
  }
  for (const SessionId& id : expired) {
    Session& session = *find(id);
    log_info("session {}: ends, unused for its ttl of {} s", id.value, session.summary.ttl_s);
    remove(session);
  }
}

void SessionTable::check_invariants() const {
  std::size_t counted = 0;
  for (const auto& [tenant, account] : accounts_) {
    counted += account.made.size();
    std::size_t tokens = 0;
    bool is_changing = false;
    for (const Session* session : account.made) {
      is_changing |= session->is_locked;
      tokens += static_cast<std::size_t>(session->summary.tokens_count + session->summary.pending_tokens_count);
    }
    UMA_CHECK(is_changing || tokens == account.tokens);
  }
  UMA_CHECK(counted == sessions_.size());
  std::size_t resting_bytes = 0;
  for (const auto& [id, session] : sessions_) {
    UMA_CHECK(session.summary.id == id);
    UMA_CHECK(session.is_locked || session.running != RequestId{} || session.ends.empty());
    UMA_CHECK(session.is_locked || !session.ends.empty() || session.waiting.empty());
    UMA_CHECK(session.record != nullptr || session.running == RequestId{});
    UMA_CHECK(session.draft == nullptr || session.running != RequestId{});
    UMA_CHECK(!session.is_new || session.running != RequestId{});
    // What is in memory and not in use can be let go.
    const bool is_used = session.is_locked || session.running != RequestId{};
    UMA_CHECK(session.resting.has_value() == (session.record != nullptr && !is_used));
    if (session.resting) resting_bytes += (*session.resting)->bytes;
    UMA_CHECK(session.record == nullptr || session.summary == kv::summary_of(*session.record));
  }
  UMA_CHECK(resting_bytes == resting_bytes_ && resting_bytes <= options_.record_bytes_max);
  for (const auto& [name, id] : names_) UMA_CHECK(sessions_.contains(id));
}

}  // namespace uma::engine
