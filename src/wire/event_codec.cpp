#include "wire/event_codec.h"

#include <algorithm>
#include <ranges>

#include "base/base64.h"
#include "wire/frame.h"
#include "wire/image_fields.h"
#include "wire/json_writer.h"

namespace uma::wire {
namespace {

// One frame, from its length to its closing brace; write(object) adds the fields after `id` and `event`.
template <class WriteT>
void append_reply(std::string& out, const FrameHead& head, std::string_view event, WriteT&& write) {
  const std::size_t start = begin_frame(out);
  ObjectWriter object(out, head.bytes());
  object.field("event", event);
  write(object);
  object.close();
  end_frame(out, start);
}

std::string_view stage_name(ProgressStage stage) {
  switch (stage) {
    case ProgressStage::queued:
      return "queued";
    case ProgressStage::loading:
      return "loading";
    case ProgressStage::prefill:
      break;
  }
  return "prefill";
}

std::string_view mode_name(SessionMode mode) {
  switch (mode) {
    case SessionMode::text:
      return "text";
    case SessionMode::chat:
      return "chat";
    case SessionMode::automatic:
      break;
  }
  return "auto";
}

std::string_view imported_kv_name(ImportedKv kv) {
  switch (kv) {
    case ImportedKv::kept:
      return "kept";
    case ImportedKv::refused:
      return "refused";
    case ImportedKv::none:
      break;
  }
  return "none";
}

void append_token(std::string& out, const FrameHead& head, const TokenEvent& token) {
  append_reply(out, head, "token", [&](ObjectWriter& object) {
    object.field("text", token.text);
    object.field("token_id", token.token);
    if (!token.logprobs.empty()) append_logprobs(object.begin("logprobs"), token.logprobs, true);
  });
}

void write_logprob(ObjectWriter& object, const TokenLogprob& token, bool with_id) {
  if (with_id) object.field("token_id", token.token);
  object.field("token", token.bytes);
  append_json_number(object.begin("logprob"), token.logprob, kLogprobDecimals);
  if (token.bytes.empty()) return object.null_field("bytes");
  std::string& out = object.begin("bytes");
  append_json_array(out, token.bytes,
                    [&](char byte) { append_json_integer(out, std::uint64_t{static_cast<unsigned char>(byte)}); });
}

void append_part(std::string& out, const FrameHead& head, const ReplyPart& part) {
  if (part.kind == ReplyPart::Kind::reasoning) {
    return append_reply(out, head, "reasoning", [&](ObjectWriter& object) { object.field("text", part.text); });
  }
  append_reply(out, head, "tool_call", [&](ObjectWriter& object) {
    object.field("index", part.call);
    if (!part.id.empty()) {
      object.field("call_id", part.id);
      object.field("name", part.name);
    }
    object.field("arguments", part.text);
  });
}

// What a whole reply has beside its text.
void write_parts(ObjectWriter& object, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) {
    if (part.kind == ReplyPart::Kind::reasoning) object.field("reasoning", part.text);
  }
  if (std::ranges::contains(eos.parts, ReplyPart::Kind::tool_call, &ReplyPart::kind)) {
    append_calls(object.begin("tool_calls"), eos.parts);
  }
}

void append_eos(std::string& out, const FrameHead& head, const EosEvent& eos, bool stream) {
  if (stream) {
    for (const ReplyPart& part : eos.parts) append_part(out, head, part);
  }
  append_reply(out, head, "eos", [&](ObjectWriter& object) {
    object.field("reason", finish_reason_name(eos.reason));
    if (!stream || !eos.text.empty()) object.field("text", eos.text);
    if (!stream) write_parts(object, eos);
    if (!eos.logprobs.empty()) append_logprobs(object.begin("logprobs"), eos.logprobs, true);
    if (eos.error) {
      object.field("code", code_name(eos.error->code));
      object.field("message", eos.error->message);
    }
    append_usage(object.begin("usage"), eos.usage);
  });
}

void append_progress(std::string& out, const FrameHead& head, const ProgressEvent& progress) {
  append_reply(out, head, "progress", [&](ObjectWriter& object) {
    object.field("stage", stage_name(progress.stage));
    object.field("done", progress.done);
    object.field("total", progress.total);
    object.field("position", progress.position);
    object.field("eta_ms", progress.eta_ms);
  });
}

void append_context_shift(std::string& out, const FrameHead& head, const ContextShiftEvent& shift) {
  append_reply(out, head, "context_shift", [&](ObjectWriter& object) {
    object.field("dropped_turns", shift.dropped_turns);
    object.field("dropped_tokens", shift.dropped_tokens);
  });
}

void write_session_fields(ObjectWriter& object, const SessionInfo& session) {
  object.field("session_id", session.id.value);
  object.field("name", session.name);
  object.field("model", session.model);
  object.field("mode", mode_name(session.mode));
  object.field("tokens", session.tokens);
  object.field("pending_tokens", session.pending_tokens);
  object.field("turns", session.turns);
  object.field("dropped_turns", session.dropped_turns);
  object.field("on_full", session.on_full == OnFull::shift ? "shift" : "error");
  object.field("n_keep", session.n_keep);
  object.field("busy", session.busy);
  object.field("tier", tier_name(session.tier));
  object.field("hot_bytes", session.hot_bytes);
  object.field("warm_bytes", session.warm_bytes);
  object.field("cold_bytes", session.cold_bytes);
  object.field("worker", session.worker);
  object.field("created_s", session.created_s);
  object.field("last_used_s", session.last_used_s);
}

void append_message(std::string& out, const ChatMessage& message) {
  ObjectWriter object(out);
  object.field("role", message.role);
  object.field("content", message.content);
  if (!message.extra.empty()) out.append(",").append(message.extra, 1, message.extra.size() - 2);
  object.close();
}

void write_detail_fields(ObjectWriter& object, const SessionDetail& session) {
  write_session_fields(object, session.info);
  if (session.info.mode == SessionMode::text) return object.field("text", session.text);
  std::string& out = object.begin("messages");
  append_json_array(out, session.messages, [&](const ChatMessage& message) { append_message(out, message); });
}

void write_imported_fields(ObjectWriter& object, const ImportedSession& session) {
  write_session_fields(object, session.info);
  object.field("tokens_kept", session.are_tokens_kept);
  object.field("kv", imported_kv_name(session.kv));
}

void write_sessions(ObjectWriter& parent, std::string_view name, const SessionList& list) {
  std::string& out = parent.begin(name);
  append_json_array(out, list.sessions, [&](const SessionInfo& session) {
    ObjectWriter object(out);
    write_session_fields(object, session);
    object.close();
  });
  parent.field("has_more", list.has_more);
}

template <class WriteT>
std::string object_json(WriteT&& write) {
  std::string out;
  ObjectWriter object(out);
  write(object);
  object.close();
  return out;
}

void append_model(std::string& out, const ModelInfo& model) {
  ObjectWriter object(out);
  object.field("name", model.name);
  object.field("description", model.description);
  object.field("capability", capability_name(model.capability));
  object.field("state", model_state_name(model.state));
  object.field("load_progress", model.load_progress);
  object.field("bytes", model.bytes);
  object.field("parameters", model.parameters);
  object.field("context_tokens", model.context_tokens);
  object.field("sequence_tokens_max", model.sequence_tokens_max);
  object.field("train_tokens", model.train_tokens);
  object.field("vocabulary", model.vocabulary);
  object.field("slots", model.slots);
  object.field("workers", model.workers);
  object.field("has_chat_template", model.has_chat_template);
  object.field("reads_images", model.reads_images);
  object.field("kv_layout", model.kv_layout);
  object.field("dimensions", model.dimensions);
  append_json_array(object.begin("aliases"), model.aliases, [&](const std::string& alias) { append_json_string(out, alias); });
  if (!model.problem.empty()) object.field("problem", model.problem);
  object.close();
}

void append_worker_metrics(std::string& out, const WorkerMetrics& worker) {
  ObjectWriter object(out);
  object.field("sequences_active", worker.sequences_active);
  object.field("queue_depth", worker.queue_depth);
  object.field("cells_used", worker.cells_used);
  object.field("cells_total", worker.cells_total);
  object.field("tokens_total", worker.tokens_total);
  object.field("batch_calls_total", worker.batch_calls_total);
  object.close();
}

void optional_field(ObjectWriter& object, std::string_view name, std::optional<double> value) {
  if (value) return object.field(name, *value);
  object.null_field(name);
}

void append_metrics_object(std::string& out, const MetricsSnapshot& metrics) {
  ObjectWriter object(out);
  object.field("model", metrics.model);
  object.field("uptime_s", metrics.uptime_s);
  object.field("sessions", metrics.sessions);
  object.field("requests_open", metrics.requests_open);
  object.field("request_bytes", metrics.request_bytes);
  object.field("kept_image_bytes", metrics.kept_image_bytes);
  object.field("exceptions_total", metrics.exceptions_total);
  object.field("requests_total", metrics.requests_total);
  object.field("requests_failed_total", metrics.requests_failed_total);
  object.field("requests_cancelled_total", metrics.requests_cancelled_total);
  object.field("tokens_total", metrics.tokens_total);
  object.field("prompt_tokens_total", metrics.prompt_tokens_total);
  object.field("reused_tokens_total", metrics.reused_tokens_total);
  object.field("avg_batch", metrics.avg_batch);
  object.field("p50_ms", metrics.p50_ms);
  object.field("p95_ms", metrics.p95_ms);
  object.field("p99_ms", metrics.p99_ms);
  object.field("ttft_p50_ms", metrics.ttft_p50_ms);
  object.field("ttft_p95_ms", metrics.ttft_p95_ms);
  object.field("per_token_latency_ms", metrics.per_token_latency_ms);
  object.field("decode_ms_avg", metrics.decode_ms_avg);
  object.field("prefill_ms_avg", metrics.prefill_ms_avg);
  object.field("sample_ms_avg", metrics.sample_ms_avg);
  object.field("queue_wait_ms_avg", metrics.queue_wait_ms_avg);
  object.field("restore_ms_avg", metrics.restore_ms_avg);
  object.field("batch_calls_total", metrics.batch_calls_total);
  object.field("ticks_total", metrics.ticks_total);
  object.field("sequences_active", metrics.sequences_active);
  object.field("queue_depth", metrics.queue_depth);
  object.field("preemptions_total", metrics.preemptions_total);
  object.field("context_shifts_total", metrics.context_shifts_total);
  object.field("reuses_verified_total", metrics.reuses_verified_total);
  object.field("reuses_wrong_total", metrics.reuses_wrong_total);
  object.field("not_finite_total", metrics.not_finite_total);
  object.field("promises_kept_total", metrics.promises_kept_total);
  object.field("promises_broken_total", metrics.promises_broken_total);
  object.field("drafted_tokens_total", metrics.drafted_tokens_total);
  object.field("drafted_accepted_total", metrics.drafted_accepted_total);
  object.field("threads", metrics.threads);
  object.field("handovers_total", metrics.handovers_total);
  object.field("handover_ms_avg", metrics.handover_ms_avg);
  object.field("bmt_mb_per_token", metrics.bmt_mb_per_token);
  object.field("bmt_gbps", metrics.bmt_gbps);
  object.field("copy_free_ratio", metrics.copy_free_ratio);
  object.null_field("device_busy_ratio");  // libllama does not say
  object.field("hot_sessions", metrics.hot_sessions);
  object.field("hot_bytes", metrics.hot_bytes);
  object.field("hot_hits_total", metrics.hot_hits_total);
  object.field("warm_sessions", metrics.warm_sessions);
  object.field("warm_bytes", metrics.warm_bytes);
  object.field("warm_hits_total", metrics.warm_hits_total);
  object.field("warm_restore_ms_avg", metrics.warm_restore_ms_avg);
  object.field("cold_sessions", metrics.cold_sessions);
  object.field("cold_bytes", metrics.cold_bytes);
  object.field("cold_hits_total", metrics.cold_hits_total);
  object.field("cold_restore_ms_avg", metrics.cold_restore_ms_avg);
  object.field("states_dropped_total", metrics.states_dropped_total);
  object.field("states_expired_total", metrics.states_expired_total);
  object.field("states_failed_total", metrics.states_failed_total);
  object.field("save_ms_avg", metrics.save_ms_avg);
  object.field("cold_read_ms_avg", metrics.cold_read_ms_avg);
  object.field("cold_write_ms_avg", metrics.cold_write_ms_avg);
  object.field("images_encoded_total", metrics.images_encoded_total);
  object.field("image_cache_hits_total", metrics.image_cache_hits_total);
  object.field("image_cache_bytes", metrics.image_cache_bytes);
  object.field("image_encode_ms_avg", metrics.image_encode_ms_avg);
  object.field("embed_queue_depth", metrics.embed_queue_depth);
  object.field("embed_texts_total", metrics.embed_texts_total);
  object.field("embed_tokens_total", metrics.embed_tokens_total);
  object.field("embed_calls_total", metrics.embed_calls_total);
  object.field("embed_texts_per_call", metrics.embed_texts_per_call);
  object.field("embed_call_ms_avg", metrics.embed_call_ms_avg);
  object.field("embed_request_p50_ms", metrics.embed_request_p50_ms);
  object.field("embed_request_p95_ms", metrics.embed_request_p95_ms);
  object.field("rss_bytes", metrics.rss_bytes);
  object.field("kv_cache_utilization", metrics.kv_cache_utilization);
  object.field("models_registered", metrics.models_registered);
  object.field("models_loaded", metrics.models_loaded);
  object.field("model_loads_total", metrics.model_loads_total);
  object.field("model_unloads_total", metrics.model_unloads_total);
  object.field("memory_usable_bytes", metrics.memory_usable_bytes);
  object.field("memory_reserved_bytes", metrics.memory_reserved_bytes);
  object.field("memory_decisions_total", metrics.memory_decisions_total);
  append_json_array(object.begin("memory_decisions"), metrics.memory_decisions,
                    [&](const std::string& decision) { append_json_string(out, decision); });
  append_crash_fields(object, metrics.crashes);
  append_progress_fields(object, metrics.progress);
  append_json_array(object.begin("workers"), metrics.workers,
                    [&](const WorkerMetrics& worker) { append_worker_metrics(out, worker); });
  object.close();
}

}  // namespace

