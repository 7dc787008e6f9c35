#include "cluster_database.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace uma::sim {
namespace {

using Kind = Statement::Kind;

// The settings of PostgresCatalog's connections.
constexpr Duration kLockTimeout = std::chrono::seconds(5);
constexpr Duration kIdleInTransaction = std::chrono::seconds(30);
// The longest loss of a takeover.
constexpr Duration kEarlierKept = std::chrono::seconds(4);

Answer error(kv::SqlFault fault, std::string message) {
  return {.error = kv::SqlError{fault, std::move(message)}};
}

Answer row(std::int64_t number) {
  return {.has_row = true, .number = number};
}

}  // namespace

// --- Backends

std::uint64_t ClusterDatabase::connect(int machine) {
  if (!is_up_) return 0;
  backends_[++last_backend_].machine = machine;
  return last_backend_;
}

std::vector<std::uint64_t> ClusterDatabase::backends_of(int machine) const {
  std::vector<std::uint64_t> found;
  for (const auto& [id, backend] : backends_) {
    if (backend.machine == machine) found.push_back(id);
  }
  return found;
}

void ClusterDatabase::execute(std::uint64_t id, std::vector<Statement> statements, OnAnswer on_answer) {
  const auto found = backends_.find(id);
  if (found == backends_.end()) return;
  Backend& backend = found->second;
  UMA_CHECK(backend.statements.empty() && !backend.is_committing);
  backend.statements.assign(std::make_move_iterator(statements.begin()), std::make_move_iterator(statements.end()));
  backend.on_answer = std::move(on_answer);
  advance(id);
}

void ClusterDatabase::advance(std::uint64_t id) {
  Backend& backend = backends_.at(id);
  backend.is_waiting = false;
  while (true) {
    ++backend.activity;
    UMA_CHECK(!backend.statements.empty());
    const Statement& statement = backend.statements.front();
    std::optional<Answer> done;
    if (backend.has_failed && statement.kind != Kind::commit && statement.kind != Kind::roll_back) {
      done = error(kv::SqlFault::other, "the transaction has failed");
    } else {
      done = run(id, backend, statement);
    }
    if (!done) return;
    if (!backend.is_in_transaction) finish(id);
    if (!backends_.contains(id)) return;
    if (done->error && backend.is_in_transaction) backend.has_failed = true;
    backend.statements.pop_front();
    if (!done->error && !backend.statements.empty()) continue;
    backend.statements.clear();
    return answer(id, std::move(*done));
  }
}

void ClusterDatabase::answer(std::uint64_t id, Answer answer) {
  Backend& backend = backends_.at(id);
  const std::uint64_t activity = ++backend.activity;
  if (backend.is_in_transaction) {
    timeline_.at(timeline_.now() + kIdleInTransaction, [this, id, activity] {
      const auto found = backends_.find(id);
      if (found != backends_.end() && found->second.activity == activity) end(id);
    });
  }
  std::exchange(backend.on_answer, nullptr)(std::move(answer));
}

void ClusterDatabase::wait_for_row(std::uint64_t id, Backend& backend) {
  backend.is_waiting = true;
  const std::uint64_t activity = ++backend.activity;
  timeline_.at(timeline_.now() + kLockTimeout, [this, id, activity] {
    const auto found = backends_.find(id);
    if (found == backends_.end() || found->second.activity != activity) return;
    found->second.is_waiting = false;
    found->second.statements.clear();
    if (found->second.is_in_transaction) found->second.has_failed = true;
    answer(id, error(kv::SqlFault::busy, "canceling statement due to lock timeout"));
  });
}

void ClusterDatabase::wake_waiting() {
  timeline_.at(timeline_.now(), [this] {
    std::vector<std::uint64_t> waiting;
    for (const auto& [id, backend] : backends_) {
      if (backend.is_waiting) waiting.push_back(id);
    }
    for (std::size_t i = waiting.size(); i > 1; --i) std::swap(waiting[i - 1], waiting[random_.next_below(i)]);
    for (const std::uint64_t id : waiting) {
      if (const auto found = backends_.find(id); found != backends_.end() && found->second.is_waiting) advance(id);
    }
  });
}

