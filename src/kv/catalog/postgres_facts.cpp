#include "kv/catalog/postgres_facts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "kv/catalog/catalog_schema.h"
#include "kv/catalog/postgres.h"
#include "kv/catalog/postgres_schema.h"

namespace uma::kv {
namespace {

double in_seconds(auto duration) {
  return std::chrono::duration<double>(duration).count();
}

// Calls `use(statement)` for each row.
template <class Use>
SqlExpected<Unit> for_rows(PostgresConnection& connection, std::string sql, Use use) {
  Statement statement(connection, std::move(sql));
  statement.bind();
  auto row = statement.next();
  for (; row && *row; row = statement.next()) use(statement);
  statement.end();
  if (!row) return std::unexpected(row.error());
  return Unit{};
}

SqlExpected<Unit> read_server(PostgresConnection& connection, DatabaseFacts& facts) {
  // The least of the limits, each of which may be absent (-1).
  return for_rows(connection, R"sql(
    SELECT current_setting('server_version'), current_setting('server_version_num')::bigint, current_user::text,
           coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)::int::bigint,
           (to_regclass('uma_schema') IS NOT NULL)::int::bigint,
           (current_setting('fsync') = 'on')::int::bigint, current_setting('synchronous_standby_names'),
           least(current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint - all_count,
                 (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()) - database_count,
                 (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user) - user_count)::bigint
    FROM (SELECT count(*) AS all_count, count(*) FILTER (WHERE datname = current_database()) AS database_count,
                 count(*) FILTER (WHERE usename = current_user) AS user_count
          FROM pg_stat_activity WHERE backend_type = 'client backend' OR usename = current_user) AS used)sql",
                  [&](Statement& row) {
                    facts.version = row.text(0);
                    facts.version_number = row.integer(1);
                    facts.user = row.text(2);
                    facts.may_make_tables = row.integer(3) != 0;
                    if (row.integer(4) != 0) facts.sessions_schema = facts.shared_schema = 0;
                    facts.has_fsync = row.integer(5) != 0;
                    facts.synchronous_standbys = row.text(6);
                    facts.connections_left = row.integer(7);
                  });
}

SqlExpected<Unit> read_tables(PostgresConnection& connection, DatabaseFacts& facts) {
  facts.may_write = true;
  if (!facts.sessions_schema) return Unit{};
  auto done = for_rows(connection, "SELECT part, version FROM uma_schema", [&](Statement& row) {
    if (row.text(0) == "sessions") facts.sessions_schema = row.integer(1);
    if (row.text(0) == "shared") facts.shared_schema = row.integer(1);
  });
  if (done) {
    done = for_rows(connection, R"sql(
      SELECT (count(*) = 0)::int::bigint FROM pg_class
      WHERE oid IN (to_regclass('sessions'), to_regclass('messages'), to_regclass('daemons'))
        AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE')
                 AND has_table_privilege(oid, 'DELETE')))sql",
                    [&](Statement& row) { facts.may_write = row.integer(0) != 0; });
  }
  if (!done || facts.shared_schema == 0 || !facts.may_write) return done;
  // Also of tables of another version, which may lack columns.
  return for_rows(connection, R"sql(
    SELECT run, node, coalesce(to_jsonb(d)->>'version', ''), coalesce(to_jsonb(d)->>'models', ''),
           coalesce(to_jsonb(d)->>'incarnation', ''), coalesce(to_jsonb(d)->>'shared_states', ''),
           extract(epoch FROM lease_until - clock_timestamp())::float8
    FROM daemons d ORDER BY node, run)sql",
                  [&](Statement& row) {
                    facts.members.push_back({.run = row.integer(0),
                                             .node = std::string(row.text(1)),
                                             .version = std::string(row.text(2)),
                                             .models = std::string(row.text(3)),
                                             .incarnation = std::string(row.text(4)),
                                             .shared_states = std::string(row.text(5)),
                                             .lease_left_s = row.real(6)});
                  });
}

// The best of some answers is the one that came first.
SqlExpected<Unit> compare_clocks(PostgresConnection& connection, DatabaseFacts& facts) {
  constexpr int kAnswers = 5;
  facts.clock_error_s = 1e9;
  for (int i = 0; i < kAnswers; ++i) {
    const auto asked = std::chrono::steady_clock::now();
    const double asked_s = in_seconds(std::chrono::system_clock::now().time_since_epoch());
    double there_s = 0;
    auto done = for_rows(connection, "SELECT extract(epoch FROM clock_timestamp())::float8",
                         [&](Statement& row) { there_s = row.real(0); });
    if (!done) return done;
    const double took_s = in_seconds(std::chrono::steady_clock::now() - asked);
    if (took_s >= facts.clock_error_s) continue;
    facts.clock_error_s = took_s;
    facts.clock_ahead_s = there_s - (asked_s + took_s / 2);
  }
  return Unit{};
}

// A message in the log of transactions is the smallest change that a commit has to make durable.
void measure_commits(PostgresConnection& connection, DatabaseFacts& facts) {
  std::array<double, 9> times{};
  for (double& time : times) {
    const auto begin = std::chrono::steady_clock::now();
    if (!for_rows(connection, "SELECT pg_logical_emit_message(true, 'umad check', '')::text", [](Statement&) {})) return;
    time = 1000 * in_seconds(std::chrono::steady_clock::now() - begin);
  }
  std::ranges::sort(times);
  facts.commit_ms = times[times.size() / 2];
}

}  // namespace

SchemaVersions own_schema_versions() {
  return {.sessions = std::ssize(schema_steps()), .shared = shared_schema_version()};
}

SqlExpected<DatabaseFacts> read_database_facts(const std::string& address) {
  PostgresConnection connection(address);
  DatabaseFacts facts;
  auto done = connection.connect("umad check", {"statement_timeout=10s", "lock_timeout=5s", "synchronous_commit=on"});
  if (done) done = read_server(connection, facts);
  if (done) done = read_tables(connection, facts);
  if (done) done = compare_clocks(connection, facts);
  if (!done) return std::unexpected(done.error());
  measure_commits(connection, facts);
  return facts;
}

}  // namespace uma::kv
