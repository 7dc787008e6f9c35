#include "cluster_catalog.h"

#include <algorithm>
#include <format>
#include <type_traits>

#include "base/check.h"
#include "kv/shared/shared_limits.h"

namespace uma::sim {
namespace {

using Kind = Statement::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The numbers of PostgresCatalog and PostgresConnection.
constexpr Duration kLease = seconds(15);
constexpr Duration kHandover = kv::kTakeMax;
constexpr int kRenewalsPerLease = 5;
constexpr int kOutcomeTries = 5;
constexpr Duration kConnectEvery = seconds(1);
constexpr Duration kConnectWithin = seconds(5);
constexpr Duration kAnswerWithin = seconds(20);
constexpr Duration kTakeEvery = milliseconds(100);

std::unexpected<kv::SqlError> lost(std::string message) {
  return std::unexpected(kv::SqlError{kv::SqlFault::lost, std::move(message)});
}

}  // namespace

ClusterCatalog::ClusterCatalog(std::string node, std::int64_t& incarnation, ClusterNetwork& network, const Clock& clock,
                               bool trusts_transaction_numbers)
    : node_(std::move(node)),
      incarnation_(incarnation),
      network_(network),
      clock_(clock),
      trusts_transaction_numbers_(trusts_transaction_numbers) {}

ClusterCatalog::~ClusterCatalog() {
  mail_->number = 0;
  if (backend_ != 0) network_.close(backend_);
  tasks_.end_all();
  mail_->reply = {};
  paused_ = {};
  arrived_.clear();
}

// --- Messages

Statement ClusterCatalog::statement(Kind kind, SessionId id) const {
  Statement made;
  made.kind = kind;
  made.run = run_;
  made.incarnation = incarnation_;
  made.id = std::move(id);
  made.text = node_;
  made.lease = kLease;
  return made;
}

void ClusterCatalog::disconnect() {
  if (backend_ != 0) network_.close(std::exchange(backend_, 0));
}

Task<ClusterCatalog::Asked<Answer>> ClusterCatalog::ask(Statement statement) {
  std::vector<Statement> statements;
  statements.push_back(std::move(statement));
  co_return co_await ask(std::move(statements));
}

Task<ClusterCatalog::Asked<Answer>> ClusterCatalog::ask(std::vector<Statement> statements) {
  if (backend_ == 0) co_return lost("the connection is lost");
  ++mail_->number;
  answer_deadline_ = clock_.now() + kAnswerWithin;
  auto answer = co_await tasks_.ask<std::optional<Answer>>([&](Promise<std::optional<Answer>> reply) {
    mail_->reply = std::move(reply);
    mail_->waits = true;
    network_.send(backend_, std::move(statements), [mail = mail_, asked = mail_->number](std::optional<Answer> got) {
      if (mail->number != asked || !mail->waits) return;
      mail->waits = false;
      std::exchange(mail->reply, {})(std::move(got));
    });
  });
  answer_deadline_ = kNever;
  if (!answer || !*answer) {
    disconnect();
    co_return lost("the connection was lost");
  }
  if ((*answer)->error) co_return std::unexpected(*(*answer)->error);
  co_return std::move(**answer);
}

Task<> ClusterCatalog::pause(Duration time) {
  pause_until_ = clock_.now() + time;
  (void)co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { paused_ = std::move(reply); });
}

bool ClusterCatalog::step() {
  const TimePoint now = clock_.now();
  if (mail_->waits && now >= answer_deadline_) {
    mail_->waits = false;
    std::exchange(mail_->reply, {})(std::nullopt);
  }
  if (now >= pause_until_) {
    pause_until_ = kNever;
    std::exchange(paused_, {})(Unit{});
  }
  constexpr std::uint64_t kStepsPerNews = 64;
  if (++steps_ % kStepsPerNews == 0 && on_news_) on_news_();
  std::vector<MoveOnlyFunction<void()>> arrived = std::exchange(arrived_, {});
  for (auto& command : arrived) command();
  if (!is_open_ || is_busy_ || has_ended_) return !arrived.empty();
  const bool is_due = !inbox_.empty() || now >= next_renewal() || now >= next_retry_;
  if (is_due) {
    tasks_.start(work());
  } else if (is_closed_) {
    tasks_.start(stop());
  }
  return is_due || !arrived.empty();
}

