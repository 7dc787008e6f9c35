#include "kv/sqlite_catalog.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <set>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sync_folder.h"
#include "base/thrown.h"
#include "kv/catalog_schema.h"

namespace uma::kv {
namespace {

std::unexpected<Error> catalog_io_failure(const std::string& path, int error_number) {
  return fail(ErrorCode::io_short_write, std::format("{}: {}", path, std::strerror(error_number)));
}

// What went wrong and what to do about it. Clients hear the file's name, and not where it is.
std::unexpected<Error> failure(const std::string& path, const SqlError& error) {
  std::string advice;
  if (error.is_io()) advice = ": check the disk";
  if (error.is_full()) advice = ": free some space on the disk of the data directory";
  if (error.is_busy()) advice = ": another process has it open; end that one, or give this umad a --data-dir of its own";
  if (error.is_damage()) advice = ": restart umad, which saves what can be read";
  return fail(ErrorCode::io_short_write, std::format("{}: {}{}", path, error.message, advice));
}

// A lock of its own and not one on the database, because it has to hold while a damaged file is exchanged.
Expected<UniqueFd> take_lock(const std::string& catalog) {
  const std::string path = catalog + ".lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.is_open()) return catalog_io_failure(path, errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return catalog_io_failure(path, errno);
  return fail(ErrorCode::io_short_write,
              std::format("{} is in use by another umad: end that one, or give this one a --data-dir of its own", catalog));
}

// A file that only its owner can read, whatever the umask. REQUIRES: SQLite does not have it open (closing it here would end
// SQLite's locks).
Expected<Unit> make_private_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.is_open() || ::fchmod(file.get(), 0600) != 0) return catalog_io_failure(path, errno);
  return Unit{};
}

// Not quick_check: indexes that do not fit their rows make a session unreadable, and only that of sessions is one beside its
// rows.
SqlExpected<Unit> check_pages(const Database& database) {
  Statement check(database, "PRAGMA integrity_check(1)");
  check.bind();
  const auto row = check.next();
  if (!row) return std::unexpected(row.error());
  std::string verdict(check.text(0));
  std::ranges::replace(verdict, '\n', ' ');
  if (verdict != "ok") return std::unexpected(SqlError{SQLITE_CORRUPT, verdict});
  return Unit{};
}

// Makes an open file one of this version, ready for use. Changes nothing in one of a later version or a damaged one.
SqlExpected<Unit> prepare(Database& database) {
  database.leave_log_on_close(true);
  auto done = database.run(
      "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON");
  if (!done) return done;
  const auto version = schema_version(database);
  if (!version) return std::unexpected(version.error());
  const std::int64_t known = std::ssize(schema_steps());
  if (*version > known) {
    return std::unexpected(
        SqlError{SQLITE_CANTOPEN,
                 std::format("the catalog has version {}, this umad knows versions up to {}: start the umad that made it, or "
                             "give this one a --data-dir of its own",
                             *version, known)});
  }
  if (done = check_pages(database); !done) return done;
  if (done = database.run("PRAGMA journal_mode = WAL"); !done) return done;
  if (done = migrate(database, schema_steps()); !done) return done;
  database.leave_log_on_close(false);
  return Unit{};
}

// --- A damaged file
// ------------------------------------------------------------------------------------------------------------------

struct Saved {
  std::size_t sessions = 0;
  std::size_t turns = 0;
  std::size_t cut_short = 0;   // of the sessions
  std::size_t unreadable = 0;  // rows of sessions
};

// The largest key that a session may have; every table is asked, since any of them may be unreadable.
std::int64_t last_key(const Database& database) {
  constexpr std::int64_t kLookupsMax = 4'000'000;
  std::int64_t last = 0;
  for (const char* question : {"SELECT max(key) FROM sessions", "SELECT max(session) FROM turns",
                               "SELECT max(session) FROM messages", "SELECT max(session) FROM token_blocks"}) {
    last = std::max(last, read_integer(database, question).value_or(0));
  }
  return std::min(last, kLookupsMax);
}

// Gives a file of an earlier version the columns and tables that are asked for, in a transaction that is never committed. Where
// damage is in the way the file stays as it is, and what is asked for cannot be read.
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

// Copies what can be read of `from`, session by session.
SqlExpected<Saved> copy_readable(const Database& from, Database& to) {
  Saved saved;
  RecordRows source(from);
  RecordRows target(to);
  std::set<SessionId> ids;
  std::set<std::pair<TenantId, std::string>> names;
  const std::int64_t last = last_key(from);
  auto done = to.run("BEGIN IMMEDIATE");
  for (std::int64_t key = 1; key <= last && done; ++key) {
    const auto stored = source.read(key);
    if (!stored) ++saved.unreadable;
    if (!stored || stored->record == nullptr || !ids.insert(stored->record->id).second) continue;
    SessionRecord record = *stored->record;
    // Damage can have made two names equal.
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
  if (done) done = to.run("COMMIT");
  if (!done) return std::unexpected(done.error());
  return saved;
}

// Under which a salvage leaves the new catalog until it is in the place of the damaged one.
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

// Nothing happens where there is no such file. A file system without links has a copy of it.
Expected<Unit> give_second_name(const std::string& path, const std::string& other) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem) && !problem) return Unit{};
  std::filesystem::create_hard_link(path, other, problem);
  if (problem) std::filesystem::copy_file(path, other, problem);
  if (problem) return catalog_io_failure(other, problem.value());
  return Unit{};
}