void ClusterDatabase::end(std::uint64_t id) {
  const auto found = backends_.find(id);
  if (found == backends_.end()) return;
  if (found->second.is_committing) return;  // It notices afterwards.
  roll_back(found->second);
  backends_.erase(id);
}

// --- The server

void ClusterDatabase::crash(Duration lost) {
  UMA_CHECK(is_up_);
  is_up_ = false;
  // A commit on its way was written, or was not.
  for (auto& [id, backend] : backends_) {
    if (backend.is_committing && random_.next_below(2) == 0) {
      apply(backend);
    } else {
      roll_back(backend);
    }
  }
  backends_.clear();
  if (lost > Duration{}) {
    const TimePoint kept = timeline_.now() - lost;
    std::optional<State> state;
    while (!earlier_.empty() && earlier_.back().first > kept) {
      state = std::move(earlier_.back().second);
      earlier_.pop_back();
    }
    if (state) state_ = std::move(*state);
  }
  std::int64_t written = 2;
  for (const auto& [number, is_committed] : state_.outcomes) {
    if (is_committed) written = number;
  }
  state_.last_transaction = written;
  std::erase_if(state_.outcomes, [&](const auto& each) { return each.first > written; });
}

void ClusterDatabase::start(Duration clock_jump) {
  UMA_CHECK(!is_up_);
  is_up_ = true;
  clock_offset_ += clock_jump;
}

bool ClusterDatabase::holds(std::int64_t run) const {
  const auto found = state_.daemons.find(run);
  return found != state_.daemons.end() && found->second.lease_until > now();
}

// --- Transactions

std::int64_t ClusterDatabase::transaction_of(Backend& backend) {
  if (backend.transaction == 0) backend.transaction = ++state_.last_transaction;
  return backend.transaction;
}

std::int64_t ClusterDatabase::xmin() const {
  std::int64_t least = state_.last_transaction + 1;
  for (const auto& [id, backend] : backends_) {
    if (backend.transaction != 0) least = std::min(least, backend.transaction);
  }
  return least;
}

bool ClusterDatabase::is_locked(const SessionId& row, std::uint64_t by_other_than) const {
  return std::ranges::any_of(backends_,
                             [&](const auto& each) { return each.first != by_other_than && each.second.rows.contains(row); });
}

std::optional<StoredSession> ClusterDatabase::seen(const Backend& backend, const SessionId& id) const {
  if (const auto own = backend.rows.find(id); own != backend.rows.end()) return own->second;
  const auto found = state_.sessions.find(id);
  return found == state_.sessions.end() ? std::nullopt : std::optional(found->second);
}

// Ends the transaction of a statement outside of BEGIN and COMMIT.
void ClusterDatabase::finish(std::uint64_t id) {
  apply(backends_.at(id));
}

void ClusterDatabase::roll_back(Backend& backend) {
  const bool had_rows = !backend.rows.empty();
  if (backend.transaction != 0) state_.outcomes[backend.transaction] = false;
  backend.transaction = 0;
  backend.rows.clear();
  backend.contents.clear();
  backend.is_in_transaction = backend.has_failed = backend.is_committing = false;
  if (had_rows) wake_waiting();
}

void ClusterDatabase::apply(Backend& backend) {
  const std::int64_t transaction = std::exchange(backend.transaction, 0);
  const auto rows = std::exchange(backend.rows, {});
  const auto contents = std::exchange(backend.contents, {});
  backend.is_in_transaction = backend.has_failed = backend.is_committing = false;
  if (transaction == 0) return;
  earlier_.emplace_back(timeline_.now(), state_);
  while (earlier_.front().first < timeline_.now() - kEarlierKept) earlier_.pop_front();
  state_.outcomes[transaction] = true;
  for (const auto& [id, row] : rows) {
    SessionChange change;
    change.id = id;
    change.machine = backend.machine;
    if (const auto found = state_.sessions.find(id); found != state_.sessions.end()) change.before = found->second;
    if (!change.before && !row) continue;
    change.after = row;
    if (const auto content = contents.find(id); content != contents.end()) {
      change.has_content = true;
      change.run = content->second.run;
      change.fence = content->second.fence;
      change.made_from = content->second.made_from;
    }
    if (row) {
      state_.sessions[id] = *row;
    } else {
      state_.sessions.erase(id);
      state_.ended[id] = transaction;
    }
    on_change(change);
  }
  if (!rows.empty()) wake_waiting();
}