// --- Connection and lease

void ClusterCatalog::open(std::function<void(bool)> done) {
  tasks_.start(open_now(std::move(done)));
}

Task<> ClusterCatalog::open_now(std::function<void(bool)> done) {
  auto opened = co_await connect();
  if (opened) {
    auto all = co_await changes_now();
    if (all) loaded_ = std::move(all->changed);
    if (!all) opened = std::unexpected(all.error());
  }
  is_open_ = opened.has_value();
  done(is_open_);
}

Task<ClusterCatalog::Asked<Unit>> ClusterCatalog::connect() {
  if (clock_.now() < next_connect_) co_return lost("no connection to the database");
  disconnect();
  ++mail_->number;
  answer_deadline_ = clock_.now() + kConnectWithin;
  auto made = co_await tasks_.ask<std::optional<Answer>>([&](Promise<std::optional<Answer>> reply) {
    mail_->reply = std::move(reply);
    mail_->waits = true;
    network_.connect([mail = mail_, asked = mail_->number](std::optional<std::uint64_t> backend) {
      if (mail->number != asked || !mail->waits) return;
      mail->waits = false;
      std::optional<Answer> got;
      if (backend) got.emplace().number = static_cast<std::int64_t>(*backend);
      std::exchange(mail->reply, {})(std::move(got));
    });
  });
  answer_deadline_ = kNever;
  Asked<Unit> done;
  if (made && *made) {
    backend_ = static_cast<std::uint64_t>((*made)->number);
  } else {
    done = lost("the database does not answer");
  }
  if (done && run_ == 0) {
    auto begun = co_await ask(statement(Kind::end_former_run));
    if (begun) {
      ++incarnation_;
      begun = co_await ask(statement(Kind::add_run));
    }
    if (begun) run_ = begun->number;
    if (!begun) done = std::unexpected(begun.error());
  }
  if (done) done = co_await renew();
  if (!done) disconnect();
  seen_ = 0;  // The database may be another one, which took over.
  next_connect_ = clock_.now() + kConnectEvery;
  co_return done;
}

Task<ClusterCatalog::Asked<Unit>> ClusterCatalog::renew() {
  const TimePoint asked = clock_.now();
  const auto done = co_await ask(statement(Kind::renew));
  if (!done) co_return std::unexpected(done.error());
  renewed_at_ = asked;
  // The former lease may have ended before the database renewed it.
  if (clock_.now() >= holds_until_) ++lease_;
  holds_until_ = asked + kLease;
  co_return Unit{};
}

TimePoint ClusterCatalog::next_renewal() const {
  return std::max(renewed_at_ + kLease / kRenewalsPerLease, next_renewal_try_);
}

Task<> ClusterCatalog::renew_if_due() {
  if (clock_.now() < next_renewal()) co_return;
  Asked<Unit> done;
  if (backend_ == 0) {
    done = co_await connect();
  } else {
    done = co_await renew();
  }
  if (!done) next_renewal_try_ = clock_.now() + kConnectEvery;
}

Task<> ClusterCatalog::end_run() {
  if (backend_ == 0) co_return;
  auto done = co_await ask(statement(Kind::give_up_all));
  if (done) done = co_await ask(statement(Kind::end_run));
  holds_until_ = TimePoint{};
}

// with_connection(): nothing was sent, so the error is not `lost`.
Task<ClusterCatalog::Asked<Unit>> ClusterCatalog::connect_for_work() {
  if (backend_ != 0) co_return Unit{};
  const auto done = co_await connect();
  if (!done) co_return std::unexpected(kv::SqlError{kv::SqlFault::io, done.error().message});
  co_return Unit{};
}

Error ClusterCatalog::failure(const kv::SqlError& error) {
  return {ErrorCode::io_failed, std::format("the database of the sessions: {}", error.message)};
}

// --- Calls

void ClusterCatalog::commit(kv::RecordPtr record, kv::RecordPtr before, Done done) {
  SessionId id = record->id;
  inbox_.emplace_back(Change{std::move(record), std::move(before), std::move(id), std::move(done)});
}

void ClusterCatalog::remove(const SessionId& id, Done done) {
  inbox_.emplace_back(Change{nullptr, nullptr, id, std::move(done)});
}

void ClusterCatalog::read(const SessionId& id, OnRead on_read) {
  inbox_.emplace_back(Reading{id, std::move(on_read)});
}

