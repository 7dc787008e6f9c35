// API keys in the PostgreSQL database that several daemons share (docs/CLUSTER.md, docs/decisions/0083). A row has a key's name
// and its line of a keys file. A trigger counts the changes, also those that people make by SQL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "core/key_store.h"
#include "kv/catalog/postgres.h"

namespace uma::kv {

class PostgresKeys final : public KeyStore {
 public:
  // Connects and makes or migrates the tables. `node` is the daemon's name. Errors: E_IO_001.
  // The clock outlives the object.
  [[nodiscard]] static Expected<std::unique_ptr<PostgresKeys>> open(std::string address, const std::string& node,
                                                                    const Clock& clock = machine_clock());

  [[nodiscard]] Expected<std::optional<std::string>> read_changes() override;
  [[nodiscard]] Expected<Unit> edit(const TextEdit& edit) override;
  void cancel() override { connection_.cancel(); }
  // Stores these lines if the database has never had a key. Returns whether it did. Errors: E_IO_001.
  [[nodiscard]] Expected<bool> begin_with(const std::string& text);

  // Drops the connection as a broken network does, for tests.
  void disconnect() { connection_.disconnect(); }

 private:
  PostgresKeys(std::string address, const std::string& node, const Clock& clock);
  [[nodiscard]] SqlExpected<Unit> connect();
  [[nodiscard]] SqlExpected<std::int64_t> lock_version();
  [[nodiscard]] SqlExpected<std::string> read_text();
  [[nodiscard]] SqlExpected<Unit> write_text(const std::string& before, const std::string& after);
  template <class Work>
  [[nodiscard]] Expected<bool> in_transaction(Work&& work);

  const Clock& clock_;
  const std::string application_;
  PostgresConnection connection_;
  Statement get_version_;
  Statement raise_version_;
  Statement get_lines_;
  Statement put_line_;
  Statement remove_line_;
  std::int64_t seen_ = -1;  // The version of the text that read_changes() has returned last.
  TimePoint next_connect_{};
};

}  // namespace uma::kv
