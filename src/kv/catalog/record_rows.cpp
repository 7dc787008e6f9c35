#include "kv/catalog/record_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <format>
#include <limits>
#include <memory>
#include <ranges>
#include <span>
#include <utility>

#include <xxhash.h>

#include "core/metadata.h"
#include "kv/catalog/record_check.h"
#include "kv/token_chain.h"

namespace uma::kv {
namespace {

// The value in the table.
std::int64_t number_of(SessionMode mode) {
  static_assert(static_cast<int>(SessionMode::automatic) == 0 && static_cast<int>(SessionMode::text) == 1 &&
                static_cast<int>(SessionMode::chat) == 2);
  return static_cast<std::int64_t>(mode);
}

std::int64_t number_of(OnFull on_full) {
  static_assert(static_cast<int>(OnFull::error) == 0 && static_cast<int>(OnFull::shift) == 1);
  return static_cast<std::int64_t>(on_full);
}

constexpr std::int64_t kReasonMax = static_cast<std::int64_t>(FinishReason::tool_calls);

std::int64_t number_of(FinishReason reason) {
  static_assert(static_cast<int>(FinishReason::stop) == 0 && static_cast<int>(FinishReason::length) == 1 &&
                static_cast<int>(FinishReason::cancelled) == 2 && static_cast<int>(FinishReason::timeout) == 3 &&
                static_cast<int>(FinishReason::slow_consumer) == 4 && static_cast<int>(FinishReason::error) == 5 &&
                static_cast<int>(FinishReason::tool_calls) == 6);
  return static_cast<std::int64_t>(reason);
}

constexpr std::int64_t kTierMax = static_cast<std::int64_t>(Tier::shared);

std::int64_t number_of(Tier tier) {
  static_assert(static_cast<int>(Tier::none) == 0 && static_cast<int>(Tier::hot) == 1 && static_cast<int>(Tier::warm) == 2 &&
                static_cast<int>(Tier::cold) == 3 && static_cast<int>(Tier::shared) == 4);
  return static_cast<std::int64_t>(tier);
}

// The messages of a record as they are stored: pending ones follow the finished ones, so finishing a turn moves no rows. The
// record outlives it.
class AllMessages {
 public:
  explicit AllMessages(const SessionRecord& record) : record_(record) {}
  [[nodiscard]] std::size_t size() const { return record_.messages.size() + record_.pending_messages.size(); }
  [[nodiscard]] const ChatMessage& operator[](std::size_t number) const {
    const std::size_t finished = record_.messages.size();
    return number < finished ? record_.messages[number] : record_.pending_messages[number - finished];
  }

