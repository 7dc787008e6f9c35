#include "kv/catalog/sqlite_catalog.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/system/new_file.h"
#include "base/thrown.h"
#include "kv/catalog/catalog_lock.h"
#include "kv/catalog/catalog_schema.h"

namespace uma::kv {
namespace {

std::unexpected<Error> catalog_io_failure(const std::string& path, int error_number) {
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, std::strerror(error_number)));
}

// The error with advice. Clients get the file's name without its folder.
std::unexpected<Error> failure(const std::string& path, const SqlError& error) {
  std::string advice;
  if (error.is_io()) advice = ": check the disk";
  if (error.is_full()) advice = ": free some space on the disk of the data directory";
  if (error.is_busy()) advice = ": another process has it open; stop that process, or give this umad another --data-dir";
  if (error.is_damage()) advice = ": restart umad, which saves what can be read";
  return fail(ErrorCode::io_failed, std::format("{}: {}{}", path, error.message, advice));
}

// Creates a file that only its owner can read, whatever the umask is. Requires: SQLite does not have the file open, because
// closing it here would release SQLite's locks.
Expected<Unit> make_private_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.is_open() || ::fchmod(file.get(), 0600) != 0) return catalog_io_failure(path, errno);
  return Unit{};
}

// quick_check does not suffice: an index that does not match its rows makes a session unreadable, and the sessions table has a
// separate index.
SqlExpected<Unit> check_pages(Database& database) {
  Statement check(database, "PRAGMA integrity_check(1)");
  check.bind();
  const auto row = check.next();
  if (!row) return std::unexpected(row.error());
  std::string verdict(check.text(0));
  std::ranges::replace(verdict, '\n', ' ');
  if (verdict != "ok") return std::unexpected(SqlError{SqlFault::damage, verdict});
  return Unit{};
}

// Migrates an open file to this version. Does not change a file of a later version or a damaged one.
SqlExpected<Unit> prepare(Database& database) {
  database.leave_log_on_close(true);
  auto done = database.run(
      "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA foreign_keys = ON; PRAGMA "
      "cell_size_check = ON");
  if (!done) return done;
  const auto version = schema_version(database);
  if (!version) return std::unexpected(version.error());
  const std::int64_t known = std::ssize(schema_steps());
  if (*version > known) {
    return std::unexpected(SqlError{
        SqlFault::other,
        std::format("the catalog has version {}, but this umad supports versions up to {}: start the umad that made it, or "
                    "give this one another --data-dir",
                    *version, known)});
  }
  if (done = check_pages(database); !done) return done;
  if (done = database.run("PRAGMA journal_mode = WAL"); !done) return done;
  if (done = migrate(database, schema_steps()); !done) return done;
  database.leave_log_on_close(false);
  return Unit{};
}

// --- A damaged file

struct Saved {
  std::size_t sessions = 0;
  std::size_t turns = 0;
  std::size_t cut_short = 0;   // Number of sessions.
  std::size_t unreadable = 0;  // Rows of sessions.
};

// The largest key of any session. Every table is queried, since any of the tables may be unreadable.
std::int64_t last_key(Database& database) {
  constexpr std::int64_t kLookupsMax = 4'000'000;
  std::int64_t last = 0;
  for (const char* question : {"SELECT max(key) FROM sessions", "SELECT max(session) FROM turns",
                               "SELECT max(session) FROM messages", "SELECT max(session) FROM token_blocks"}) {
    last = std::max(last, read_integer(database, question).value_or(0));
  }
  return std::min(last, kLookupsMax);
}

// Adds the columns and tables of this version to an older file, in a transaction that is never committed. If damage prevents
// that, the file stays as it is and those columns cannot be read.
void read_as_this_version(Database& database) {
  const auto version = schema_version(database);
  const auto steps = schema_steps();
  if (!version || *version < 1 || *version >= std::ssize(steps)) return;
  auto done = database.run("BEGIN");
  for (const std::string_view step : steps.subspan(static_cast<std::size_t>(*version))) {
    if (done) done = database.run(std::string(step));
  }
  if (!done) database.roll_back();
}

