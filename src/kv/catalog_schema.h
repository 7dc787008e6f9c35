// The tables of the catalog's file (docs/CATALOG.md) and how a file of an older version becomes one of this.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kv/sqlite.h"

namespace uma::kv {

// Step i makes a file of version i one of version i + 1; a new file has version 0. A step that has been released never changes.
[[nodiscard]] std::span<const std::string_view> schema_steps();

// The file's version (PRAGMA user_version).
[[nodiscard]] SqlExpected<std::int64_t> schema_version(const Database& database);
// Takes the steps that are missing, each in one transaction. REQUIRES: the file's version is at most steps.size().
[[nodiscard]] SqlExpected<Unit> migrate(Database& database, std::span<const std::string_view> steps);

}  // namespace uma::kv
