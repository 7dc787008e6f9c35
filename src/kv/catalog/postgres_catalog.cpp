#include "kv/catalog/postgres_catalog.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <iterator>
#include <set>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "kv/catalog/catalog_lock.h"

namespace uma::kv {
namespace {

constexpr int kOutcomeTries = 5;
constexpr Duration kOutcomeEvery = std::chrono::seconds(1);
constexpr Duration kTakeEvery = std::chrono::milliseconds(100);
// The log repeats an error, of which every request may have the same, once in this time.
constexpr Duration kRepeatErrorEvery = std::chrono::seconds(10);

}  // namespace

PostgresCatalog::PostgresCatalog(PostgresCatalogOptions options, Pipe wake)
    : options_(std::move(options)),
      clock_(*options_.clock),
      shown_(shown_address(options_.address)),
      connection_(options_.address),
      run_(connection_, options_),
      rows_(connection_),
      raise_fence_(connection_, R"sql(
        UPDATE sessions SET fence = fence + 1 WHERE id = ?1 AND owner = ?2 AND fence = ?3
        RETURNING pg_current_xact_id()::text::bigint)sql"),
      get_transaction_(connection_, "SELECT pg_current_xact_id()::text::bigint"),
      get_outcome_(connection_, "SELECT pg_xact_status(?1::text::xid8)"),
      get_fence_(connection_, "SELECT owner, fence FROM sessions WHERE id = ?1"),
      // A null for an image that is not there makes the transaction fail, without a wait for the answer.
      add_image_(connection_, R"sql(
        INSERT INTO session_images (session, image) VALUES (
          (SELECT key FROM sessions WHERE id = ?1), (SELECT key FROM images WHERE tenant = ?2 AND sha256 = ?3))
        ON CONFLICT DO NOTHING)sql"),
      remove_image_(connection_, R"sql(
        DELETE FROM session_images WHERE session = (SELECT key FROM sessions WHERE id = ?1)
        AND image = (SELECT key FROM images WHERE tenant = ?2 AND sha256 = ?3))sql"),
      // Inserts of sessions need not wait for this lock; only other counts do.
      lock_tenant_(connection_, "SELECT 1 FROM tenants WHERE name = ?1 FOR NO KEY UPDATE"),
      count_sessions_(connection_, "SELECT count(*) FROM sessions WHERE tenant = ?1"),
      find_(connection_, std::format(R"sql(
        SELECT {} FROM sessions WHERE tenant = ?1 AND (name = ?2 OR id = ?2) ORDER BY name = ?2 DESC NULLS LAST LIMIT 1)sql",
                                     PostgresListing::columns())),
      get_owner_(connection_, "SELECT d.node FROM sessions s LEFT JOIN daemons d ON d.run = s.owner WHERE s.id = ?1"),
      // A row that is locked is in use: a commit on it has not ended.
      take_(connection_, R"sql(
        UPDATE sessions s SET owner = ?2, fence = fence + 1, is_wanted = false, wanted_by = NULL, kept_until = NULL
        WHERE key = (SELECT key FROM sessions WHERE id = ?1 FOR UPDATE SKIP LOCKED) AND (owner IS NULL OR owner = ?2 OR NOT EXISTS (
          SELECT 1 FROM daemons d WHERE d.run = s.owner AND d.lease_until > clock_timestamp()))
          AND (kept_until IS NULL OR wanted_by = ?2 OR kept_until < clock_timestamp())
        RETURNING fence)sql"),
      want_(connection_, R"sql(
        UPDATE sessions SET is_wanted = true, wanted_by = ?2
        WHERE key = (SELECT key FROM sessions WHERE id = ?1 AND owner IS NOT NULL AND NOT is_wanted FOR UPDATE SKIP LOCKED)
        RETURNING owner)sql"),
      give_up_(connection_, std::format("UPDATE sessions SET {} WHERE id = ?1 AND owner = ?2 RETURNING wanted_by", kGivenUp)),
      listing_(connection_, clock_, options_.page_rows),
      wake_(std::move(wake)) {
  make_nonblocking(wake_.out.get());
}

