// The store of sessions. The router acknowledges a change only after the catalog has reported `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/receipt.h"
#include "core/request.h"
#include "core/response.h"

namespace uma::kv {

// One input and its reply. Offsets are indices of SessionRecord::chain and ::messages.
struct Turn {
  std::int32_t tokens_begin = 0;  // Where the input begins.
  std::int32_t reply_begin = 0;
  std::int32_t messages_begin = 0;
  ReceiptPtr receipt{};  // The reply's receipt; null: it was not kept.
  // Compares receipts by value.
  [[nodiscard]] bool operator==(const Turn& other) const;
};

// The properties of a session without its conversation.
struct SessionHead {
  SessionId id;
  TenantId tenant;
  std::string name;
  std::string model;
  SessionMode mode = SessionMode::automatic;  // Automatic only until the first input.
  bool is_public = false;                     // See CreateSessionRequest.
  bool is_ephemeral = false;                  // See CreateSessionRequest.
  OnFull on_full = OnFull::error;
  // For on_full shift: tokens at the beginning of the chain that are never dropped. The first input raises it to at least the
  // length of the system prompt.
  std::int32_t n_keep = 0;
  std::int32_t turns_dropped = 0;  // Dropped turns follow the kept tokens and precede the first remaining turn.
  bool has_instructions = false;   // The first message holds the instructions of the last response.
  // The session was imported with KV that this daemon did not compute, so KV computed from it is private to the session.
  bool has_foreign_kv = false;
  bool is_of_responses = false;  // Created for responses and used only by them; it is deleted with the last one.
  SessionId parent;              // The session that it was forked from, which may have ended; empty: it is not a fork.
  std::int32_t fork_turn = 0;    // The first turn that is not the parent's.
  std::int64_t ttl_s = 0;
  std::int64_t created_s = 0;    // Unix time.
  std::int64_t last_used_s = 0;  // Unix time.
  bool operator==(const SessionHead&) const = default;
};

// Everything stored of a session. Immutable once committed: a change makes a new record. A response has the position of its
// turn.
struct SessionRecord : SessionHead {
  std::vector<Token> chain;    // Tokens of the finished turns; the source of truth.
  std::vector<Token> pending;  // Appended input without a reply.
  // The tokens that begin a conversation without a turn: its system prompt with the tools (chat::ChatTokens::head_tokens), or
  // the text that a text session was created with. Not stored: 0 after the record was read.
  std::int32_t head_tokens = 0;
  std::vector<ChatMessage> messages;          // Messages of the finished turns; chat mode.
  std::vector<ChatMessage> pending_messages;  // Chat mode.
  std::string tools;                          // Tools of the chat template (ChatOptions); chat mode.
  std::string template_arguments;             // Arguments of the chat template; chat mode.
  std::vector<Turn> turns;
  std::vector<ResponsePtr> responses;  // Responses of the turns that have one, in order.
  std::string metadata;                // See core/metadata.h.
};

using RecordPtr = std::shared_ptr<const SessionRecord>;  // Shared: the router reads a record while the catalog stores it.

// The listed properties of a session, which stay in memory while it is unused.
struct SessionSummary : SessionHead {
  std::int32_t tokens_count = 0;  // Tokens of the chain.
  std::int32_t pending_tokens_count = 0;
  std::int32_t pending_messages_count = 0;
  std::int32_t turns_count = 0;
  std::int64_t bytes_stored = 0;  // stored_bytes() of the record.
  std::string metadata{};         // listed_metadata() of the record's, so its size is bounded.
  // Without the bytes, which follow from the rest, unless a row was damaged.
  bool operator==(const SessionSummary& other) const;
};
[[nodiscard]] SessionSummary summary_of(const SessionRecord& record);
// Tokens of the finished turns and the pending input, in order.
[[nodiscard]] std::vector<Token> all_tokens(const SessionRecord& record);
// Compares by value, the responses included.
[[nodiscard]] bool operator==(const SessionRecord& a, const SessionRecord& b);
// The approximate memory of the record.
[[nodiscard]] std::size_t bytes_of(const SessionRecord& record);
// The bytes of its tokens and texts in the catalog, for quotas. Images count elsewhere (image::KeptImages).
[[nodiscard]] std::size_t stored_bytes(const SessionRecord& record);
// The part of it that its tokens are made from: messages, tools, and arguments of the template.
[[nodiscard]] std::size_t source_bytes(const SessionRecord& record);
// The `extra` of each message that has images.
[[nodiscard]] std::vector<std::string> image_extras(const SessionRecord& record);

// The changes by other daemons to a shared catalog since the last question.
struct CatalogChanges {
  std::vector<SessionSummary> changed;  // Sessions that this daemon does not own. One may come again unchanged.
  std::vector<SessionId> ended;
  std::vector<SessionId> wanted;  // Sessions of this daemon that another one asks for.
  bool has_more = false;          // This is a part: the next question gets the next one.
  bool is_complete = false;       // `all` has the ids of all sessions; others have ended.
  std::vector<SessionId> all;
};

// Whether a session must be taken again after this error of a commit or a removal: another daemon may have it.
[[nodiscard]] inline bool must_take_again(const Error& error) {
  return error.code == ErrorCode::limit_wait || error.code == ErrorCode::outcome_unknown;
}

class Catalog {
 public:
  using Done = MoveOnlyFunction<void(Expected<Unit>)>;
  using OnRead = MoveOnlyFunction<void(Expected<RecordPtr>)>;
  using OnFound = MoveOnlyFunction<void(Expected<SessionSummary>)>;
  using OnChanges = MoveOnlyFunction<void(Expected<CatalogChanges>)>;

