// SessionTable's functions for a catalog that several daemons share.
#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "engine/session/session_table.h"

namespace uma::engine {
namespace {

// Times of a shared catalog. Changes by others are listed so much later, and a session that another daemon asks for is given up
// so much later.
constexpr Duration kSyncEvery = std::chrono::milliseconds(500);
constexpr Duration kSyncRetry = std::chrono::seconds(2);
constexpr Duration kPublishAfter = std::chrono::seconds(5);  // The state of a session that is idle for so long is shared.
constexpr Duration kOwnedUnused = std::chrono::seconds(60);  // An own session is given up after so long without use.

}  // namespace

// --- Taking a session

Task<Expected<Unit>> SessionTable::learn(TenantId tenant, std::string name) {
  if (!catalog_.is_shared()) co_return Unit{};
  // Only the owner of a session knows its name for sure.
  const Session* known = find(tenant, name);
  if (known != nullptr && (known->summary.id.value == name || !is_foreign(*known))) co_return Unit{};
  auto found = co_await tasks_.ask<kv::SessionSummary>(
      [&](Promise<kv::SessionSummary> reply) { catalog_.look_up(tenant, name, std::move(reply)); });
  if (!found) co_return found.error();
  const SessionId id = found->id;
  take(std::move(*found));
  // One that is in use gets its new name when it is next locked.
  if (Session* session = find(id); session != nullptr && find(tenant, name) != session) {
    if (const auto locked = co_await lock(*session); !locked) co_return locked.error();
  }
  co_return Unit{};
}

// Takes a locked session from the catalog.
Task<Expected<Unit>> SessionTable::own(Session& session) {
  const std::uint64_t lease = catalog_.lease();
  auto record = co_await tasks_.ask<kv::RecordPtr>(
      [&](Promise<kv::RecordPtr> reply) { catalog_.take(session.summary.id, std::move(reply)); });
  if (!record) {
    // Another daemon has ended it: it ends here with its lock and its run, whose reply is not stored.
    session.is_gone = record.error().code == ErrorCode::session_unknown;
    if (session.is_gone) ++session.losses;
    co_return record.error();
  }
  const kv::SessionRecord& stored = **record;
  const bool is_same = stored.id == session.summary.id && stored.tenant == session.summary.tenant &&
                       stored.created_s == session.summary.created_s;
  if (!is_same) {
    co_return Error{ErrorCode::io_failed, std::format("session {} is another one in the database", session.summary.id.value)};
  }
  session.lease = lease;
  session.is_wanted = false;
  session.sharing = Sharing::not_shared;
  if (options_.on_taken) run_noting([&] { options_.on_taken(session); });
  if (session.record != nullptr && *session.record == stored) co_return Unit{};
  ++session.losses;
  replace_summary(session, kv::summary_of(stored));
  session.record = std::move(*record);
  run_noting([&] { options_.on_committed(*session.record); });
  co_return Unit{};
}

// --- What other daemons do

void SessionTable::ask_others(Duration pause) {
  question_.set(clock_.now() + pause, [this] { tasks_.start(take_changes()); });
}

void SessionTable::hear_news() {
  has_news_ = true;
  if (!is_asking_) ask_others(Duration());
}

// Asks for the changes of others, and gives up what is wanted or was not used for a while.
Task<> SessionTable::take_changes() {
  is_asking_ = true;
  has_news_ = false;
  Expected<kv::CatalogChanges> changes;
  bool has_more = false;
  try {
    changes =
        co_await tasks_.ask<kv::CatalogChanges>([&](Promise<kv::CatalogChanges> reply) { catalog_.changes(std::move(reply)); });
    has_more = changes && changes->has_more;
    if (changes) take(std::move(*changes));
  } catch (...) {
    changes = std::unexpected(thrown_error());
  }
  if (!changes && !is_sync_failing_)
    log_warning("sessions of other nodes are listed as they were: {}", changes.error().message);
  is_sync_failing_ = !changes;
  is_asking_ = false;
  ask_others(has_more || (changes && has_news_) ? Duration() : changes ? kSyncEvery : kSyncRetry);
  if (options_.publish && !is_publishing_) tasks_.start(publish_idle());
}

void SessionTable::take(kv::CatalogChanges changes) {
  const auto end_here = [this](Session& session) {
    session.lease = 0;
    // One that is in use ends when it is found missing in the catalog.
    if (!session.is_locked && !session.is_running()) erase(session);
  };
  if (changes.is_complete) {
    const std::set<SessionId> known(changes.all.begin(), changes.all.end());
    std::vector<SessionId> gone;
    for (const auto& [id, session] : sessions_) {
      // Own ones, too: a database that took over may have lost them.
      if (!session.is_new && !known.contains(id)) gone.push_back(id);
    }
    for (const SessionId& id : gone) end_here(*find(id));
  }
  for (const SessionId& id : changes.ended) {
    if (Session* session = find(id); session != nullptr && !session->is_new) end_here(*session);
  }
  for (kv::SessionSummary& summary : changes.changed) take(std::move(summary));
  for (const SessionId& id : changes.wanted) {
    Session* session = find(id);
    if (session == nullptr) continue;
    session->is_wanted = true;
    if (!session->is_locked && !session->is_running()) give_up(*session);
  }
  while (!unused_.empty() && unused_.front().since + kOwnedUnused <= clock_.now()) give_up(*unused_.front().session);
}

void SessionTable::take(kv::SessionSummary changed) {
  Session* session = find(changed.id);
  if (session == nullptr) return adopt(std::move(changed));
  if (session->is_new || changed.tenant != session->summary.tenant || changed.created_s != session->summary.created_s) return;
  session->lease = 0;
  // One that is in use is read anew when it is next locked.
  if (session->is_locked || session->is_running()) return;
  set_used(*session);
  session->record.reset();
  replace_summary(*session, std::move(changed));
}

// Replaces the summary of a session that another daemon has changed.
void SessionTable::replace_summary(Session& session, kv::SessionSummary summary) {
  if (summary.name != session.summary.name) forget_name(session.summary);
  // Also if it is the same: another session may have had it meanwhile.
  if (!summary.name.empty()) names_[{summary.tenant, summary.name}] = summary.id;
  count_stored(session.summary, false);
  count_stored(summary, true);
  set_summary(session, std::move(summary));
  set_expiry(session);
}

// --- Giving a session up

bool SessionTable::must_publish(const Session& session) const {
  return options_.publish && session.sharing != Sharing::shared && session.lease != 0;
}

void SessionTable::give_up(Session& session) {
  if (must_publish(session)) {
    session.is_wanted = true;
    tasks_.start(hand_over(lock_now(session)));
    return;
  }
  set_used(session);
  session.record.reset();
  session.is_wanted = false;
  session.lease = 0;
  catalog_.give_up(session.summary.id);
  if (options_.on_given_up) run_noting([&] { options_.on_given_up(session); });
}

// Stores the state first, so that the next owner finds it. The session is given up when its lock ends. A state that is being
// stored in the background is asked for once more, and is then waited for.
Task<> SessionTable::hand_over(SessionLock lock) {
  Session& session = *lock;
  const struct End {
    Session& session;
    ~End() { session.sharing = Sharing::shared; }
  } end{session};
  (void)co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { options_.publish(session, true, std::move(reply)); });
}

