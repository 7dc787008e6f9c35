// What the engine says, as frames appended to a byte buffer. docs/protocol/socket.md shows each. Token events are
// written without any allocation but the buffer's growth.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/event.h"
#include "core/image.h"
#include "core/metrics_snapshot.h"
#include "core/session_info.h"
#include "wire/json_writer.h"

namespace uma::wire {

// What every frame of one request begins with, {"id":"…" without the closing brace: made once per request.
class FrameHead {
 public:
  // No id: the frame answers something that had none, and says "id":null.
  explicit FrameHead(std::optional<std::string_view> id);
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// `stream` is the request's option: without it, eos always carries the text; with it, only a rest that was held back.
void append_event(std::string& out, const FrameHead& head, const Event& event, bool stream);

// The calls among the parts of a whole reply, as an array with OpenAI's names.
void append_calls(std::string& out, std::span<const ReplyPart> parts);
// An array of tokens as OpenAI has them: text, bytes, logprob, and the likeliest ones. `with_ids`: each with its token_id too.
void append_logprobs(std::string& out, std::span<const TokenLogprobs> logprobs, bool with_ids);
inline constexpr int kLogprobDecimals = 6;
void append_error(std::string& out, const FrameHead& head, const Error& error);
void append_ack(std::string& out, const FrameHead& head);
void append_cancel_ack(std::string& out, const FrameHead& head, bool cancelled);
// An acknowledged change of a session, with the session as it is after it.
void append_session_ack(std::string& out, const FrameHead& head, const SessionInfo& session);
void append_session(std::string& out, const FrameHead& head, const SessionInfo& session);
void append_session_detail(std::string& out, const FrameHead& head, const SessionDetail& session);
void append_sessions(std::string& out, const FrameHead& head, const SessionList& list);
// A part of an exported file.
void append_data(std::string& out, const FrameHead& head, std::span<const std::byte> part);
// After its parts: what the file is of.
void append_exported(std::string& out, const FrameHead& head, const ExportedSession& session);
void append_received_ack(std::string& out, const FrameHead& head, std::size_t bytes);
void append_imported(std::string& out, const FrameHead& head, const ImportedSession& session);
void append_models(std::string& out, const FrameHead& head, std::span<const ModelInfo> models);
void append_metrics(std::string& out, const FrameHead& head, const MetricsSnapshot& metrics);
void append_embeddings(std::string& out, const FrameHead& head, const ImageEmbeddings& embeddings);
void append_pong(std::string& out, const FrameHead& head);

// What a session is, alone, without a frame; likewise with what was said in it, those of a list, and one that was imported.
[[nodiscard]] std::string session_json(const SessionInfo& session);
[[nodiscard]] std::string session_json(const SessionDetail& session);
[[nodiscard]] std::string session_json(const ImportedSession& session);
[[nodiscard]] std::string sessions_json(const SessionList& list);

// The usage object alone, without a frame.
void append_usage(std::string& out, const Usage& usage);
[[nodiscard]] std::string_view model_state_name(ModelState state);
void append_progress_fields(ObjectWriter& object, const ProgressSnapshot& progress);
void append_crash_fields(ObjectWriter& object, const CrashRecord& crashes);
// The metrics object alone, without a frame.
[[nodiscard]] std::string metrics_json(const MetricsSnapshot& metrics);

}  // namespace uma::wire