// --- Statements

std::optional<Answer> ClusterDatabase::run(std::uint64_t id, Backend& backend, const Statement& statement) {
  switch (statement.kind) {
    case Kind::begin:
      UMA_CHECK(!backend.is_in_transaction);
      backend.is_in_transaction = true;
      return Answer{};
    case Kind::commit: {
      if (backend.has_failed) {
        roll_back(backend);
        return error(kv::SqlFault::other, "the transaction had failed");
      }
      backend.is_committing = true;
      timeline_.at(timeline_.now() + commit_time(), [this, id] {
        const auto found = backends_.find(id);
        if (found == backends_.end()) return;  // The server has crashed.
        apply(found->second);
        found->second.statements.clear();
        answer(id, {});
      });
      return std::nullopt;
    }
    case Kind::roll_back:
      roll_back(backend);
      return Answer{};
    case Kind::end_former_run:
      (void)transaction_of(backend);
      std::erase_if(state_.daemons, [&](const auto& each) {
        const bool is_former = each.second.incarnation == statement.incarnation;
        if (is_former && each.second.lease_until > now()) ++former_runs_ended_;
        return is_former;
      });
      return Answer{};
    case Kind::add_run: {
      const std::int64_t run = ++last_run_;
      (void)transaction_of(backend);
      state_.daemons[run] = {statement.text, now() + statement.lease, statement.incarnation};
      return row(run);
    }
    case Kind::renew: {
      (void)transaction_of(backend);
      state_.daemons[statement.run] = {statement.text, now() + statement.lease, statement.incarnation};
      return Answer{};
    }
    case Kind::end_run:
      (void)transaction_of(backend);
      state_.daemons.erase(statement.run);
      return Answer{};
    case Kind::get_transaction:
      return row(transaction_of(backend));
    case Kind::get_outcome: {
      if (statement.number > state_.last_transaction) {
        return error(kv::SqlFault::other, "the number of the transaction is in the future");
      }
      const auto outcome = state_.outcomes.find(statement.number);
      const bool is_in_progress =
          std::ranges::any_of(backends_, [&](const auto& each) { return each.second.transaction == statement.number; });
      Answer answer = row(0);
      answer.text = is_in_progress                                        ? "in progress"
                    : outcome != state_.outcomes.end() && outcome->second ? "committed"
                                                                          : "aborted";
      return answer;
    }
    case Kind::get_xmin:
      return row(xmin());
    case Kind::get_changed: {
      Answer answer;
      for (const auto& [session, stored] : state_.sessions) {
        if (stored.changed >= statement.number) answer.rows.push_back(stored);
      }
      return answer;
    }
    case Kind::get_ended: {
      Answer answer;
      for (const auto& [session, changed] : state_.ended) {
        if (changed >= statement.number) answer.ids.push_back(session);
      }
      return answer;
    }
    case Kind::get_wanted: {
      Answer answer;
      for (const auto& [session, stored] : state_.sessions) {
        if (stored.owner == statement.run && stored.is_wanted) answer.ids.push_back(session);
      }
      return answer;
    }
    case Kind::find: {
      Answer answer;
      for (const auto& [session, stored] : state_.sessions) {
        if (stored.record->tenant != statement.tenant) continue;
        const bool has_name = stored.record->name == statement.text;
        if (!has_name && session.value != statement.text) continue;
        if (answer.has_row && !has_name) continue;
        answer.has_row = true;
        answer.record = stored.record;
      }
      return answer;
    }
    case Kind::get_owner:
    case Kind::get_fence:
    case Kind::read: {
      const auto stored = seen(backend, statement.id);
      Answer answer{.has_row = stored.has_value()};
      if (!stored) return answer;
      answer.number = stored->owner;
      answer.fence = stored->fence;
      answer.record = stored->record;
      if (const auto daemon = state_.daemons.find(stored->owner); daemon != state_.daemons.end())
        answer.text = daemon->second.node;
      return answer;
    }
    case Kind::insert:
    case Kind::write:
    case Kind::remove:
      return store(id, backend, statement);
    default:
      return change_session(id, backend, statement);
  }
}