std::string_view model_state_name(ModelState state) {
  switch (state) {
    case ModelState::unloaded:
      return "unloaded";
    case ModelState::loading:
      return "loading";
    case ModelState::ready:
      return "ready";
    case ModelState::failed:
      break;
  }
  return "failed";
}

void append_crash_fields(ObjectWriter& object, const CrashRecord& crashes) {
  object.field("crashes_total", crashes.count);
  if (crashes.count == 0) {
    object.null_field("last_crash");
    object.null_field("last_crash_unix_s");
  } else {
    object.field("last_crash", crashes.last_cause);
    object.field("last_crash_unix_s", crashes.last_unix_s);
  }
}

void append_progress_fields(ObjectWriter& object, const ProgressSnapshot& progress) {
  optional_field(object, "last_tick_s", progress.last_tick_s);
  optional_field(object, "last_decode_s", progress.last_decode_s);
  optional_field(object, "oldest_waiting_s", progress.oldest_waiting_s);
}

FrameHead::FrameHead(std::optional<std::string_view> id) {
  ObjectWriter object(bytes_);
  if (id) {
    object.field("id", *id);
  } else {
    object.null_field("id");
  }
}

void append_calls(std::string& out, std::span<const ReplyPart> parts) {
  append_json_array(out,
                    parts | std::views::filter([](const ReplyPart& part) { return part.kind == ReplyPart::Kind::tool_call; }),
                    [&](const ReplyPart& part) {
                      ObjectWriter call(out);
                      call.field("id", part.id);
                      call.field("type", "function");
                      ObjectWriter function(call.begin("function"));
                      function.field("name", part.name);
                      function.field("arguments", part.text);
                      function.close();
                      call.close();
                    });
}