PostgresCatalog::~PostgresCatalog() {
  if (options_.images.database) options_.images.database->stop();
}

Expected<std::unique_ptr<PostgresCatalog>> PostgresCatalog::open(PostgresCatalogOptions options) {
  auto wake = open_pipe();
  if (!wake) return fail(ErrorCode::io_failed, std::format("the catalog cannot make a pipe: {}", std::strerror(errno)));
  std::unique_ptr<PostgresCatalog> catalog(new PostgresCatalog(std::move(options), *std::move(wake)));
  if (!catalog->options_.lock.empty()) {
    auto lock = take_catalog_lock(catalog->options_.lock);
    if (!lock) return std::unexpected(lock.error());
    catalog->run_.set_lock(std::move(*lock));
  }
  auto done = catalog->connect();
  if (done) done = catalog->load_all();
  if (!done) {
    return fail(ErrorCode::io_failed,
                std::format("{}: {}: check the address (catalog) and that the database runs and lets this user in",
                            catalog->shown_, done.error().message));
  }
  log_info("catalog {}: {} sessions; this is run {} on node {}", catalog->shown_, catalog->loaded_.size(), catalog->run(),
           catalog->options_.node);
  return catalog;
}

// --- Connection and lease

SqlExpected<Unit> PostgresCatalog::connect() {
  auto done = run_.connect();
  listing_.begin_anew();  // The database may be another one, which took over.
  return done;
}

void PostgresCatalog::renew_if_due() {
  if (clock_.now() < run_.next_renewal()) return;
  auto done = connection_.is_lost() ? connect() : run_.renew();
  if (!done) run_.put_off_renewal();
  if (!done && !is_failing_) log_error("catalog {}: {}", shown_, done.error().message);
  if (done && is_failing_) log_info("catalog {}: the database answers again", shown_);
  is_failing_ = !done;
}

void PostgresCatalog::end_run() {
  if (connection_.is_lost()) return;
  if (auto done = run_.end(); !done) {
    log_warning("catalog {}: the sessions of this run were not given up: {}", shown_, done.error().message);
  }
}

template <class Work>
auto PostgresCatalog::with_connection(Work&& work) -> decltype(work()) {
  if (connection_.is_lost()) {
    // Nothing was sent, so the error is not `lost`.
    if (auto done = connect(); !done) return std::unexpected(SqlError{SqlFault::io, done.error().message});
  }
  return work();
}

// The database's words are for the log: they may name hosts and users.
Error PostgresCatalog::failure(const SqlError& error) {
  const TimePoint now = clock_.now();
  const bool is_repeated = error.message == logged_ && now < logged_at_ + kRepeatErrorEvery;
  if (!is_failing_ && !is_repeated) {
    log_error("catalog {}: {}", shown_, error.message);
    logged_ = error.message;
    logged_at_ = now;
  }
  // One line until the database answers again, however many requests fail.
  if (error.is_lost() || error.is_io()) is_failing_ = true;
  std::string reason = "it refuses the change";
  if (error.is_lost() || error.is_io()) reason = "it cannot be reached; umad connects again by itself";
  if (error.is_full()) reason = "its disk or memory is full";
  if (error.is_busy()) reason = "it was busy for too long: try again";
  if (error.fault == SqlFault::impossible) reason = error.message;
  if (error.fault == SqlFault::dangling) reason = "an image of the session was removed meanwhile: send it again";
  return {ErrorCode::io_failed, std::format("the database of the sessions: {}", reason)};
}

// --- Calls

void PostgresCatalog::commit(RecordPtr record, RecordPtr before, Done done) {
  SessionId id = record->id;
  calls::ImageChanges images = image_changes(*record, before.get());
  std::vector<std::string> ids = images.added;
  const TenantId tenant = record->tenant;
  Change change{std::move(record), std::move(before), std::move(id), std::move(done), std::move(images)};
  if (ids.empty()) {
    post(std::move(change));
    return;
  }
  // Until `done` nobody makes another change of this session.
  options_.images.database->store(tenant, std::move(ids), options_.images.read,
                                  [this, change = std::move(change)](Expected<Unit> stored) mutable {
                                    if (!stored) return change.done(std::move(stored));
                                    post(std::move(change));
                                  });
}

