// What clients ask for, typed and validated by the wire room: from here on no field has a wrong type or an impossible value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/image.h"
#include "core/portable_file.h"
#include "core/sampling_params.h"
#include "core/tenant_budget.h"

namespace uma {

enum class RequestClass : std::uint8_t { interactive, background };

struct ChatMessage {
  std::string role;
  std::string content;
  // What it has beside, as a JSON object with OpenAI's names: "reasoning_content" and "tool_calls" of an assistant,
  // "tool_call_id" of a tool, "name". Empty: nothing.
  std::string extra{};
  bool operator==(const ChatMessage&) const = default;
};

enum class ToolChoice : std::uint8_t { automatic, required, named };

// How the prompt of a conversation is written and its reply read; means nothing for a text.
struct ChatOptions {
  std::string tools;  // that the model may call: a JSON array as OpenAI has it, checked; empty: none
  std::vector<std::string> tool_names;
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_name;  // named: the one that must be called
  bool has_parallel_calls = true;
  std::string template_arguments;  // JSON object: the template's own switches, such as enable_thinking; empty: none
  bool splits_reasoning = false;   // what the model thinks first is told apart from the content, where the template knows it
};

// Options of one generation.
struct GenerateOptions {
  SamplingParams sampling;
  std::optional<std::int32_t> max_tokens;  // absent: 512 or what fits
  std::vector<std::string> stop;           // non-empty strings
  std::string grammar;                     // GBNF that the reply must follow; empty: none
  std::string json_schema;                 // of the JSON that the reply must be, as JSON; empty: none; not beside a grammar
  std::optional<std::int32_t> logprobs;    // of each token of the content, with so many of the likeliest; absent: none
  bool stream = true;
  RequestClass request_class = RequestClass::interactive;
  std::optional<std::int64_t> deadline_ms;  // of waiting; absent: limits.deadline_ms; 0: none
  std::int64_t timeout_ms = 0;              // of the whole; 0: none
  double target_ttft_ms = 0;                // wanted until the first token; 0: scheduler.target_ttft_ms
  double target_tbt_ms = 0;                 // wanted between two tokens; 0: scheduler.target_tbt_ms
  bool progress = false;
  ChatOptions chat;
};

// Delta input of a session, or the whole prompt of a one-shot request: one of a text, messages and, for the latter, tokens.
struct Input {
  std::string text;
  std::vector<ChatMessage> messages;
  std::vector<InputImage> images{};  // of the messages, in order; not read yet
  std::vector<Token> tokens{};       // not checked against the vocabulary

  [[nodiscard]] bool empty() const { return text.empty() && messages.empty() && tokens.empty(); }
  // Of the prompt, without its images.
  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = text.size() + tokens.size() * sizeof(Token);
    for (const ChatMessage& message : messages) {
      total += message.role.size() + message.content.size() + message.extra.size();
    }
    return total;
  }
};

// What becomes of a session whose tokens do not fit into a sequence's cells any more.
enum class OnFull : std::uint8_t {
  error,  // input is refused, replies end
  shift,  // its oldest turns are dropped
};

// What makes a generation one of OpenAI's responses, a reply with an id of its own: its input and its reply become a turn of
// the session together, when the reply ends, or leave nothing. GenerateRequest::session is a conversation, or the session of
// the response that it continues; empty: a new one.
struct ResponseRequest {
  std::string id;  // chosen by the door; no other response of the session has it
  // The response that it continues: in its session where nothing has followed it, else in a new one that begins like it.
  // Empty: it continues the session, after the replies that are being made there.
  std::string previous;
  std::optional<std::string> instructions;  // the system message for this reply alone; absent: none
  std::optional<OnFull> on_full;            // of the session from now on; absent: as it is
  bool is_kept = true;                      // false: it can neither be read nor continued
  std::int64_t ttl_s = 0;                   // of the session, if it is a new one
  std::string request;                      // the door's own words, given back with the response
};

// `generate`, `generate_stream` and `regenerate`. With a session: appends the input (which may be empty), then generates, as
// one step.
struct GenerateRequest {
  std::string model;         // empty: the default model
  std::string session;       // id or name; empty: a one-shot request
  std::uint64_t client = 0;  // the connection it came by, 0: none; connections of a tenant are served in turn
  Input input;
  bool regenerate = false;  // first drops the last turn's reply; the input is then empty
  GenerateOptions options;
  std::optional<ResponseRequest> response;  // the input is then messages
  RequestShare share{};                     // what it holds in memory; shared by what is made of it
};

enum class SessionMode : std::uint8_t { automatic, text, chat };

struct CreateSessionRequest {
  std::string model;
  std::string system;                         // chat mode: the system message; text mode: the text the session begins with
  std::vector<ChatMessage> messages;          // chat mode: what waits for the first reply, after the system message
  std::string metadata;                       // a door's own, kept with the session
  std::string name;                           // unique per tenant; empty: none
  SessionMode mode = SessionMode::automatic;  // chat where the model has a chat template
  bool is_public = false;                     // other tenants' requests may begin with what it has computed
  bool is_ephemeral = false;                  // its KV is kept in the context only
  std::int64_t ttl_s = 0;                     // seconds without use after which the session ends; 0: none
  OnFull on_full = OnFull::error;
  std::int32_t n_keep = 0;  // shift: so many first tokens are never dropped, and never the system prompt
};

struct ImportRequest {
  std::string name;      // of the new session; empty: the one it had
  PortableFile file;     // not checked yet
  std::string model{};   // that it becomes a session of; empty: the default one
  bool takes_kv = true;  // false: the KV that the file may have is left out
};

struct AppendRequest {
  std::string session;  // id or name
  Input input;
};

// What they take of memory, in bytes.
[[nodiscard]] std::size_t memory_of(const Input& input);
[[nodiscard]] std::size_t memory_of(const GenerateRequest& request);
[[nodiscard]] std::size_t memory_of(const CreateSessionRequest& request);
[[nodiscard]] std::size_t memory_of(const AppendRequest& request);

}  // namespace uma