void append_logprobs(std::string& out, std::span<const TokenLogprobs> logprobs, bool with_ids) {
  append_json_array(out, logprobs, [&](const TokenLogprobs& place) {
    ObjectWriter object(out);
    write_logprob(object, place.chosen, with_ids);
    append_json_array(object.begin("top_logprobs"), place.top, [&](const TokenLogprob& token) {
      ObjectWriter likely(out);
      write_logprob(likely, token, with_ids);
      likely.close();
    });
    object.close();
  });
}

void append_usage(std::string& out, const Usage& usage) {
  ObjectWriter object(out);
  object.field("prompt_tokens", usage.prompt_tokens);
  object.field("reused_tokens", usage.reused_tokens);
  object.field("recomputed_tokens", usage.recomputed_tokens);
  object.field("completion_tokens", usage.completion_tokens);
  object.field("reasoning_tokens", usage.reasoning_tokens);
  object.field("dropped_turns", usage.dropped_turns);
  object.field("dropped_tokens", usage.dropped_tokens);
  object.field("tier", tier_name(usage.tier));
  object.field("reuse_reason", usage.reuse_reason);
  object.field("restore_ms", usage.restore_ms);
  object.field("queue_ms", usage.queue_ms);
  object.field("ttft_ms", usage.ttft_ms);
  object.field("tokens_per_s", usage.tokens_per_s);
  object.field("seed", usage.seed);
  object.close();
}