// Statements that change the ownership of rows.
std::optional<Answer> ClusterDatabase::change_session(std::uint64_t id, Backend& backend, const Statement& statement) {
  const auto set = [&](StoredSession changed) {
    changed.changed = transaction_of(backend);
    const std::int64_t fence = changed.fence;
    backend.rows[changed.record->id] = std::move(changed);
    return row(fence);
  };
  if (statement.kind == Kind::give_up_all) {
    for (const auto& [session, stored] : state_.sessions) {
      if (stored.owner != statement.run) continue;
      if (is_locked(session, id)) {
        backend.rows.clear();
        wait_for_row(id, backend);
        return std::nullopt;
      }
    }
    for (const auto& [session, stored] : state_.sessions) {
      if (stored.owner != statement.run) continue;
      StoredSession free = stored;
      free.owner = 0;
      free.is_wanted = false;
      (void)set(std::move(free));
    }
    return Answer{};
  }
  auto stored = seen(backend, statement.id);
  if (!stored) return Answer{};
  switch (statement.kind) {
    case Kind::raise_fence:
      if (stored->owner != statement.run || (checks_fences && stored->fence != statement.fence)) return Answer{};
      break;
    case Kind::take:
      // FOR UPDATE SKIP LOCKED
      if (is_locked(statement.id, id)) return Answer{};
      if (stored->owner != 0 && stored->owner != statement.run && holds(stored->owner)) return Answer{};
      stored->owner = statement.run;
      stored->is_wanted = false;
      ++stored->fence;
      return set(std::move(*stored));
    case Kind::want:
      if (stored->owner == 0 || stored->is_wanted || is_locked(statement.id, id)) return Answer{};
      stored->is_wanted = true;
      return set(std::move(*stored));
    case Kind::give_up:
      if (stored->owner != statement.run) return Answer{};
      break;
    default:
      UMA_CHECK(false);
  }
  if (is_locked(statement.id, id)) {
    wait_for_row(id, backend);
    return std::nullopt;
  }
  if (statement.kind == Kind::give_up) {
    stored->owner = 0;
    stored->is_wanted = false;
    return set(std::move(*stored));
  }
  backend.last_run = statement.run;
  backend.last_fence = stored->fence++;
  (void)set(std::move(*stored));
  return row(transaction_of(backend));
}

// Statements that change what a session has.
std::optional<Answer> ClusterDatabase::store(std::uint64_t id, Backend& backend, const Statement& statement) {
  const SessionId session = statement.record != nullptr ? statement.record->id : statement.id;
  if (statement.record != nullptr && !statement.record->name.empty()) {
    // The unique index of names.
    const auto has_name = [&](const SessionId& other, const kv::RecordPtr& record) {
      return other != session && record->name == statement.record->name && record->tenant == statement.record->tenant;
    };
    for (const auto& [other, each] : backends_) {
      for (const auto& [changed, row] : each.rows) {
        const auto was = state_.sessions.find(changed);
        const bool is_taken =
            (row && has_name(changed, row->record)) || (was != state_.sessions.end() && has_name(changed, was->second.record));
        if (other != id && is_taken) {
          wait_for_row(id, backend);
          return std::nullopt;
        }
      }
    }
    for (const auto& [other, stored] : state_.sessions) {
      const auto own = seen(backend, other);
      if (own && has_name(other, own->record)) return error(kv::SqlFault::refused, "duplicate key value");
    }
  }
  auto stored = seen(backend, session);
  if (statement.kind == Kind::insert) {
    UMA_CHECK(!stored);
    stored.emplace();
    stored->owner = statement.run;
    stored->fence = 1;
    backend.last_run = statement.run;
    backend.last_fence = 0;
  }
  UMA_CHECK(stored && backend.last_run == statement.run);
  auto [content, is_first] = backend.contents.try_emplace(session);
  if (is_first) content->second = {statement.run, backend.last_fence, statement.before};
  if (statement.record == nullptr) {
    (void)transaction_of(backend);
    backend.rows[session] = std::nullopt;
    return Answer{};
  }
  stored->record = statement.record;
  stored->changed = transaction_of(backend);
  backend.rows[session] = std::move(stored);
  return Answer{};
}

}  // namespace uma::sim
