// What the doors show of sessions and models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/capability.h"
#include "core/ids.h"
#include "core/portable_file.h"
#include "core/request.h"
#include "core/response.h"
#include "core/usage.h"

namespace uma {

struct SessionInfo {
  SessionId id;
  std::string name;
  std::string model;
  SessionMode mode = SessionMode::text;
  std::int32_t tokens = 0;          // of the chain, without pending input
  std::int32_t pending_tokens = 0;  // appended and not yet generated on
  std::int32_t pending_messages = 0;
  std::int32_t turns = 0;          // since the beginning
  std::int32_t dropped_turns = 0;  // of them: the oldest ones, which a full context has cost
  OnFull on_full = OnFull::error;
  std::int32_t n_keep = 0;  // shift: first tokens that are never dropped
  bool busy = false;
  Tier tier = Tier::none;       // where its KV is now
  std::uint64_t hot_bytes = 0;  // of its KV, in each tier
  std::uint64_t warm_bytes = 0;
  std::uint64_t cold_bytes = 0;
  std::int32_t worker = -1;
  std::int64_t created_s = 0;    // Unix time
  std::int64_t last_used_s = 0;  // Unix time
};

// Of a message in a session.
struct MessagePosition {
  std::int32_t turn = 0;    // since the session's beginning; what waits is of the next one
  std::int32_t number = 0;  // among the messages of the turn, instructions not counted
  bool operator==(const MessagePosition&) const = default;
};

struct SessionDetail {
  SessionInfo info;
  std::vector<ChatMessage> messages;          // chat mode
  std::vector<ChatMessage> pending_messages;  // appended and not yet generated on
  std::vector<std::int32_t> turns_begin;      // where the messages of each turn that is left begin
  bool has_instructions = false;              // the first message is those of the last response, which are no part of the past
  std::string text;                           // text mode: the whole chain as text
  std::string metadata;                       // CreateSessionRequest::metadata, or what it became
};

// Of a tenant's sessions, those made first at the beginning.
struct SessionListRequest {
  static constexpr std::int32_t kLimitMax = 10'000;  // about 3 MB as JSON, and the time of a tick on the threads that all share
  std::string after{};                               // name or id of the session before the first; empty: from the beginning
  std::int32_t limit = kLimitMax;
};

struct SessionList {
  std::vector<SessionInfo> sessions;
  bool has_more = false;  // behind the last of these
};

struct ResponseDetail {
  SessionDetail session;  // up to the response: its last message is the reply
  ResponsePtr response;   // shared with the session's record
};

struct ExportedSession {
  SessionInfo info;
  PortableFile file;
  std::uint64_t kv_bytes = 0;  // of it; 0: it has none
};

// What became of the KV of a file.
enum class ImportedKv : std::uint8_t {
  none,     // it has none
  kept,     // the next reply begins with it
  refused,  // it is of no use here: the log says why
};

struct ImportedSession {
  SessionInfo info;
  ImportedKv kv = ImportedKv::none;
  bool are_tokens_kept = true;  // false: they were of another vocabulary and have been made anew
};

enum class ModelState : std::uint8_t { unloaded, loading, ready, failed };

struct ModelInfo {
  std::string name;
  std::string description{};  // architecture, size and type, as the engine says
  Capability capability = Capability::chat;
  ModelState state = ModelState::unloaded;
  double load_progress = 0;  // 0 to 1
  std::uint64_t bytes = 0;
  std::uint64_t parameters = 0;
  std::int32_t context_tokens = 0;       // KV cells of one worker; of an embedding model, tokens of one call
  std::int32_t sequence_tokens_max = 0;  // the longest that one session, or a text, can be
  std::int32_t train_tokens = 0;         // context length it was trained with
  std::int32_t vocabulary = 0;
  std::int32_t slots = 0;
  std::int32_t workers = 0;
  bool has_chat_template = false;
  bool reads_images = false;
  std::string kv_layout{};      // "split" or "unified"; empty: it has none
  std::int32_t dimensions = 0;  // of its vectors; 0: it makes none
  std::vector<std::string> aliases{};
  std::string problem{};  // why it cannot be loaded; empty: nothing is known against it
};

}  // namespace uma
