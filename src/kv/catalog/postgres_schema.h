// The catalog's tables in PostgreSQL: those of catalog_schema.h, and what several daemons need to share them (docs/CLUSTER.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kv/catalog/sql.h"

namespace uma::kv {

// Makes the tables, or migrates them to this version, in one transaction. Several daemons may do it at once. Errors: of the
// database; SqlFault::other for tables of a later version.
[[nodiscard]] SqlExpected<Unit> migrate_postgres(SqlConnection& connection);

// The version of the tables that only several daemons need.
[[nodiscard]] std::int64_t shared_schema_version();

// A statement of SQLite's dialect in PostgreSQL's.
[[nodiscard]] std::string in_postgres(std::string_view step);

}  // namespace uma::kv
