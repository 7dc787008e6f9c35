// A connection to PostgreSQL (libpq). Used only inside kv, by PostgresCatalog and its parts.
//
// Statements whose rows nobody reads are only queued (pipeline mode): a transaction waits for the server where it needs a row,
// and at its end. A server that does not answer for kAnswerWithin counts as lost. To connect takes 5 s at most for each address
// of the server, if the names of hosts are found in bounded times.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kv/catalog/sql.h"

struct pg_conn;
struct pg_result;

namespace uma::kv {

class PostgresConnection final : public SqlConnection {
 public:
  static constexpr std::chrono::seconds kAnswerWithin{20};

  // `address` is a connection string or URI of libpq. Nothing is opened yet.
  explicit PostgresConnection(std::string address);
  PostgresConnection(const PostgresConnection&) = delete;
  ~PostgresConnection() override;

  // Opens the connection, again if it is open or lost. Statements that were prepared before stay usable. `settings` are
  // run-time settings ("name=value") of the session. Errors: SqlFault::lost.
  SqlExpected<Unit> connect(std::string_view application, const std::vector<std::string>& settings);
  [[nodiscard]] bool is_lost() const { return is_lost_; }
  void disconnect();
  // Any thread: calls in progress soon end as if the connection was lost, and so do later ones.
  void cancel() { is_cancelled_ = true; }

  // Waits until the server sends something that nobody has asked for, such as a notification, until `wake` is readable, or for
  // `limit`.
  void wait_unasked(int wake, Duration limit);
  // Whether a notification (LISTEN) has come since the last call.
  [[nodiscard]] bool take_notifications();

  [[nodiscard]] std::unique_ptr<SqlCursor> prepare(std::string sql) override;
  SqlExpected<Unit> run(const std::string& sql) override;
  SqlExpected<Unit> begin() override;
  SqlExpected<Unit> commit() override;
  void roll_back() override;

 private:
  friend class PostgresCursor;
  struct Finish {
    void operator()(pg_conn* handle) const;
  };
  struct Clear {
    void operator()(pg_result* result) const;
  };
  using Result = std::unique_ptr<pg_result, Clear>;

  // Queues a statement without values.
  void queue(const char* sql);
  // Waits for the results of all queued statements. Returns the last one's, or the first error.
  SqlExpected<Result> collect();
  // The next result of the statement, null at its end; an error if the server does not answer.
  SqlExpected<Result> next_result();
  SqlExpected<Unit> wait_for(short events);
  SqlError lose(std::string message);

  const std::string address_;
  std::unique_ptr<pg_conn, Finish> handle_;
  std::uint64_t generation_ = 0;  // Statements that were prepared in an earlier one are prepared again.
  bool must_deallocate_ = false;  // Statements of earlier generations are left in the session.
  std::size_t queued_ = 0;        // Statements whose results were not read.
  std::atomic<bool> is_cancelled_{false};
  bool is_lost_ = true;
  bool is_in_transaction_ = false;
  std::uint64_t statements_count_ = 0;  // For their names.
};

// PostgreSQL's texts hold no U+0000 and only UTF-8. A byte that they cannot hold is stored as U+0001 and two hexadecimal
// digits, and so is U+0001 itself. Nullopt: the text is stored as it is. Ensures: read_text(*written_text(text)) == text.
[[nodiscard]] std::optional<std::string> written_text(std::string_view text);
// Nullopt: the text is the stored one.
[[nodiscard]] std::optional<std::string> read_text(std::string_view stored);

// The address without its password, for logs and clients.
[[nodiscard]] std::string shown_address(std::string_view address);

}  // namespace uma::kv
