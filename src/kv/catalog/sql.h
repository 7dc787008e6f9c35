// SQL databases as the catalog uses them: connections and their prepared statements, each used by one thread at a time. SQLite
// (sqlite.h) and PostgreSQL (postgres.h) implement them. Statements are written for both: `?1` is the first value, and every
// clause is one that both understand.
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

namespace uma::kv {

enum class SqlFault : std::uint8_t {
  other,
  damage,      // The file is damaged, is no database, or has other tables than the statement expects.
  io,          // The system failed to read or write.
  full,        // No space left.
  busy,        // Another process uses the file.
  lost,        // The connection is lost. Whether a transaction that was being committed is stored is unknown.
  refused,     // The database refuses the value, for example a name that exists.
  quota,       // The change exceeds a limit of its tenant.
  dangling,    // The change refers to a row that is not there.
  impossible,  // The value is not one that the catalog stores.
};

struct SqlError {
  SqlFault fault = SqlFault::other;
  std::string message;

  [[nodiscard]] bool is_damage() const { return fault == SqlFault::damage; }
  [[nodiscard]] bool is_io() const { return fault == SqlFault::io; }
  [[nodiscard]] bool is_full() const { return fault == SqlFault::full; }
  [[nodiscard]] bool is_busy() const { return fault == SqlFault::busy; }
  [[nodiscard]] bool is_lost() const { return fault == SqlFault::lost; }
};

template <class T>
using SqlExpected = std::expected<T, SqlError>;

// A statement of one kind of database; see Statement. Values are borrowed until the next begin().
class SqlCursor {
 public:
  virtual ~SqlCursor() = default;
  virtual void begin() = 0;
  virtual void bind(int index, std::int64_t value) = 0;
  virtual void bind(int index, double value) = 0;
  virtual void bind(int index, std::string_view value) = 0;
  virtual void bind(int index, std::span<const std::byte> value) = 0;
  virtual SqlExpected<bool> next() = 0;
  virtual SqlExpected<Unit> run() = 0;
  virtual void end() = 0;
  [[nodiscard]] virtual std::int64_t integer(int column) const = 0;
  [[nodiscard]] virtual double real(int column) const = 0;
  [[nodiscard]] virtual std::string_view text(int column) const = 0;
  [[nodiscard]] virtual std::span<const std::byte> blob(int column) const = 0;
};

class SqlConnection {
 public:
  virtual ~SqlConnection() = default;
  // The database checks the statement at its first use. The connection outlives the cursor.
  [[nodiscard]] virtual std::unique_ptr<SqlCursor> prepare(std::string sql) = 0;
  // Runs statements separated by `;` and drops their rows.
  virtual SqlExpected<Unit> run(const std::string& sql) = 0;
  // Begins a transaction that writes.
  virtual SqlExpected<Unit> begin() = 0;
  // Ends the transaction. Statements whose error was not reported yet report it here; then nothing is stored.
  virtual SqlExpected<Unit> commit() = 0;
  // Ends an open transaction in any state.
  virtual void roll_back() = 0;
};

// Prepared at its first use and kept. The connection outlives it.
//   statement.bind(a, b);  while (true) { auto row = statement.next(); if (!row || !*row) break; use(statement.integer(0)); }
class Statement {
 public:
  Statement(SqlConnection& connection, std::string sql) : cursor_(connection.prepare(std::move(sql))) {}

  // Restarts the statement with these values for ?1, ?2 and so on. Texts and blobs are borrowed until the next bind() or run().
  // Supported: integers, doubles, std::string_view (null if its data() is null), blobs as span of bytes.
  template <class... Values>
  void bind(const Values&... values) {
    cursor_->begin();
    int index = 0;
    (bind_one(++index, values), ...);
  }
  // Moves to the next row; returns false at the end.
  SqlExpected<bool> next() { return cursor_->next(); }
  // Ends the statement and releases its read lock.
  void end() { cursor_->end(); }
  // Runs a statement and drops its rows. Inside of a transaction a database may report its error later, at the next next() or
  // commit().
  template <class... Values>
  SqlExpected<Unit> run(const Values&... values) {
    bind(values...);
    return cursor_->run();
  }

  // --- The present row, until the next call. Columns count from 0.
  [[nodiscard]] std::int64_t integer(int column) const { return cursor_->integer(column); }
  [[nodiscard]] double real(int column) const { return cursor_->real(column); }
  [[nodiscard]] std::string_view text(int column) const { return cursor_->text(column); }
  [[nodiscard]] std::span<const std::byte> blob(int column) const { return cursor_->blob(column); }

 private:
  void bind_one(int index, std::int64_t value) { cursor_->bind(index, value); }
  void bind_one(int index, std::int32_t value) { cursor_->bind(index, std::int64_t{value}); }
  void bind_one(int index, double value) { cursor_->bind(index, value); }
  void bind_one(int index, std::string_view value) { cursor_->bind(index, value); }
  void bind_one(int index, std::span<const std::byte> value) { cursor_->bind(index, value); }

  std::unique_ptr<SqlCursor> cursor_;
};

// The first column of the first row; 0 without rows.
[[nodiscard]] SqlExpected<std::int64_t> read_integer(SqlConnection& connection, const std::string& sql);

}  // namespace uma::kv