calls::ImageChanges PostgresCatalog::image_changes(const SessionRecord& record, const SessionRecord* before) const {
  if (options_.images.database == nullptr) return {};
  const std::vector<std::string> extras = image_extras(record);
  const std::vector<std::string> extras_before = before == nullptr ? std::vector<std::string>() : image_extras(*before);
  if (extras == extras_before) return {};
  const auto ids_of = [this](const std::vector<std::string>& all) {
    std::set<std::string> ids;
    for (const std::string& extra : all) {
      for (std::string& id : options_.images.ids_of(extra)) ids.insert(std::move(id));
    }
    return ids;
  };
  const std::set<std::string> now = ids_of(extras);
  const std::set<std::string> then = ids_of(extras_before);
  calls::ImageChanges changes;
  std::ranges::set_difference(now, then, std::back_inserter(changes.added));
  std::ranges::set_difference(then, now, std::back_inserter(changes.removed));
  return changes;
}

void PostgresCatalog::remove(const SessionId& id, Done done) {
  post(Change{nullptr, nullptr, id, std::move(done)});
}

void PostgresCatalog::read(const SessionId& id, OnRead on_read) {
  post(Reading{id, std::move(on_read)});
}

void PostgresCatalog::look_up(const TenantId& tenant, const std::string& session, OnFound on_found) {
  post(Finding{tenant, session, std::move(on_found)});
}

void PostgresCatalog::take(const SessionId& id, OnRead on_read) {
  post(Taking{id, std::move(on_read), clock_.now() + options_.handover});
}

void PostgresCatalog::give_up(const SessionId& id) {
  post(GivingUp{id});
}

void PostgresCatalog::changes(OnChanges on_changes) {
  post(Asking{std::move(on_changes)});
}

void PostgresCatalog::post(Call call) {
  inbox_.push(std::move(call));
  wake();
}

void PostgresCatalog::close() {
  inbox_.close();
  wake();
}

void PostgresCatalog::wake() {
  if (is_awake_.exchange(true)) return;
  const char byte = 0;
  (void)!::write(wake_.in.get(), &byte, sizeof byte);
}

void PostgresCatalog::call_on_news(std::function<void()> on_news) {
  const MutexLock lock(mutex_);
  on_news_ = std::move(on_news);
}

void PostgresCatalog::hear_news() {
  if (!waiting_.empty()) next_retry_ = {};
  std::function<void()> tell;
  {
    const MutexLock lock(mutex_);
    tell = on_news_;
  }
  if (tell) tell();
}

// The connection may have read notifications with the answers of the last step.
void PostgresCatalog::wait_for_news() {
  bool has_news = connection_.take_notifications();
  const Duration limit = has_news ? Duration() : std::min(next_retry_, run_.next_renewal()) - clock_.now();
  connection_.wait_unasked(wake_.out.get(), limit);
  std::array<char, 16> bytes{};
  while (::read(wake_.out.get(), bytes.data(), bytes.size()) > 0) {
  }
  is_awake_ = false;
  has_news = connection_.take_notifications() || has_news;
  if (connection_.is_lost()) run_.renew_soon();  // The next step connects again.
  if (has_news) run_noting([this] { hear_news(); });
}

bool PostgresCatalog::wait() {
  if (!orders_.empty() || !questions_.empty()) return true;
  bool is_open = inbox_.wait_drain(taken_, TimePoint{});
  if (is_open && taken_.empty()) {
    wait_for_news();
    is_open = inbox_.wait_drain(taken_, TimePoint{});
  }
  if (is_open) return true;
  for (Taking& taking : waiting_) run_noting([&] { taking.on_read(fail(ErrorCode::limit_wait, "the daemon stops")); });
  waiting_.clear();
  end_run();
  if (options_.images.database) options_.images.database->stop();
  return false;
}

