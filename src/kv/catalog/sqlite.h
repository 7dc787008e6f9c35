// RAII for a connection to an SQLite file. Used only inside kv, by SqliteCatalog and its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kv/catalog/sql.h"

struct sqlite3;

namespace uma::kv {

class Database final : public SqlConnection {
 public:
  // Opens or creates the file without reading it; the first statement detects a file that is no database.
  [[nodiscard]] static SqlExpected<Database> open(const std::string& path);

  [[nodiscard]] std::unique_ptr<SqlCursor> prepare(std::string sql) override;
  SqlExpected<Unit> run(const std::string& sql) override;
  SqlExpected<Unit> begin() override { return run("BEGIN IMMEDIATE"); }
  SqlExpected<Unit> commit() override { return run("COMMIT"); }
  void roll_back() override;
  // Sets whether closing keeps the write-ahead log instead of writing it into the file.
  void leave_log_on_close(bool leaves);
  [[nodiscard]] std::int64_t rows_written() const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  explicit Database(sqlite3* handle) : handle_(handle) {}

  std::unique_ptr<sqlite3, Close> handle_;
};

}  // namespace uma::kv
