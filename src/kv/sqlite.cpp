#include "kv/sqlite.h"

#include <cstring>
#include <format>
#include <sqlite3.h>
#include <utility>

#include "base/check.h"

namespace uma::kv {
namespace {

int primary(int code) {
  return code & 0xff;
}

SqlError error_of(sqlite3* database, int code) {
  std::string message = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  SqlError error{code, std::move(message)};
  // SQLite does not always store the system's error.
  const int reason = error.is_io() && database != nullptr ? sqlite3_system_errno(database) : 0;
  if (reason != 0) error.message += std::format(" ({})", std::strerror(reason));
  return error;
}

}  // namespace

bool SqlError::is_damage() const {
  return primary(code) == SQLITE_CORRUPT || primary(code) == SQLITE_NOTADB || primary(code) == SQLITE_ERROR;
}

bool SqlError::is_io() const {
  return primary(code) == SQLITE_IOERR;
}

bool SqlError::is_full() const {
  return primary(code) == SQLITE_FULL;
}

bool SqlError::is_busy() const {
  return primary(code) == SQLITE_BUSY;
}

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

SqlExpected<Unit> Database::run(const std::string& sql) {
  const int code = sqlite3_exec(handle(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return std::unexpected(error_of(handle(), code));
  return Unit{};
}

void Database::roll_back() {
  // Some errors have ended the transaction already.
  if (sqlite3_get_autocommit(handle()) == 0) sqlite3_exec(handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Database::leave_log_on_close(bool leaves) {
  UMA_CHECK(sqlite3_db_config(handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leaves ? 1 : 0, nullptr) == SQLITE_OK);
}

std::int64_t Database::rows_written() const {
  return sqlite3_total_changes64(handle());
}

void Statement::Finalize::operator()(sqlite3_stmt* handle) const {
  sqlite3_finalize(handle);
}

void Statement::note(int code) {
  if (code != SQLITE_OK && problem_.code == 0) problem_ = error_of(database_, code);
}

void Statement::begin() {
  problem_ = {};
  if (handle_ != nullptr) {
    sqlite3_reset(handle_.get());
    return;
  }
  sqlite3_stmt* made = nullptr;
  note(sqlite3_prepare_v3(database_, sql_.c_str(), static_cast<int>(sql_.size()), SQLITE_PREPARE_PERSISTENT, &made, nullptr));
  handle_.reset(made);
}

void Statement::bind_one(int index, std::int64_t value) {
  if (handle_ != nullptr) note(sqlite3_bind_int64(handle_.get(), index, value));
}

void Statement::bind_one(int index, double value) {
  if (handle_ != nullptr) note(sqlite3_bind_double(handle_.get(), index, value));
}

void Statement::bind_one(int index, std::string_view value) {
  if (handle_ != nullptr)
    note(sqlite3_bind_text64(handle_.get(), index, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8));
}

void Statement::bind_one(int index, std::span<const std::byte> value) {
  if (handle_ != nullptr) note(sqlite3_bind_blob64(handle_.get(), index, value.data(), value.size(), SQLITE_STATIC));
}

SqlExpected<bool> Statement::next() {
  if (problem_.code != 0) return std::unexpected(problem_);
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

void Statement::end() {
  if (handle_ != nullptr) sqlite3_reset(handle_.get());
}

SqlExpected<Unit> Statement::finish() {
  auto row = next();
  while (row && *row) row = next();
  if (!row) return std::unexpected(std::move(row.error()));
  return Unit{};
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_.get(), column);
}

double Statement::real(int column) const {
  return sqlite3_column_double(handle_.get(), column);
}

std::string_view Statement::text(int column) const {
  // SQLite stores the value as UTF-8 bytes.
  const void* bytes = sqlite3_column_blob(handle_.get(), column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column));
  return bytes == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(bytes), size);
}

std::span<const std::byte> Statement::blob(int column) const {
  const void* bytes = sqlite3_column_blob(handle_.get(), column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column));
  return {static_cast<const std::byte*>(bytes), bytes == nullptr ? 0 : size};
}

SqlExpected<std::int64_t> read_integer(const Database& database, const std::string& sql) {
  Statement statement(database, sql);
  statement.bind();
  const auto row = statement.next();
  if (!row) return std::unexpected(row.error());
  return *row ? statement.integer(0) : 0;
}

}  // namespace uma::kv
