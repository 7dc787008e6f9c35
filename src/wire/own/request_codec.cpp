#include "wire/own/request_codec.h"

#include <algorithm>
#include <array>
#include <format>
#include <span>
#include <string>
#include <utility>

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "base/base64.h"
#include "base/check.h"
#include "core/model_library.h"
#include "json/field_reader.h"
#include "wire/generate_fields.h"
#include "wire/image_fields.h"
#include "wire/openai/history_fields.h"
#include "wire/openai/picture_codec.h"
#include "wire/own/metadata_fields.h"

namespace uma::wire {
namespace {

constexpr json::TextBytes kSessionBytes{1, kSessionBytesMax};

std::string session_field(json::FieldReader& fields) {
  return fields.required_text("session_id", kSessionBytes);
}

// --- Input: a text, or messages

// Reads input under `text_name` ("prompt" or "text") or "messages". Missing input is a failure if it is `required`.
Input input_fields(json::FieldReader& fields, std::string_view text_name, bool required) {
  Input input;
  const bool has_text = fields.find(text_name) != nullptr;
  const bool has_messages = fields.find("messages") != nullptr;
  if (has_text && has_messages)
    fields.fail_field(text_name, "and field \"messages\" exclude each other: leave one of the two out");
  if (required && !has_text && !has_messages) fields.fail_field(text_name, "or field \"messages\" is required");
  input.text = fields.text(text_name, {.min = required ? 1u : 0u}).value_or("");
  input.messages = messages_field(fields, input.images);
  return input;
}

// Reads parse_special, which is `usual` if it is missing.
void read_parse_special(json::FieldReader& fields, Input& input, bool usual) {
  const auto parses = parse_special_field(fields);
  if (input.messages.empty()) {
    input.parses_special = parses.value_or(usual);
  } else if (parses.value_or(false)) {
    fields.fail_field("parse_special", "is only valid for texts: text of messages never becomes control tokens");
  }
}

void refuse_input(json::FieldReader& fields, std::string_view type) {
  for (const std::string_view name : {"prompt", "messages"}) {
    if (fields.find(name) != nullptr) {
      fields.fail_field(name, std::format("is not valid for {}: send it with generate or append_input", type));
    }
  }
}

// --- Options of a generation

GenerateOptions option_fields(json::FieldReader& fields) {
  GenerateOptions options;
  read_common_sampling(fields, options.sampling);
  read_own_sampling(fields, options.sampling);
  options.max_tokens = max_tokens_field(fields, "max_tokens");
  options.stop = stop_field(fields);
  options.stream = fields.boolean("stream").value_or(true);
  read_scheduling(fields, options);
  options.progress = fields.boolean("progress").value_or(false);
  if (const auto top = fields.integer("logprobs", 0, kTopLogprobsMax)) options.logprobs = static_cast<std::int32_t>(*top);
  options.chat = chat_options(fields);
  options.chat.splits_reasoning = fields.boolean("split_reasoning").value_or(false);
  options.strict_schema = fields.boolean("strict_schema").value_or(false);
  read_grammar(fields, options);
  read_adapters(fields, options);
  read_constraints(fields, options);
  return options;
}

// --- One decoder per type

RequestBody decode_generate(json::FieldReader& fields) {
  GenerateRequest request;
  request.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  request.session = fields.text("session_id", kSessionBytes).value_or("");
  request.input = input_fields(fields, "prompt", request.session.empty());
  // Without a session, the client writes the control tokens of its text itself.
  read_parse_special(fields, request.input, request.session.empty());
  request.options = option_fields(fields);
  if (request.session.empty()) read_continuation(fields, request.input.messages, request.options.chat);
  const bool is_text = request.session.empty() && request.input.messages.empty();
  if (is_text && !request.options.chat.tools.empty()) fields.fail_field("tools", "is only valid with \"messages\"");
  return request;
}

RequestBody decode_generate_stream(json::FieldReader& fields) {
  GenerateRequest request;
  request.session = session_field(fields);
  refuse_input(fields, "generate_stream");
  request.options = option_fields(fields);
  return request;
}

RequestBody decode_regenerate(json::FieldReader& fields) {
  GenerateRequest request;
  request.session = session_field(fields);
  request.regenerate = true;
  refuse_input(fields, "regenerate");
  request.options = option_fields(fields);
  if (request.options.max_tokens == 0) fields.fail_field("max_tokens", "must be at least 1 to make a reply again");
  return request;
}

SessionMode mode_field(json::FieldReader& fields) {
  const std::string mode = fields.text("mode").value_or("auto");
  if (mode == "text") return SessionMode::text;
  if (mode == "chat") return SessionMode::chat;
  if (mode != "auto") fields.fail_field("mode", R"(must be "auto", "chat" or "text")");
  return SessionMode::automatic;
}

void full_context_fields(json::FieldReader& fields, CreateSessionRequest& request) {
  const std::string on_full = fields.text("on_full").value_or("error");
  if (on_full == "shift") {
    request.on_full = OnFull::shift;
  } else if (on_full != "error") {
    fields.fail_field("on_full", R"(must be "error" or "shift")");
  } else if (fields.find("n_keep") != nullptr) {
    fields.fail_field("n_keep", R"(is only valid with on_full "shift")");
  }
  request.n_keep = static_cast<std::int32_t>(fields.integer("n_keep", 0, json::kInt32Max).value_or(0));
}

RequestBody decode_create_session(json::FieldReader& fields) {
  CreateSessionRequest request;
  request.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  request.system = fields.text("system").value_or("");
  request.name = fields.text("name", kSessionBytes).value_or("");
  request.metadata = metadata_field(fields);
  request.mode = mode_field(fields);
  request.ttl_s = fields.integer("ttl_s", 0, kTtlSecondsMax).value_or(0);
  full_context_fields(fields, request);
  request.is_ephemeral = fields.boolean("ephemeral").value_or(false);
  request.is_public = fields.boolean("public").value_or(false);
  request.parses_special = parse_special_field(fields).value_or(false);
  return request;
}

RequestBody decode_append_input(json::FieldReader& fields) {
  AppendRequest request;
  request.session = session_field(fields);
  request.input = input_fields(fields, "text", true);
  read_parse_special(fields, request.input, false);
  return request;
}

RequestBody decode_cancel(json::FieldReader& fields) {
  CancelRequest request;
  request.target = fields.text("target", {1, kIdBytesMax}).value_or("");
  request.session = fields.text("session_id", kSessionBytes).value_or("");
  if (request.target.empty() == request.session.empty()) {
    fields.fail_field("target", "or field \"session_id\" is required, and only one is allowed");
  }
  return request;
}

RequestBody decode_end_session(json::FieldReader& fields) {
  return EndSessionRequest{session_field(fields)};
}

RequestBody decode_fork_session(json::FieldReader& fields) {
  ForkRequest request{.session = session_field(fields)};
  request.name = fields.text("name", kSessionBytes).value_or("");
  if (const auto turn = fields.integer("turn", ForkRequest::kSystemOnly, json::kInt32Max)) {
    request.turn = static_cast<std::int32_t>(*turn);
  }
  request.metadata = metadata_changes(fields);
  return request;
}

RequestBody decode_update_session(json::FieldReader& fields) {
  UpdateSessionRequest request{.session = session_field(fields)};
  request.name = fields.text("name", {0, kSessionBytesMax});
  request.metadata = metadata_changes(fields);
  if (!request.name && fields.find("metadata") == nullptr) fields.fail_field("name", "or field \"metadata\" is required");
  return request;
}

RequestBody decode_rewind_session(json::FieldReader& fields) {
  RewindSessionRequest request;
  request.session = session_field(fields);
  if (fields.ok() && fields.find("turn") == nullptr) fields.fail_field("turn", "is required");
  request.turn = static_cast<std::int32_t>(fields.integer("turn", 0, json::kInt32Max).value_or(0));
  return request;
}

RequestBody decode_touch(json::FieldReader& fields) {
  return TouchRequest{session_field(fields)};
}
RequestBody decode_get_session(json::FieldReader& fields) {
  return GetSessionRequest{session_field(fields)};
}

RequestBody decode_list_sessions(json::FieldReader& fields) {
  SessionListRequest request;
  request.after = fields.text("after").value_or("");
  const std::string order = fields.text("order").value_or("asc");
  if (order == "desc") {
    request.order = SessionOrder::last_used_first;
  } else if (order != "asc") {
    fields.fail_field("order", R"(must be "asc" or "desc")");
  }
  request.query = fields.text("q", {0, SessionListRequest::kQueryBytesMax}).value_or("");
  request.limit = static_cast<std::int32_t>(fields.integer("limit", 1, SessionListRequest::kLimitMax).value_or(request.limit));
  return request;
}

RequestBody decode_export_session(json::FieldReader& fields) {
  ExportSessionRequest request{.session = session_field(fields)};
  request.with_kv = fields.boolean("kv").value_or(false);
  return request;
}

RequestBody decode_import_session(json::FieldReader& fields) {
  return ImportSessionRequest{fields.text("name", kSessionBytes).value_or("")};
}

RequestBody decode_import_data(json::FieldReader& fields) {
  ImportDataRequest request;
  request.target = fields.required_text("target", {1, kIdBytesMax});
  if (auto data = decode_base64(fields.required_text("data"))) {
    request.data = std::move(*data);
  } else {
    fields.fail_field("data", "is not valid base64");
  }
  request.is_last = fields.boolean("last").value_or(false);
  return request;
}

// Decodes a one-shot chat about one image.
RequestBody decode_describe_image(json::FieldReader& fields) {
  GenerateRequest request;
  request.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  request.input.images.push_back({.message = 0, .at = 0, .source = image_field(fields)});
  request.input.messages.push_back({.role = "user", .content = fields.required_text("query", {.min = 1})});
  request.options = option_fields(fields);
  return request;
}

RequestBody decode_embed_image(json::FieldReader& fields) {
  return embed_images_fields(fields);
}
RequestBody decode_generate_image(json::FieldReader& fields) {
  return picture_fields(fields);
}
RequestBody decode_embed(json::FieldReader& fields) {
  return read_embed(fields);
}
RequestBody decode_rerank_request(json::FieldReader& fields) {
  return read_rerank(fields);
}

template <class BodyT>
RequestBody decode_model(json::FieldReader& fields) {
  return BodyT{fields.text("model", {0, kModelBytesMax}).value_or("")};
}

RequestBody decode_pull(json::FieldReader& fields) {
  return PullModelRequest{fields.required_text("source", {1, kPullSourceBytesMax})};
}

RequestBody decode_trace(json::FieldReader& fields) {
  constexpr auto kMax = static_cast<double>(kTraceMax.count());
  TraceRequest trace;
  if (const auto seconds = fields.number("seconds", {.low = 0, .high = kMax, .low_excluded = true}))
    trace.span = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(*seconds));
  return trace;
}

RequestBody decode_get_receipt(json::FieldReader& fields) {
  return GetReceiptRequest{fields.text("reply", {0, kIdBytesMax}).value_or("")};
}

RequestBody decode_watch(json::FieldReader& fields) {
  WatchRequest watch;
  watch.interval = std::chrono::milliseconds(
      fields.integer("interval_ms", WatchRequest::kIntervalMin.count(), WatchRequest::kIntervalMax.count())
          .value_or(watch.interval.count()));
  watch.history =
      std::chrono::seconds(fields.integer("history_s", 0, WatchRequest::kHistoryMax.count()).value_or(watch.history.count()));
  return watch;
}

template <class BodyT>
RequestBody decode_plain(json::FieldReader&) {
  return BodyT{};
}

struct TypeDecoder {
  std::string_view type;
  RequestBody (*decode)(json::FieldReader& fields);
};

constexpr std::array<TypeDecoder, 30> kDecoders = {{
    {"generate", decode_generate},
    {"generate_stream", decode_generate_stream},
    {"regenerate", decode_regenerate},
    {"create_session", decode_create_session},
    {"append_input", decode_append_input},
    {"cancel", decode_cancel},
    {"end_session", decode_end_session},
    {"fork_session", decode_fork_session},
    {"update_session", decode_update_session},
    {"rewind_session", decode_rewind_session},
    {"touch", decode_touch},
    {"get_session", decode_get_session},
    {"list_sessions", decode_list_sessions},
    {"export_session", decode_export_session},
    {"import_session", decode_import_session},
    {"import_data", decode_import_data},
    {"embed_image", decode_embed_image},
    {"describe_image", decode_describe_image},
    {"generate_image", decode_generate_image},
    {"embed", decode_embed},
    {"rerank", decode_rerank_request},
    {"load_model", decode_model<LoadModelRequest>},
    {"unload_model", decode_model<UnloadModelRequest>},
    {"pull_model", decode_pull},
    {"models", decode_plain<ModelsRequest>},
    {"metrics", decode_plain<MetricsRequest>},
    {"trace", decode_trace},
    {"ping", decode_plain<PingRequest>},
    {"watch", decode_watch},
    {"get_receipt", decode_get_receipt},
}};

Error type_error(std::string_view type) {
  std::string known;
  for (const TypeDecoder& decoder : kDecoders) known += std::format("{}{}", known.empty() ? "" : ", ", decoder.type);
  return {ErrorCode::proto_type, type.size() <= 64 ? std::format("unknown request type \"{}\"; known: {}", type, known)
                                                   : std::format("unknown request type; known: {}", known)};
}

std::string type_field(json::FieldReader& fields) {
  if (fields.find("type") != nullptr) return fields.text("type").value_or("");
  if (fields.find("prompt") == nullptr && fields.find("messages") == nullptr) fields.fail_field("type", "is required");
  return "generate";
}

RequestBody body_fields(json::FieldReader& fields) {
  const std::string type = type_field(fields);
  if (!fields.ok()) return PingRequest{};
  const auto decoder = std::ranges::find(kDecoders, type, &TypeDecoder::type);
  if (decoder == kDecoders.end()) {
    fields.fail_with(type_error(type));
    return PingRequest{};
  }
  return decoder->decode(fields);
}

std::expected<Request, RejectedRequest> decode_object(const boost::json::object& object) {
  json::FieldReader fields(object);
  std::string id = fields.required_text("id", {1, kIdBytesMax});
  if (!fields.ok()) return std::unexpected(RejectedRequest{std::nullopt, fields.take_error()});
  RequestBody body = body_fields(fields);
  if (!fields.ok()) return std::unexpected(RejectedRequest{std::move(id), fields.take_error()});
  return Request{std::move(id), std::move(body)};
}

}  // namespace