// Null: there is none that was idle for long enough.
Session* SessionTable::next_unpublished() {
  while (!unpublished_.empty() && unpublished_.front().second + kPublishAfter <= clock_.now()) {
    Session* const session = find(unpublished_.front().first);
    unpublished_.pop_front();
    if (session == nullptr) continue;
    session->is_queued = false;
    // One that is used now comes again when it is idle.
    if (!session->is_locked && !session->is_running() && session->sharing == Sharing::not_shared && session->lease != 0)
      return session;
  }
  return nullptr;
}

// Stores the states of idle sessions, one after another, so that they exist elsewhere if this daemon is killed.
Task<> SessionTable::publish_idle() {
  struct Working {
    bool& flag;
    explicit Working(bool& working) : flag(working) { flag = true; }
    ~Working() { flag = false; }
  } const working(is_publishing_);
  while (Session* session = next_unpublished()) {
    const SessionId id = session->summary.id;
    session->sharing = Sharing::being_shared;
    (void)co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { options_.publish(*session, false, std::move(reply)); });
    // Meanwhile it may have ended, or have been changed.
    if (Session* const stored = find(id); stored != nullptr && stored->sharing == Sharing::being_shared)
      stored->sharing = Sharing::shared;
  }
}

}  // namespace uma::engine
