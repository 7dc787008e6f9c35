#include "kv/postgres_schema.h"

#include <array>
#include <format>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/catalog_schema.h"

namespace uma::kv {
namespace {

// Adds owners: a session belongs to one run of a daemon. `fence` counts its owners; a commit names the count under which it was
// made. A daemon's row lives as long as it renews its lease. `changed` is the transaction that changed the session last.
constexpr std::string_view kShared1 = R"sql(
CREATE SEQUENCE uma_runs;
CREATE TABLE daemons (
  run BIGINT PRIMARY KEY,
  node TEXT NOT NULL,
  address TEXT NOT NULL,
  lease_until TIMESTAMPTZ NOT NULL
);
ALTER TABLE sessions ADD COLUMN owner BIGINT;
ALTER TABLE sessions ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN is_wanted BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE sessions ADD COLUMN changed BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sessions_by_change ON sessions (changed);
CREATE INDEX sessions_wanted ON sessions (owner) WHERE is_wanted;
CREATE TABLE ended_sessions (
  id TEXT PRIMARY KEY,
  changed BIGINT NOT NULL,
  ended TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX ended_sessions_by_change ON ended_sessions (changed);

CREATE FUNCTION uma_note_change() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF TG_OP = 'INSERT' THEN
    NEW.owner := current_setting('uma.run')::bigint;
    NEW.fence := 1;
  END IF;
  NEW.changed := pg_current_xact_id()::text::bigint;
  RETURN NEW;
END $body$;
CREATE TRIGGER uma_note_change BEFORE INSERT OR UPDATE ON sessions FOR EACH ROW EXECUTE FUNCTION uma_note_change();

CREATE FUNCTION uma_note_end() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  INSERT INTO ended_sessions (id, changed) VALUES (OLD.id, pg_current_xact_id()::text::bigint)
  ON CONFLICT (id) DO UPDATE SET changed = excluded.changed, ended = excluded.ended;
  RETURN OLD;
END $body$;
CREATE TRIGGER uma_note_end AFTER DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION uma_note_end();
)sql";

// Adds who a session is kept for: the run that asked for it first gets it when it is given up, unless it does not take it in
// time.
constexpr std::string_view kShared2 = R"sql(
ALTER TABLE sessions ADD COLUMN wanted_by BIGINT;
ALTER TABLE sessions ADD COLUMN kept_until TIMESTAMPTZ;
)sql";

// What a run tells the others about itself (PostgresCatalogOptions).
constexpr std::string_view kShared3 = R"sql(
ALTER TABLE daemons ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE daemons ADD COLUMN models TEXT NOT NULL DEFAULT '';
)sql";

// Adds a run's random number, by which the next run in its data folder knows it (run_identity.h), and where it shares states.
constexpr std::string_view kShared4 = R"sql(
ALTER TABLE daemons ADD COLUMN incarnation TEXT NOT NULL DEFAULT '';
ALTER TABLE daemons ADD COLUMN shared_states TEXT NOT NULL DEFAULT '';
)sql";

constexpr std::array kSharedSteps{kShared1, kShared2, kShared3, kShared4};

// Adds API keys: lines of a keys file, which have hashes and no keys. `version` counts the changes.
constexpr std::string_view kKeys1 = R"sql(
CREATE TABLE api_keys (
  name TEXT PRIMARY KEY,
  line TEXT NOT NULL,
  created TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE api_keys_version (version BIGINT NOT NULL);
INSERT INTO api_keys_version VALUES (0);

CREATE FUNCTION uma_note_keys() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  UPDATE api_keys_version SET version = version + 1;
  RETURN NULL;
END $body$;
CREATE TRIGGER uma_note_keys AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON api_keys EXECUTE FUNCTION uma_note_keys();
)sql";

constexpr std::array kKeysSteps{kKeys1};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

SqlExpected<Unit> apply(SqlConnection& connection, std::string_view part, std::span<const std::string> steps) {
  Statement add(connection, "INSERT INTO uma_schema VALUES (?1, 0) ON CONFLICT DO NOTHING");
  if (auto done = add.run(part); !done) return done;
  Statement get(connection, "SELECT version FROM uma_schema WHERE part = ?1");
  get.bind(part);
  const auto row = get.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t version = get.integer(0);
  get.end();
  if (version > std::ssize(steps)) {
    return std::unexpected(
        SqlError{SqlFault::other, std::format("the database has version {} of {}, but this umad supports versions up to {}: "
                                              "start the umad that made it",
                                              version, part, steps.size())});
  }
  for (auto next = static_cast<std::size_t>(version); next < steps.size(); ++next) {
    if (auto done = connection.run(steps[next]); !done) return done;
  }
  Statement set(connection, "UPDATE uma_schema SET version = ?2 WHERE part = ?1");
  return set.run(part, std::ssize(steps));
}

}  // namespace

std::string in_postgres(std::string_view step) {
  std::string text(step);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWords{{
      {"INTEGER PRIMARY KEY", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"},
      {" INTEGER", " BIGINT"},
      {" BLOB", " BYTEA"},
      {" REAL", " DOUBLE PRECISION"},
      {" STRICT, WITHOUT ROWID", ""},
      {" STRICT", ""},
  }};
  for (const auto& [from, to] : kWords) replace_all(text, from, to);
  return text;
}

std::int64_t shared_schema_version() {
  return std::ssize(kSharedSteps);
}

SqlExpected<Unit> migrate_postgres(SqlConnection& connection) {
  auto done = connection.run(
      "BEGIN; SELECT pg_advisory_xact_lock(7234172911); "
      "CREATE TABLE IF NOT EXISTS uma_schema (part TEXT PRIMARY KEY, version BIGINT NOT NULL)");
  std::vector<std::string> sessions;
  for (const std::string_view step : schema_steps()) sessions.push_back(in_postgres(step));
  const std::vector<std::string> shared(kSharedSteps.begin(), kSharedSteps.end());
  if (done) done = apply(connection, "sessions", sessions);
  const std::vector<std::string> keys(kKeysSteps.begin(), kKeysSteps.end());
  if (done) done = apply(connection, "shared", shared);
  if (done) done = apply(connection, "keys", keys);
  return done ? connection.run("COMMIT") : done;
}

}  // namespace uma::kv
