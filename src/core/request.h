// Requests of clients, typed and validated by the wire module: no field has a wrong type or an impossible value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/agent.h"
#include "core/cache_miss.h"
#include "core/file/portable_file.h"
#include "core/ids.h"
#include "core/image.h"
#include "core/metadata.h"
#include "core/sampling_params.h"
#include "core/work/tenant_budget.h"

namespace uma {

enum class RequestClass : std::uint8_t { interactive, background };

struct ChatMessage {
  std::string role;
  std::string content;
  // Extra fields as a JSON object with OpenAI's names: "reasoning_content" and "tool_calls" of an assistant, "tool_call_id" of
  // a tool, "name". Empty: none.
  std::string extra{};
  bool operator==(const ChatMessage&) const = default;
};

enum class ToolChoice : std::uint8_t { automatic, required, named };

// Options for writing the prompt of a conversation and parsing its reply; unused for texts.
struct ChatOptions {
  std::string tools;  // Tools for the model: OpenAI's JSON array, validated; empty: none.
  std::vector<std::string> tool_names;
  std::vector<std::string> custom_tools{};  // The tools of tool_names that take one text, as OpenAI's custom tools do.
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_name;                     // With `named`: the tool that must be called.
  std::vector<std::string> allowed_tools{};  // The only tools that may be called; empty: all.
  bool has_parallel_calls = true;
  // The last message is the beginning of the reply, which the model continues. Only for one-shot requests.
  bool continues_reply = false;
  std::string template_arguments;  // JSON object with options of the template, such as enable_thinking; empty: none.
  bool splits_reasoning = false;   // Separates reasoning from the content if the template supports it.
  // The most tokens of reasoning, which is closed then; 0: no reasoning; negative: no limit; nullopt: as the model's card says.
  std::optional<std::int32_t> thinking_budget{};

  // Whether the reply may call this tool of the request.
  [[nodiscard]] bool may_call(std::string_view name) const {
    if (tool_choice == ToolChoice::named) return name == tool_name;
    return allowed_tools.empty() || std::ranges::contains(allowed_tools, name);
  }
};

inline constexpr double kAdapterScaleMax = 100;  // Largest size of an adapter's scale.

// A LoRA adapter of the model.
struct AdapterChoice {
  std::string name{};             // Empty: `number` counts.
  std::int32_t number = 0;        // Its place among the adapters of the model, from 0.
  std::optional<double> scale{};  // Nullopt: that of the model's card.
};

// Options of one generation.
struct GenerateOptions {
  SamplingParams sampling;
  std::optional<std::int32_t> max_tokens;  // Nullopt: as many as fit; 0: only the prompt is computed.
  std::vector<std::string> stop;           // Non-empty strings.
  std::string grammar;                     // GBNF grammar of the reply; empty: none.
  std::string json_schema;                 // JSON Schema of the reply, as JSON; empty: none. Excludes grammar.
  bool strict_schema = false;              // A keyword that a grammar cannot enforce is an error, and not left out.
  std::string pattern;                     // Regular expression of the whole reply; empty: none. Excludes both.
  // The request's fields with the schema, and with the grammar or pattern, for errors; static storage.
  std::string_view schema_field = "response_format.json_schema.schema";
  std::string_view grammar_field = "grammar";
  // Returns logprobs of each content token and of this many of the most likely tokens; nullopt: none.
  std::optional<std::int32_t> logprobs;
  bool prompt_logprobs = false;  // Also those of the prompt's tokens, so none of it is reused. Requires logprobs, not stream.
  bool stream = true;
  RequestClass request_class = RequestClass::interactive;
  std::optional<std::int64_t> deadline_ms;  // Limit of the waiting time; nullopt: limits.deadline_ms; 0: none.
  std::int64_t timeout_ms = 0;              // Limit of the total time; 0: none.
  double target_ttft_ms = 0;                // Target for the first token; 0: scheduler.target_ttft_ms.
  double target_tbt_ms = 0;                 // Target between two tokens; 0: scheduler.target_tbt_ms.
  bool progress = false;
  std::vector<AdapterChoice> adapters;  // Beside one that GenerateRequest::model names.
  ChatOptions chat;
};

struct InfillFile {
  std::string name;
  std::string text;
};

// The surroundings of a gap in a text, which the model fills in after Input::text. Only some vocabularies have marks for it.
struct Infill {
  std::string suffix;               // The text behind the gap.
  std::string begun{};              // The beginning of the filling.
  std::vector<InfillFile> files{};  // Other files that the text belongs to.

  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = suffix.size() + begun.size();
    for (const InfillFile& file : files) total += file.name.size() + file.text.size();
    return total;
  }
};

// The input of a session's turn, or the whole prompt of a one-shot request: a text, messages or, for a one-shot request,
// tokens.
struct Input {
  std::string text;
  std::vector<ChatMessage> messages;
  std::vector<InputImage> images{};  // Images of the messages, in order; not read yet.
  std::vector<Token> tokens{};       // Not yet checked against the vocabulary.
  // Whether the names of control tokens in `text` and the texts of `infill` become these tokens; unused for messages.
  bool parses_special = false;
  std::optional<Infill> infill{};  // For a one-shot request: `text` ends at a gap; nullopt: there is none.

