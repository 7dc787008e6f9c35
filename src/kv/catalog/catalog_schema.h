// The tables of the catalog's file (docs/CATALOG.md), and the migration of older files.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kv/catalog/sqlite.h"

namespace uma::kv {

// Step i migrates a file of version i to version i + 1; a new file has version 0. A released step never changes.
[[nodiscard]] std::span<const std::string_view> schema_steps();

// The file's version (PRAGMA user_version).
[[nodiscard]] SqlExpected<std::int64_t> schema_version(Database& database);
// Executes the missing steps, each in one transaction. Requires: the file's version is at most steps.size().
[[nodiscard]] SqlExpected<Unit> migrate(Database& database, std::span<const std::string_view> steps);

}  // namespace uma::kv
