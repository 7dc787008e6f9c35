#include "wire/ollama/ollama_encoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <format>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

// Ollama has no other reasons: a reply that was cut for any reason ends with "length".
std::string_view done_reason(FinishReason reason) {
  return reason == FinishReason::stop || reason == FinishReason::tool_calls ? "stop" : "length";
}

std::int64_t nanoseconds(double ms) {
  return std::llround(ms * 1e6);
}

// Writes the counts and times of the receipt. The time of loading includes waiting for a slot.
void write_counts(json::ObjectWriter& object, const Usage& usage) {
  const double eval_ms = usage.tokens_per_s > 0 ? (usage.completion_tokens - 1) / usage.tokens_per_s * 1000 : 0;
  object.field("total_duration", nanoseconds(std::max(usage.queue_ms, usage.ttft_ms) + eval_ms));
  object.field("load_duration", nanoseconds(usage.queue_ms));
  object.field("prompt_eval_count", usage.prompt_tokens);
  object.field("prompt_eval_duration", nanoseconds(std::max(usage.ttft_ms - usage.queue_ms, 0.0)));
  object.field("eval_count", usage.completion_tokens);
  object.field("eval_duration", nanoseconds(eval_ms));
}

// The arguments of a call as an object in one line; nullopt for a call that was cut.
std::optional<std::string> arguments_object(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value arguments = json::parse(text.empty() ? "{}" : text, {}, problem);
  if (problem || !arguments.is_object()) return std::nullopt;
  return boost::json::serialize(arguments);
}

// Ends the line that begins at `start`. The characters that some clients take for the end of a line, as Python's do, are
// escaped.
void end_line(std::string& out, std::size_t start) {
  static constexpr std::pair<std::string_view, std::string_view> kLineEnds[] = {
      {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
  for (const auto& [bytes, escaped] : kLineEnds) {
    for (std::size_t at = out.find(bytes, start); at != std::string::npos; at = out.find(bytes, at)) {
      out.replace(at, bytes.size(), escaped);
    }
  }
  out += '\n';
}

void append_vector_of(std::string& out, const EmbedResult& result, std::size_t index) {
  json::append_array(out, result.vector(index), [&](float value) { json::append_float(out, value); });
}

}  // namespace

std::string ollama_error_json(const Error& error) {
  // Programs look for these words before they offer to download a model.
  const bool is_unknown = error.code == ErrorCode::model_unknown;
  std::string out;
  json::ObjectWriter object(out);
  object.field("error", is_unknown ? "model not found: " + error.message : error.message);
  object.close();
  return out;
}

std::string rfc3339(std::int64_t unix_s) {
  return std::format("{:%FT%TZ}", std::chrono::sys_seconds(std::chrono::seconds(unix_s)));
}

OllamaAnswer::OllamaAnswer(OllamaKind kind, std::string_view model, std::int64_t created_s) : kind_(kind) {
  json::ObjectWriter object(head_);
  object.field("model", model);
  object.field("created_at", rfc3339(created_s));
}

void OllamaAnswer::write_content(json::ObjectWriter& object, const Content& content) const {
  if (kind_ == OllamaKind::generate) {
    object.field("response", content.text);
    if (!content.thinking.empty()) object.field("thinking", content.thinking);
    return;
  }
  json::ObjectWriter message(object.begin("message"));
  message.field("role", "assistant");
  message.field("content", content.text);
  if (!content.thinking.empty()) message.field("thinking", content.thinking);
  if (!content.calls.empty()) {
    std::string& out = message.begin("tool_calls");
    json::append_array(out, content.calls, [&](const ReplyPart& part) {
      json::ObjectWriter call(out);
      call.field("id", part.id);
      json::ObjectWriter function(call.begin("function"));
      function.field("index", part.call);
      function.field("name", part.name);
      function.begin("arguments") += part.text;
      function.close();
      call.close();
    });
  }
  message.close();
}

void OllamaAnswer::append_line(std::string& out, const Content& content) const {
  const std::size_t start = out.size();
  json::ObjectWriter object(out, head_);
  write_content(object, content);
  if (!content.logprobs.empty()) append_logprobs(object.begin("logprobs"), content.logprobs, false);
  object.field("done", false);
  object.close();
  end_line(out, start);
}

void OllamaAnswer::append_end(std::string& out, const Content& content, const EosEvent& eos) const {
  json::ObjectWriter object(out, head_);
  write_content(object, content);
  if (!content.logprobs.empty()) append_logprobs(object.begin("logprobs"), content.logprobs, false);
  object.field("done", true);
  object.field("done_reason", done_reason(eos.reason));
  if (kind_ == OllamaKind::generate) object.begin("context") += "[]";
  write_counts(object, eos.usage);
  append_own_left_out(object, eos.usage);
  object.close();
}

void OllamaAnswer::append_empty(std::string& out) {
  append_line(out, {});
}

void OllamaAnswer::append_text(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs) {
  append_call(out);
  append_line(out, {.text = text, .logprobs = logprobs});
}

void OllamaAnswer::append_part(std::string& out, const ReplyPart& part) {
  if (part.kind == ReplyPart::Kind::tool_call && call_ && call_->call == part.call) {
    call_->text += part.text;
    return;
  }
  append_call(out);
  if (part.kind == ReplyPart::Kind::tool_call) {
    call_ = part;
  } else if (!part.text.empty()) {
    append_line(out, {.thinking = part.text});
  }
}

// Appends the call whose pieces were kept, if any. A call that was cut becomes text: a program would run it.
void OllamaAnswer::append_call(std::string& out) {
  if (!call_) return;
  ReplyPart call = *std::exchange(call_, std::nullopt);
  if (auto arguments = arguments_object(call.text)) {
    call.text = *std::move(arguments);
    append_line(out, {.calls = std::span(&call, 1)});
  } else {
    append_line(out, {.text = call.text});
  }
}

void OllamaAnswer::append_last(std::string& out, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) append_part(out, part);
  append_call(out);
  if (!eos.text.empty()) append_line(out, {.text = eos.text, .logprobs = eos.logprobs});
  const std::size_t start = out.size();
  if (eos.error) {
    out += ollama_error_json(*eos.error);
  } else {
    append_end(out, {}, eos);
  }
  end_line(out, start);
}

