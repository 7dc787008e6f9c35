#include "wire/own/event_codec.h"

#include <algorithm>
#include <ranges>

#include "base/base64.h"
#include "json/json_writer.h"
#include "wire/image_fields.h"
#include "wire/openai/response_ids.h"
#include "wire/own/frame.h"
#include "wire/own/metrics_codec.h"
#include "wire/own/trace_json.h"
#include "wire/sampling_writer.h"

namespace uma::wire {
namespace {

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
  append_reply(out, head, "token", [&](json::ObjectWriter& object) {
    object.field("text", token.text);
    object.field("token_id", token.token);
    if (!token.logprobs.empty()) append_logprobs(object.begin("logprobs"), token.logprobs, true);
  });
}

void write_logprob(json::ObjectWriter& object, const TokenLogprob& token, bool with_id) {
  if (with_id) object.field("token_id", token.token);
  object.field("token", token.bytes);
  json::append_number(object.begin("logprob"), token.logprob, kLogprobDecimals);
  if (token.bytes.empty()) return object.null_field("bytes");
  std::string& out = object.begin("bytes");
  json::append_array(out, token.bytes,
                     [&](char byte) { json::append_integer(out, std::uint64_t{static_cast<unsigned char>(byte)}); });
}

void append_part(std::string& out, const FrameHead& head, const ReplyPart& part) {
  if (part.kind == ReplyPart::Kind::reasoning) {
    return append_reply(out, head, "reasoning", [&](json::ObjectWriter& object) { object.field("text", part.text); });
  }
  append_reply(out, head, "tool_call", [&](json::ObjectWriter& object) {
    object.field("index", part.call);
    if (!part.id.empty()) {
      object.field("call_id", part.id);
      object.field("name", part.name);
    }
    object.field("arguments", part.text);
  });
}

// Writes the fields that a whole reply has besides its text.
void write_parts(json::ObjectWriter& object, const EosEvent& eos) {
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
  append_reply(out, head, "eos", [&](json::ObjectWriter& object) {
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
  append_reply(out, head, "progress", [&](json::ObjectWriter& object) {
    object.field("stage", stage_name(progress.stage));
    object.field("done", progress.done);
    object.field("total", progress.total);
    object.field("position", progress.position);
    object.field("eta_ms", progress.eta_ms);
  });
}

void append_context_shift(std::string& out, const FrameHead& head, const ContextShiftEvent& shift) {
  append_reply(out, head, "context_shift", [&](json::ObjectWriter& object) {
    object.field("dropped_turns", shift.dropped_turns);
    object.field("dropped_tokens", shift.dropped_tokens);
  });
}

void write_session_fields(json::ObjectWriter& object, const SessionInfo& session) {
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
  if (!session.response.empty()) object.field("response_id", response_id_text({session.id.value, session.response}));
  object.field("tier", tier_name(session.tier));
  object.field("hot_bytes", session.hot_bytes);
  object.field("warm_bytes", session.warm_bytes);
  object.field("cold_bytes", session.cold_bytes);
  object.field("worker", session.worker);
  object.field("created_s", session.created_s);
  object.field("last_used_s", session.last_used_s);
  object.field("parent_id", session.parent.value);
  object.field("fork_turn", session.fork_turn);
  object.begin("metadata").append(session.metadata.empty() ? "{}" : session.metadata);
}

void append_message(std::string& out, const ChatMessage& message) {
  json::ObjectWriter object(out);
  object.field("role", message.role);
  object.field("content", message.content);
  if (!message.extra.empty()) out.append(",").append(message.extra, 1, message.extra.size() - 2);
  object.close();
}

void write_detail_fields(json::ObjectWriter& object, const SessionDetail& session) {
  write_session_fields(object, session.info);
  if (session.info.mode == SessionMode::text) {
    object.field("text", session.text);
    if (!session.pending_text.empty()) object.field("pending_text", session.pending_text);
    return;
  }
  const auto write_messages = [&](std::string_view name, const std::vector<ChatMessage>& messages) {
    std::string& out = object.begin(name);
    json::append_array(out, messages, [&](const ChatMessage& message) { append_message(out, message); });
  };
  write_messages("messages", session.messages);
  if (!session.pending_messages.empty()) write_messages("pending_messages", session.pending_messages);
}

void write_imported_fields(json::ObjectWriter& object, const ImportedSession& session) {
  write_session_fields(object, session.info);
  object.field("tokens_kept", session.are_tokens_kept);
  object.field("kv", imported_kv_name(session.kv));
}

void write_sessions(json::ObjectWriter& parent, std::string_view name, const SessionList& list) {
  std::string& out = parent.begin(name);
  json::append_array(out, list.sessions, [&](const SessionInfo& session) {
    json::ObjectWriter object(out);
    write_session_fields(object, session);
    object.close();
  });
  parent.field("has_more", list.has_more);
  if (list.has_more) parent.field("next", list.next);
}

template <class WriteT>
std::string object_json(WriteT&& write) {
  std::string out;
  json::ObjectWriter object(out);
  write(object);
  object.close();
  return out;
}

void append_model(std::string& out, const ModelInfo& model) {
  json::ObjectWriter object(out);
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
  object.field("reads_audio", model.reads_audio);
  object.field("image_vectors", image_vectors_name(model.image_vectors));
  object.field("kv_layout", model.kv_layout);
  object.field("dimensions", model.dimensions);
  object.field("picture_size", model.picture_size);
  object.field("idle_unload_s", model.idle_unload_s);
  json::append_array(object.begin("aliases"), model.aliases,
                     [&](const std::string& alias) { json::append_string(out, alias); });
  if (!model.store.empty()) object.field("store", model.store);
  write_sampling_sources(object, model.sampling);
  json::append_array(object.begin("adapters"), model.adapters, [&](const AdapterInfo& adapter) {
    json::ObjectWriter entry(out);
    entry.field("name", adapter.name);
    entry.field("scale", adapter.scale);
    entry.close();
  });
  if (!model.complaint().empty()) object.field("problem", model.complaint());
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

FrameHead::FrameHead(std::optional<std::string_view> id) {
  json::ObjectWriter object(bytes_);
  if (id) {
    object.field("id", *id);
  } else {
    object.null_field("id");
  }
}

void append_calls(std::string& out, std::span<const ReplyPart> parts) {
  json::append_array(out,
                     parts | std::views::filter([](const ReplyPart& part) { return part.kind == ReplyPart::Kind::tool_call; }),
                     [&](const ReplyPart& part) { append_call_json(out, part); });
}

void append_call_json(std::string& out, const ReplyPart& call) {
  json::ObjectWriter object(out);
  object.field("id", call.id);
  object.field("type", "function");
  json::ObjectWriter function(object.begin("function"));
  function.field("name", call.name);
  function.field("arguments", call.text);
  function.close();
  object.close();
}

std::string reply_extra(std::string_view reasoning, std::span<const ReplyPart> calls) {
  std::string extra;
  if (reasoning.empty() && calls.empty()) return extra;
  json::ObjectWriter object(extra);
  if (!reasoning.empty()) object.field("reasoning_content", reasoning);
  if (!calls.empty()) append_calls(object.begin("tool_calls"), calls);
  object.close();
  return extra;
}

void append_logprobs(std::string& out, std::span<const TokenLogprobs> logprobs, bool with_ids) {
  json::append_array(out, logprobs, [&](const TokenLogprobs& place) {
    json::ObjectWriter object(out);
    write_logprob(object, place.chosen, with_ids);
    json::append_array(object.begin("top_logprobs"), place.top, [&](const TokenLogprob& token) {
      json::ObjectWriter likely(out);
      write_logprob(likely, token, with_ids);
      likely.close();
    });
    object.close();
  });
}

void append_usage(std::string& out, const Usage& usage) {
  json::ObjectWriter object(out);
  object.field("prompt_tokens", usage.prompt_tokens);
  object.field("reused_tokens", usage.reused_tokens);
  object.field("recomputed_tokens", usage.recomputed_tokens);
  object.field("completion_tokens", usage.completion_tokens);
  object.field("reasoning_tokens", usage.reasoning_tokens);
  object.field("dropped_turns", usage.dropped_turns);
  object.field("dropped_tokens", usage.dropped_tokens);
  object.field("unseen_images", usage.unseen_images);
  object.field("tier", tier_name(usage.tier));
  object.field("reuse_reason", usage.reuse_reason);
  object.field("restore_ms", usage.restore_ms);
  object.field("queue_ms", usage.queue_ms);
  object.field("ttft_ms", usage.ttft_ms);
  object.field("tokens_per_s", usage.tokens_per_s);
  object.field("seed", usage.seed);
  if (usage.agent.is_known()) append_agent(object.begin("agent"), usage.agent);
  append_cache_miss(object, usage.cache_miss);
  append_left_out(object, usage);
  object.close();
}

void append_agent(std::string& out, const Agent& agent) {
  json::ObjectWriter object(out);
  if (!agent.program.empty()) object.field("program", agent.program);
  object.field("id", agent.id);
  if (!agent.parent.empty()) object.field("parent", agent.parent);
  object.close();
}

void append_cache_miss(json::ObjectWriter& parent, const CacheMiss& miss) {
  if (miss.kind == CacheMissKind::none) return;
  json::ObjectWriter object(parent.begin("cache_miss"));
  object.field("kind", cache_miss_name(miss.kind));
  if (!miss.cause.empty()) object.field("cause", miss.cause);
  object.field("token", miss.token);
  if (miss.message >= 0) object.field("message", miss.message);
  if (!miss.role.empty()) object.field("role", miss.role);
  object.field("lost_tokens", miss.lost_tokens);
  object.field("known_tokens", miss.known_tokens);
  if (!miss.compared_with.empty()) object.field("compared_with", miss.compared_with);
  if (miss.repeats > 0) object.field("repeats", miss.repeats);
  object.close();
}

void append_left_out(json::ObjectWriter& object, const Usage& usage) {
  if (usage.schema_left_out.empty()) return;
  std::string& out = object.begin("schema_left_out");
  json::append_array(out, usage.schema_left_out, [&](const std::string& place) { json::append_string(out, place); });
}

void append_own_left_out(json::ObjectWriter& object, const Usage& usage) {
  if (usage.schema_left_out.empty()) return;
  json::ObjectWriter own(object.begin("uma"));
  json::ObjectWriter inner(own.begin("usage"));
  append_left_out(inner, usage);
  inner.close();
  own.close();
}

void append_event(std::string& out, const FrameHead& head, const Event& event, bool stream) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) return append_token(out, head, *token);
  if (const auto* part = std::get_if<ReplyPart>(&event)) return append_part(out, head, *part);
  if (const auto* progress = std::get_if<ProgressEvent>(&event)) return append_progress(out, head, *progress);
  if (const auto* shift = std::get_if<ContextShiftEvent>(&event)) return append_context_shift(out, head, *shift);
  if (const auto* eos = std::get_if<EosEvent>(&event)) return append_eos(out, head, *eos, stream);
  if (std::holds_alternative<ResponseBegunEvent>(event) || std::holds_alternative<PromptReadyEvent>(event))
    return;  // For HTTP.
  append_error(out, head, std::get<FailureEvent>(event).error);
}

void append_error(std::string& out, const FrameHead& head, const Error& error) {
  append_reply(out, head, "error", [&](json::ObjectWriter& object) {
    object.field("code", code_name(error.code));
    object.field("message", error.message);
  });
}

void append_embeddings(std::string& out, const FrameHead& head, const ImageEmbeddings& embeddings) {
  append_reply(out, head, "embedding",
               [&](json::ObjectWriter& object) { append_vectors(object.begin("embeddings"), embeddings.embeddings); });
}

void append_ack(std::string& out, const FrameHead& head) {
  append_reply(out, head, "ack", [](json::ObjectWriter&) {});
}

void append_pull_progress(std::string& out, const FrameHead& head, const PullProgress& progress) {
  append_reply(out, head, "progress", [&](json::ObjectWriter& object) {
    object.field("stage", "pull");
    object.field("file", progress.file);
    object.field("done", progress.bytes_done);
    object.field("total", progress.bytes_total.value_or(0));
  });
}

void append_pulled(std::string& out, const FrameHead& head, const std::string& model) {
  append_reply(out, head, "ack", [&](json::ObjectWriter& object) { object.field("model", model); });
}

void append_cancel_ack(std::string& out, const FrameHead& head, bool cancelled) {
  append_reply(out, head, "ack", [&](json::ObjectWriter& object) { object.field("cancelled", cancelled); });
}

void append_session_ack(std::string& out, const FrameHead& head, const SessionInfo& session) {
  append_reply(out, head, "ack", [&](json::ObjectWriter& object) { write_session_fields(object, session); });
}

void append_session(std::string& out, const FrameHead& head, const SessionInfo& session) {
  append_reply(out, head, "session", [&](json::ObjectWriter& object) { write_session_fields(object, session); });
}

void append_session_detail(std::string& out, const FrameHead& head, const SessionDetail& session) {
  append_reply(out, head, "session", [&](json::ObjectWriter& object) { write_detail_fields(object, session); });
}

void append_sessions(std::string& out, const FrameHead& head, const SessionList& list) {
  append_reply(out, head, "sessions", [&](json::ObjectWriter& reply) { write_sessions(reply, "sessions", list); });
}

void append_receipt(std::string& out, const FrameHead& head, const Usage& usage) {
  append_reply(out, head, "receipt", [&](json::ObjectWriter& object) { append_usage(object.begin("usage"), usage); });
}

void append_data(std::string& out, const FrameHead& head, std::span<const std::byte> part) {
  append_reply(out, head, "data", [&](json::ObjectWriter& object) {
    std::string& text = object.begin("data");
    text += '"';
    append_base64(text, part);
    text += '"';
  });
}

void append_exported(std::string& out, const FrameHead& head, const ExportedSession& session) {
  append_reply(out, head, "exported", [&](json::ObjectWriter& object) {
    object.field("bytes", session.file.size());
    object.field("kv_bytes", session.kv_bytes);
    write_session_fields(object, session.info);
  });
}

void append_received_ack(std::string& out, const FrameHead& head, std::size_t bytes) {
  append_reply(out, head, "ack", [&](json::ObjectWriter& object) { object.field("received_bytes", bytes); });
}

void append_imported(std::string& out, const FrameHead& head, const ImportedSession& session) {
  append_reply(out, head, "session", [&](json::ObjectWriter& object) { write_imported_fields(object, session); });
}

void append_models(std::string& out, const FrameHead& head, std::span<const ModelInfo> models) {
  append_reply(out, head, "models", [&](json::ObjectWriter& object) {
    json::append_array(object.begin("models"), models, [&](const ModelInfo& model) { append_model(out, model); });
  });
}

void append_metrics(std::string& out, const FrameHead& head, const MetricsSnapshot& metrics) {
  append_reply(out, head, "metrics",
               [&](json::ObjectWriter& object) { append_metrics_object(object.begin("metrics"), metrics); });
}

void append_trace(std::string& out, const FrameHead& head, std::span<const ThreadTrace> threads) {
  append_reply(out, head, "trace", [&](json::ObjectWriter& object) { append_trace(object.begin("trace"), threads); });
}

void append_history(std::string& out, const FrameHead& head, std::string_view json) {
  append_reply(out, head, "history", [&](json::ObjectWriter& object) { object.begin("history").append(json); });
}

void append_snapshot(std::string& out, const FrameHead& head, std::string_view json) {
  append_reply(out, head, "snapshot", [&](json::ObjectWriter& object) { object.begin("snapshot").append(json); });
}

void append_watch_end(std::string& out, const FrameHead& head) {
  append_reply(out, head, "watch_end", [](json::ObjectWriter&) {});
}

void append_pong(std::string& out, const FrameHead& head, std::string_view http_url) {
  append_reply(out, head, "pong", [&](json::ObjectWriter& object) {
    if (!http_url.empty()) object.field("http", http_url);
  });
}

std::string session_json(const SessionInfo& session) {
  return object_json([&](json::ObjectWriter& object) { write_session_fields(object, session); });
}

std::string session_json(const SessionDetail& session) {
  return object_json([&](json::ObjectWriter& object) { write_detail_fields(object, session); });
}

std::string session_json(const ImportedSession& session) {
  return object_json([&](json::ObjectWriter& object) { write_imported_fields(object, session); });
}

std::string receipt_json(const Usage& usage) {
  return object_json([&](json::ObjectWriter& object) {
    object.field("object", "receipt");
    append_usage(object.begin("usage"), usage);
  });
}

std::string receipts_json(std::span<const TurnReceipt> receipts) {
  return object_json([&](json::ObjectWriter& object) {
    object.field("object", "list");
    std::string& out = object.begin("data");
    json::append_array(out, receipts, [&](const TurnReceipt& each) {
      json::ObjectWriter entry(out);
      entry.field("turn", each.turn);
      entry.field("reason", finish_reason_name(each.receipt->reason));
      append_usage(entry.begin("usage"), each.receipt->usage);
      entry.close();
    });
  });
}

std::string sessions_json(const SessionList& list) {
  return object_json([&](json::ObjectWriter& object) {
    object.field("object", "list");
    write_sessions(object, "data", list);
  });
}

}  // namespace uma::wire
