// RAII for SQLite: a connection and its statements, each used by one thread at a time. Used only inside kv, by SqliteCatalog
// and its parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

struct sqlite3;
struct sqlite3_stmt;

namespace uma::kv {

struct SqlError {
  int code = 0;  // SQLite's extended result code.
  std::string message;

  // The file is damaged, is no database, or has other tables than the statement expects.
  [[nodiscard]] bool is_damage() const;
  // A failure of the system to read or write.
  [[nodiscard]] bool is_io() const;
  [[nodiscard]] bool is_full() const;
  [[nodiscard]] bool is_busy() const;
};

template <class T>
using SqlExpected = std::expected<T, SqlError>;

class Database {
 public:
  // Opens or creates the file without reading it; the first statement detects a file that is no database.
  [[nodiscard]] static SqlExpected<Database> open(const std::string& path);

  // Runs statements separated by `;` and drops their rows.
  SqlExpected<Unit> run(const std::string& sql);
  // Ends an open transaction in any state.
  void roll_back();
  // Sets whether closing keeps the write-ahead log instead of writing it into the file.
  void leave_log_on_close(bool leaves);
  [[nodiscard]] std::int64_t rows_written() const;
  [[nodiscard]] sqlite3* handle() const { return handle_.get(); }

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  explicit Database(sqlite3* handle) : handle_(handle) {}

  std::unique_ptr<sqlite3, Close> handle_;
};

// Prepared at its first use and kept. The database outlives it.
//   statement.bind(a, b);  while (true) { auto row = statement.next(); if (!row || !*row) break; use(statement.integer(0)); }
class Statement {
 public:
  Statement(const Database& database, std::string sql) : database_(database.handle()), sql_(std::move(sql)) {}

  // Restarts the statement with these values for ?1, ?2 and so on. Texts and blobs are borrowed until the next bind() or run().
  // Supported: integers, doubles, std::string_view (null if its data() is null), blobs as span of bytes.
  template <class... Values>
  void bind(const Values&... values) {
    begin();
    int index = 0;
    (bind_one(++index, values), ...);
  }
  // Moves to the next row; returns false at the end.
  SqlExpected<bool> next();
  // Ends the statement and releases its read lock.
  void end();
  // Runs a statement without rows.
  template <class... Values>
  SqlExpected<Unit> run(const Values&... values) {
    bind(values...);
    return finish();
  }

  // --- The present row, until the next call. Columns count from 0.
  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] double real(int column) const;
  [[nodiscard]] std::string_view text(int column) const;
  [[nodiscard]] std::span<const std::byte> blob(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const;
  };
  void begin();
  SqlExpected<Unit> finish();
  void bind_one(int index, std::int64_t value);
  void bind_one(int index, std::int32_t value) { bind_one(index, std::int64_t{value}); }
  void bind_one(int index, double value);
  void bind_one(int index, std::string_view value);
  void bind_one(int index, std::span<const std::byte> value);
  void note(int code);

  sqlite3* database_;
  std::string sql_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  SqlError problem_;  // Error of preparing or binding; code 0: none.
};

// The first column of the first row; 0 without rows.
[[nodiscard]] SqlExpected<std::int64_t> read_integer(const Database& database, const std::string& sql);

}  // namespace uma::kv