std::expected<Request, RejectedRequest> decode_request(std::string_view body) {
  // Large enough for most requests, so that parsing them allocates nothing.
  std::array<unsigned char, 4096> buffer;
  boost::json::monotonic_resource memory(buffer.data(), buffer.size());
  boost::system::error_code problem;
  const boost::json::value root = json::parse(body, &memory, problem);
  if (problem) {
    return std::unexpected(
        RejectedRequest{std::nullopt, {ErrorCode::proto_json, "the frame is not JSON: " + problem.message()}});
  }
  if (!root.is_object()) {
    return std::unexpected(RejectedRequest{std::nullopt, {ErrorCode::proto_json, "the frame must be one JSON object"}});
  }
  return decode_object(root.get_object());
}

std::expected<RequestBody, RejectedBody> decode_session_request(std::string_view type, std::string_view session,
                                                                std::string_view body) {
  const auto decoder = std::ranges::find(kDecoders, type, &TypeDecoder::type);
  UMA_CHECK(decoder != kDecoders.end());
  auto object = parse_body(body.empty() ? "{}" : body, {});
  if (!object) return std::unexpected(object.error());
  object->erase("session_id");
  if (!session.empty()) object->emplace("session_id", session);
  return read_object<RequestBody>(*object, decoder->decode);
}

}  // namespace uma::wire