// Copies the readable part of `from`, session by session.
SqlExpected<Saved> copy_readable(Database& from, Database& to) {
  Saved saved;
  RecordRows source(from);
  RecordRows target(to);
  std::set<SessionId> ids;
  std::set<std::pair<TenantId, std::string>> names;
  const std::int64_t last = last_key(from);
  auto done = to.begin();
  for (std::int64_t key = 1; key <= last && done; ++key) {
    const auto stored = source.read(key);
    if (!stored) ++saved.unreadable;
    if (!stored || stored->record == nullptr || !ids.insert(stored->record->id).second) continue;
    SessionRecord record = *stored->record;
    // Damage may have made two names equal.
    if (!record.name.empty() && !names.insert({record.tenant, record.name}).second) record.name.clear();
    done = target.write(record, nullptr);
    ++saved.sessions;
    saved.turns += record.turns.size();
    if (stored->is_damaged) {
      ++saved.cut_short;
      log_warning("session {}: its stored tokens or messages are damaged; {} turns before the damage are kept", record.id.value,
                  record.turns.size());
    }
  }
  if (done) done = to.commit();
  if (!done) return std::unexpected(done.error());
  return saved;
}

// The name of the new catalog until it replaces the damaged one.
std::string saved_name(const std::string& path) {
  return path + ".saved";
}

std::string unused_name(const std::string& beginning) {
  std::int64_t time_s = unix_time_s();
  const auto name = [&] { return std::format("{}-{}", beginning, time_s); };
  while (std::filesystem::exists(name())) ++time_s;
  return name();
}

Expected<Unit> sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (const int problem = sync_folder(folder); problem != 0) return catalog_io_failure(folder, problem);
  return Unit{};
}

// Links the file to a second name, or copies it on file systems without links. Does nothing if the file does not exist.
Expected<Unit> give_second_name(const std::string& path, const std::string& other) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem) && !problem) return Unit{};
  std::filesystem::create_hard_link(path, other, problem);
  if (problem) std::filesystem::copy_file(path, other, problem);
  if (problem) return catalog_io_failure(other, problem.value());
  return Unit{};
}

// Moves the new catalog of a salvage into place, if there is one. The old catalog's logs are removed first, because SQLite
// would apply them to the new file.
Expected<Unit> finish_salvage(const std::string& path) {
  if (!std::filesystem::exists(saved_name(path))) return Unit{};
  for (const char* suffix : {"-wal", "-shm", "-journal"}) {
    if (::unlink((path + suffix).c_str()) != 0 && errno != ENOENT) return catalog_io_failure(path + suffix, errno);
  }
  if (auto synced = sync_folder_of(path); !synced) return synced;
  if (std::rename(saved_name(path).c_str(), path.c_str()) != 0) return catalog_io_failure(path, errno);
  return sync_folder_of(path);
}

// Replaces a damaged file with a new one that has the readable part, and keeps the damaged file beside it. A crash at any point
// leaves a catalog: the damaged one with its logs, or the new one.
Expected<Unit> salvage(const std::string& path, const std::string& reason) {
  const std::string fresh = path + ".new";
  for (const char* suffix : {"", "-wal"}) ::unlink((fresh + suffix).c_str());  // Left behind by an interrupted salvage.
  if (auto made = make_private_file(fresh); !made) return made;
  Saved saved;
  {
    auto to = Database::open(fresh);
    if (!to) return failure(fresh, to.error());
    if (auto ready = prepare(*to); !ready) return failure(fresh, ready.error());
    auto from = Database::open(path);
    if (!from) return failure(path, from.error());
    from->leave_log_on_close(true);
    // With writable_schema, even a truncated file can be read.
    auto set = from->run("PRAGMA locking_mode = EXCLUSIVE; PRAGMA cell_size_check = ON; PRAGMA writable_schema = ON");
    if (!set) return failure(path, set.error());
    read_as_this_version(*from);
    auto copied = copy_readable(*from, *to);
    if (!copied) return failure(fresh, copied.error());
    saved = *copied;
  }
  const std::string aside = unused_name(path + ".damaged");
  for (const char* suffix : {"", "-wal", "-journal"}) {
    if (auto kept = give_second_name(path + suffix, aside + suffix); !kept) return kept;
  }
  // From here on the new file is the catalog, even if this process ends before moving it.
  if (std::rename(fresh.c_str(), saved_name(path).c_str()) != 0) return catalog_io_failure(fresh, errno);
  if (auto synced = sync_folder_of(path); !synced) return synced;
  if (auto finished = finish_salvage(path); !finished) return finished;
  log_warning(
      "catalog {} was damaged ({}) and was renamed to {}; recovered: {} sessions with {} turns ({} of the sessions incomplete, "
      "{} unreadable)",
      path, reason, aside, saved.sessions, saved.turns, saved.cut_short, saved.unreadable);
  return Unit{};
}

}  // namespace

// --- Opening

SqliteCatalog::SqliteCatalog(std::string path, Database database)
    : path_(std::move(path)), name_(path_.substr(path_.rfind('/') + 1)), database_(std::move(database)), rows_(database_) {}

