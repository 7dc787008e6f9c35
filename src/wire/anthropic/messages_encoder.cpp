#include "wire/anthropic/messages_encoder.h"

#include <algorithm>
#include <format>
#include <utility>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "json/json_writer.h"
#include "wire/anthropic/message_threads.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

// Clients send thinking back with its signature, which must not be empty. Umad needs none to read it.
constexpr std::string_view kSignature = "dW1hLXNlcnZl";

std::string_view message_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

// Writes an event {"type",…}; write(object) adds the rest.
template <class WriteT>
void append_message_event(std::string& out, std::string_view type, WriteT&& write) {
  out += std::format("event: {}\ndata: ", type);
  json::ObjectWriter object(out);
  object.field("type", type);
  write(object);
  object.close();
  out += "\n\n";
}

// The sum of the first three is the length of the prompt.
void append_message_usage(std::string& out, std::int32_t prompt, std::int32_t reused, std::int32_t generated,
                          std::int32_t reasoning) {
  json::ObjectWriter usage(out);
  usage.field("input_tokens", prompt - reused);
  usage.field("cache_read_input_tokens", reused);
  usage.field("cache_creation_input_tokens", 0);
  usage.field("output_tokens", generated);
  json::ObjectWriter details(usage.begin("output_tokens_details"));
  details.field("thinking_tokens", reasoning);
  details.close();
  usage.close();
}

void append_message_usage(std::string& out, const Usage& usage) {
  append_message_usage(out, usage.prompt_tokens, usage.reused_tokens, usage.completion_tokens, usage.reasoning_tokens);
}

bool is_stop_sequence(const EosEvent& eos, const MessageFacts& facts) {
  return eos.reason == FinishReason::stop && std::ranges::contains(facts.stop_sequences, eos.stop_string);
}

std::string_view stop_reason(const EosEvent& eos, const MessageFacts& facts) {
  switch (eos.reason) {
    case FinishReason::stop:
      return is_stop_sequence(eos, facts) ? "stop_sequence" : "end_turn";
    case FinishReason::tool_calls:
      return "tool_use";
    case FinishReason::length:
      // A reply that is shorter than it may be has filled the context.
      if (!facts.tokens_max || eos.usage.completion_tokens < *facts.tokens_max) return "model_context_window_exceeded";
      break;
    default:
      break;
  }
  return "max_tokens";  // Also for a reply that was cut for another reason.
}

void write_stop(json::ObjectWriter& object, const EosEvent& eos, const MessageFacts& facts) {
  object.field("stop_reason", stop_reason(eos, facts));
  if (is_stop_sequence(eos, facts)) {
    object.field("stop_sequence", eos.stop_string);
  } else {
    object.null_field("stop_sequence");
  }
}

// The exact reason and the receipt.
void write_uma(json::ObjectWriter& object, const EosEvent& eos) {
  json::ObjectWriter uma(object.begin("uma"));
  uma.field("reason", finish_reason_name(eos.reason));
  append_usage(uma.begin("usage"), eos.usage);
  uma.close();
}

void write_diagnostics(json::ObjectWriter& message, const MessageFacts& facts, const CacheMiss& miss) {
  if (!facts.comparison.is_wanted) return;
  write_message_diagnostics(message, facts.comparison.with.empty() ? CacheMiss{} : miss);
}

void write_message_head(json::ObjectWriter& object, const MessageFacts& facts) {
  object.field("id", facts.id);
  object.field("type", "message");
  object.field("role", "assistant");
  object.field("model", facts.model);
}

// The arguments of a call, or no arguments if the call was cut and they are no object.
std::string_view input_of(const ReplyPart& call) {
  boost::json::parse_options options;
  options.max_depth = 256;
  options.allow_invalid_utf8 = true;
  boost::system::error_code problem;
  const boost::json::value input = boost::json::parse(call.text, problem, {}, options);
  return !problem && input.is_object() ? std::string_view(call.text) : "{}";
}

void write_tool_use(json::ObjectWriter& block, const ReplyPart& call, std::string_view input) {
  block.field("type", "tool_use");
  block.field("id", call.id);
  block.field("name", call.name);
  block.begin("input") += input;
}

void append_content(std::string& out, const EosEvent& eos) {
  bool is_first = true;
  const auto add = [&](auto&& write) {
    if (!std::exchange(is_first, false)) out += ',';
    json::ObjectWriter block(out);
    write(block);
    block.close();
  };
  out += '[';
  for (const ReplyPart& part : eos.parts) {
    if (part.kind != ReplyPart::Kind::reasoning) continue;
    add([&](json::ObjectWriter& block) {
      block.field("type", "thinking");
      block.field("thinking", part.text);
      block.field("signature", kSignature);
    });
  }
  if (!eos.text.empty()) {
    add([&](json::ObjectWriter& block) {
      block.field("type", "text");
      block.field("text", eos.text);
    });
  }
  for (const ReplyPart& part : eos.parts) {
    if (part.kind != ReplyPart::Kind::tool_call) continue;
    add([&](json::ObjectWriter& block) { write_tool_use(block, part, input_of(part)); });
  }
  out += ']';
}