void append_event(std::string& out, const FrameHead& head, const Event& event, bool stream) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) return append_token(out, head, *token);
  if (const auto* part = std::get_if<ReplyPart>(&event)) return append_part(out, head, *part);
  if (const auto* progress = std::get_if<ProgressEvent>(&event)) return append_progress(out, head, *progress);
  if (const auto* shift = std::get_if<ContextShiftEvent>(&event)) return append_context_shift(out, head, *shift);
  if (const auto* eos = std::get_if<EosEvent>(&event)) return append_eos(out, head, *eos, stream);
  if (std::holds_alternative<ResponseBegunEvent>(event)) return;  // of the other door
  append_error(out, head, std::get<FailureEvent>(event).error);
}

void append_error(std::string& out, const FrameHead& head, const Error& error) {
  append_reply(out, head, "error", [&](ObjectWriter& object) {
    object.field("code", code_name(error.code));
    object.field("message", error.message);
  });
}

void append_embeddings(std::string& out, const FrameHead& head, const ImageEmbeddings& embeddings) {
  append_reply(out, head, "embedding",
               [&](ObjectWriter& object) { append_vectors(object.begin("embeddings"), embeddings.embeddings); });
}

void append_ack(std::string& out, const FrameHead& head) {
  append_reply(out, head, "ack", [](ObjectWriter&) {});
}

