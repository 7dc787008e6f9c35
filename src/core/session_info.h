// Descriptions of sessions and models for clients.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/capability.h"
#include "core/file/portable_file.h"
#include "core/ids.h"
#include "core/receipt.h"
#include "core/request.h"
#include "core/response.h"
#include "core/sampling_fields.h"
#include "core/usage.h"

namespace uma {

struct SessionInfo {
  SessionId id;
  std::string name;
  std::string model;
  SessionMode mode = SessionMode::text;
  std::int32_t tokens = 0;          // Tokens of the chain, without pending input.
  std::int32_t pending_tokens = 0;  // Appended input without a reply.
  std::int32_t pending_messages = 0;
  std::int32_t turns = 0;          // Counted from the beginning.
  std::int32_t dropped_turns = 0;  // The oldest turns that were dropped from a full context; included in turns.
  OnFull on_full = OnFull::error;
  std::int32_t n_keep = 0;  // For shift: first tokens that are never dropped.
  bool busy = false;
  std::string response{};       // ResponseRequest::id of the reply in progress; empty: it is no response, or there is none.
  Tier tier = Tier::none;       // Where its KV is now.
  std::uint64_t hot_bytes = 0;  // Bytes of its KV, per tier.
  std::uint64_t warm_bytes = 0;
  std::uint64_t cold_bytes = 0;
  std::int32_t worker = -1;
  std::int64_t created_s = 0;    // Unix time.
  std::int64_t last_used_s = 0;  // Unix time.
  SessionId parent{};            // The session that it was forked from, which may have ended; empty: it is not a fork.
  std::int32_t fork_turn = 0;    // The first turn that is not the parent's.
  std::string metadata{};        // See core/metadata.h; in a list listed_metadata() of it.
};

// The position of a message in a session.
struct MessagePosition {
  std::int32_t turn = 0;    // Counted from the session's beginning; pending messages belong to the next turn.
  std::int32_t number = 0;  // Index among the messages of the turn, without instructions.
  bool operator==(const MessagePosition&) const = default;
};

struct SessionDetail {
  SessionInfo info;
  std::vector<ChatMessage> messages;          // Chat mode.
  std::vector<ChatMessage> pending_messages;  // Input without a reply; chat mode.
  std::vector<std::int32_t> turns_begin;      // First message of each remaining turn.
  // The first message has the last response's instructions, which are not part of the conversation.
  bool has_instructions = false;
  std::string text;          // Text mode: the whole chain as text.
  std::string pending_text;  // Text mode: the input without a reply.
  RequestShare share{};      // Counts the texts while the detail exists; null: they are not counted.

  // The size of its texts.
  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = text.size() + pending_text.size();
    for (const auto* part : {&messages, &pending_messages}) {
      for (const ChatMessage& each : *part) sum += each.content.size() + each.extra.size();
    }
    return sum;
  }
};

enum class SessionOrder : std::uint8_t { oldest_first, last_used_first };

// Selects sessions of a tenant.
struct SessionListRequest {
  static constexpr std::int32_t kLimitMax = 10'000;  // About 3 MB as JSON, and as much time as a tick on shared threads.
  static constexpr std::size_t kQueryBytesMax = 256;
  // Name or id of the session before the first, or SessionList::next of the page before; empty: from the beginning.
  std::string after{};
  std::int32_t limit = kLimitMax;
  SessionOrder order = SessionOrder::oldest_first;
  std::string query{};  // Words that the name or the metadata contains, in any case; empty: all sessions.
};

struct SessionList {
  std::vector<SessionInfo> sessions;
  bool has_more = false;  // More sessions follow, or may follow if there is a query.
  std::string next{};     // The position of the next page, whatever happens to the sessions meanwhile; empty: no more follow.
};

struct ResponseDetail {
  SessionDetail session;  // The session up to the response; its last message is the reply.
  ResponsePtr response;   // Shared with the session's record.
  ReceiptPtr receipt{};   // Shared with the record, too; null: it was not kept.
};

