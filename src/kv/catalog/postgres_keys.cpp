#include "kv/catalog/postgres_keys.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <map>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "kv/catalog/postgres_schema.h"

namespace uma::kv {
namespace {

constexpr Duration kKeysConnectEvery = std::chrono::seconds(1);

// The lines of keys by the keys' names, without comments.
std::map<std::string, std::string> key_lines_of(std::string_view text) {
  std::map<std::string, std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    constexpr std::string_view kBlank = " \t\r";
    const std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) continue;
    line = line.substr(begin, line.find_last_not_of(kBlank) + 1 - begin);
    lines.insert_or_assign(std::string(line.substr(0, line.find_first_of(kBlank))), std::string(line));
  }
  return lines;
}

// The database's words are for the log: they may name hosts and users.
Error keys_failure(const SqlError& error) {
  log_error("keys    the database: {}", error.message);
  return {ErrorCode::io_failed, error.is_lost() || error.is_io()
                                    ? "the database of the keys cannot be reached: the keys that are known stay in effect, "
                                      "and changes are possible when it is back"
                                    : "the database of the keys refuses the change: the daemon's log says why"};
}

}  // namespace

PostgresKeys::PostgresKeys(std::string address, const std::string& node, const Clock& clock)
    : clock_(clock),
      application_(std::format("umad {} keys", node)),
      connection_(std::move(address)),
      get_version_(connection_, "SELECT version FROM api_keys_version"),
      // Until the transaction ends, no other one gets here.
      raise_version_(connection_, "UPDATE api_keys_version SET version = version + 1 RETURNING version"),
      get_lines_(connection_, "SELECT line FROM api_keys ORDER BY created, name"),
      put_line_(connection_,
                "INSERT INTO api_keys (name, line) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET line = excluded.line"),
      remove_line_(connection_, "DELETE FROM api_keys WHERE name = ?1") {}

Expected<std::unique_ptr<PostgresKeys>> PostgresKeys::open(std::string address, const std::string& node, const Clock& clock) {
  const std::string shown = shown_address(address);
  std::unique_ptr<PostgresKeys> keys(new PostgresKeys(std::move(address), node, clock));
  auto done = keys->connect();
  if (done) done = migrate_postgres(keys->connection_);
  if (!done) return fail(ErrorCode::io_failed, std::format("{}: {}", shown, done.error().message));
  return keys;
}

// Connects at most once a second.
SqlExpected<Unit> PostgresKeys::connect() {
  const TimePoint now = clock_.now();
  if (now < next_connect_) return std::unexpected(SqlError{SqlFault::lost, "no connection to the database"});
  next_connect_ = now + kKeysConnectEvery;
  return connection_.connect(application_, {"client_min_messages=warning", "statement_timeout=15s", "lock_timeout=5s",
                                            "idle_in_transaction_session_timeout=30s", "synchronous_commit=on"});
}

Expected<std::optional<std::string>> PostgresKeys::read_changes() {
  // Errors come again and again while the database is away: the caller logs the first.
  const auto unreadable = [](const SqlError& error) {
    return fail(ErrorCode::io_failed, std::format("the database of the keys: {}", error.message));
  };
  if (connection_.is_lost()) {
    // The database may be another one, which took over.
    seen_ = -1;
    if (auto done = connect(); !done) return unreadable(done.error());
  }
  get_version_.bind();
  const auto row = get_version_.next();
  if (!row) return unreadable(row.error());
  const std::int64_t version = *row ? get_version_.integer(0) : 0;
  get_version_.end();
  if (version == seen_) return std::nullopt;
  // A change between the two statements has a later version, and is read again.
  auto text = read_text();
  if (!text) return unreadable(text.error());
  seen_ = version;
  return std::move(*text);
}

SqlExpected<std::string> PostgresKeys::read_text() {
  std::string text;
  get_lines_.bind();
  auto row = get_lines_.next();
  for (; row && *row; row = get_lines_.next()) text += std::format("{}\n", get_lines_.text(0));
  get_lines_.end();
  if (!row) return std::unexpected(row.error());
  return text;
}

SqlExpected<Unit> PostgresKeys::write_text(const std::string& before, const std::string& after) {
  const auto old = key_lines_of(before);
  const auto now = key_lines_of(after);
  for (const auto& [name, line] : old) {
    if (now.contains(name)) continue;
    if (auto done = remove_line_.run(name); !done) return done;
  }
  for (const auto& [name, line] : now) {
    const auto known = old.find(name);
    if (known != old.end() && known->second == line) continue;
    if (auto done = put_line_.run(name, line); !done) return done;
  }
  return Unit{};
}

// Begins the transaction of a change. Returns the version that it makes.
SqlExpected<std::int64_t> PostgresKeys::lock_version() {
  if (auto done = connection_.begin(); !done) return std::unexpected(done.error());
  raise_version_.bind();
  const auto row = raise_version_.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t version = *row ? raise_version_.integer(0) : 0;
  raise_version_.end();
  if (version == 0) return std::unexpected(SqlError{SqlFault::other, "the table api_keys_version has no row"});
  return version;
}

// Runs `work`, which gets the new version and returns the new text for the old one; nullopt: nothing changes. Returns whether
// something was stored.
template <class Work>
Expected<bool> PostgresKeys::in_transaction(Work&& work) {
  if (connection_.is_lost()) {
    seen_ = -1;
    if (auto done = connect(); !done) return std::unexpected(keys_failure(done.error()));
  }
  const auto version = lock_version();
  const auto before = version ? read_text() : SqlExpected<std::string>(std::unexpected(version.error()));
  if (!before) {
    connection_.roll_back();
    return std::unexpected(keys_failure(before.error()));
  }
  Expected<std::optional<std::string>> after = contain([&] { return work(*version, *before); });
  if (!after || !*after) {
    connection_.roll_back();
    if (!after) return std::unexpected(after.error());
    return false;
  }
  if (auto written = write_text(*before, **after); !written) {
    connection_.roll_back();
    return std::unexpected(keys_failure(written.error()));
  }
  const auto done = connection_.commit();
  if (done) return true;
  connection_.roll_back();
  if (!done.error().is_lost()) return std::unexpected(keys_failure(done.error()));
  log_error("keys    the database: {}", done.error().message);
  return fail(
      ErrorCode::outcome_unknown,
      "the database was lost while the change was being stored, and whether it is stored is unknown: read the list of keys "
      "before you try again");
}

Expected<Unit> PostgresKeys::edit(const TextEdit& edit) {
  const auto done =
      in_transaction([&](std::int64_t /*version*/, const std::string& before) -> Expected<std::optional<std::string>> {
        return edit(before);
      });
  if (!done) return std::unexpected(done.error());
  return Unit{};
}

Expected<bool> PostgresKeys::begin_with(const std::string& text) {
  return in_transaction([&](std::int64_t version, const std::string& before) -> Expected<std::optional<std::string>> {
    if (version > 1 || !before.empty()) return std::nullopt;
    return text;
  });
}

}  // namespace uma::kv
