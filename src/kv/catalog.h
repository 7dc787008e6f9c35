// Where sessions are kept: commit before claim. The router acknowledges a change only after the catalog has said `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/response.h"

namespace uma::kv {

// One input and its reply. Offsets are into SessionRecord::chain and ::messages.
struct Turn {
  std::int32_t tokens_begin = 0;  // where the input begins
  std::int32_t reply_begin = 0;
  std::int32_t messages_begin = 0;
  bool operator==(const Turn&) const = default;
};

// What a session is, apart from what was said in it.
struct SessionHead {
  SessionId id;
  TenantId tenant;
  std::string name;
  std::string model;
  SessionMode mode = SessionMode::automatic;  // automatic only until the first input decides
  bool is_public = false;                     // CreateSessionRequest
  bool is_ephemeral = false;                  // CreateSessionRequest
  OnFull on_full = OnFull::error;
  // shift: tokens at the beginning of the chain that are never dropped. With the first input it becomes the length of the
  // system prompt at least.
  std::int32_t n_keep = 0;
  std::int32_t turns_dropped = 0;  // before the first one that is left, whose tokens then follow those that are kept
  bool has_instructions = false;   // the first message is those of the last response
  bool has_foreign_kv = false;   // it was imported with KV, which nobody here has computed: what it computes on that is its own
  bool is_of_responses = false;  // made for responses, which alone use it: it ends with the last of them
  std::int64_t ttl_s = 0;
  std::int64_t created_s = 0;    // Unix time
  std::int64_t last_used_s = 0;  // Unix time
  bool operator==(const SessionHead&) const = default;
};

// All that is known of a session. Immutable once committed: a change is a new record. A response stands where its turn does.
struct SessionRecord : SessionHead {
  std::vector<Token> chain;                   // tokens of the finished turns: the truth
  std::vector<Token> pending;                 // appended, not yet generated on
  std::vector<ChatMessage> messages;          // of the finished turns; chat mode
  std::vector<ChatMessage> pending_messages;  // chat mode
  std::string tools;                          // chat mode: what all of it is written with (ChatOptions)
  std::string template_arguments;             // likewise
  std::vector<Turn> turns;
  std::vector<ResponsePtr> responses;  // of the turns that are one, in order
  std::string metadata;                // CreateSessionRequest
};

using RecordPtr = std::shared_ptr<const SessionRecord>;  // shared: the router reads a record while the catalog keeps it

// What a listing tells of a session: all that memory holds of one that nobody uses.
struct SessionSummary : SessionHead {
  std::int32_t tokens_count = 0;  // of the chain
  std::int32_t pending_tokens_count = 0;
  std::int32_t pending_messages_count = 0;
  std::int32_t turns_count = 0;
  bool operator==(const SessionSummary&) const = default;
};
[[nodiscard]] SessionSummary summary_of(const SessionRecord& record);
// Those of the finished turns and the pending ones, in order.
[[nodiscard]] std::vector<Token> all_tokens(const SessionRecord& record);
// Compares by value, the responses included.
[[nodiscard]] bool operator==(const SessionRecord& a, const SessionRecord& b);
// The approximate memory that the record takes.
[[nodiscard]] std::size_t bytes_of(const SessionRecord& record);
// The `extra` of each message that has images.
[[nodiscard]] std::vector<std::string> image_extras(const SessionRecord& record);

class Catalog {
 public:
  using Done = std::move_only_function<void(Expected<Unit>)>;
  using OnRead = std::move_only_function<void(Expected<RecordPtr>)>;

  virtual ~Catalog() = default;
  // What is kept at the start. REQUIRES: called once, before anything else.
  [[nodiscard]] virtual std::vector<SessionSummary> load() = 0;

  // image_extras() of the sessions that have some, as they were at the start. REQUIRES: as load(), after it.
  [[nodiscard]] virtual std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() { return {}; }

  // Any thread. Changes take effect in the order they came, and `done` is called once, from any thread, when one is kept or has
  // failed; a failed one changes nothing. After close() all three drop what they are given.
  // Keeps `record` in the place of `before`, which is what is kept of the session now; null: nothing.
  virtual void commit(RecordPtr record, RecordPtr before, Done done) = 0;
  // Forgets the session.
  virtual void remove(const SessionId& id, Done done) = 0;
  // Reads a session of which no change waits. `on_read` is called once, from any thread. Errors: E_IO_001, also for a session
  // that is not kept, or that is damaged.
  virtual void read(const SessionId& id, OnRead on_read) = 0;
  // What was given is still kept, by step(); then wait() is false.
  virtual void close() {}

  // The thread of a catalog that works in one: as Preparer's.
  virtual bool step() { return false; }
  virtual bool wait() { return false; }
};

// Keeps records for as long as it lives. Thread-safe; for tests.
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
