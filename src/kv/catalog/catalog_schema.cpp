#include "kv/catalog/catalog_schema.h"

#include <array>
#include <format>
#include <string>

namespace uma::kv {
namespace {

constexpr std::string_view kVersion1 = R"sql(
CREATE TABLE tenants (
  name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL REFERENCES tenants,
  name TEXT,
  model TEXT NOT NULL,
  mode INTEGER NOT NULL,
  turns_count INTEGER NOT NULL,
  tokens_count INTEGER NOT NULL,
  pending_tokens_count INTEGER NOT NULL,
  messages_count INTEGER NOT NULL,
  pending_messages_count INTEGER NOT NULL,
  ttl_s INTEGER NOT NULL,
  created_s INTEGER NOT NULL,
  last_used_s INTEGER NOT NULL,
  on_full INTEGER NOT NULL DEFAULT 0,
  n_keep INTEGER NOT NULL DEFAULT 0,
  is_public INTEGER NOT NULL DEFAULT 0,
  is_ephemeral INTEGER NOT NULL DEFAULT 0,
  UNIQUE (tenant, name)
) STRICT;

CREATE TABLE turns (
  session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
  number INTEGER NOT NULL,
  tokens_begin INTEGER NOT NULL,
  reply_begin INTEGER NOT NULL,
  messages_begin INTEGER NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
  session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
  number INTEGER NOT NULL,
  role TEXT NOT NULL,
  content TEXT NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE token_blocks (
  session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
  number INTEGER NOT NULL,
  tokens BLOB NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
)sql";

// Adds the number of turns dropped from a full context.
constexpr std::string_view kVersion2 = "ALTER TABLE sessions ADD COLUMN turns_dropped INTEGER NOT NULL DEFAULT 0";

// Adds responses, and the metadata of sessions.
constexpr std::string_view kVersion3 = R"sql(
ALTER TABLE sessions ADD COLUMN has_instructions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN is_of_responses INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN metadata TEXT NOT NULL DEFAULT '';

CREATE TABLE responses (
  session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
  turn INTEGER NOT NULL,
  id TEXT NOT NULL,
  request TEXT NOT NULL,
  created_s INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  reused_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  PRIMARY KEY (session, turn)
) STRICT, WITHOUT ROWID;
)sql";

// Adds the extra fields of messages, and the options of the chat template.
constexpr std::string_view kVersion4 = R"sql(
ALTER TABLE messages ADD COLUMN extra TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN tools TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN template_arguments TEXT NOT NULL DEFAULT ''
)sql";

// Adds the number of reasoning tokens of a response.
constexpr std::string_view kVersion5 = "ALTER TABLE responses ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0";

// Marks sessions with imported KV.
constexpr std::string_view kVersion6 = "ALTER TABLE sessions ADD COLUMN has_foreign_kv INTEGER NOT NULL DEFAULT 0";

// Adds what a session was forked from.
constexpr std::string_view kVersion7 = R"sql(
ALTER TABLE sessions ADD COLUMN parent_id TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN fork_turn INTEGER NOT NULL DEFAULT 0
)sql";

// Adds the receipts of turns. `number` is that of the turn.
constexpr std::string_view kVersion8 = R"sql(
CREATE TABLE receipts (
  session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
  number INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  reused_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  dropped_turns INTEGER NOT NULL,
  dropped_tokens INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  reuse_reason TEXT NOT NULL,
  restore_ms REAL,
  queue_ms REAL,
  ttft_ms REAL,
  tokens_per_s REAL,
  seed INTEGER NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
)sql";

// Adds stored_bytes() of a session, for lists that are read without the records.
constexpr std::string_view kVersion9 = "ALTER TABLE sessions ADD COLUMN bytes_stored INTEGER NOT NULL DEFAULT 0";

constexpr std::array kSteps{kVersion1, kVersion2, kVersion3, kVersion4, kVersion5, kVersion6, kVersion7, kVersion8, kVersion9};

}  // namespace

std::span<const std::string_view> schema_steps() {
  return kSteps;
}

SqlExpected<std::int64_t> schema_version(Database& database) {
  return read_integer(database, "PRAGMA user_version");
}

SqlExpected<Unit> migrate(Database& database, std::span<const std::string_view> steps) {
  const auto version = schema_version(database);
  if (!version) return std::unexpected(version.error());
  for (auto next = static_cast<std::size_t>(*version); next < steps.size(); ++next) {
    const auto done = database.run(std::format("BEGIN IMMEDIATE; {}; PRAGMA user_version = {}; COMMIT", steps[next], next + 1));
    if (!done) {
      database.roll_back();
      return done;
    }
  }
  return Unit{};
}

}  // namespace uma::kv