Expected<std::unique_ptr<SqliteCatalog>> SqliteCatalog::open(const std::string& path) {
  auto lock = take_catalog_lock(path);
  if (!lock) return std::unexpected(lock.error());
  if (auto finished = finish_salvage(path); !finished) return std::unexpected(finished.error());
  if (auto made = make_private_file(path); !made) return std::unexpected(made.error());
  auto catalog = open_file(path);
  if (!catalog && catalog.error().is_damage()) {
    if (auto saved = salvage(path, catalog.error().message); !saved) return std::unexpected(saved.error());
    catalog = open_file(path);
  }
  if (!catalog) return failure(path, catalog.error());
  (*catalog)->lock_ = std::move(*lock);
  log_info("catalog {}: {} sessions", path, (*catalog)->loaded_.size());
  return std::move(*catalog);
}

SqlExpected<std::unique_ptr<SqliteCatalog>> SqliteCatalog::open_file(const std::string& path) {
  auto database = Database::open(path);
  if (!database) return std::unexpected(database.error());
  if (auto ready = prepare(*database); !ready) return std::unexpected(ready.error());
  std::unique_ptr<SqliteCatalog> catalog(new SqliteCatalog(path, std::move(*database)));
  if (auto done = catalog->read_all(); !done) {
    catalog->database_.leave_log_on_close(true);
    return std::unexpected(done.error());
  }
  catalog->rows_written_before_ = catalog->database_.rows_written();
  return catalog;
}

bool SqliteCatalog::is_nearly_full() const {
  constexpr std::uintmax_t kReserve = 1ul << 30;
  std::error_code problem;
  const std::filesystem::space_info space = std::filesystem::space(path_, problem);
  return !problem && space.available < std::min(kReserve, space.capacity / 20);
}

// Reads and checks every session.
SqlExpected<Unit> SqliteCatalog::read_all() {
  const auto keys = rows_.keys();
  if (!keys) return std::unexpected(keys.error());
  std::vector<DamagedSession> damaged;
  for (const std::int64_t key : *keys) {
    auto stored = rows_.read(key);
    if (!stored) return std::unexpected(stored.error());
    if (stored->record == nullptr || stored->is_damaged) damaged.push_back({key, stored->record});
    if (stored->record == nullptr) continue;
    loaded_.push_back(summary_of(*stored->record));
    if (auto extras = image_extras(*stored->record); !extras.empty()) {
      image_extras_.emplace(stored->record->id, std::move(extras));
    }
  }
  return damaged.empty() ? Unit{} : set_aside(damaged);
}

// Removes inconsistent sessions from an otherwise valid file: their rows move to a file beside it, and the readable part stays.
SqlExpected<Unit> SqliteCatalog::set_aside(std::span<const DamagedSession> damaged) {
  const std::string aside = unused_name(path_ + ".set-aside");
  if (const auto made = make_private_file(aside); !made) return std::unexpected(SqlError{SqlFault::io, made.error().message});
  if (auto done = Statement(database_, "ATTACH ?1 AS aside").run(aside); !done) return done;
  auto done = database_.run("CREATE TEMP TABLE damaged (key INTEGER PRIMARY KEY)");
  Statement name(database_, "INSERT INTO damaged VALUES (?1)");
  for (const DamagedSession& session : damaged) {
    if (done) done = name.run(session.key);
  }
  if (done)
    done = database_.run("CREATE TABLE aside.sessions AS SELECT * FROM main.sessions WHERE key IN (SELECT key FROM damaged)");
  for (const char* table : {"turns", "messages", "token_blocks", "responses", "receipts"}) {
    if (!done) break;
    done = database_.run(
        std::format("CREATE TABLE aside.{0} AS SELECT * FROM main.{0} WHERE session IN (SELECT key FROM damaged)", table));
  }
  if (done) done = database_.run("DETACH aside; BEGIN IMMEDIATE; DELETE FROM sessions WHERE key IN (SELECT key FROM damaged)");
  for (const DamagedSession& session : damaged) {
    if (done && session.record != nullptr) done = rows_.write(*session.record, nullptr);
  }
  if (done) done = database_.run("COMMIT; DROP TABLE damaged");
  if (!done && !done.error().is_io() && !done.error().is_full() && !done.error().is_busy()) {
    // The tables contradict each other, so the file is damaged after all.
    return std::unexpected(SqlError{SqlFault::damage, done.error().message});
  }
  if (!done) return done;
  for (const DamagedSession& session : damaged) {
    if (session.record == nullptr) {
      log_warning("catalog {}: the session with key {} is unreadable and was removed; its rows are in {}", path_, session.key,
                  aside);
    } else {
      log_warning(
          "session {}: its stored tokens or messages are damaged; {} turns before the damage are kept; what was stored is "
          "in {}",
          session.record->id.value, session.record->turns.size(), aside);
    }
  }
  return Unit{};
}