bool PostgresCatalog::step() {
  inbox_.drain(taken_);
  run_noting([this] { renew_if_due(); });
  run_noting([this] { retry_takings(); });
  if (taken_.empty() && orders_.empty() && questions_.empty()) return false;
  for (Call& call : std::exchange(taken_, {})) {
    run_noting([&] { std::visit([this](auto& each) { queue(each); }, call); });
  }
  handle_orders();
  for (Asking& asking : std::exchange(askings_, {})) {
    run_noting([this] { renew_if_due(); });
    run_noting([&] { handle(asking); });
  }
  handle_questions();
  return true;
}

void PostgresCatalog::queue(Change& call) {
  const TenantId tenant = call.record != nullptr ? call.record->tenant : turn_of_order(call.id);
  orders_.add(tenant, std::move(call));
}

void PostgresCatalog::queue(GivingUp& call) {
  const TenantId tenant = turn_of_order(call.id);
  orders_.add(tenant, std::move(call));
}

// A question that is alone needs no turn.
void PostgresCatalog::queue(Reading& call) {
  const TenantId tenant = questions_.empty() ? TenantId() : tenant_of(call.id);
  questions_.add(tenant, std::move(call));
}

void PostgresCatalog::queue(Finding& call) {
  const TenantId tenant = call.tenant;
  questions_.add(tenant, std::move(call));
}

void PostgresCatalog::queue(Taking& call) {
  const TenantId tenant = questions_.empty() ? TenantId() : tenant_of(call.id);
  questions_.add(tenant, std::move(call));
}

void PostgresCatalog::queue(Asking& call) {
  askings_.push_back(std::move(call));
}

// An empty tenant: there is no such session, or the database does not answer.
TenantId PostgresCatalog::tenant_of(const SessionId& id) {
  return connection_.is_lost() ? TenantId() : rows_.tenant_of(id).value_or(TenantId());
}

// The tenant in whose turn an order comes behind the session's last change.
TenantId PostgresCatalog::turn_of_order(const SessionId& id) {
  TenantId tenant;
  if (!orders_.empty()) tenant = tenant_of(id);
  // The session may be among those that wait to be stored.
  while (tenant.value.empty() && !orders_.empty()) handle_orders();
  return tenant;
}

void PostgresCatalog::handle_orders() {
  for (std::size_t bytes = 0; !orders_.empty() && bytes < calls::kStepBytes;) {
    auto order = orders_.next();
    if (auto* change = std::get_if<Change>(&order)) {
      bytes += calls::bytes_of(*change);
      changes_.push_back(std::move(*change));
      continue;
    }
    bytes += calls::kRowBytes;
    run_noting([this] { keep_changes(); });
    run_noting([this] { renew_if_due(); });
    run_noting([&] { handle(std::get<GivingUp>(order)); });
  }
  run_noting([this] { keep_changes(); });
}

void PostgresCatalog::handle_questions() {
  std::size_t bytes = 0;
  for (std::size_t answered = 0; !questions_.empty() && answered < calls::kStepReads && bytes < calls::kStepBytes; ++answered) {
    auto question = questions_.next();
    run_noting([this] { renew_if_due(); });
    run_noting([&] { bytes += std::visit([this](auto& each) { return handle(each); }, question); });
  }
}

std::size_t PostgresCatalog::handle(Reading& call) {
  auto read = contain([&]() -> Expected<RecordPtr> {
    auto stored = with_connection([&] { return rows_.read(call.id); });
    if (!stored) return std::unexpected(failure(stored.error()));
    if (stored->record == nullptr || stored->is_damaged) {
      return fail(ErrorCode::io_failed,
                  std::format("session {} cannot be read: its rows in the database are missing or damaged", call.id.value));
    }
    return std::move(stored->record);
  });
  const std::size_t bytes = read ? stored_bytes(**read) : 0;
  call.on_read(std::move(read));
  return bytes;
}

