#include "kv/catalog/postgres.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <format>
#include <libpq-fe.h>
#include <optional>
#include <poll.h>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace uma::kv {
namespace {

// Numbers of types (pg_type.dat).
constexpr Oid kBytes = 17;
constexpr Oid kInteger = 20;
constexpr Oid kText = 25;
constexpr Oid kReal = 701;
constexpr int kBinary = 1;

SqlFault fault_of(std::string_view state) {
  if (state == "53100" || state == "53200") return SqlFault::full;
  if (state == "23502" || state == "23503") return SqlFault::dangling;  // A null in place of a key, and a foreign key.
  if (state.starts_with("23")) return SqlFault::refused;
  if (state.starts_with("40") || state == "55P03") return SqlFault::busy;
  if (state.starts_with("XX")) return SqlFault::damage;
  if (state.starts_with("58")) return SqlFault::io;
  return SqlFault::other;
}

std::string one_line(const char* message) {
  std::string line = message == nullptr ? "" : message;
  while (!line.empty() && line.back() == '\n') line.pop_back();
  std::ranges::replace(line, '\n', ' ');
  return line;
}

// Null, and a value of another size, are 0.
template <class T>
T from_big_endian(std::string_view bytes) {
  T value{};
  if (bytes.size() != sizeof(value)) return value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return std::endian::native == std::endian::little ? std::byteswap(value) : value;
}

}  // namespace

// --- The connection

void PostgresConnection::Finish::operator()(pg_conn* handle) const {
  PQfinish(handle);
}

void PostgresConnection::Clear::operator()(pg_result* result) const {
  PQclear(result);
}

PostgresConnection::PostgresConnection(std::string address) : address_(std::move(address)) {}

PostgresConnection::~PostgresConnection() = default;

SqlError PostgresConnection::lose(std::string message) {
  is_lost_ = true;
  is_in_transaction_ = false;
  queued_ = 0;
  return {SqlFault::lost, std::move(message)};
}

void PostgresConnection::disconnect() {
  handle_.reset();
  (void)lose("");
}

SqlExpected<Unit> PostgresConnection::connect(std::string_view application, const std::vector<std::string>& settings) {
  disconnect();
  if (is_cancelled_) return std::unexpected(lose("the daemon stops"));
  const std::string name(application);
  std::string options;
  for (const std::string& setting : settings) options += std::format("-c {} ", setting);
  // The address's settings come later and win.
  const std::array<const char*, 11> keys{"connect_timeout",
                                         "keepalives_idle",
                                         "keepalives_interval",
                                         "keepalives_count",
                                         "tcp_user_timeout",
                                         "client_encoding",
                                         "target_session_attrs",
                                         "options",
                                         "fallback_application_name",
                                         "dbname",
                                         nullptr};
  const std::array<const char*, 11> values{
      "5", "5", "2", "3", "10000", "UTF8", "read-write", options.c_str(), name.c_str(), address_.c_str(), nullptr};
  handle_.reset(PQconnectdbParams(keys.data(), values.data(), 1));
  if (handle_ == nullptr || PQstatus(handle_.get()) != CONNECTION_OK) {
    std::string reason = handle_ == nullptr ? "out of memory" : one_line(PQerrorMessage(handle_.get()));
    disconnect();
    return std::unexpected(lose(std::move(reason)));
  }
  ++generation_;
  must_deallocate_ = false;
  is_lost_ = false;
  if (PQsetnonblocking(handle_.get(), 1) != 0 || PQenterPipelineMode(handle_.get()) != 1) {
    std::string reason = one_line(PQerrorMessage(handle_.get()));
    disconnect();
    return std::unexpected(lose(std::move(reason)));
  }
  return Unit{};
}

SqlExpected<Unit> PostgresConnection::wait_for(short events) {
  constexpr int kCancelledWithinMs = 100;
  pollfd descriptor{.fd = PQsocket(handle_.get()), .events = events, .revents = 0};
  const auto deadline = std::chrono::steady_clock::now() + kAnswerWithin;
  while (std::chrono::steady_clock::now() < deadline) {
    if (is_cancelled_) return std::unexpected(lose("the daemon stops"));
    if (::poll(&descriptor, 1, kCancelledWithinMs) > 0) return Unit{};
  }
  return std::unexpected(lose(std::format("the database has not answered for {}", kAnswerWithin)));
}