// --- Changes

void SqliteCatalog::commit(RecordPtr record, RecordPtr before, Done done) {
  SessionId id = record->id;
  inbox_.push(Change{std::move(record), std::move(before), std::move(id), std::move(done)});
}

void SqliteCatalog::remove(const SessionId& id, Done done) {
  inbox_.push(Change{nullptr, nullptr, id, std::move(done)});
}

void SqliteCatalog::read(const SessionId& id, OnRead on_read) {
  inbox_.push(Reading{id, std::move(on_read)});
}

bool SqliteCatalog::step() {
  inbox_.drain(taken_);
  for (Call& call : std::exchange(taken_, {})) {
    std::visit([this](auto& each) { queue(std::move(each)); }, call);
  }
  if (changes_.empty() && reads_.empty()) return false;
  keep_changes();
  serve_reads();
  return true;
}

void SqliteCatalog::queue(Change change) {
  TenantId tenant;
  if (change.record != nullptr) {
    tenant = change.record->tenant;
  } else if (!changes_.empty()) {
    tenant = tenant_of(change.id);
    // The session may be among those that wait to be stored.
    while (tenant.value.empty() && !changes_.empty()) keep_changes();
  }
  changes_.add(tenant, std::move(change));
}

void SqliteCatalog::queue(Reading reading) {
  const TenantId tenant = reads_.empty() ? TenantId() : tenant_of(reading.id);  // One that is alone needs no turn.
  reads_.add(tenant, std::move(reading));
}

TenantId SqliteCatalog::tenant_of(const SessionId& id) {
  return rows_.tenant_of(id).value_or(TenantId());
}

void SqliteCatalog::serve_reads() {
  std::size_t bytes = 0;
  for (std::size_t served = 0; !reads_.empty() && served < calls::kStepReads && bytes < calls::kStepBytes; ++served) {
    Reading reading = reads_.next();
    Expected<RecordPtr> record = contain([&] { return read_now(reading.id); });
    if (record) bytes += stored_bytes(**record);
    run_noting([&] { reading.on_read(std::move(record)); });
  }
}

// Stores the next changes in one transaction; if that fails, each alone.
void SqliteCatalog::keep_changes() {
  std::vector<Change> changes;
  for (std::size_t bytes = 0; !changes_.empty() && bytes < calls::kStepBytes;) {
    bytes += calls::bytes_of(changes.emplace_back(changes_.next()));
  }
  if (changes.empty()) return;
  const SqlExpected<Unit> together = keep(changes);
  std::optional<SqlError> problem;
  for (Change& change : changes) {
    SqlExpected<Unit> kept = together;
    if (!together && changes.size() > 1) kept = keep({&change, 1});
    if (!kept) problem = kept.error();
    run_noting([&] { change.done(kept ? Expected<Unit>() : failure(name_, kept.error())); });
  }
  if (problem && !is_failing_) log_error("catalog {}", failure(path_, *problem).error().message);
  if (!problem && is_failing_) log_info("catalog {}: changes are stored again", path_);
  is_failing_ = problem.has_value();
}

// Stores all changes, or none.
SqlExpected<Unit> SqliteCatalog::keep(std::span<Change> changes) {
  ++transactions_count_;
  auto done = database_.begin();
  try {
    for (const Change& change : changes) {
      if (done) done = apply(change);
    }
  } catch (...) {
    note_thrown();
    done = std::unexpected(SqlError{SqlFault::other, "the daemon failed at this change"});
  }
  if (done) done = database_.commit();
  if (!done) database_.roll_back();
  return done;
}

SqlExpected<Unit> SqliteCatalog::apply(const Change& change) {
  return change.record == nullptr ? rows_.remove(change.id) : rows_.write(*change.record, change.before.get());
}

Expected<RecordPtr> SqliteCatalog::read_now(const SessionId& id) {
  auto stored = rows_.read(id);
  if (!stored) return failure(name_, stored.error());
  if (stored->record == nullptr || stored->is_damaged) {
    return failure(name_, SqlError{SqlFault::damage, std::format("session {} cannot be read", id.value)});
  }
  return std::move(stored->record);
}

}  // namespace uma::kv