std::size_t PostgresCatalog::handle(Taking& call) {
  auto taken = contain([&]() -> Expected<RecordPtr> {
    std::optional<Error> refusal;
    auto record = with_connection([&] { return take_now(call, refusal); });
    if (!record) return std::unexpected(failure(record.error()));
    if (refusal) return std::unexpected(std::move(*refusal));
    return std::move(*record);
  });
  const TimePoint now = clock_.now();
  if (!taken && taken.error().code == ErrorCode::session_busy && now < call.deadline) {
    waiting_.push_back(std::move(call));
    next_retry_ = std::min(next_retry_, now + kTakeEvery);
    return 0;
  }
  const std::size_t bytes = taken ? stored_bytes(**taken) : 0;
  call.on_read(std::move(taken));
  return bytes;
}

void PostgresCatalog::retry_takings() {
  if (clock_.now() < next_retry_) return;
  next_retry_ = kNever;
  for (Taking& taking : std::exchange(waiting_, {})) queue(taking);
}

SqlExpected<RecordPtr> PostgresCatalog::take_now(const Taking& call, std::optional<Error>& refusal) {
  take_.bind(call.id.value, run());
  auto row = take_.next();
  if (!row) return std::unexpected(row.error());
  if (!*row) {
    get_owner_.bind(call.id.value);
    row = get_owner_.next();
    if (!row) return std::unexpected(row.error());
    const bool is_there = *row;
    const std::string node(is_there ? get_owner_.text(0) : "");
    get_owner_.end();
    if (!is_there) {
      refusal = Error{ErrorCode::session_unknown, std::format("no session \"{}\": it has ended", call.id.value)};
      return nullptr;
    }
    want_.bind(call.id.value, run());
    if (auto asked = run_.notify_of(want_); !asked) return std::unexpected(asked.error());
    refusal =
        Error{ErrorCode::session_busy,
              std::format("the session is in use on node {}: try again in a second, or ask there", node.empty() ? "?" : node)};
    return nullptr;
  }
  const std::int64_t fence = take_.integer(0);
  take_.end();
  fences_[call.id] = fence;
  auto stored = rows_.read(call.id);
  if (!stored) return std::unexpected(stored.error());
  if (stored->record == nullptr || stored->is_damaged) {
    refusal = Error{ErrorCode::io_failed,
                    std::format("session {} cannot be read: its rows in the database are damaged", call.id.value)};
    return nullptr;
  }
  return std::move(stored->record);
}

std::size_t PostgresCatalog::handle(Finding& call) {
  call.on_found(contain([&]() -> Expected<SessionSummary> {
    auto found = with_connection([&] { return find_now(call); });
    if (!found) return std::unexpected(failure(found.error()));
    if (*found) return std::move(**found);
    return fail(ErrorCode::session_unknown,
                std::format("no session \"{}\": it was never created, or it has ended", call.session));
  }));
  return 0;
}

SqlExpected<std::optional<SessionSummary>> PostgresCatalog::find_now(const Finding& call) {
  find_.bind(call.tenant.value, call.session);
  const auto row = find_.next();
  if (!row) return std::unexpected(row.error());
  auto summary = *row ? RecordRows::summary_of_row(find_) : std::nullopt;
  find_.end();
  if (summary) listing_.note_found(summary->id);
  return summary;
}

void PostgresCatalog::handle(GivingUp& call) {
  fences_.erase(call.id);
  const auto done = with_connection([&] {
    give_up_.bind(call.id.value, run());
    return run_.notify_of(give_up_);
  });
  // The session then stays this run's until another daemon asks for it, or this one uses it.
  if (!done) log_warning("catalog {}: session {} was not given up: {}", shown_, call.id.value, done.error().message);
}

void PostgresCatalog::handle(Asking& call) {
  call.on_changes(contain([&]() -> Expected<CatalogChanges> {
    auto changes = with_connection([&] { return listing_.next_page(run(), fences_); });
    if (!changes) return std::unexpected(failure(changes.error()));
    return std::move(*changes);
  }));
}

// Reads the list of all sessions, and keeps the lease meanwhile.
SqlExpected<Unit> PostgresCatalog::load_all() {
  do {
    renew_if_due();
    auto page = listing_.next_page(run(), fences_);
    if (!page) return std::unexpected(page.error());
    std::ranges::move(page->changed, std::back_inserter(loaded_));
  } while (listing_.is_in_progress());
  return Unit{};
}