 private:
  const SessionRecord& record_;
};

std::size_t equal_at_start(const AllMessages& a, const AllMessages& b) {
  const std::size_t end = std::min(a.size(), b.size());
  std::size_t number = 0;
  while (number < end && a[number] == b[number]) ++number;
  return number;
}

template <class T>
std::size_t equal_at_start(const std::vector<T>& a, const std::vector<T>& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

Checksum hash_of_message(const ChatMessage& message) {
  std::string bytes = message.role;
  bytes += '\0';  // No role contains a NUL, so role and content stay separate.
  bytes += message.content;
  if (!message.extra.empty()) bytes += '\0' + message.extra;
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

bool is_count(std::int64_t number) {
  return number >= 0 && number <= std::numeric_limits<std::int32_t>::max();
}

// The names in a list of columns.
std::vector<std::string_view> names_in(std::string_view columns) {
  std::vector<std::string_view> names;
  for (const auto name : std::views::split(columns, std::string_view(", "))) names.emplace_back(name);
  return names;
}

// "b = ?3, c = ?4", without the first columns.
std::string changes_of(std::string_view columns, std::size_t first) {
  std::string changes;
  const std::vector<std::string_view> names = names_in(columns);
  for (std::size_t number = first; number < names.size(); ++number) {
    changes += std::format("{}{} = ?{}", number == first ? "" : ", ", names[number], number + 1);
  }
  return changes;
}

// Inserts a row, or replaces the one with the same key, which its first `keys_count` columns are.
std::string upsert(std::string_view table, std::size_t keys_count, std::string_view columns) {
  std::string values, keys;
  const std::vector<std::string_view> names = names_in(columns);
  for (std::size_t number = 0; number < names.size(); ++number) {
    values += std::format("{}?{}", number == 0 ? "" : ", ", number + 1);
    if (number < keys_count) keys += std::format("{}{}", number == 0 ? "" : ", ", names[number]);
  }
  return std::format("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}", table, columns, values, keys,
                     changes_of(columns, keys_count));
}

// The columns that write_session() binds. The last ones may have megabytes.
constexpr std::string_view kShortColumns =
    "id, tenant, name, model, mode, turns_count, tokens_count, pending_tokens_count, messages_count, pending_messages_count, "
    "ttl_s, created_s, last_used_s, is_public, is_ephemeral, on_full, n_keep, turns_dropped, has_instructions, "
    "is_of_responses, has_foreign_kv, parent_id, fork_turn, bytes_stored";
constexpr std::string_view kLongColumns = "metadata, tools, template_arguments";

bool is_equal(std::span<const std::byte> stored, const Checksum& hash) {
  return std::ranges::equal(stored, bytes_of(std::span(&hash, 1)));
}

}  // namespace

// The counts in the session's own row.
struct RecordRows::Counts {
  std::int64_t turns = 0;
  std::int64_t tokens = 0;  // Tokens of the chain.
  std::int64_t pending_tokens = 0;
  std::int64_t messages = 0;  // Messages of finished turns.
  std::int64_t pending_messages = 0;
  std::int64_t bytes = 0;  // stored_bytes() of the record.

  [[nodiscard]] bool are_possible() const {
    return std::ranges::all_of(std::array{turns, tokens, pending_tokens, messages, pending_messages}, is_count) && bytes >= 0;
  }
};

RecordRows::RecordRows(SqlConnection& db)
    : add_tenant_(db, "INSERT INTO tenants (name) VALUES (?1) ON CONFLICT DO NOTHING"),
      put_session_(db, upsert("sessions", 1, std::format("{}, {}", kShortColumns, kLongColumns)) + " RETURNING key"),
      change_session_(
          db, std::format("UPDATE sessions SET {} WHERE id = ?1 AND tenant = ?2 RETURNING key", changes_of(kShortColumns, 2))),
      put_turn_(db, upsert("turns", 2, "session, number, tokens_begin, reply_begin, messages_begin")),
      put_message_(db, upsert("messages", 2, "session, number, role, content, hash, extra")),
      put_block_(db, upsert("token_blocks", 2, "session, number, tokens, hash")),
      put_receipt_(db, upsert("receipts", 2,
                              "session, number, reason, prompt_tokens, reused_tokens, completion_tokens, reasoning_tokens, "
                              "dropped_turns, dropped_tokens, tier, reuse_reason, restore_ms, queue_ms, ttft_ms, "
                              "tokens_per_s, seed")),
      put_response_(db, upsert("responses", 2,
                               "session, turn, id, request, created_s, reason, prompt_tokens, reused_tokens, "
                               "completion_tokens, reasoning_tokens")),
      cut_turns_(db, "DELETE FROM turns WHERE session = ?1 AND number >= ?2"),
      cut_messages_(db, "DELETE FROM messages WHERE session = ?1 AND number >= ?2"),
      cut_blocks_(db, "DELETE FROM token_blocks WHERE session = ?1 AND number >= ?2"),
      cut_receipts_(db, "DELETE FROM receipts WHERE session = ?1 AND number >= ?2"),
      remove_receipt_(db, "DELETE FROM receipts WHERE session = ?1 AND number = ?2"),
      remove_response_(db, "DELETE FROM responses WHERE session = ?1 AND turn = ?2"),
      remove_session_(db, "DELETE FROM sessions WHERE id = ?1"),
      get_keys_(db, "SELECT key FROM sessions ORDER BY key"),
      get_key_(db, "SELECT key FROM sessions WHERE id = ?1"),
      get_tenant_(db, "SELECT tenant FROM sessions WHERE id = ?1"),
      get_session_(db, std::format("SELECT {} FROM sessions WHERE key = ?1", session_columns())),
      get_turns_(db, "SELECT number, tokens_begin, reply_begin, messages_begin FROM turns WHERE session = ?1 ORDER BY number"),
      get_messages_(db, "SELECT number, role, content, hash, extra FROM messages WHERE session = ?1 ORDER BY number"),
      get_blocks_(db, "SELECT number, tokens, hash FROM token_blocks WHERE session = ?1 ORDER BY number"),
      get_receipts_(db, R"sql(
        SELECT number, reason, prompt_tokens, reused_tokens, completion_tokens, reasoning_tokens, dropped_turns, dropped_tokens,
               tier, reuse_reason, restore_ms, queue_ms, ttft_ms, tokens_per_s, seed
        FROM receipts WHERE session = ?1 ORDER BY number)sql"),
      get_responses_(db, R"sql(
        SELECT turn, id, request, created_s, reason, prompt_tokens, reused_tokens, completion_tokens,
               reasoning_tokens
        FROM responses WHERE session = ?1 ORDER BY turn)sql") {}

// --- Writing

SqlExpected<Unit> RecordRows::write(const SessionRecord& record, const SessionRecord* before) {
  if (const std::string_view wrong = impossible_part(record); !wrong.empty()) {
    return std::unexpected(
        SqlError{SqlFault::impossible, std::format("session {} cannot be stored: {}", record.id.value, wrong)});
  }
  if (before == nullptr) {
    if (auto done = add_tenant_.run(record.tenant.value); !done) return done;
  }
  static const SessionRecord kNothing;
  const SessionRecord& old = before == nullptr ? kNothing : *before;
  const auto key = write_session(record, before);
  if (!key) return std::unexpected(key.error());
  if (auto done = write_tokens(*key, record, old); !done) return done;
  if (auto done = write_messages(*key, record, old); !done) return done;
  if (auto done = write_turns(*key, record, old); !done) return done;
  return write_responses(*key, record, old);
}

SqlExpected<std::int64_t> RecordRows::write_session(const SessionRecord& record, const SessionRecord* before) {
  const auto key_of = [](Statement& statement) -> SqlExpected<std::int64_t> {
    auto row = statement.next();
    if (!row) return std::unexpected(row.error());
    if (!*row) return 0;
    const std::int64_t key = statement.integer(0);
    row = statement.next();  // Ends the statement.
    if (!row) return std::unexpected(row.error());
    return key;
  };
  const std::string_view name = record.name.empty() ? std::string_view() : std::string_view(record.name);
  const auto bind = [&](Statement& statement, const auto&... long_values) {
    statement.bind(record.id.value, record.tenant.value, name, record.model, number_of(record.mode), std::ssize(record.turns),
                   std::ssize(record.chain), std::ssize(record.pending), std::ssize(record.messages),
                   std::ssize(record.pending_messages), record.ttl_s, record.created_s, record.last_used_s,
                   std::int64_t{record.is_public}, std::int64_t{record.is_ephemeral}, number_of(record.on_full),
                   std::int64_t{record.n_keep}, std::int64_t{record.turns_dropped}, std::int64_t{record.has_instructions},
                   std::int64_t{record.is_of_responses}, std::int64_t{record.has_foreign_kv}, record.parent.value,
                   std::int64_t{record.fork_turn}, static_cast<std::int64_t>(stored_bytes(record)), long_values...);
  };
  // Texts of megabytes are sent to the database only where they change.
  const bool has_same_texts = before != nullptr && record.metadata == before->metadata && record.tools == before->tools &&
                              record.template_arguments == before->template_arguments;
  if (has_same_texts) {
    bind(change_session_);
    if (const auto key = key_of(change_session_); !key || *key != 0) return key;
  }
  bind(put_session_, record.metadata, record.tools, record.template_arguments);
  return key_of(put_session_);
}

SqlExpected<Unit> RecordRows::write_tokens(std::int64_t key, const SessionRecord& record, const SessionRecord& before) {
  const std::vector<Token> now = all_tokens(record);
  const std::vector<Token> old = all_tokens(before);
  const std::size_t equal = equal_at_start(now, old);
  if (equal == now.size() && equal == old.size()) return Unit{};
  const std::vector<Checksum> hashes = block_hashes(now);
  for (std::size_t block = equal / kTokensPerBlock; block < hashes.size(); ++block) {
    const auto done = put_block_.run(key, static_cast<std::int64_t>(block), bytes_of(block_of(now, block)),
                                     bytes_of(std::span(&hashes[block], 1)));
    if (!done) return done;
  }
  if (blocks_count(old.size()) <= hashes.size()) return Unit{};
  return cut_blocks_.run(key, std::ssize(hashes));
}

SqlExpected<Unit> RecordRows::write_messages(std::int64_t key, const SessionRecord& record, const SessionRecord& before) {
  const AllMessages now(record);
  const AllMessages old(before);
  for (std::size_t number = equal_at_start(now, old); number < now.size(); ++number) {
    const Checksum hash = hash_of_message(now[number]);
    const auto done = put_message_.run(key, static_cast<std::int64_t>(number), now[number].role, now[number].content,
                                       bytes_of(std::span(&hash, 1)), now[number].extra);
    if (!done) return done;
  }
  if (old.size() <= now.size()) return Unit{};
  return cut_messages_.run(key, static_cast<std::int64_t>(now.size()));
}

SqlExpected<Unit> RecordRows::write_turns(std::int64_t key, const SessionRecord& record, const SessionRecord& before) {
  for (std::size_t number = equal_at_start(record.turns, before.turns); number < record.turns.size(); ++number) {
    const Turn& turn = record.turns[number];
    auto done = put_turn_.run(key, static_cast<std::int64_t>(number), turn.tokens_begin, turn.reply_begin, turn.messages_begin);
    if (!done) return done;
    const bool had_receipt = number < before.turns.size() && before.turns[number].receipt != nullptr;
    if (turn.receipt == nullptr && !had_receipt) continue;
    if (done = write_receipt(key, static_cast<std::int64_t>(number), turn.receipt.get()); !done) return done;
  }
  if (before.turns.size() <= record.turns.size()) return Unit{};
  if (auto done = cut_receipts_.run(key, std::ssize(record.turns)); !done) return done;
  return cut_turns_.run(key, std::ssize(record.turns));
}

// Null: the turn has no receipt any more.
SqlExpected<Unit> RecordRows::write_receipt(std::int64_t key, std::int64_t number, const Receipt* receipt) {
  if (receipt == nullptr) return remove_receipt_.run(key, number);
  const Usage& usage = receipt->usage;
  return put_receipt_.run(key, number, number_of(receipt->reason), usage.prompt_tokens, usage.reused_tokens,
                          usage.completion_tokens, usage.reasoning_tokens, usage.dropped_turns, usage.dropped_tokens,
                          number_of(usage.tier), usage.reuse_reason, usage.restore_ms, usage.queue_ms, usage.ttft_ms,
                          usage.tokens_per_s, static_cast<std::int64_t>(usage.seed));
}

SqlExpected<Unit> RecordRows::write_responses(std::int64_t key, const SessionRecord& record, const SessionRecord& before) {
  auto now = record.responses.begin();
  auto old = before.responses.begin();
  while (now != record.responses.end() || old != before.responses.end()) {
    const bool is_old = now == record.responses.end() || (old != before.responses.end() && (*old)->turn < (*now)->turn);
    if (is_old) {
      if (auto done = remove_response_.run(key, (*old)->turn); !done) return done;
      ++old;
      continue;
    }
    const bool is_same_turn = old != before.responses.end() && (*old)->turn == (*now)->turn;
    const ResponseRecord& response = **now;
    if (!is_same_turn || (*old != *now && **old != response)) {
      const auto done = put_response_.run(key, response.turn, response.id, response.request, response.created_s,
                                          number_of(response.reason), response.prompt_tokens, response.reused_tokens,
                                          response.completion_tokens, response.reasoning_tokens);
      if (!done) return done;
    }
    if (is_same_turn) ++old;
    ++now;
  }
  return Unit{};
}

SqlExpected<Unit> RecordRows::remove(const SessionId& id) {
  return remove_session_.run(id.value);
}

// --- Reading

namespace {

// Calls take(statement) for each row until it returns false. Damaged rows also end the loop; the caller detects missing rows by
// counting.
template <class Take>
SqlExpected<Unit> take_rows(Statement& rows, Take&& take) {
  while (true) {
    const auto row = rows.next();
    if (!row && !row.error().is_damage()) return std::unexpected(row.error());
    if (!row || !*row) return Unit{};
    if (take()) continue;
    rows.end();
    return Unit{};
  }
}

}  // namespace

SqlExpected<TenantId> RecordRows::tenant_of(const SessionId& id) {
  get_tenant_.bind(id.value);
  const auto row = get_tenant_.next();
  if (!row) return std::unexpected(row.error());
  TenantId tenant{*row ? std::string(get_tenant_.text(0)) : ""};
  get_tenant_.end();
  return tenant;
}

SqlExpected<std::vector<std::int64_t>> RecordRows::keys() {
  std::vector<std::int64_t> keys;
  get_keys_.bind();
  auto row = get_keys_.next();
  for (; row && *row; row = get_keys_.next()) keys.push_back(get_keys_.integer(0));
  if (!row) return std::unexpected(row.error());
  return keys;
}

// The tokens before the first block that is missing, malformed or has a wrong hash.
SqlExpected<std::vector<Token>> RecordRows::read_tokens(std::int64_t key) {
  std::vector<Token> tokens;
  Checksum previous;
  get_blocks_.bind(key);
  const auto done = take_rows(get_blocks_, [&] {
    const std::span<const std::byte> bytes = get_blocks_.blob(1);
    const std::size_t count = bytes.size() / sizeof(Token);
    const bool has_shape = get_blocks_.integer(0) * static_cast<std::int64_t>(kTokensPerBlock) == std::ssize(tokens) &&
                           bytes.size() % sizeof(Token) == 0 && count > 0 && count <= kTokensPerBlock;
    if (!has_shape) return false;
    std::vector<Token> block(count);
    std::memcpy(block.data(), bytes.data(), bytes.size());
    previous = block_hash(previous, block);
    if (!is_equal(get_blocks_.blob(2), previous)) return false;
    tokens.insert(tokens.end(), block.begin(), block.end());
    return true;
  });
  if (!done) return std::unexpected(done.error());
  return tokens;
}

SqlExpected<std::vector<ChatMessage>> RecordRows::read_messages(std::int64_t key) {
  std::vector<ChatMessage> messages;
  get_messages_.bind(key);
  const auto done = take_rows(get_messages_, [&] {
    ChatMessage message{std::string(get_messages_.text(1)), std::string(get_messages_.text(2)),
                        std::string(get_messages_.text(4))};
    if (get_messages_.integer(0) != std::ssize(messages) || !is_equal(get_messages_.blob(3), hash_of_message(message)))
      return false;
    messages.push_back(std::move(message));
    return true;
  });
  if (!done) return std::unexpected(done.error());
  return messages;
}

SqlExpected<std::vector<Turn>> RecordRows::read_turns(std::int64_t key) {
  std::vector<Turn> turns;
  get_turns_.bind(key);
  const auto done = take_rows(get_turns_, [&] {
    const std::array offsets{get_turns_.integer(1), get_turns_.integer(2), get_turns_.integer(3)};
    if (get_turns_.integer(0) != std::ssize(turns) || !std::ranges::all_of(offsets, is_count)) return false;
    turns.push_back({.tokens_begin = static_cast<std::int32_t>(offsets[0]),
                     .reply_begin = static_cast<std::int32_t>(offsets[1]),
                     .messages_begin = static_cast<std::int32_t>(offsets[2])});
    return true;
  });
  if (!done) return std::unexpected(done.error());
  return turns;
}

// Gives the turns their receipts. An invalid receipt is dropped; the turn remains.
SqlExpected<Unit> RecordRows::read_receipts(std::int64_t key, std::vector<Turn>& turns) {
  get_receipts_.bind(key);
  return take_rows(get_receipts_, [&] {
    const std::int64_t number = get_receipts_.integer(0);
    const std::int64_t reason = get_receipts_.integer(1);
    const std::int64_t tier = get_receipts_.integer(8);
    std::array<std::int32_t, 6> counts{};
    bool is_possible = number >= 0 && number < std::ssize(turns) && reason >= 0 && reason <= kReasonMax && tier >= 0 &&
                       tier <= kTierMax && get_receipts_.integer(3) <= get_receipts_.integer(2);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::int64_t count = get_receipts_.integer(static_cast<int>(i) + 2);
      is_possible = is_possible && is_count(count);
      if (is_possible) counts[i] = static_cast<std::int32_t>(count);
    }
    if (!is_possible) return true;
    turns[static_cast<std::size_t>(number)].receipt =
        std::make_shared<const Receipt>(Receipt{.reason = static_cast<FinishReason>(reason),
                                                .usage = {.prompt_tokens = counts[0],
                                                          .reused_tokens = counts[1],
                                                          .recomputed_tokens = counts[0] - counts[1],
                                                          .completion_tokens = counts[2],
                                                          .reasoning_tokens = counts[3],
                                                          .dropped_turns = counts[4],
                                                          .dropped_tokens = counts[5],
                                                          .tier = static_cast<Tier>(tier),
                                                          .reuse_reason = reuse_reason_of(get_receipts_.text(9)),
                                                          .restore_ms = get_receipts_.real(10),
                                                          .queue_ms = get_receipts_.real(11),
                                                          .ttft_ms = get_receipts_.real(12),
                                                          .tokens_per_s = get_receipts_.real(13),
                                                          .seed = static_cast<std::uint64_t>(get_receipts_.integer(14))}});
    return true;
  });
}

// The responses of the existing turns. An invalid response is dropped; the turn's messages remain.
SqlExpected<std::vector<ResponsePtr>> RecordRows::read_responses(std::int64_t key, std::int64_t turns_begin,
                                                                 std::int64_t turns_end) {
  std::vector<ResponsePtr> responses;
  get_responses_.bind(key);
  const auto done = take_rows(get_responses_, [&] {
    const std::int64_t turn = get_responses_.integer(0);
    const std::int64_t reason = get_responses_.integer(4);
    const std::array counts{get_responses_.integer(5), get_responses_.integer(6), get_responses_.integer(7),
                            get_responses_.integer(8)};
    if (turn < turns_begin || turn >= turns_end || reason < 0 || reason > kReasonMax ||
        !std::ranges::all_of(counts, is_count)) {
      return true;
    }
    responses.push_back(
        std::make_shared<const ResponseRecord>(ResponseRecord{.turn = static_cast<std::int32_t>(turn),
                                                              .id = std::string(get_responses_.text(1)),
                                                              .request = std::string(get_responses_.text(2)),
                                                              .created_s = get_responses_.integer(3),
                                                              .reason = static_cast<FinishReason>(reason),
                                                              .prompt_tokens = static_cast<std::int32_t>(counts[0]),
                                                              .reused_tokens = static_cast<std::int32_t>(counts[1]),
                                                              .completion_tokens = static_cast<std::int32_t>(counts[2]),
                                                              .reasoning_tokens = static_cast<std::int32_t>(counts[3])}));
    return true;
  });
  if (!done) return std::unexpected(done.error());
  return responses;
}

SqlExpected<StoredSession> RecordRows::read(const SessionId& id) {
  get_key_.bind(id.value);
  const auto row = get_key_.next();
  if (!row) return std::unexpected(row.error());
  if (!*row) return StoredSession{};
  const std::int64_t key = get_key_.integer(0);
  if (auto end = get_key_.next(); !end) return std::unexpected(end.error());
  return read(key);
}

std::string_view RecordRows::session_columns() {
  return "id, tenant, name, model, mode, turns_count, tokens_count, pending_tokens_count, messages_count, "
         "pending_messages_count, "
         "ttl_s, created_s, last_used_s, is_public, is_ephemeral, on_full, n_keep, turns_dropped, has_instructions, "
         "is_of_responses, metadata, tools, template_arguments, has_foreign_kv, parent_id, fork_turn, bytes_stored";
}

// Returns false if the values are impossible.
bool RecordRows::take_session(const Statement& row, SessionRecord& record, Counts& counts) {
  record.id.value = row.text(0);
  record.tenant.value = row.text(1);
  record.name = row.text(2);
  record.model = row.text(3);
  const std::int64_t mode = row.integer(4);
  counts = {.turns = row.integer(5),
            .tokens = row.integer(6),
            .pending_tokens = row.integer(7),
            .messages = row.integer(8),
            .pending_messages = row.integer(9),
            .bytes = row.integer(26)};
  record.ttl_s = row.integer(10);
  record.created_s = row.integer(11);
  record.last_used_s = row.integer(12);
  record.is_public = row.integer(13) != 0;
  record.is_ephemeral = row.integer(14) != 0;
  const std::int64_t on_full = row.integer(15);
  const std::int64_t n_keep = row.integer(16);
  const std::int64_t turns_dropped = row.integer(17);
  record.has_instructions = row.integer(18) != 0;
  record.is_of_responses = row.integer(19) != 0;
  record.metadata = row.text(20);
  record.tools = row.text(21);
  record.template_arguments = row.text(22);
  record.has_foreign_kv = row.integer(23) != 0;
  record.parent.value = row.text(24);
  const std::int64_t fork_turn = row.integer(25);
  // impossible_part() checks the rest.
  const bool fits = !record.id.empty() && mode >= 0 && mode <= kModeMax && on_full >= 0 && on_full <= kOnFullMax &&
                    is_count(n_keep) && is_count(turns_dropped) && is_count(fork_turn) && counts.are_possible();
  if (!fits) return false;
  record.on_full = static_cast<OnFull>(on_full);
  record.n_keep = static_cast<std::int32_t>(n_keep);
  record.turns_dropped = static_cast<std::int32_t>(turns_dropped);
  record.fork_turn = static_cast<std::int32_t>(fork_turn);
  record.mode = static_cast<SessionMode>(mode);
  return true;
}

std::optional<SessionSummary> RecordRows::summary_of_row(const Statement& row) {
  SessionRecord record;
  Counts counts;
  if (!take_session(row, record, counts)) return std::nullopt;
  const std::string metadata = metadata_pairs(record.metadata) ? listed_metadata(record.metadata) : "";
  return SessionSummary{std::move(static_cast<SessionHead&>(record)),
                        static_cast<std::int32_t>(counts.tokens),
                        static_cast<std::int32_t>(counts.pending_tokens),
                        static_cast<std::int32_t>(counts.pending_messages),
                        static_cast<std::int32_t>(counts.turns),
                        counts.bytes,
                        metadata};
}

// Reads the session's own row. Returns false if there is no such row, or if its values are impossible.
SqlExpected<bool> RecordRows::read_session(std::int64_t key, SessionRecord& record, Counts& counts) {
  get_session_.bind(key);
  const auto row = get_session_.next();
  if (!row || !*row) return row;
  const bool is_possible = take_session(get_session_, record, counts);
  if (auto end = get_session_.next(); !end) return end;
  return is_possible;
}

// Fills `record` with the turns before the first damaged one, and with the pending input if nothing is damaged. Returns whether
// nothing is.
bool RecordRows::take_sound_turns(SessionRecord& record, const Counts& counts, const std::vector<Token>& tokens,
                                  const std::vector<ChatMessage>& messages, std::vector<Turn> turns) {
  // Unexpected tokens make the counts unreliable; the end of the last turn is then unknown, as if turns were lost.
  const bool has_all_tokens = std::ssize(tokens) == counts.tokens + counts.pending_tokens;
  const bool has_all_messages = std::ssize(messages) == counts.messages + counts.pending_messages;
  const bool has_all_turns = std::ssize(turns) == counts.turns;
  const bool is_end_known = has_all_turns && std::ssize(tokens) <= counts.tokens + counts.pending_tokens &&
                            std::ssize(messages) <= counts.messages + counts.pending_messages;
  std::int64_t tokens_end = is_end_known ? counts.tokens : 0;
  std::int64_t messages_end = is_end_known ? counts.messages : 0;
  if (!is_end_known && !turns.empty()) {
    tokens_end = turns.back().tokens_begin;
    messages_end = turns.back().messages_begin;
    turns.pop_back();
  }
  const std::size_t sound = count_sound_turns(record, turns, std::ssize(tokens), messages, tokens_end, messages_end);
  const bool is_whole = is_end_known && has_all_tokens && has_all_messages && sound == turns.size();
  if (!is_whole && sound == 0) {
    tokens_end = messages_end = 0;
    record.turns_dropped = 0;
  } else if (sound < turns.size()) {
    tokens_end = turns[sound].tokens_begin;
    messages_end = turns[sound].messages_begin;
  }
  turns.resize(sound);
  record.chain.assign(tokens.begin(), tokens.begin() + tokens_end);
  record.messages.assign(messages.begin(), messages.begin() + messages_end);
  if (is_whole) {
    record.pending.assign(tokens.begin() + tokens_end, tokens.end());
    record.pending_messages.assign(messages.begin() + messages_end, messages.end());
  }
  record.turns = std::move(turns);
  return is_whole;
}

SqlExpected<StoredSession> RecordRows::read(std::int64_t key) {
  auto record = std::make_shared<SessionRecord>();
  Counts counts;
  const auto is_there = read_session(key, *record, counts);
  if (!is_there) return std::unexpected(is_there.error());
  if (!*is_there) return StoredSession{};
  const auto tokens = read_tokens(key);
  if (!tokens) return std::unexpected(tokens.error());
  const auto messages = read_messages(key);
  if (!messages) return std::unexpected(messages.error());
  auto turns = read_turns(key);
  if (!turns) return std::unexpected(turns.error());
  bool is_whole = take_sound_turns(*record, counts, *tokens, *messages, std::move(*turns));
  if (!metadata_pairs(record->metadata)) {
    record->metadata.clear();
    is_whole = false;
  }
  if (!impossible_part(*record).empty()) return StoredSession{};
  if (auto done = read_receipts(key, record->turns); !done) return std::unexpected(done.error());
  auto responses = read_responses(key, record->turns_dropped, record->turns_dropped + std::ssize(record->turns));
  if (!responses) return std::unexpected(responses.error());
  record->responses = std::move(*responses);
  // The instructions may be among the damaged messages.
  record->has_instructions = record->has_instructions && (!record->messages.empty() || !record->pending_messages.empty());
  return StoredSession{.record = std::move(record), .is_damaged = !is_whole};
}

}  // namespace uma::kv
