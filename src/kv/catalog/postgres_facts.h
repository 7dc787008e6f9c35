// The facts of a PostgreSQL database about itself and about the daemons that share it, for `umad check`. Nothing is changed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/catalog/sql.h"

namespace uma::kv {

// A row of `daemons`: one run of a daemon.
struct DatabaseMember {
  std::int64_t run = 0;
  std::string node;
  std::string version;          // The version of umad; empty: it is older than this column.
  std::string models;           // PostgresCatalogOptions::models.
  std::string incarnation{};    // See run_identity.h.
  std::string shared_states{};  // PostgresCatalogOptions::shared_states; empty: it is older than this column.
  double lease_left_s = 0;      // Negative: it has ended.
};

struct DatabaseFacts {
  std::string version;                          // "15.8"
  std::int64_t version_number = 0;              // 150008
  std::string user;                             // The user of the connection.
  bool may_make_tables = false;                 // In the schema where the tables are, or would be.
  bool may_write = false;                       // Change the tables; true if there are none.
  std::optional<std::int64_t> sessions_schema;  // Versions of the tables; nullopt: there are none yet.
  std::optional<std::int64_t> shared_schema;
  bool has_fsync = true;
  std::string synchronous_standbys;   // synchronous_standby_names; empty: a commit waits for this server only.
  double clock_ahead_s = 0;           // How far the database's clock is ahead of this machine's.
  double clock_error_s = 0;           // The answer's time, by which clock_ahead_s may be wrong.
  std::optional<double> commit_ms;    // Median of some commits; nullopt: they could not be measured.
  std::int64_t connections_left = 0;  // Before the limit of the server, the database or the user is reached.
  std::vector<DatabaseMember> members;
};

// The versions that this umad makes.
struct SchemaVersions {
  std::int64_t sessions = 0;
  std::int64_t shared = 0;
};
[[nodiscard]] SchemaVersions own_schema_versions();

// Connects and asks; writes some empty messages to the server's log of transactions, to measure commits. Errors: of the
// database.
[[nodiscard]] SqlExpected<DatabaseFacts> read_database_facts(const std::string& address);

}  // namespace uma::kv