void ClusterCatalog::look_up(const TenantId& tenant, const std::string& session, OnFound on_found) {
  inbox_.emplace_back(Finding{tenant, session, std::move(on_found)});
}

void ClusterCatalog::take(const SessionId& id, OnRead on_read) {
  inbox_.emplace_back(Taking{id, std::move(on_read), clock_.now() + kHandover});
}

void ClusterCatalog::give_up(const SessionId& id) {
  inbox_.emplace_back(GivingUp{id});
}

void ClusterCatalog::changes(OnChanges on_changes) {
  inbox_.emplace_back(Asking{std::move(on_changes)});
}

// PostgresCatalog::step().
Task<> ClusterCatalog::work() {
  is_busy_ = true;
  std::vector<Call> calls = std::exchange(inbox_, {});
  co_await renew_if_due();
  co_await retry_takings();
  for (Call& call : calls) {
    if (auto* change = std::get_if<Change>(&call)) {
      changes_.push_back(std::move(*change));
      continue;
    }
    // A session is given up behind its last change.
    co_await keep_changes();
    co_await renew_if_due();
    if (auto* reading = std::get_if<Reading>(&call)) {
      co_await handle(*reading);
    } else if (auto* finding = std::get_if<Finding>(&call)) {
      co_await handle(*finding);
    } else if (auto* taking = std::get_if<Taking>(&call)) {
      co_await handle(std::move(*taking));
    } else if (auto* giving = std::get_if<GivingUp>(&call)) {
      co_await handle(*giving);
    } else {
      co_await handle(std::get<Asking>(call));
    }
  }
  co_await keep_changes();
  is_busy_ = false;
}

// The end of PostgresCatalog::wait().
Task<> ClusterCatalog::stop() {
  is_busy_ = true;
  for (Taking& taking : std::exchange(waiting_, {})) taking.on_read(fail(ErrorCode::limit_wait, "the daemon stops"));
  co_await end_run();
  has_ended_ = true;
  is_busy_ = false;
}

Task<> ClusterCatalog::handle(Reading& call) {
  auto done = co_await connect_for_work();
  Asked<Answer> read;
  if (done) read = co_await ask(statement(Kind::read, call.id));
  if (!done) read = std::unexpected(done.error());
  if (!read) {
    call.on_read(std::unexpected(failure(read.error())));
  } else if (!read->has_row) {
    call.on_read(fail(ErrorCode::io_failed, "the session cannot be read: its rows are missing"));
  } else {
    call.on_read(std::move(read->record));
  }
}

Task<> ClusterCatalog::handle(Finding& call) {
  auto done = co_await connect_for_work();
  Statement find = statement(Kind::find);
  find.tenant = call.tenant;
  find.text = call.session;
  Asked<Answer> found;
  if (done) found = co_await ask(std::move(find));
  if (!done) found = std::unexpected(done.error());
  if (!found) {
    call.on_found(std::unexpected(failure(found.error())));
  } else if (!found->has_row) {
    call.on_found(fail(ErrorCode::session_unknown, std::format("no session \"{}\"", call.session)));
  } else {
    call.on_found(kv::summary_of(*found->record));
  }
}

Task<> ClusterCatalog::handle(Taking call) {
  auto taken = co_await take_now(call.id);
  const TimePoint now = clock_.now();
  if (!taken && taken.error().code == ErrorCode::session_busy && now < call.deadline) {
    waiting_.push_back(std::move(call));
    next_retry_ = std::min(next_retry_, now + kTakeEvery);
    co_return;
  }
  call.on_read(std::move(taken));
}

Task<> ClusterCatalog::retry_takings() {
  if (clock_.now() < next_retry_) co_return;
  next_retry_ = kNever;
  for (Taking& taking : std::exchange(waiting_, {})) co_await handle(std::move(taking));
}