// --- Changes

// Stores the changes in one transaction; if that fails, each alone.
void PostgresCatalog::keep_changes() {
  std::vector<Change> changes = std::exchange(changes_, {});
  if (changes.empty()) return;
  const auto together = with_connection([&] { return keep(changes); });
  for (Change& change : changes) {
    auto kept = together;
    const bool is_unreachable = !together && (together.error().is_lost() || connection_.is_lost());
    const bool is_settled = (together && *together) || changes.size() == 1 || is_unreachable;
    if (!is_settled) kept = with_connection([&] { return keep({&change, 1}); });
    Expected<Unit> result;
    if (!kept) {
      result = std::unexpected(refusal_of(change, kept.error()));
    } else if (!*kept) {
      result = fail(ErrorCode::limit_wait, "another node has taken the session, and the change was not stored: try again");
    }
    if (!result && must_take_again(result.error())) fences_.erase(change.id);
    run_noting([&] { change.done(std::move(result)); });
  }
}

Error PostgresCatalog::refusal_of(const Change& change, const SqlError& error) {
  if (error.is_lost()) {
    log_error("catalog {}: {}", shown_, error.message);
    return {ErrorCode::outcome_unknown,
            "the database was lost while the session was being stored, and whether the change is stored is unknown: read the "
            "session before you try again"};
  }
  if (error.fault == SqlFault::quota) return {ErrorCode::limit_quota, error.message};
  const bool has_name = change.record != nullptr && !change.record->name.empty();
  if (error.fault == SqlFault::refused && has_name) {
    return {ErrorCode::session_name_taken, std::format("field \"name\": a session \"{}\" exists already", change.record->name),
            "name"};
  }
  return failure(error);
}

// Stores all changes, or none. Returns false if one of them is fenced off. The error is `lost` only if the outcome is unknown.
SqlExpected<bool> PostgresCatalog::keep(std::span<Change> changes) {
  std::vector<std::pair<SessionId, std::optional<std::int64_t>>> fences;
  for (const Change& change : changes) {
    const auto known = fences_.find(change.id);
    fences.emplace_back(change.id, known == fences_.end() ? std::nullopt : std::optional(known->second));
  }
  transaction_ = 0;
  auto done = connection_.begin();
  bool is_owned = true;
  try {
    for (const Change& change : changes) {
      if (!done || !is_owned) break;
      const auto applied = apply(change);
      if (!applied) done = std::unexpected(applied.error());
      if (applied) is_owned = *applied;
    }
  } catch (...) {
    note_thrown();
    done = std::unexpected(SqlError{SqlFault::other, "the daemon failed at this change"});
  }
  if (!done && done.error().is_lost())
    done = std::unexpected(SqlError{SqlFault::io, done.error().message});  // Before the commit.
  if (done && is_owned) {
    done = connection_.commit();
    if (!done && done.error().is_lost()) {
      const auto is_stored = outcome(changes);
      if (is_stored && *is_stored) done = Unit{};
      if (is_stored && !*is_stored) done = std::unexpected(SqlError{SqlFault::io, done.error().message});
    }
  }
  if (done && is_owned) return true;
  connection_.roll_back();
  for (const auto& [id, fence] : fences) {
    if (fence) {
      fences_[id] = *fence;
    } else {
      fences_.erase(id);
    }
  }
  if (!done) return std::unexpected(done.error());
  return false;
}

// Whether the transaction whose connection was lost in its commit is stored. Nullopt: the database does not say so in time.
std::optional<bool> PostgresCatalog::outcome(std::span<const Change> changes) {
  for (int attempt = 0; attempt < kOutcomeTries; ++attempt) {
    std::this_thread::sleep_for(kOutcomeEvery);
    if (connection_.is_lost() && !connect()) continue;
    const std::string transaction = std::to_string(transaction_);
    get_outcome_.bind(std::string_view(transaction));
    const auto row = get_outcome_.next();
    if (!row || !*row) continue;
    const std::string status(get_outcome_.text(0));
    get_outcome_.end();
    if (status == "aborted") return false;
    if (status != "committed") continue;
    if (const auto rows = is_in_rows(changes)) return *rows;
  }
  return std::nullopt;
}