// The code by which Anthropic's clients decide: at the first and last they send the whole conversation, with a new thread or
// without one. Empty: the error is not about a thread.
std::string_view thread_error_code(ErrorCode code, std::string_view field) {
  if (code == ErrorCode::session_unknown) return "thread_not_found";
  if (field == kThreadSystemField || field == kThreadToolsField) return "thread_fingerprint_mismatch";
  return field == kThreadField ? "thread_unsupported_request" : "";
}

void write_message_error(json::ObjectWriter& object, const Error& error, int status, std::string_view field) {
  json::ObjectWriter inner(object.begin("error"));
  inner.field("type", message_error_type(status));
  inner.field("message", error.message);
  if (const std::string_view code = thread_error_code(error.code, field); !code.empty()) {
    json::ObjectWriter details(inner.begin("details"));
    details.field("error_code", code);
    details.close();
  }
  json::ObjectWriter uma(inner.begin("uma"));
  uma.field("code", code_name(error.code));
  if (!field.empty()) uma.field("param", field);
  uma.close();
  inner.close();
}

}  // namespace

// --- Streams

void MessageEncoder::append_first(std::string& out) const {
  append_message_event(out, "message_start", [&](json::ObjectWriter& object) {
    json::ObjectWriter message(object.begin("message"));
    write_message_head(message, facts_);
    message.begin("content") += "[]";
    message.null_field("stop_reason");
    message.null_field("stop_sequence");
    append_message_usage(message.begin("usage"), prompt_tokens_, 0, 0, 0);
    write_diagnostics(message, facts_, cache_miss_);
    message.close();
  });
}

void MessageEncoder::append_ping(std::string& out) const {
  append_message_event(out, "ping", [](json::ObjectWriter&) {});
}

void MessageEncoder::begin_block(std::string& out, Block block, const ReplyPart& part) {
  end_block(out);
  block_ = block;
  append_message_event(out, "content_block_start", [&](json::ObjectWriter& object) {
    object.field("index", blocks_begun_++);
    json::ObjectWriter begun(object.begin("content_block"));
    if (block == Block::tool_use) {
      write_tool_use(begun, part, "{}");
    } else if (block == Block::thinking) {
      begun.field("type", "thinking");
      begun.field("thinking", "");
      begun.field("signature", "");
    } else {
      begun.field("type", "text");
      begun.field("text", "");
    }
    begun.close();
  });
}

void MessageEncoder::append_delta(std::string& out, std::string_view type, std::string_view name,
                                  std::string_view value) const {
  append_message_event(out, "content_block_delta", [&](json::ObjectWriter& object) {
    object.field("index", blocks_begun_ - 1);
    json::ObjectWriter delta(object.begin("delta"));
    delta.field("type", type);
    delta.field(name, value);
    delta.close();
  });
}

void MessageEncoder::end_block(std::string& out) {
  if (block_ == Block::none) return;
  if (block_ == Block::thinking) append_delta(out, "signature_delta", "signature", kSignature);
  append_message_event(out, "content_block_stop",
                       [&](json::ObjectWriter& object) { object.field("index", blocks_begun_ - 1); });
  block_ = Block::none;
}

void MessageEncoder::append_text(std::string& out, std::string_view text) {
  if (block_ != Block::text) begin_block(out, Block::text, {});
  append_delta(out, "text_delta", "text", text);
}

void MessageEncoder::append_part(std::string& out, const ReplyPart& part) {
  if (part.kind == ReplyPart::Kind::reasoning) {
    if (block_ != Block::thinking) begin_block(out, Block::thinking, part);
    append_delta(out, "thinking_delta", "thinking", part.text);
    return;
  }
  if (!part.id.empty()) begin_block(out, Block::tool_use, part);
  if (!part.text.empty()) append_delta(out, "input_json_delta", "partial_json", part.text);
}

void MessageEncoder::append_last(std::string& out, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) append_part(out, part);
  if (!eos.text.empty()) append_text(out, eos.text);
  end_block(out);
  append_message_event(out, "message_delta", [&](json::ObjectWriter& object) {
    json::ObjectWriter delta(object.begin("delta"));
    write_stop(delta, eos, facts_);
    delta.close();
    append_message_usage(object.begin("usage"), eos.usage);
    write_uma(object, eos);
  });
  append_message_event(out, "message_stop", [](json::ObjectWriter&) {});
}

// --- Whole answers

std::string MessageEncoder::json(const EosEvent& eos) const {
  std::string out;
  json::ObjectWriter message(out);
  write_message_head(message, facts_);
  append_content(message.begin("content"), eos);
  write_stop(message, eos, facts_);
  append_message_usage(message.begin("usage"), eos.usage);
  write_diagnostics(message, facts_, cache_miss_);
  write_uma(message, eos);
  message.close();
  return out;
}

std::string message_error_json(const Error& error, int status, std::string_view field, std::string_view request_id) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("type", "error");
  write_message_error(object, error, status, field);
  if (!request_id.empty()) object.field("request_id", request_id);
  object.close();
  return out;
}

void append_message_error(std::string& out, const Error& error, int status) {
  append_message_event(out, "error", [&](json::ObjectWriter& object) { write_message_error(object, error, status, ""); });
}

std::string token_count_json(std::int32_t tokens) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("input_tokens", tokens);
  object.close();
  return out;
}

}  // namespace uma::wire