Task<Expected<kv::RecordPtr>> ClusterCatalog::take_now(const SessionId& id) {
  if (const auto done = co_await connect_for_work(); !done) co_return failure(done.error());
  const auto taken = co_await ask(statement(Kind::take, id));
  if (!taken) co_return failure(taken.error());
  if (!taken->has_row) {
    const auto owner = co_await ask(statement(Kind::get_owner, id));
    if (!owner) co_return failure(owner.error());
    if (!owner->has_row) co_return Error{ErrorCode::session_unknown, "no such session: it has ended"};
    if (const auto wanted = co_await ask(statement(Kind::want, id)); !wanted) co_return failure(wanted.error());
    co_return Error{ErrorCode::session_busy, std::format("the session is in use on node {}", owner->text)};
  }
  fences_[id] = taken->number;
  auto read = co_await ask(statement(Kind::read, id));
  if (!read) co_return failure(read.error());
  if (!read->has_row) co_return Error{ErrorCode::io_failed, "the session cannot be read: its rows are damaged"};
  co_return std::move(read->record);
}

Task<> ClusterCatalog::handle(GivingUp& call) {
  fences_.erase(call.id);
  if (co_await connect_for_work()) (void)co_await ask(statement(Kind::give_up, call.id));
}

Task<> ClusterCatalog::handle(Asking& call) {
  auto done = co_await connect_for_work();
  Asked<kv::CatalogChanges> changes;
  if (done) changes = co_await changes_now();
  if (!done) changes = std::unexpected(done.error());
  if (changes) {
    call.on_changes(std::move(*changes));
  } else {
    call.on_changes(std::unexpected(failure(changes.error())));
  }
}

Task<ClusterCatalog::Asked<kv::CatalogChanges>> ClusterCatalog::changes_now() {
  const TimePoint now = clock_.now();
  kv::CatalogChanges changes;
  changes.is_complete = seen_ == 0;
  const std::int64_t since = changes.is_complete ? 0 : seen_;
  const auto xmin = co_await ask(statement(Kind::get_xmin));
  if (!xmin) co_return std::unexpected(xmin.error());
  Statement get_changed = statement(Kind::get_changed);
  get_changed.number = since;
  const auto changed = co_await ask(std::move(get_changed));
  if (!changed) co_return std::unexpected(changed.error());
  for (const StoredSession& stored : changed->rows) {
    const SessionId& id = stored.record->id;
    if (changes.is_complete) changes.all.push_back(id);
    if (const auto own = fences_.find(id); own != fences_.end()) {
      if (stored.owner == run_ && stored.fence == own->second) continue;
      fences_.erase(own);
    }
    changes.changed.push_back(kv::summary_of(*stored.record));
  }
  if (!changes.is_complete) {
    Statement get_ended = statement(Kind::get_ended);
    get_ended.number = since;
    auto ended = co_await ask(std::move(get_ended));
    if (!ended) co_return std::unexpected(ended.error());
    changes.ended = std::move(ended->ids);
  }
  auto wanted = co_await ask(statement(Kind::get_wanted));
  if (!wanted) co_return std::unexpected(wanted.error());
  changes.wanted = std::move(wanted->ids);
  seen_ = xmin->number;
  seen_at_ = now;
  co_return changes;
}

// --- Changes

Task<> ClusterCatalog::keep_changes() {
  std::vector<Change> changes = std::exchange(changes_, {});
  if (changes.empty()) co_return;
  std::vector<Change*> all;
  for (Change& change : changes) all.push_back(&change);
  const auto together = co_await keep(all);
  for (Change& change : changes) {
    auto kept = together;
    const bool is_unreachable = !together && (together.error().is_lost() || backend_ == 0);
    const bool is_settled = (together && *together) || changes.size() == 1 || is_unreachable;
    if (!is_settled) kept = co_await keep(std::vector<Change*>(1, &change));
    Expected<Unit> result;
    if (!kept) {
      result = std::unexpected(refusal_of(change, kept.error()));
    } else if (!*kept) {
      ++fenced_count_;
      result = fail(ErrorCode::limit_wait, "another node has taken the session, and the change was not stored: try again");
    }
    if (!result && kv::must_take_again(result.error())) fences_.erase(change.id);
    change.done(std::move(result));
  }
}

Error ClusterCatalog::refusal_of(const Change& change, const kv::SqlError& error) const {
  if (error.is_lost()) return {ErrorCode::outcome_unknown, "whether the change is stored is unknown: read the session"};
  const bool has_name = change.record != nullptr && !change.record->name.empty();
  if (error.fault == kv::SqlFault::refused && has_name) {
    return {ErrorCode::session_name_taken, "a session with the name exists already", "name"};
  }
  return failure(error);
}