  [[nodiscard]] bool empty() const { return text.empty() && messages.empty() && tokens.empty() && !infill; }
  // Bytes of the prompt without images.
  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = text.size() + tokens.size() * sizeof(Token) + (infill ? infill->bytes() : 0);
    for (const ChatMessage& message : messages) {
      total += message.role.size() + message.content.size() + message.extra.size();
    }
    return total;
  }
};

// The treatment of a session whose tokens exceed a sequence's cells.
enum class OnFull : std::uint8_t {
  error,  // Input is refused, and replies end.
  shift,  // The oldest turns are dropped.
};

// Options of an OpenAI response: a reply with its own id. Its input and reply are added to the session as one turn when the
// reply ends, or not at all. GenerateRequest::session is a conversation, or the session of the continued response; empty: a new
// session.
struct ResponseRequest {
  std::string id;  // Chosen by the server, unique in the session.
  // The response to continue: in its session if that has no later turn, else in a copy of the session. Empty: continues the
  // session, after its replies in progress.
  std::string previous;
  std::optional<std::string> instructions;  // The system message of this reply only; nullopt: none.
  std::optional<OnFull> on_full;            // The session's setting from now on; nullopt: unchanged.
  bool is_kept = true;                      // False: it can be neither read nor continued later.
  std::int64_t ttl_s = 0;                   // Time to live of a new session.
  std::string request;                      // Fields of the request that are returned with the response.
};

// `generate`, `generate_stream` and `regenerate`. In a session, appends the input (which may be empty) and generates as one
// step.
struct GenerateRequest {
  std::string model;         // Empty: the default model.
  std::string session;       // Id or name; empty: a one-shot request.
  std::uint64_t client = 0;  // The client's connection, 0: none; connections of a tenant are served in turn,
  Agent agent{};             // or the runs of agents, if the client names them.
  Input input;
  bool regenerate = false;  // Drops the last turn's reply first; the input is then empty.
  GenerateOptions options;
  Comparison comparison{};
  std::optional<ResponseRequest> response;  // Requires messages as input, except in a conversation where some wait.
  RequestShare share{};                     // Memory of the request, shared by everything made from it.
};

enum class SessionMode : std::uint8_t { automatic, text, chat };

struct CreateSessionRequest {
  std::string model;
  std::string system;                         // Chat mode: the system message; text mode: the beginning of the text.
  std::vector<ChatMessage> messages;          // Chat mode: pending messages after the system message.
  std::string metadata;                       // See core/metadata.h.
  std::string name;                           // Unique per tenant; empty: none.
  SessionMode mode = SessionMode::automatic;  // Automatic: chat if the model has a chat template.
  bool parses_special = false;                // Text mode: Input::parses_special of `system`.
  bool is_public = false;                     // Other tenants' requests may use its prefixes.
  bool is_ephemeral = false;                  // Its KV stays in the context only.
  std::int64_t ttl_s = 0;                     // Seconds without use until the session is deleted; 0: none.
  OnFull on_full = OnFull::error;
  std::int32_t n_keep = 0;           // For shift: number of first tokens that are never dropped, at least the system prompt.
  bool takes_default_system = true;  // Without a system message and messages it begins with that of the model's card.
};

struct UpdateSessionRequest {
  std::string session;                     // Id or name.
  std::optional<std::string> name{};       // Empty: none from now on; nullopt: unchanged.
  std::vector<MetadataChange> metadata{};  // Changes of the metadata.
  bool replaces_metadata = false;          // The metadata has only the pairs of `metadata` from now on.
};

struct ForkRequest {
  static constexpr std::int32_t kSystemOnly = -1;
  std::string session;  // Id or name.
  std::string name{};   // Name of the new session; empty: none.
  // The new session ends behind this turn; kSystemOnly: it has the system message alone; nullopt: it has everything, pending
  // input included.
  std::optional<std::int32_t> turn{};
  std::vector<MetadataChange> metadata{};  // Changes of the metadata, which is copied.
};

struct ImportRequest {
  std::string name;      // Name of the new session; empty: the exported name.
  PortableFile file;     // Not checked yet.
  std::string model{};   // The new session's model; empty: the default model.
  bool takes_kv = true;  // False: KV in the file is ignored.
  RequestShare share{};  // Memory of the request.
};

struct AppendRequest {
  std::string session;  // Id or name.
  Input input;
  RequestShare share{};  // Memory of the request.
};

// Memory of the input in bytes.
[[nodiscard]] std::size_t memory_of(const Input& input);
[[nodiscard]] std::size_t memory_of(const GenerateRequest& request);
[[nodiscard]] std::size_t memory_of(const CreateSessionRequest& request);
[[nodiscard]] std::size_t memory_of(const AppendRequest& request);

}  // namespace uma