  virtual ~Catalog() = default;
  // Returns the stored sessions. Requires: called once, before anything else.
  [[nodiscard]] virtual std::vector<SessionSummary> load() = 0;

  // Returns image_extras() of the sessions that have images, as at the start. Requires: called once, after load().
  [[nodiscard]] virtual std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() { return {}; }

  // Any thread. A tenant's changes take effect in the order of the calls, and before reads that wait; tenants take turns.
  // `done` is called once, from any thread, when the change is stored or has failed; a failed change has no effect. After
  // close() these three functions ignore their arguments. Stores `record` in place of `before`, the session's present record;
  // null: none.
  virtual void commit(RecordPtr record, RecordPtr before, Done done) = 0;
  // Deletes the session.
  virtual void remove(const SessionId& id, Done done) = 0;
  // Reads a session that has no pending change, and gets none before it is read. `on_read` is called once, from any thread.
  // Errors: E_IO_001, also for an unknown or damaged session.
  virtual void read(const SessionId& id, OnRead on_read) = 0;
  // --- A catalog that several daemons share. A session has at most one owner among them, and only the owner may commit or
  // remove it: a commit of another one fails with E_LIMIT_003 and has no effect. If the connection to the database
  // is lost in a commit and does not come back, the error is E_IO_002. After either, the session must be taken again
  // (must_take_again()).

  [[nodiscard]] virtual bool is_shared() const { return false; }
  // The number of the present lease, as long as which no other daemon can take this one's sessions; 0: it has ended. Others may
  // have what was taken under an earlier one. Any thread.
  [[nodiscard]] virtual std::uint64_t lease() const { return 1; }
  // Whether the catalog's database answers. It takes some seconds until a loss shows. Any thread.
  [[nodiscard]] virtual bool is_reachable() const { return true; }
  // Finds a session by the tenant's name for it, else by its id. Errors: E_SESSION_001; E_IO_001.
  virtual void look_up(const TenantId& /*tenant*/, const std::string& /*session*/, OnFound on_found) {
    on_found(fail(ErrorCode::session_unknown, "the catalog is not shared"));
  }
  // Makes this daemon the owner of a session, and reads it. Errors: E_SESSION_001 for no such session; E_SESSION_002 if another
  // daemon owns it and does not give it up in time; E_IO_001.
  virtual void take(const SessionId& /*id*/, OnRead on_read) {
    on_read(fail(ErrorCode::session_unknown, "the catalog is not shared"));
  }
  // Call it before the thread of step() starts. `on_news` is called, from any thread, when changes() should be asked for at
  // once, such as when another daemon wants a session of this one. It may come late or never, so changes() is asked for now and
  // then.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): a shared catalog keeps it.
  virtual void call_on_news(std::function<void()> /*on_news*/) {}
  // Gives a session up, whether or not the daemon knows that it owns it.
  virtual void give_up(const SessionId& /*id*/) {}
  virtual void changes(OnChanges on_changes) { on_changes(CatalogChanges{}); }

  // Whether little room is left on the disk that it writes to. Any thread.
  [[nodiscard]] virtual bool is_nearly_full() const { return false; }

  // Ends wait(). step() still handles the calls made before.
  virtual void close() {}

  // The loop of a catalog with its own thread, as in WorkPool.
  virtual bool step() { return false; }
  virtual bool wait() { return false; }
};

// A catalog in memory. Thread-safe; for tests.
class MemoryCatalog : public Catalog {
 public:
  [[nodiscard]] std::vector<SessionSummary> load() override;
  [[nodiscard]] std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() override;
  void commit(RecordPtr record, RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;

  // The committed record, or null.
  [[nodiscard]] RecordPtr find(const SessionId& id) const;
  [[nodiscard]] std::size_t size() const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<SessionId, RecordPtr> records_ GUARDED_BY(mutex_);
};

}  // namespace uma::kv
