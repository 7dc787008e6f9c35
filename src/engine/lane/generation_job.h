// The input and the result of a generation in a lane.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "chat/reply/reply_stream.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/sampling_params.h"
#include "engine/session/context_shift.h"
#include "grammar/grammar.h"
#include "image/image_runs.h"
#include "llm/adapters.h"
#include "sched/fair_share.h"

namespace uma::engine {

struct GenerationJob {
  RequestId id;
  SessionId session;                      // Empty for a one-shot request.
  SessionId forked_from;                  // The session that `session` was forked from; empty: it is not a fork.
  std::vector<Token> tokens;              // The prompt: all tokens before the first new one; at least one.
  std::vector<image::ImageRun> images{};  // The images among `tokens`.
  llm::AdapterSet adapters{};             // For all tokens, those of the prompt, too.
  Droppable droppable;  // The turns that may leave a full context; if there are none, `tokens` leave at least one cell free.
  std::int32_t tokens_max = 0;  // New tokens; 0: only the prompt is computed.
  SamplingParams sampling;
  std::uint64_t seed = 0;
  std::shared_ptr<const grammar::Grammar> grammar;  // Constrains the whole reply; null: no constraint.
  // The content of the reply that the prompt has. The grammar holds for it, too, if its text can begin so.
  std::string begun{};
  std::vector<std::string> schema_left_out{};  // See Usage. Taken out before the lane gets the job.
  chat::ReplyOptions reply;
  sched::Flow flow;  // The tenant and client that the work is charged to.
  Agent agent{};
  double target_ttft_ms = 0;  // Requested time to the first token; 0: the lane's default.
  double target_tbt_ms = 0;   // Requested time between tokens; 0: the lane's default.
  bool is_background = false;
  bool is_public = false;     // Other tenants may reuse the computed cells.
  bool is_private = false;    // Only the session and its forks may reuse the computed cells.
  bool is_ephemeral = false;  // The computed cells are never stored.
  bool is_rewritten = false;  // The chat template has written the session's past differently since its last reply.
  bool keeps_reply = false;   // GenerationResult::reply is wanted.
  bool wants_progress = false;
  bool wants_prompt_logprobs = false;  // Also the log probabilities of the prompt's tokens. Requires those of the reply.
  TimePoint received{};
  TimePoint deadline = kNever;      // For the first batch.
  TimePoint timeout = kNever;       // For the whole reply.
  std::shared_ptr<EventSink> sink;  // Shared with the listener.
  RequestShare share{};             // The memory that the request is charged for.
};

// The router commits a result and then delivers its terminal event.
struct GenerationResult {
  RequestId id;
  std::vector<Token> generated;    // Without the end-of-generation token.
  std::int32_t dropped_turns = 0;  // Number of turns that were dropped before and during the generation.
  std::string reply;               // The whole content that the client has got, if it is kept.
  std::string reply_extra;         // The other fields of its message (ChatMessage).
  bool has_calls = false;          // Tool calls are among them.
  Event terminal;
};

}  // namespace uma::engine
