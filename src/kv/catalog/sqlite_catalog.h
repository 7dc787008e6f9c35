// Sessions in a file that survives kill -9 and power failures: SQLite, write-ahead log, synced before `done` (docs/CATALOG.md,
// docs/decisions/0015). Waiting changes form one transaction, up to about calls::kStepBytes. If it fails, each change is tried
// alone, so that an impossible change does not fail the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/mailbox.h"
#include "base/system/unique_fd.h"
#include "kv/catalog/catalog.h"
#include "kv/catalog/catalog_calls.h"
#include "kv/catalog/record_rows.h"
#include "kv/catalog/sqlite.h"
#include "kv/catalog/tenant_turns.h"

namespace uma::kv {

class SqliteCatalog final : public Catalog {
 public:
  // Opens or creates the file (mode 0600) and checks every byte of every session: O(bytes). An inconsistent session is set
  // aside: a file PATH.set-aside-TIME gets its rows, and the catalog keeps the whole turns before the damage. A damaged file is
  // renamed to PATH.damaged-TIME, and a new file gets the readable part. Both are logged. Errors: E_IO_001 for a file that
  // cannot be read or written, that another process uses, or that a later version made.
  [[nodiscard]] static Expected<std::unique_ptr<SqliteCatalog>> open(const std::string& path);

  [[nodiscard]] std::vector<SessionSummary> load() override { return std::move(loaded_); }
  [[nodiscard]] std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() override {
    return std::move(image_extras_);
  }
  void commit(RecordPtr record, RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;
  [[nodiscard]] bool is_nearly_full() const override;
  void close() override { inbox_.close(); }

  // Stores waiting changes and reports them, then serves reads, a bounded number of both, in turns by tenant: a change waits
  // for no more than that. Blocks on the disk.
  bool step() override;
  bool wait() override { return !changes_.empty() || !reads_.empty() || inbox_.wait_drain(taken_, kNever); }

  // Rows written since the catalog was opened, for tests.
  [[nodiscard]] std::int64_t rows_written() const { return database_.rows_written() - rows_written_before_; }
  [[nodiscard]] std::int64_t transactions_count() const { return transactions_count_; }

 private:
  using Change = calls::Change;
  using Reading = calls::Reading;
  using Call = std::variant<Change, Reading>;
  SqliteCatalog(std::string path, Database database);

  [[nodiscard]] static SqlExpected<std::unique_ptr<SqliteCatalog>> open_file(const std::string& path);
  struct DamagedSession {
    std::int64_t key = 0;  // Key of its rows.
    RecordPtr record;      // The readable part; null: none.
  };
  [[nodiscard]] SqlExpected<Unit> read_all();
  [[nodiscard]] SqlExpected<Unit> set_aside(std::span<const DamagedSession> damaged);
  void queue(Change change);
  void queue(Reading reading);
  [[nodiscard]] TenantId tenant_of(const SessionId& id);
  void keep_changes();
  void serve_reads();
  [[nodiscard]] SqlExpected<Unit> keep(std::span<Change> changes);
  [[nodiscard]] SqlExpected<Unit> apply(const Change& change);
  [[nodiscard]] Expected<RecordPtr> read_now(const SessionId& id);

  const std::string path_;
  const std::string name_;  // File name for clients.
  // Set once the catalog is open. Declared before database_, so that the file is closed before the lock is released.
  UniqueFd lock_;
  Database database_;
  RecordRows rows_;
  std::vector<SessionSummary> loaded_;
  std::unordered_map<SessionId, std::vector<std::string>> image_extras_;
  std::int64_t rows_written_before_ = 0;

  // Owned by the thread that calls step().
  std::vector<Call> taken_;
  TenantTurns<Change> changes_;
  TenantTurns<Reading> reads_;
  std::int64_t transactions_count_ = 0;
  bool is_failing_ = false;

  // Shared.
  Mailbox<Call> inbox_;
};

}  // namespace uma::kv