void PostgresConnection::wait_unasked(int wake, Duration limit) {
  std::array<pollfd, 2> descriptors{pollfd{.fd = wake, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = is_lost_ ? -1 : PQsocket(handle_.get()), .events = POLLIN, .revents = 0}};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(limit, Duration()));
  (void)::poll(descriptors.data(), descriptors.size(), static_cast<int>(ms.count()));
}

bool PostgresConnection::take_notifications() {
  if (is_lost_) return false;
  if (PQconsumeInput(handle_.get()) != 1) (void)lose(one_line(PQerrorMessage(handle_.get())));
  bool has_come = false;
  while (PGnotify* notification = PQnotifies(handle_.get())) {
    PQfreemem(notification);
    has_come = true;
  }
  return has_come;
}

SqlExpected<PostgresConnection::Result> PostgresConnection::next_result() {
  while (true) {
    const int unsent = PQflush(handle_.get());
    if (unsent < 0) return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
    if (unsent == 0 && PQisBusy(handle_.get()) == 0) return Result(PQgetResult(handle_.get()));
    if (auto waited = wait_for(static_cast<short>(unsent == 0 ? POLLIN : POLLIN | POLLOUT)); !waited) {
      return std::unexpected(waited.error());
    }
    if (PQconsumeInput(handle_.get()) != 1) return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
  }
}

SqlExpected<PostgresConnection::Result> PostgresConnection::collect() {
  if (is_lost_) return std::unexpected(lose("the connection is lost"));
  if (PQpipelineSync(handle_.get()) != 1) return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
  Result last;
  std::optional<SqlError> problem;
  for (; queued_ > 0; --queued_) {
    while (true) {
      auto result = next_result();
      if (!result) return result;
      if (*result == nullptr) break;  // The end of this statement.
      const ExecStatusType status = PQresultStatus(result->get());
      if (status == PGRES_FATAL_ERROR && !problem) {
        const char* state = PQresultErrorField(result->get(), PG_DIAG_SQLSTATE);
        if (PQstatus(handle_.get()) == CONNECTION_BAD)
          return std::unexpected(lose(one_line(PQresultErrorMessage(result->get()))));
        // A server that became a standby: another connection may lead to the new primary.
        if (state != nullptr && std::string_view(state) == "25006") return std::unexpected(lose("the server is read-only"));
        problem = SqlError{fault_of(state == nullptr ? "" : state),
                           one_line(PQresultErrorField(result->get(), PG_DIAG_MESSAGE_PRIMARY))};
      }
      last = std::move(*result);
    }
    if (PQstatus(handle_.get()) == CONNECTION_BAD) return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
  }
  auto end = next_result();
  if (!end) return end;
  if (PQresultStatus(end->get()) != PGRES_PIPELINE_SYNC) {
    return std::unexpected(
        lose(std::format("the database's answers are out of order: {}", one_line(PQerrorMessage(handle_.get())))));
  }
  if (!problem) return last;
  // Statements behind the error were skipped, prepared ones too.
  ++generation_;
  must_deallocate_ = true;
  return std::unexpected(std::move(*problem));
}

void PostgresConnection::queue(const char* sql) {
  if (is_lost_) return;
  if (PQsendQueryParams(handle_.get(), sql, 0, nullptr, nullptr, nullptr, nullptr, kBinary) == 1) {
    ++queued_;
  } else {
    (void)lose(one_line(PQerrorMessage(handle_.get())));
  }
}

SqlExpected<Unit> PostgresConnection::run(const std::string& sql) {
  if (is_lost_) return std::unexpected(lose("the connection is lost"));
  UMA_CHECK(queued_ == 0);
  // Several statements in one text are only possible outside of pipeline mode.
  if (PQexitPipelineMode(handle_.get()) != 1 || PQsendQuery(handle_.get(), sql.c_str()) != 1) {
    return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
  }
  SqlExpected<Unit> outcome;
  while (true) {
    auto result = next_result();
    if (!result) return std::unexpected(result.error());
    if (*result == nullptr) break;
    if (PQresultStatus(result->get()) != PGRES_FATAL_ERROR) continue;
    const char* state = PQresultErrorField(result->get(), PG_DIAG_SQLSTATE);
    outcome = std::unexpected(SqlError{fault_of(state == nullptr ? "" : state),
                                       one_line(PQresultErrorField(result->get(), PG_DIAG_MESSAGE_PRIMARY))});
  }
  if (PQstatus(handle_.get()) == CONNECTION_BAD || PQenterPipelineMode(handle_.get()) != 1) {
    return std::unexpected(lose(one_line(PQerrorMessage(handle_.get()))));
  }
  return outcome;
}

