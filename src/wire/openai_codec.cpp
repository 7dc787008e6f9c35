#include "wire/openai_codec.h"

#include <algorithm>
#include <array>
#include <format>
#include <utility>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "wire/event_codec.h"
#include "wire/field_reader.h"
#include "wire/generate_fields.h"
#include "wire/json_writer.h"
#include "wire/request_codec.h"

namespace uma::wire {
namespace {

namespace json = boost::json;

// --- requests

// A prompt is a string, or an array of one: several prompts and token ids come later.
std::string prompt_field(FieldReader& fields) {
  const json::value* prompt = fields.find("prompt");
  if (prompt == nullptr || !prompt->is_array()) return fields.required_text("prompt", {.min = 1});
  const json::array& prompts = prompt->get_array();
  if (prompts.size() != 1 || !prompts.front().is_string()) {
    fields.fail_field("prompt", "is served only as a string or an array of one string by this version");
    return "";
  }
  return fields.checked_text("prompt", prompts.front(), {.min = 1}).value_or("");
}

// A field whose value would change the answer is refused where we do not act on it.
void refuse(FieldReader& fields, std::string_view name) {
  fields.fail_field(name, "is not served by this version: leave it out");
}

void refuse_unserved_fields(FieldReader& fields) {
  for (const std::string_view name : {"n", "best_of"}) {
    if (fields.integer(name, 1, 1024).value_or(1) != 1) fields.fail_field(name, "is served only as 1 by this version");
  }
  for (const std::string_view name : {"echo", "suffix", "functions", "audio"}) {
    const json::value* value = fields.find(name);
    const bool is_empty = value == nullptr || *value == false || (value->is_string() && value->get_string().empty()) ||
                          (value->is_array() && value->get_array().empty());
    if (!is_empty) refuse(fields, name);
  }
  if (const json::value* value = fields.find("logprobs"); value != nullptr && *value != false) refuse(fields, "logprobs");
}

bool include_usage_field(FieldReader& fields) {
  const json::object* options = fields.object("stream_options");
  if (options == nullptr) return false;
  FieldReader inner(*options, "stream_options.");
  const bool includes = inner.boolean("include_usage").value_or(false);
  if (!inner.ok()) fields.fail_as(inner);
  return includes;
}

// Our own options, under "uma".
void read_own_options(FieldReader& fields, GenerateOptions& options) {
  const json::object* object = fields.object("uma");
  if (object == nullptr) return;
  FieldReader own(*object, "uma.");
  read_own_sampling(own, options.sampling);
  read_scheduling(own, options);
  read_grammar(own, options);
  if (const auto splits = own.boolean("split_reasoning")) options.chat.splits_reasoning = *splits;
  for (const std::string_view name : {"session_id", "progress"}) {
    const json::value* value = own.find(name);
    if (value != nullptr && *value != false) refuse(own, name);
  }
  if (!own.ok()) fields.fail_as(own);
}

CompletionRequest read_completion(CompletionKind kind, FieldReader& fields) {
  CompletionRequest request;
  GenerateRequest& generate = request.generate;
  generate.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  if (kind == CompletionKind::chat) {
    if (fields.find("messages") == nullptr) fields.fail_field("messages", "is required");
    generate.input.messages = messages_field(fields, generate.input.images);
    generate.options.chat = chat_options(fields);
    generate.options.chat.splits_reasoning = true;
  } else {
    generate.input.text = prompt_field(fields);
    const json::array* tools = fields.array("tools");
    if (tools != nullptr && !tools->empty()) fields.fail_field("tools", "belongs to chat/completions");
  }
  GenerateOptions& options = generate.options;
  options.sampling.temperature = 1;
  read_common_sampling(fields, options.sampling);
  options.stop = stop_field(fields);
  options.max_tokens = max_tokens_field(fields, "max_tokens");
  if (const auto count = max_tokens_field(fields, "max_completion_tokens")) options.max_tokens = count;
  options.stream = fields.boolean("stream").value_or(false);
  request.includes_usage = include_usage_field(fields);
  read_grammar(fields, options);
  refuse_unserved_fields(fields);
  read_own_options(fields, options);
  read_response_format(fields, options);
  return request;
}

// --- answers

// OpenAI knows no other ways to end: a text that was cut for whatever reason ends with "length", and `uma.reason` says why.
std::string_view openai_finish_reason(FinishReason reason) {
  return reason == FinishReason::stop || reason == FinishReason::tool_calls ? finish_reason_name(reason) : "length";
}

void write_usage(ObjectWriter& parent, const Usage& usage) {
  ObjectWriter object(parent.begin("usage"));
  object.field("prompt_tokens", usage.prompt_tokens);
  object.field("completion_tokens", usage.completion_tokens);
  object.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  ObjectWriter details(object.begin("prompt_tokens_details"));
  details.field("cached_tokens", usage.reused_tokens);
  details.close();
  ObjectWriter completion(object.begin("completion_tokens_details"));
  completion.field("reasoning_tokens", usage.reasoning_tokens);
  completion.close();
  object.close();
}

// The receipt: how it ended in our words, and what it cost.
void write_receipt(ObjectWriter& parent, const EosEvent& eos) {
  ObjectWriter object(parent.begin("uma"));
  object.field("reason", finish_reason_name(eos.reason));
  append_usage(object.begin("usage"), eos.usage);
  object.close();
}

// What a whole reply says, thinks and calls.
void write_reply(ObjectWriter& message, const EosEvent& eos) {
  const bool has_calls = std::ranges::contains(eos.parts, ReplyPart::Kind::tool_call, &ReplyPart::kind);
  if (eos.text.empty() && has_calls) {
    message.null_field("content");
  } else {
    message.field("content", eos.text);
  }
  for (const ReplyPart& part : eos.parts) {
    if (part.kind == ReplyPart::Kind::reasoning) message.field("reasoning_content", part.text);
  }
  if (has_calls) append_calls(message.begin("tool_calls"), eos.parts);
}

void append_chunk_start(std::string& out) {
  out += "data: ";
}
void append_chunk_end(std::string& out) {
  out += "\n\n";
}

// One chunk with one choice: write_delta(choice) adds what is new. `eos` is set for the chunk that ends the choice.
template <class WriteT>
void append_choice_chunk(std::string& out, const CompletionHead& head, const EosEvent* eos, WriteT&& write_delta) {
  append_chunk_start(out);
  ObjectWriter object(out, head.chunk());
  object.begin("choices") += '[';
  {
    ObjectWriter choice(out);
    choice.field("index", 0);
    write_delta(choice);
    choice.null_field("logprobs");
    if (eos == nullptr) {
      choice.null_field("finish_reason");
    } else {
      choice.field("finish_reason", openai_finish_reason(eos->reason));
    }
    choice.close();
  }
  out += ']';
  if (head.includes_usage()) object.null_field("usage");
  if (eos != nullptr) write_receipt(object, *eos);
  object.close();
  append_chunk_end(out);
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::expected<CompletionRequest, RejectedBody> decode_completion(CompletionKind kind, std::string_view body) {
  return decode_body<CompletionRequest>(body, [&](FieldReader& fields) { return read_completion(kind, fields); });
}

CompletionHead::CompletionHead(CompletionKind kind, std::string_view id, std::int64_t created_s, std::string_view model,
                               bool includes_usage)
    : kind_(kind), includes_usage_(includes_usage) {
  const bool is_chat = kind == CompletionKind::chat;
  const auto write = [&](std::string& out, std::string_view object_name) {
    ObjectWriter object(out);
    object.field("id", std::format("{}-{}", is_chat ? "chatcmpl" : "cmpl", id));
    object.field("object", object_name);
    object.field("created", created_s);
    object.field("model", model);
  };
  write(whole_, is_chat ? "chat.completion" : "text_completion");
  write(chunk_, is_chat ? "chat.completion.chunk" : "text_completion");
}

std::string completion_json(const CompletionHead& head, const EosEvent& eos) {
  std::string out;
  ObjectWriter object(out, head.whole());
  object.begin("choices") += '[';
  {
    ObjectWriter choice(out);
    choice.field("index", 0);
    if (head.kind() == CompletionKind::chat) {
      ObjectWriter message(choice.begin("message"));
      message.field("role", "assistant");
      write_reply(message, eos);
      message.null_field("refusal");
      message.close();
    } else {
      choice.field("text", eos.text);
    }
    choice.null_field("logprobs");
    choice.field("finish_reason", openai_finish_reason(eos.reason));
    choice.close();
  }
  out += ']';
  write_usage(object, eos.usage);
  write_receipt(object, eos);
  object.close();
  return out;
}

void append_first_chunk(std::string& out, const CompletionHead& head) {
  if (head.kind() != CompletionKind::chat) return;
  append_choice_chunk(out, head, nullptr, [](ObjectWriter& choice) {
    ObjectWriter delta(choice.begin("delta"));
    delta.field("role", "assistant");
    delta.field("content", "");
    delta.close();
  });
}

void append_text_chunk(std::string& out, const CompletionHead& head, std::string_view text) {
  append_choice_chunk(out, head, nullptr, [&](ObjectWriter& choice) {
    if (head.kind() == CompletionKind::text) return choice.field("text", text);
    ObjectWriter delta(choice.begin("delta"));
    delta.field("content", text);
    delta.close();
  });
}

void append_part_chunk(std::string& out, const CompletionHead& head, const ReplyPart& part) {
  append_choice_chunk(out, head, nullptr, [&](ObjectWriter& choice) {
    ObjectWriter delta(choice.begin("delta"));
    if (part.kind == ReplyPart::Kind::reasoning) {
      delta.field("reasoning_content", part.text);
    } else {
      delta.begin("tool_calls") += '[';
      ObjectWriter call(out);
      call.field("index", part.call);
      if (!part.id.empty()) {
        call.field("id", part.id);
        call.field("type", "function");
      }
      ObjectWriter function(call.begin("function"));
      if (!part.name.empty()) function.field("name", part.name);
      function.field("arguments", part.text);
      function.close();
      call.close();
      out += ']';
    }
    delta.close();
  });
}

void append_last_chunks(std::string& out, const CompletionHead& head, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) append_part_chunk(out, head, part);
  if (!eos.text.empty()) append_text_chunk(out, head, eos.text);
  if (eos.error) {
    append_chunk_start(out);
    out += error_json(*eos.error, 500, "");
    append_chunk_end(out);
  } else {
    append_choice_chunk(out, head, &eos, [&](ObjectWriter& choice) {
      if (head.kind() == CompletionKind::text) return choice.field("text", "");
      ObjectWriter(choice.begin("delta")).close();
    });
    if (head.includes_usage()) {
      append_chunk_start(out);
      ObjectWriter object(out, head.chunk());
      object.begin("choices") += "[]";
      write_usage(object, eos.usage);
      object.close();
      append_chunk_end(out);
    }
  }
  out += "data: [DONE]\n\n";
}

std::string error_json(const Error& error, int status, std::string_view field) {
  std::string out;
  ObjectWriter object(out);
  ObjectWriter inner(object.begin("error"));
  inner.field("message", error.message);
  inner.field("type", error_type(status));
  if (field.empty()) {
    inner.null_field("param");
  } else {
    inner.field("param", field);
  }
  inner.field("code", code_name(error.code));
  inner.close();
  object.close();
  return out;
}

std::string model_json(const ModelInfo& model, std::int64_t created_s) {
  std::string out;
  ObjectWriter object(out);
  object.field("id", model.name);
  object.field("object", "model");
  object.field("created", created_s);
  object.field("owned_by", "uma");
  object.close();
  return out;
}

std::string models_json(std::span<const ModelInfo> models, std::int64_t created_s) {
  std::string out;
  ObjectWriter object(out);
  object.field("object", "list");
  append_json_array(object.begin("data"), models, [&](const ModelInfo& model) { out += model_json(model, created_s); });
  object.close();
  return out;
}

}  // namespace uma::wire