void append_cancel_ack(std::string& out, const FrameHead& head, bool cancelled) {
  append_reply(out, head, "ack", [&](ObjectWriter& object) { object.field("cancelled", cancelled); });
}

void append_session_ack(std::string& out, const FrameHead& head, const SessionInfo& session) {
  append_reply(out, head, "ack", [&](ObjectWriter& object) { write_session_fields(object, session); });
}

void append_session(std::string& out, const FrameHead& head, const SessionInfo& session) {
  append_reply(out, head, "session", [&](ObjectWriter& object) { write_session_fields(object, session); });
}

void append_session_detail(std::string& out, const FrameHead& head, const SessionDetail& session) {
  append_reply(out, head, "session", [&](ObjectWriter& object) { write_detail_fields(object, session); });
}

void append_sessions(std::string& out, const FrameHead& head, const SessionList& list) {
  append_reply(out, head, "sessions", [&](ObjectWriter& reply) { write_sessions(reply, "sessions", list); });
}

void append_data(std::string& out, const FrameHead& head, std::span<const std::byte> part) {
  append_reply(out, head, "data", [&](ObjectWriter& object) {
    std::string& text = object.begin("data");
    text += '"';
    append_base64(text, part);
    text += '"';
  });
}

void append_exported(std::string& out, const FrameHead& head, const ExportedSession& session) {
  append_reply(out, head, "exported", [&](ObjectWriter& object) {
    object.field("bytes", session.file.size());
    object.field("kv_bytes", session.kv_bytes);
    write_session_fields(object, session.info);
  });
}

void append_received_ack(std::string& out, const FrameHead& head, std::size_t bytes) {
  append_reply(out, head, "ack", [&](ObjectWriter& object) { object.field("received_bytes", bytes); });
}

void append_imported(std::string& out, const FrameHead& head, const ImportedSession& session) {
  append_reply(out, head, "session", [&](ObjectWriter& object) { write_imported_fields(object, session); });
}

void append_models(std::string& out, const FrameHead& head, std::span<const ModelInfo> models) {
  append_reply(out, head, "models", [&](ObjectWriter& object) {
    append_json_array(object.begin("models"), models, [&](const ModelInfo& model) { append_model(out, model); });
  });
}

void append_metrics(std::string& out, const FrameHead& head, const MetricsSnapshot& metrics) {
  append_reply(out, head, "metrics", [&](ObjectWriter& object) { append_metrics_object(object.begin("metrics"), metrics); });
}

void append_pong(std::string& out, const FrameHead& head) {
  append_reply(out, head, "pong", [](ObjectWriter&) {});
}

std::string session_json(const SessionInfo& session) {
  return object_json([&](ObjectWriter& object) { write_session_fields(object, session); });
}

std::string session_json(const SessionDetail& session) {
  return object_json([&](ObjectWriter& object) { write_detail_fields(object, session); });
}

std::string session_json(const ImportedSession& session) {
  return object_json([&](ObjectWriter& object) { write_imported_fields(object, session); });
}

std::string sessions_json(const SessionList& list) {
  return object_json([&](ObjectWriter& object) {
    object.field("object", "list");
    write_sessions(object, "data", list);
  });
}

std::string metrics_json(const MetricsSnapshot& metrics) {
  std::string json;
  append_metrics_object(json, metrics);
  return json;
}

}  // namespace uma::wire
