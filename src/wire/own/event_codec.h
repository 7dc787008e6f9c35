// Encodes events of the engine as frames in a byte buffer. docs/protocol/socket.md shows each event. Token events allocate
// nothing, except when the buffer grows.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/trace.h"
#include "core/embedding.h"
#include "core/event.h"
#include "core/metrics_snapshot.h"
#include "core/model_library.h"
#include "core/session_info.h"
#include "json/json_writer.h"
#include "wire/own/frame.h"

namespace uma::wire {

// The beginning of every frame of one request, {"id":"…" without the closing brace. Made once per request.
class FrameHead {
 public:
  // Nullopt: the answered frame had no id, and the answer has "id":null.
  explicit FrameHead(std::optional<std::string_view> id);
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Writes one frame, from its length to its closing brace; write(object) adds the fields after `id` and `event`.
template <class WriteT>
void append_reply(std::string& out, const FrameHead& head, std::string_view event, WriteT&& write) {
  const std::size_t start = begin_frame(out);
  json::ObjectWriter object(out, head.bytes());
  object.field("event", event);
  write(object);
  object.close();
  end_frame(out, start);
}

// `stream` is the request's option. Without it, eos always carries the text; with it, eos carries only text that was held back.
void append_event(std::string& out, const FrameHead& head, const Event& event, bool stream);

// Appends the tool calls among the parts of a whole reply, as an array with OpenAI's names.
void append_calls(std::string& out, std::span<const ReplyPart> parts);
void append_call_json(std::string& out, const ReplyPart& call);
// ChatMessage::extra of an earlier reply with these thoughts and calls; empty: it had none.
[[nodiscard]] std::string reply_extra(std::string_view reasoning, std::span<const ReplyPart> calls);
// Appends an array of tokens in OpenAI's format: text, bytes, logprob, and the most likely tokens. `with_ids` adds each
// token_id.
void append_logprobs(std::string& out, std::span<const TokenLogprobs> logprobs, bool with_ids);
inline constexpr int kLogprobDecimals = 6;
void append_error(std::string& out, const FrameHead& head, const Error& error);
void append_ack(std::string& out, const FrameHead& head);
// Appends the progress of pull_model, and its end with the model's name.
void append_pull_progress(std::string& out, const FrameHead& head, const PullProgress& progress);
void append_pulled(std::string& out, const FrameHead& head, const std::string& model);
void append_cancel_ack(std::string& out, const FrameHead& head, bool cancelled);
// Appends an acknowledged change of a session, with the changed session.
void append_session_ack(std::string& out, const FrameHead& head, const SessionInfo& session);
void append_session(std::string& out, const FrameHead& head, const SessionInfo& session);
void append_session_detail(std::string& out, const FrameHead& head, const SessionDetail& session);
void append_sessions(std::string& out, const FrameHead& head, const SessionList& list);
// Appends a part of an exported file.
void append_data(std::string& out, const FrameHead& head, std::span<const std::byte> part);
// Appends the event after the last part, which describes the exported session.
void append_exported(std::string& out, const FrameHead& head, const ExportedSession& session);
void append_received_ack(std::string& out, const FrameHead& head, std::size_t bytes);
void append_imported(std::string& out, const FrameHead& head, const ImportedSession& session);
void append_models(std::string& out, const FrameHead& head, std::span<const ModelInfo> models);
void append_metrics(std::string& out, const FrameHead& head, const MetricsSnapshot& metrics);
void append_trace(std::string& out, const FrameHead& head, std::span<const ThreadTrace> threads);
void append_embeddings(std::string& out, const FrameHead& head, const ImageEmbeddings& embeddings);
// Appends the history of a watch, or a snapshot, which are JSON already; and the end of a watch.
void append_history(std::string& out, const FrameHead& head, std::string_view json);
void append_snapshot(std::string& out, const FrameHead& head, std::string_view json);
void append_watch_end(std::string& out, const FrameHead& head);
void append_receipt(std::string& out, const FrameHead& head, const Usage& usage);
// `http_url`: where this machine reaches the daemon over HTTP; empty: HTTP is off.
void append_pong(std::string& out, const FrameHead& head, std::string_view http_url = "");

// The JSON of a session without a frame; below: with its conversation, as a list, and after an import.
[[nodiscard]] std::string session_json(const SessionInfo& session);
[[nodiscard]] std::string session_json(const SessionDetail& session);
[[nodiscard]] std::string session_json(const ImportedSession& session);
// {"object":"receipt","usage"}
[[nodiscard]] std::string receipt_json(const Usage& usage);
// {"object":"list","data":[{"turn","reason","usage"},…]}
[[nodiscard]] std::string receipts_json(std::span<const TurnReceipt> receipts);
[[nodiscard]] std::string sessions_json(const SessionList& list);

// Appends the usage object without a frame.
void append_usage(std::string& out, const Usage& usage);
void append_agent(std::string& out, const Agent& agent);
// Writes the field "cache_miss", if there is a miss.
void append_cache_miss(json::ObjectWriter& parent, const CacheMiss& miss);
// Appends "schema_left_out" if there is any.
void append_left_out(json::ObjectWriter& object, const Usage& usage);
// Appends "schema_left_out" within "uma": {"usage": ...}, for APIs that show no receipt.
void append_own_left_out(json::ObjectWriter& object, const Usage& usage);
[[nodiscard]] std::string_view model_state_name(ModelState state);

}  // namespace uma::wire