SqlExpected<Unit> PostgresConnection::begin() {
  UMA_CHECK(!is_in_transaction_);
  queue("BEGIN");
  if (is_lost_) return std::unexpected(lose("the connection is lost"));
  is_in_transaction_ = true;
  return Unit{};
}

SqlExpected<Unit> PostgresConnection::commit() {
  queue("COMMIT");
  auto done = collect();
  if (!done) return std::unexpected(done.error());
  is_in_transaction_ = false;
  // A transaction that has failed before ends with ROLLBACK here.
  if (std::string_view(PQcmdStatus(done->get())) != "COMMIT") {
    return std::unexpected(SqlError{SqlFault::other, "the transaction had failed"});
  }
  return Unit{};
}

void PostgresConnection::roll_back() {
  if (!is_in_transaction_ || is_lost_) return;
  // Whatever fails is undone with the rest, and collect() itself notes a lost connection.
  if (queued_ > 0) std::ignore = collect();
  queue("ROLLBACK");
  if (std::exchange(must_deallocate_, false)) {
    queue("DEALLOCATE ALL");
    ++generation_;
  }
  std::ignore = collect();
  is_in_transaction_ = false;
}

// --- Statements

class PostgresCursor final : public SqlCursor {
 public:
  PostgresCursor(PostgresConnection& connection, std::string name, std::string sql)
      : connection_(connection), name_(std::move(name)), sql_(std::move(sql)) {
    std::ranges::replace(sql_, '?', '$');
  }

  void begin() override {
    values_.clear();
    written_.clear();
    read_.clear();
    rows_.reset();
    row_ = -1;
  }
  void bind(int index, std::int64_t value) override { keep_number(index, kInteger, static_cast<std::uint64_t>(value)); }
  void bind(int index, double value) override { keep_number(index, kReal, std::bit_cast<std::uint64_t>(value)); }
  void bind(int /*index*/, std::string_view value) override {
    if (auto written = written_text(value)) value = written_.emplace_back(std::move(*written));
    values_.push_back({.type = kText, .data = value.data(), .size = value.size(), .number = {}});
  }
  void bind(int /*index*/, std::span<const std::byte> value) override {
    // An empty blob is not null.
    values_.push_back({.type = kBytes,
                       .data = value.empty() ? "" : reinterpret_cast<const char*>(value.data()),
                       .size = value.size(),
                       .number = {}});
  }
  SqlExpected<bool> next() override {
    if (row_ < 0) {
      if (auto sent = send(); !sent) return std::unexpected(sent.error());
      auto rows = connection_.collect();
      if (!rows) return std::unexpected(rows.error());
      rows_ = std::move(*rows);
    }
    read_.clear();
    ++row_;
    return row_ < PQntuples(rows_.get());
  }
  SqlExpected<Unit> run() override {
    if (auto sent = send(); !sent) return sent;
    if (connection_.is_in_transaction_) return Unit{};
    auto done = connection_.collect();
    if (!done) return std::unexpected(done.error());
    return Unit{};
  }
  void end() override { rows_.reset(); }
  [[nodiscard]] std::int64_t integer(int column) const override {
    const std::string_view bytes = value(column);
    return bytes.size() == sizeof(std::int32_t) ? from_big_endian<std::int32_t>(bytes) : from_big_endian<std::int64_t>(bytes);
  }
  [[nodiscard]] double real(int column) const override {
    return std::bit_cast<double>(from_big_endian<std::uint64_t>(value(column)));
  }
  [[nodiscard]] std::string_view text(int column) const override {
    const std::string_view stored = value(column);
    auto read = read_text(stored);
    return read ? read_.emplace_back(std::move(*read)) : stored;
  }
  [[nodiscard]] std::span<const std::byte> blob(int column) const override { return std::as_bytes(std::span(value(column))); }

 private:
  struct Value {
    Oid type = 0;
    const char* data = nullptr;  // Null and no number: null.
    std::size_t size = 0;
    std::array<char, 8> number{};
  };
  void keep_number(int /*index*/, Oid type, std::uint64_t bits) {
    if (std::endian::native == std::endian::little) bits = std::byteswap(bits);
    Value value{.type = type, .data = nullptr, .size = sizeof(bits), .number = {}};
    std::memcpy(value.number.data(), &bits, sizeof(bits));
    values_.push_back(value);
  }
  [[nodiscard]] std::string name() const { return std::format("{}_{}", name_, connection_.generation_); }
  // Null is empty.
  [[nodiscard]] std::string_view value(int column) const {
    if (is_null(column)) return {};
    return {PQgetvalue(rows_.get(), row_, column), static_cast<std::size_t>(PQgetlength(rows_.get(), row_, column))};
  }
  [[nodiscard]] bool is_null(int column) const { return PQgetisnull(rows_.get(), row_, column) != 0; }