// The receipt of a turn.
struct TurnReceipt {
  std::int32_t turn = 0;  // Counted from the session's beginning.
  ReceiptPtr receipt;
};

struct ExportedSession {
  SessionInfo info;
  PortableFile file;
  std::uint64_t kv_bytes = 0;  // Bytes of KV in the file; 0: none.
};

// The result for the KV of an imported file.
enum class ImportedKv : std::uint8_t {
  none,     // The file has none.
  kept,     // The next reply uses it.
  refused,  // It does not fit this daemon; the log has the reason.
};

struct ImportedSession {
  SessionInfo info;
  ImportedKv kv = ImportedKv::none;
  bool are_tokens_kept = true;  // False: the vocabulary differs, so the conversation was tokenized again.
};

// Facts of a model's file, which are known before it is loaded.
struct ModelFileInfo {
  std::string architecture{};
  std::string title{};         // The model's name in the file; empty: none.
  std::string quantization{};  // The format of most weights, such as "Q4_K_M"; empty: unknown.
  std::int32_t embedding_length = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_s = 0;  // Unix time.
};

// The sampling of requests to a model that do not state it themselves. What is missing is as the API has it.
struct ModelSampling {
  std::vector<SamplingDefault> values{};                            // In the order of SamplingField.
  std::optional<std::vector<std::string>> dry_sequence_breakers{};  // Breakers of the model's card.
  std::string family{};                                             // Empty: unknown.
};

// A LoRA adapter of a model.
struct AdapterInfo {
  std::string name;
  double scale = 1;  // For requests that state none.
};

enum class ModelState : std::uint8_t { unloaded, loading, ready, failed };

struct ModelInfo {
  std::string name;
  std::string description{};  // Architecture, size and type.
  Capability capability = Capability::chat;
  ModelState state = ModelState::unloaded;
  double load_progress = 0;  // 0 to 1.
  std::uint64_t bytes = 0;
  std::uint64_t parameters = 0;
  std::int32_t context_tokens = 0;       // KV cells of one worker; for an embedding model, tokens of one call.
  std::int32_t sequence_tokens_max = 0;  // Longest session, or text; before it is loaded: what it usually is.
  std::int32_t train_tokens = 0;         // Context length of the training.
  std::int32_t vocabulary = 0;
  std::int32_t slots = 0;
  std::int32_t workers = 0;
  bool has_chat_template = false;
  bool calls_tools = false;  // The chat template has tool calls; known while the model is loaded.
  bool reasons = false;      // The chat template has marks for reasoning; known while the model is loaded.
  bool reads_images = false;
  bool reads_audio = false;
  ImageVectors image_vectors = ImageVectors::none;
  bool fills_gaps = false;  // The vocabulary has the marks of Input::infill; known while the model is loaded.
  // The model's chat template, while it is loaded; null: it has none. Shared, because templates are long.
  std::shared_ptr<const std::string> chat_template{};
  std::string kv_layout{};        // "split" or "unified"; empty: it has none.
  std::int32_t dimensions = 0;    // Length of its vectors; 0: it computes none.
  std::int32_t picture_size = 0;  // Pixels of a side of the pictures it draws; 0: it draws none.
  std::vector<std::string> aliases{};
  std::vector<AdapterInfo> adapters{};
  std::string store{};    // The other program that has stored its file; empty: none has.
  std::string parent{};   // Model of an adapter that is listed as a model, "MODEL:ADAPTER".
  std::string problem{};  // Why it cannot be loaded; empty: no known problem.
  std::string failure{};  // Reason why the last load failed, if it did.
  ModelFileInfo file{};
  ModelSampling sampling{};
  double idle_unload_s = 0;        // Unloaded after this time without a request; 0: never.
  std::uint64_t memory_bytes = 0;  // Bytes of its weights and contexts, in memory and on devices; 0: it holds none.

  // Why it is not ready, for people; empty: nothing is known against it.
  [[nodiscard]] const std::string& complaint() const { return problem.empty() ? failure : problem; }
  // Requests for it may be as large as files.
  [[nodiscard]] bool reads_files() const { return reads_images || reads_audio; }
};

}  // namespace uma
