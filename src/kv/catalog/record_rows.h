// Converts a session's record to rows of the catalog's tables (docs/CATALOG.md) and back. The caller begins and ends
// transactions. Owned by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kv/catalog/catalog.h"
#include "kv/catalog/sql.h"

namespace uma::kv {

// A session read from the tables.
struct StoredSession {
  RecordPtr record;         // Null: nothing usable.
  bool is_damaged = false;  // The record was repaired: it has the whole turns before the damage and no pending input, or no
                            // metadata.
};

class RecordRows {
 public:
  // `connection` outlives the object.
  explicit RecordRows(SqlConnection& connection);

  // The columns of `sessions` that summary_of_row() reads from the first ones of a statement's present row.
  [[nodiscard]] static std::string_view session_columns();
  // Nullopt: its values are impossible.
  [[nodiscard]] static std::optional<SessionSummary> summary_of_row(const Statement& row);

  // Writes the rows in which `record` differs from `before`, the session's present rows; null: none. Errors: of the database;
  // SqlFault::impossible for an impossible record (record_check.h).
  SqlExpected<Unit> write(const SessionRecord& record, const SessionRecord* before);
  SqlExpected<Unit> remove(const SessionId& id);

  // The tenant of a session; empty: there is no such session.
  SqlExpected<TenantId> tenant_of(const SessionId& id);
  // The keys of all sessions.
  SqlExpected<std::vector<std::int64_t>> keys();
  // Reads a session and checks its hashes and offsets. Errors: those that are not damage, and damage of the session's own row.
  SqlExpected<StoredSession> read(std::int64_t key);
  SqlExpected<StoredSession> read(const SessionId& id);

 private:
  struct Counts;
  SqlExpected<std::int64_t> write_session(const SessionRecord& record, const SessionRecord* before);
  SqlExpected<Unit> write_tokens(std::int64_t key, const SessionRecord& record, const SessionRecord& before);
  SqlExpected<Unit> write_messages(std::int64_t key, const SessionRecord& record, const SessionRecord& before);
  SqlExpected<Unit> write_turns(std::int64_t key, const SessionRecord& record, const SessionRecord& before);
  SqlExpected<Unit> write_receipt(std::int64_t key, std::int64_t number, const Receipt* receipt);
  SqlExpected<Unit> write_responses(std::int64_t key, const SessionRecord& record, const SessionRecord& before);
  [[nodiscard]] static bool take_session(const Statement& row, SessionRecord& record, Counts& counts);
  SqlExpected<bool> read_session(std::int64_t key, SessionRecord& record, Counts& counts);
  static bool take_sound_turns(SessionRecord& record, const Counts& counts, const std::vector<Token>& tokens,
                               const std::vector<ChatMessage>& messages, std::vector<Turn> turns);
  SqlExpected<std::vector<Token>> read_tokens(std::int64_t key);
  SqlExpected<std::vector<ChatMessage>> read_messages(std::int64_t key);
  SqlExpected<std::vector<Turn>> read_turns(std::int64_t key);
  SqlExpected<Unit> read_receipts(std::int64_t key, std::vector<Turn>& turns);
  SqlExpected<std::vector<ResponsePtr>> read_responses(std::int64_t key, std::int64_t turns_begin, std::int64_t turns_end);

  Statement add_tenant_;
  Statement put_session_;
  Statement change_session_;
  Statement put_turn_;
  Statement put_message_;
  Statement put_block_;
  Statement put_receipt_;
  Statement put_response_;
  Statement cut_turns_;
  Statement cut_messages_;
  Statement cut_blocks_;
  Statement cut_receipts_;
  Statement remove_receipt_;
  Statement remove_response_;
  Statement remove_session_;
  Statement get_keys_;
  Statement get_key_;
  Statement get_tenant_;
  Statement get_session_;
  Statement get_turns_;
  Statement get_messages_;
  Statement get_blocks_;
  Statement get_receipts_;
  Statement get_responses_;
};

}  // namespace uma::kv