  SqlExpected<Unit> send() {
    if (connection_.is_lost_) return std::unexpected(SqlError{SqlFault::lost, "the connection is lost"});
    pg_conn* handle = connection_.handle_.get();
    std::vector<Oid> types;
    std::vector<const char*> data;
    std::vector<int> sizes;
    const std::vector<int> formats(values_.size(), kBinary);
    for (const Value& value : values_) {
      types.push_back(value.type);
      data.push_back(value.type == kInteger || value.type == kReal ? value.number.data() : value.data);
      sizes.push_back(static_cast<int>(value.size));
    }
    const int count = static_cast<int>(values_.size());
    if (generation_ != connection_.generation_) {
      if (PQsendPrepare(handle, name().c_str(), sql_.c_str(), count, types.data()) != 1) {
        return std::unexpected(connection_.lose(one_line(PQerrorMessage(handle))));
      }
      ++connection_.queued_;
      generation_ = connection_.generation_;
    }
    if (PQsendQueryPrepared(handle, name().c_str(), count, data.data(), sizes.data(), formats.data(), kBinary) != 1) {
      return std::unexpected(connection_.lose(one_line(PQerrorMessage(handle))));
    }
    ++connection_.queued_;
    return Unit{};
  }

  PostgresConnection& connection_;
  const std::string name_;
  std::string sql_;
  std::uint64_t generation_ = 0;
  std::vector<Value> values_;
  std::deque<std::string> written_;  // Texts among the values that differ from what was given.
  PostgresConnection::Result rows_;
  mutable std::deque<std::string> read_;  // Texts of the present row that differ from what is stored.
  int row_ = -1;
};

std::unique_ptr<SqlCursor> PostgresConnection::prepare(std::string sql) {
  return std::make_unique<PostgresCursor>(*this, std::format("s{}", ++statements_count_), std::move(sql));
}

// --- Texts

namespace {

constexpr char kEscape = '\x01';

// The value of a hexadecimal digit as written_text() writes it; nullopt: it is none.
std::optional<unsigned> digit_of(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> written_text(std::string_view text) {
  constexpr std::string_view kEscaped("\x00\x01", 2);
  if (text.find_first_of(kEscaped) == std::string_view::npos && is_utf8(text)) return std::nullopt;
  std::string written;
  while (!text.empty()) {
    const std::size_t plain = std::min(valid_utf8_length(text), text.find_first_of(kEscaped));
    written += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    written += std::format("{}{:02x}", kEscape, static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
  return written;
}

std::optional<std::string> read_text(std::string_view stored) {
  if (!stored.contains(kEscape)) return std::nullopt;
  std::string text;
  for (std::size_t at = 0; at < stored.size(); ++at) {
    const auto high = at + 2 < stored.size() ? digit_of(stored[at + 1]) : std::nullopt;
    const auto low = at + 2 < stored.size() ? digit_of(stored[at + 2]) : std::nullopt;
    const bool is_escape = stored[at] == kEscape && high && low;
    text += is_escape ? static_cast<char>(*high * 16 + *low) : stored[at];
    if (is_escape) at += 2;
  }
  return text;
}

// --- Addresses

std::string shown_address(std::string_view address) {
  const std::size_t scheme = address.find("://");
  if (scheme != std::string_view::npos) {
    const std::size_t begin = scheme + 3;
    const std::size_t at = address.substr(0, address.find('/', begin)).rfind('@');
    std::string shown(address);
    if (at != std::string_view::npos && at > begin) {
      const std::size_t colon = address.find(':', begin);
      if (colon < at) shown.replace(colon + 1, at - colon - 1, "***");
    }
    const std::size_t parameter = shown.find("password=");
    if (parameter != std::string::npos) {
      const std::size_t value = parameter + std::strlen("password=");
      shown.replace(value, std::min(shown.find('&', value), shown.size()) - value, "***");
    }
    return shown;
  }
  std::string shown(address);
  const std::size_t parameter = shown.find("password");
  if (parameter != std::string::npos) shown.replace(parameter, std::string::npos, "password=***");
  return shown;
}

}  // namespace uma::kv