// Whether the rows have the changes. A server that starts again after a crash, or takes over, gives the number of a transaction
// that left no trace to another one, whose outcome says nothing. Requires: fences_ has the fences behind the changes. The
// error: it cannot be asked. Nullopt: another daemon has the sessions meanwhile.
SqlExpected<std::optional<bool>> PostgresCatalog::is_in_rows(std::span<const Change> changes) {
  bool are_removals = true;
  for (const Change& change : changes) {
    get_fence_.bind(change.id.value);
    const auto row = get_fence_.next();
    if (!row) return std::unexpected(row.error());
    const bool is_there = *row;
    const bool is_own = is_there && get_fence_.integer(0) == run();
    const std::int64_t fence = is_there ? get_fence_.integer(1) : 0;
    get_fence_.end();
    const auto expected = fences_.find(change.id);
    if (expected == fences_.end()) {
      if (is_there) return false;  // It would be removed.
      continue;
    }
    are_removals = false;
    if (is_own) return fence == expected->second;
    if (!is_there && change.before == nullptr) return false;
  }
  return are_removals ? std::optional(true) : std::nullopt;
}

SqlExpected<bool> PostgresCatalog::apply(const Change& change) {
  const bool is_new = change.record != nullptr && change.before == nullptr;
  std::int64_t fence = 0;
  if (!is_new) {
    const auto own = fences_.find(change.id);
    if (own == fences_.end()) return false;
    fence = own->second;
  }
  Statement& begin = is_new ? get_transaction_ : raise_fence_;
  if (!is_new || transaction_ == 0) {
    if (is_new) begin.bind();
    if (!is_new) begin.bind(change.id.value, run(), fence);
    const auto row = begin.next();
    if (!row) return std::unexpected(row.error());
    if (!*row) return false;
    transaction_ = begin.integer(0);
    begin.end();
  }
  const auto done = change.record == nullptr ? rows_.remove(change.id) : rows_.write(*change.record, change.before.get());
  if (!done) return std::unexpected(done.error());
  if (auto images = apply_images(change); !images) return std::unexpected(images.error());
  if (is_new && options_.tenant_sessions_max > 0) {
    if (auto fits = check_quota(change.record->tenant); !fits) return std::unexpected(fits.error());
  }
  // The fence is as the trigger or raise_fence_ set it. Changes of the same session may follow in the transaction.
  if (change.record == nullptr) {
    fences_.erase(change.id);
  } else {
    fences_[change.id] = fence + 1;
  }
  return true;
}

// The references go with the session's row where it is removed.
SqlExpected<Unit> PostgresCatalog::apply_images(const Change& change) {
  SqlExpected<Unit> done;
  for (const std::string& image : change.images.added) {
    if (done) done = add_image_.run(change.id.value, change.record->tenant.value, image);
  }
  for (const std::string& image : change.images.removed) {
    if (done) done = remove_image_.run(change.id.value, change.record->tenant.value, image);
  }
  return done;
}

// Whether the tenant may have the sessions that it has with this transaction. Transactions that make sessions of the tenant
// follow one another from here to their ends, so each counts those before it.
SqlExpected<Unit> PostgresCatalog::check_quota(const TenantId& tenant) {
  if (auto locked = lock_tenant_.run(tenant.value); !locked) return locked;
  count_sessions_.bind(tenant.value);
  const auto row = count_sessions_.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t sessions = count_sessions_.integer(0);
  count_sessions_.end();
  if (sessions <= static_cast<std::int64_t>(options_.tenant_sessions_max)) return Unit{};
  return std::unexpected(SqlError{
      SqlFault::quota, std::format("you have {} sessions on all nodes, as many as limits.tenant_sessions_max allows: end some",
                                   options_.tenant_sessions_max)});
}

}  // namespace uma::kv