Task<ClusterCatalog::Asked<bool>> ClusterCatalog::keep(std::vector<Change*> changes) {
  if (const auto done = co_await connect_for_work(); !done) co_return std::unexpected(done.error());
  std::vector<std::pair<SessionId, std::optional<std::int64_t>>> fences;
  for (const Change* change : changes) {
    const auto known = fences_.find(change->id);
    fences.emplace_back(change->id, known == fences_.end() ? std::nullopt : std::optional(known->second));
  }
  transaction_ = 0;
  Asked<Unit> done;
  bool is_owned = true;
  // Statements without rows go with the next one that is waited for.
  std::vector<Statement> queued;
  queued.push_back(statement(Kind::begin));
  for (const Change* change : changes) {
    const bool is_new = change->record != nullptr && change->before == nullptr;
    std::int64_t fence = 0;
    if (!is_new) {
      const auto own = fences_.find(change->id);
      if (own == fences_.end()) {
        is_owned = false;
        break;
      }
      fence = own->second;
    }
    if (!is_new || transaction_ == 0) {
      Statement begin = statement(is_new ? Kind::get_transaction : Kind::raise_fence, change->id);
      begin.fence = fence;
      queued.push_back(std::move(begin));
      const auto row = co_await ask(std::exchange(queued, {}));
      if (!row) done = std::unexpected(row.error());
      if (row && !row->has_row) is_owned = false;
      if (!done || !is_owned) break;
      transaction_ = row->number;
    }
    Statement store = statement(change->record == nullptr ? Kind::remove : is_new ? Kind::insert : Kind::write, change->id);
    store.record = change->record;
    store.before = change->before;
    queued.push_back(std::move(store));
    if (change->record == nullptr) {
      fences_.erase(change->id);
    } else {
      fences_[change->id] = fence + 1;
    }
  }
  if (!done && done.error().is_lost()) done = std::unexpected(kv::SqlError{kv::SqlFault::io, done.error().message});
  if (done && is_owned) {
    queued.push_back(statement(Kind::commit));
    const auto committed = co_await ask(std::exchange(queued, {}));
    if (!committed) done = std::unexpected(committed.error());
    if (!done && done.error().is_lost()) {
      const auto is_stored = co_await outcome(changes);
      if (is_stored && *is_stored) done = Unit{};
      if (is_stored && !*is_stored) done = std::unexpected(kv::SqlError{kv::SqlFault::io, done.error().message});
    }
  }
  if (done && is_owned) co_return true;
  if (backend_ != 0) (void)co_await ask(statement(Kind::roll_back));
  for (const auto& [id, fence] : fences) {
    if (fence) {
      fences_[id] = *fence;
    } else {
      fences_.erase(id);
    }
  }
  if (!done) co_return std::unexpected(done.error());
  co_return false;
}

Task<std::optional<bool>> ClusterCatalog::outcome(std::vector<Change*> changes) {
  ++outcomes_count_;
  for (int attempt = 0; attempt < kOutcomeTries; ++attempt) {
    co_await pause(kConnectEvery);
    if (backend_ == 0 && !co_await connect()) continue;
    Statement get_outcome = statement(Kind::get_outcome);
    get_outcome.number = transaction_;
    const auto row = co_await ask(std::move(get_outcome));
    if (!row || !row->has_row) continue;
    if (row->text == "aborted") co_return false;
    if (row->text != "committed") continue;
    if (trusts_transaction_numbers_) co_return true;
    if (const auto rows = co_await is_in_rows(changes)) co_return *rows;
  }
  co_return std::nullopt;
}

Task<ClusterCatalog::Asked<std::optional<bool>>> ClusterCatalog::is_in_rows(std::vector<Change*> changes) {
  bool are_removals = true;
  for (const Change* change : changes) {
    const auto row = co_await ask(statement(Kind::get_fence, change->id));
    if (!row) co_return std::unexpected(row.error());
    const auto expected = fences_.find(change->id);
    if (expected == fences_.end()) {
      if (row->has_row) co_return std::optional(false);
      continue;
    }
    are_removals = false;
    if (row->has_row && row->number == run_) co_return std::optional(row->fence == expected->second);
    if (!row->has_row && change->before == nullptr) co_return std::optional(false);
  }
  co_return are_removals ? std::optional(true) : std::nullopt;
}

}  // namespace uma::sim
