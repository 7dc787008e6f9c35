#include "kv/catalog/sqlite.h"

#include <cstring>
#include <format>
#include <span>
#include <sqlite3.h>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace uma::kv {
namespace {

SqlFault fault_of(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:
      return SqlFault::damage;
    case SQLITE_IOERR:
      return SqlFault::io;
    case SQLITE_FULL:
      return SqlFault::full;
    case SQLITE_BUSY:
      return SqlFault::busy;
    case SQLITE_CONSTRAINT:
      return SqlFault::refused;
    default:
      return SqlFault::other;
  }
}

SqlError error_of(sqlite3* database, int code) {
  SqlError error{fault_of(code), database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code)};
  // SQLite does not always store the system's error.
  const int reason = error.is_io() && database != nullptr ? sqlite3_system_errno(database) : 0;
  if (reason != 0) error.message += std::format(" ({})", std::strerror(reason));
  return error;
}

class SqliteCursor final : public SqlCursor {
 public:
  SqliteCursor(sqlite3* database, std::string sql) : database_(database), sql_(std::move(sql)) {}

  void begin() override {
    problem_ = SQLITE_OK;
    if (handle_ != nullptr) {
      sqlite3_reset(handle_.get());
      return;
    }
    sqlite3_stmt* made = nullptr;
    note(sqlite3_prepare_v3(database_, sql_.c_str(), static_cast<int>(sql_.size()), SQLITE_PREPARE_PERSISTENT, &made, nullptr));
    handle_.reset(made);
  }
  void bind(int index, std::int64_t value) override {
    if (handle_ != nullptr) note(sqlite3_bind_int64(handle_.get(), index, value));
  }
  void bind(int index, double value) override {
    if (handle_ != nullptr) note(sqlite3_bind_double(handle_.get(), index, value));
  }
  void bind(int index, std::string_view value) override {
    if (handle_ != nullptr) {
      note(sqlite3_bind_text64(handle_.get(), index, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8));
    }
  }
  void bind(int index, std::span<const std::byte> value) override {
    if (handle_ != nullptr) note(sqlite3_bind_blob64(handle_.get(), index, value.data(), value.size(), SQLITE_STATIC));
  }
  SqlExpected<bool> next() override {
    if (problem_ != SQLITE_OK) return std::unexpected(problem_error_);
    const int code = sqlite3_step(handle_.get());
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) {
      sqlite3_reset(handle_.get());  // Otherwise it would keep its read transaction.
      return false;
    }
    SqlError error = error_of(database_, code);
    sqlite3_reset(handle_.get());
    return std::unexpected(std::move(error));
  }
  SqlExpected<Unit> run() override {
    auto row = next();
    while (row && *row) row = next();
    if (!row) return std::unexpected(std::move(row.error()));
    return Unit{};
  }
  void end() override {
    if (handle_ != nullptr) sqlite3_reset(handle_.get());
  }
  [[nodiscard]] std::int64_t integer(int column) const override { return sqlite3_column_int64(handle_.get(), column); }
  [[nodiscard]] double real(int column) const override { return sqlite3_column_double(handle_.get(), column); }
  [[nodiscard]] std::string_view text(int column) const override {
    const std::span<const std::byte> bytes = blob(column);  // SQLite stores the value as UTF-8 bytes.
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::span<const std::byte> blob(int column) const override {
    const void* bytes = sqlite3_column_blob(handle_.get(), column);
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column));
    return {static_cast<const std::byte*>(bytes), bytes == nullptr ? 0 : size};
  }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  void note(int code) {
    if (code == SQLITE_OK || problem_ != SQLITE_OK) return;
    problem_ = code;
    problem_error_ = error_of(database_, code);
  }

  sqlite3* database_;
  std::string sql_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  int problem_ = SQLITE_OK;  // First problem of preparing or binding.
  SqlError problem_error_;
};

}  // namespace

SqlExpected<Database> Database::open(const std::string& path) {
  sqlite3* handle = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(handle);
  if (code != SQLITE_OK) return std::unexpected(error_of(handle, code));
  sqlite3_extended_result_codes(handle, 1);
  return database;
}

void Database::Close::operator()(sqlite3* handle) const {
  // An open statement would keep the file open and locked.
  UMA_CHECK(sqlite3_close(handle) == SQLITE_OK);
}

std::unique_ptr<SqlCursor> Database::prepare(std::string sql) {
  return std::make_unique<SqliteCursor>(handle_.get(), std::move(sql));
}

SqlExpected<Unit> Database::run(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return std::unexpected(error_of(handle_.get(), code));
  return Unit{};
}

void Database::roll_back() {
  // Some errors have ended the transaction already.
  if (sqlite3_get_autocommit(handle_.get()) == 0) sqlite3_exec(handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Database::leave_log_on_close(bool leaves) {
  UMA_CHECK(sqlite3_db_config(handle_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leaves ? 1 : 0, nullptr) == SQLITE_OK);
}

std::int64_t Database::rows_written() const {
  return sqlite3_total_changes64(handle_.get());
}

}  // namespace uma::kv