// Puts the new catalog of a salvage in its place; nothing where there is none. The old one's logs go first: beside another file
// they would be written into it.
Expected<Unit> finish_salvage(const std::string& path) {
  if (!std::filesystem::exists(saved_name(path))) return Unit{};
  for (const char* suffix : {"-wal", "-shm", "-journal"}) {
    if (::unlink((path + suffix).c_str()) != 0 && errno != ENOENT) return catalog_io_failure(path + suffix, errno);
  }
  if (auto synced = sync_folder_of(path); !synced) return synced;
  if (std::rename(saved_name(path).c_str(), path.c_str()) != 0) return catalog_io_failure(path, errno);
  return sync_folder_of(path);
}

// Puts what can be read of a damaged file into a new one in its place, and keeps the damaged one beside it. Whenever the
// process ends there is a catalog: the damaged one with its logs, or the new one.
Expected<Unit> salvage(const std::string& path, const std::string& reason) {
  const std::string fresh = path + ".new";
  for (const char* suffix : {"", "-wal"}) ::unlink((fresh + suffix).c_str());  // of a salvage that was cut off
  if (auto made = make_private_file(fresh); !made) return made;
  Saved saved;
  {
    auto to = Database::open(fresh);
    if (!to) return failure(fresh, to.error());
    if (auto ready = prepare(*to); !ready) return failure(fresh, ready.error());
    auto from = Database::open(path);
    if (!from) return failure(path, from.error());
    from->leave_log_on_close(true);
    // writable_schema: a file that is shorter than it should be is read all the same.
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
  // From here on the new file is the catalog, whether or not this process lives to put it there.
  if (std::rename(fresh.c_str(), saved_name(path).c_str()) != 0) return catalog_io_failure(fresh, errno);
  if (auto synced = sync_folder_of(path); !synced) return synced;
  if (auto finished = finish_salvage(path); !finished) return finished;
  log_warning(
      "catalog {} was damaged ({}) and is now {}; saved of it: {} sessions with {} turns, {} of them cut short, {} unreadable",
      path, reason, aside, saved.sessions, saved.turns, saved.cut_short, saved.unreadable);
  return Unit{};
}

}  // namespace

// --- Opening
// --------------------------------------------------------------------------------------------------------------------

SqliteCatalog::SqliteCatalog(std::string path, Database database)
    : path_(std::move(path)), name_(path_.substr(path_.rfind('/') + 1)), database_(std::move(database)), rows_(database_) {}

Expected<std::unique_ptr<SqliteCatalog>> SqliteCatalog::open(const std::string& path) {
  auto lock = take_lock(path);
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

// Takes sessions that make no sense out of a file that is sound otherwise: their rows go into a file beside it as they are,
// what could be read of them stays.
SqlExpected<Unit> SqliteCatalog::set_aside(std::span<const DamagedSession> damaged) {
  const std::string aside = unused_name(path_ + ".set-aside");
  if (const auto made = make_private_file(aside); !made) return std::unexpected(SqlError{SQLITE_IOERR, made.error().message});
  if (auto done = Statement(database_, "ATTACH ?1 AS aside").run(aside); !done) return done;
  auto done = database_.run("CREATE TEMP TABLE damaged (key INTEGER PRIMARY KEY)");
  Statement name(database_, "INSERT INTO damaged VALUES (?1)");
  for (const DamagedSession& session : damaged) {
    if (done) done = name.run(session.key);
  }
  if (done)
    done = database_.run("CREATE TABLE aside.sessions AS SELECT * FROM main.sessions WHERE key IN (SELECT key FROM damaged)");
  for (const char* table : {"turns", "messages", "token_blocks", "responses"}) {
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
    // Tables that do not fit each other: the file is not sound after all.
    return std::unexpected(SqlError{SQLITE_CORRUPT, done.error().message});
  }
  if (!done) return done;
  for (const DamagedSession& session : damaged) {
    if (session.record == nullptr) {
      log_warning("catalog {}: the session with key {} makes no sense and is gone; what was stored of it is in {}", path_,
                  session.key, aside);
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
// --------------------------------------------------------------------------------------------------------------------

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
  if (taken_.empty()) return false;
  // Nobody reads what is being changed, so readers need not wait for the disk to sync.
  for (Call& call : taken_) {
    if (auto* change = std::get_if<Change>(&call)) {
      changes_.push_back(std::move(*change));
    } else {
      auto& reading = std::get<Reading>(call);
      run_noting([&] { reading.on_read(contain([&] { return read_now(reading.id); })); });
    }
  }
  taken_.clear();
  if (changes_.empty()) return true;
  const SqlExpected<Unit> together = keep(changes_);
  std::optional<SqlError> problem;
  for (Change& change : changes_) {
    SqlExpected<Unit> kept = together;
    if (!together && changes_.size() > 1) kept = keep({&change, 1});
    if (!kept) problem = kept.error();
    run_noting([&] { change.done(kept ? Expected<Unit>() : failure(name_, kept.error())); });
  }
  changes_.clear();
  if (problem && !is_failing_) log_error("catalog {}", failure(path_, *problem).error().message);
  if (!problem && is_failing_) log_info("catalog {}: changes are kept again", path_);
  is_failing_ = problem.has_value();
  return true;
}

// Keeps all of the changes or none.
SqlExpected<Unit> SqliteCatalog::keep(std::span<Change> changes) {
  ++transactions_count_;
  auto done = database_.run("BEGIN IMMEDIATE");
  try {
    for (const Change& change : changes) {
      if (done) done = apply(change);
    }
  } catch (...) {
    note_thrown();
    done = std::unexpected(SqlError{SQLITE_INTERNAL, "the daemon failed at this change"});
  }
  if (done) done = database_.run("COMMIT");
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
    return failure(name_, SqlError{SQLITE_CORRUPT, std::format("session {} cannot be read", id.value)});
  }
  return std::move(stored->record);
}

}  // namespace uma::kv