std::string OllamaAnswer::whole(const EosEvent& eos) const {
  std::string text = eos.text;
  std::string thinking;
  std::vector<ReplyPart> calls;
  for (const ReplyPart& part : eos.parts) {
    if (part.kind == ReplyPart::Kind::reasoning) {
      thinking += part.text;
    } else if (auto arguments = arguments_object(part.text)) {
      calls.push_back(part);
      calls.back().text = *std::move(arguments);
    } else {
      text += part.text;
    }
  }
  std::string out;
  append_end(out, {.text = text, .thinking = thinking, .calls = calls, .logprobs = eos.logprobs}, eos);
  return out;
}

std::string OllamaAnswer::without_reply(std::string_view reason) const {
  std::string out;
  json::ObjectWriter object(out, head_);
  write_content(object, {});
  object.field("done", true);
  object.field("done_reason", reason);
  object.close();
  return out;
}

std::string ollama_embed_json(const EmbedResult& result, std::string_view model, Duration took) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("model", model);
  object.begin("embeddings") += '[';
  const std::size_t count = result.values.empty() ? 0 : result.count();
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    append_vector_of(out, result, i);
  }
  out += ']';
  object.field("total_duration", took.count());
  object.field("load_duration", 0);
  object.field("prompt_eval_count", result.tokens);
  object.close();
  return out;
}

std::string ollama_embeddings_json(const EmbedResult& result, std::string_view /*model*/, Duration /*took*/) {
  std::string out;
  json::ObjectWriter object(out);
  std::string& vector = object.begin("embedding");
  if (result.values.empty()) {
    vector += "[]";
  } else {
    append_vector_of(out, result, 0);
  }
  object.close();
  return out;
}

}  // namespace uma::wire
