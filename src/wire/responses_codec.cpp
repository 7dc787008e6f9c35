#include "wire/responses_codec.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "wire/event_codec.h"
#include "wire/generate_fields.h"
#include "wire/json_writer.h"
#include "wire/query.h"
#include "wire/request_codec.h"

namespace uma::wire {
namespace {

namespace json = boost::json;

constexpr std::string_view kResponsePrefix = "resp_";
constexpr std::string_view kConversationPrefix = "conv_";
constexpr std::size_t kSessionDigits = 32;
constexpr std::size_t kResponseDigits = 16;
constexpr std::size_t kMetadataPairsMax = 16;  // these three as OpenAI has them
constexpr std::size_t kMetadataKeyBytesMax = 64;
constexpr std::size_t kMetadataValueBytesMax = 512;
constexpr std::size_t kItemsPerPageMax = 100;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string item_id(std::string_view session, std::int32_t turn, std::int32_t number) {
  return std::format("msg_{}_{}_{}", session, turn, number);
}

// --- requests

void refuse(FieldReader& fields, std::string_view name) {
  fields.fail_field(name, "is not served by this version: leave it out");
}

void fail_unknown(FieldReader& fields, std::string_view name, std::string_view what) {
  fields.fail_field(name, std::format("names no {}: it was never made, or it is gone", what), ErrorCode::session_unknown);
}

bool is_empty(const json::value& value) {
  if (const json::object* object = value.if_object()) {
    return std::ranges::all_of(*object, [](const auto& entry) { return entry.value().is_null(); });
  }
  return value.is_null() || value == false || (value.is_array() && value.get_array().empty()) ||
         (value.is_string() && value.get_string().empty());
}

std::string role_field(FieldReader& item) {
  std::string role = item.required_text("role");
  if (role == "developer") return "system";  // the newer name of the same role
  if (item.ok() && role != "system" && role != "user" && role != "assistant") {
    item.fail_field("role", R"(must be "user", "assistant", "system" or "developer")");
  }
  return role;
}

// A string, or parts of text.
std::string content_field(FieldReader& item) {
  const json::value* content = item.find("content");
  if (content == nullptr || !content->is_array()) return item.required_text("content");
  std::string text;
  for (const json::value& part : content->get_array()) {
    const json::object* object = part.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    const json::value* part_text = object == nullptr ? nullptr : object->if_contains("text");
    const bool is_text = type != nullptr && (*type == "input_text" || *type == "output_text" || *type == "text");
    if (!is_text || part_text == nullptr) {
      item.fail_field("content", R"(must be a string or an array of {"type": "input_text", "text": ...}: only text is read)");
      return "";
    }
    text += item.checked_text("content", *part_text, {}).value_or("");
  }
  return text;
}

std::vector<ChatMessage> items_field(FieldReader& fields, std::string_view name) {
  std::vector<ChatMessage> messages;
  const json::array* items = fields.array(name);
  if (items == nullptr) return messages;
  for (std::size_t i = 0; i < items->size() && fields.ok(); ++i) {
    const json::object* object = (*items)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("{}[{}]", name, i), "must be an object");
      break;
    }
    FieldReader item(*object, std::format("{}[{}].", name, i));
    const std::string type = item.text("type").value_or("message");
    if (item.ok() && type != "message") item.fail_field("type", R"(is served only as "message" by this version)");
    std::string role = role_field(item);
    std::string content = content_field(item);
    if (!item.ok()) fields.fail_as(item);
    messages.push_back({std::move(role), std::move(content)});
  }
  return messages;
}

std::vector<ChatMessage> input_field(FieldReader& fields) {
  const json::value* input = fields.find("input");
  if (input == nullptr) {
    fields.fail_field("input", "is required");
    return {};
  }
  if (!input->is_array()) return {{"user", fields.text("input", {.min = 1}).value_or("")}};
  if (input->get_array().empty()) fields.fail_field("input", "must hold at least one item");
  return items_field(fields, "input");
}

// As an object of ours: the names and values are checked strings. "{}" where it is absent.
std::string metadata_field(FieldReader& fields) {
  std::string out;
  ObjectWriter writer(out);
  if (const json::object* metadata = fields.object("metadata"); metadata != nullptr) {
    if (metadata->size() > kMetadataPairsMax) {
      fields.fail_field("metadata", std::format("has {} pairs, at most {} are kept", metadata->size(), kMetadataPairsMax));
    }
    for (const auto& [key, value] : *metadata) {
      const auto name = fields.checked_text("metadata", json::value(key), {1, kMetadataKeyBytesMax});
      const auto text = fields.checked_text("metadata", value, {0, kMetadataValueBytesMax});
      if (!name || !text) break;
      // A name of the client's, unlike ours, needs escaping: begin() is for those that do not.
      std::string quoted;
      append_json_string(quoted, *name);
      append_json_string(writer.begin(std::string_view(quoted).substr(1, quoted.size() - 2)), *text);
    }
  }
  writer.close();
  return out;
}

std::optional<OnFull> truncation_field(FieldReader& fields) {
  const auto truncation = fields.text("truncation");
  if (!truncation) return std::nullopt;
  if (*truncation == "auto") return OnFull::shift;
  if (*truncation != "disabled") fields.fail_field("truncation", R"(must be "auto" or "disabled")");
  return OnFull::error;
}

// "conv_…", or an object with it as its id.
std::string conversation_field(FieldReader& fields) {
  const json::value* value = fields.find("conversation");
  if (value == nullptr) return "";
  const json::object* object = value->if_object();
  std::string text;
  if (object != nullptr) {
    FieldReader inner(*object, "conversation.");
    text = inner.required_text("id");
    if (!inner.ok()) fields.fail_as(inner);
  } else {
    text = fields.text("conversation").value_or("");
  }
  if (!fields.ok()) return "";
  auto session = parse_conversation_id(text);
  if (!session) fail_unknown(fields, "conversation", "conversation");
  return std::move(session).value_or("");
}

void refuse_unserved_fields(FieldReader& fields) {
  for (const std::string_view name :
       {"background", "include", "reasoning", "tools", "prompt", "top_logprobs", "moderation", "context_management"}) {
    if (const json::value* value = fields.find(name); value != nullptr && !is_empty(*value) && *value != 0)
      refuse(fields, name);
  }
  if (const json::value* choice = fields.find("tool_choice"); choice != nullptr && *choice != "auto" && *choice != "none") {
    refuse(fields, "tool_choice");
  }
  const json::object* text = fields.object("text");
  if (text == nullptr) return;
  FieldReader inner(*text, "text.");
  if (const json::object* format = inner.object("format"); format != nullptr) {
    const json::value* type = format->if_contains("type");
    if (type == nullptr || *type != "text") {
      inner.fail_field("format", R"(is served only as {"type": "text"} by this version)");
    }
  }
  if (!inner.ok()) fields.fail_as(inner);
}

// Our own options, under "uma".
void read_own_options(FieldReader& fields, GenerateOptions& options) {
  const json::object* object = fields.object("uma");
  if (object == nullptr) return;
  FieldReader own(*object, "uma.");
  read_own_sampling(own, options.sampling);
  read_scheduling(own, options);
  for (const std::string_view name : {"session_id", "progress", "grammar"}) {
    if (const json::value* value = own.find(name); value != nullptr && !is_empty(*value)) refuse(own, name);
  }
  if (!own.ok()) fields.fail_as(own);
}

// What the response repeats, with OpenAI's defaults where a field was left out.
std::string repeated_fields(const GenerateRequest& generate, const ResponseRequest& response, std::string_view previous,
                            std::string_view metadata) {
  std::string out;
  ObjectWriter object(out);
  if (response.instructions) {
    object.field("instructions", *response.instructions);
  } else {
    object.null_field("instructions");
  }
  if (generate.options.max_tokens) {
    object.field("max_output_tokens", *generate.options.max_tokens);
  } else {
    object.null_field("max_output_tokens");
  }
  if (previous.empty()) {
    object.null_field("previous_response_id");
  } else {
    object.field("previous_response_id", previous);
  }
  if (previous.empty() && !generate.session.empty()) {
    ObjectWriter conversation(object.begin("conversation"));
    conversation.field("id", conversation_id_text(generate.session));
    conversation.close();
  } else {
    object.null_field("conversation");
  }
  object.field("store", response.is_kept);
  object.field("temperature", generate.options.sampling.temperature);
  object.field("top_p", generate.options.sampling.top_p);
  object.field("truncation", response.on_full == OnFull::shift ? "auto" : "disabled");
  object.begin("metadata") += metadata;
  return out;
}

ResponseCall read_response(FieldReader& fields, std::string id) {
  ResponseCall call;
  GenerateRequest& generate = call.generate;
  generate.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  generate.input.messages = input_field(fields);

  ResponseRequest response;
  response.id = std::move(id);
  response.instructions = fields.text("instructions");
  response.is_kept = fields.boolean("store").value_or(true);
  response.on_full = truncation_field(fields);
  generate.session = conversation_field(fields);
  const std::string previous = fields.text("previous_response_id").value_or("");
  if (!previous.empty()) {
    if (!generate.session.empty()) {
      fields.fail_field("previous_response_id", R"(and field "conversation" exclude each other)");
    } else if (auto named = parse_response_id(previous)) {
      generate.session = std::move(named->session);
      response.previous = std::move(named->response);
    } else {
      fail_unknown(fields, "previous_response_id", "response");
    }
  }

  GenerateOptions& options = generate.options;
  options.sampling.temperature = 1;
  read_common_sampling(fields, options.sampling);
  options.stop = stop_field(fields);
  options.max_tokens = max_tokens_field(fields, "max_output_tokens");
  options.stream = fields.boolean("stream").value_or(false);
  refuse_unserved_fields(fields);
  read_own_options(fields, options);

  call.request = repeated_fields(generate, response, previous, metadata_field(fields));
  if (generate.session.empty() && !response.is_kept) {
    if (response.instructions) {
      generate.input.messages.insert(generate.input.messages.begin(), {"system", *response.instructions});
    }
    return call;
  }
  response.request = call.request;
  generate.response = std::move(response);
  return call;
}

// --- answers

// OpenAI knows no other ways: what was cut for whatever reason is incomplete, and `uma.reason` says why.
std::string_view status_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "completed";
    case FinishReason::error:
      return "failed";
    case FinishReason::cancelled:
      return "cancelled";
    default:
      return "incomplete";
  }
}

void append_text_part(std::string& out, std::string_view text) {
  ObjectWriter part(out);
  part.field("type", "output_text");
  part.begin("annotations") += "[]";
  part.begin("logprobs") += "[]";
  part.field("text", text);
  part.close();
}

// A message as an item. `status` is completed, incomplete or in_progress; one in progress has no content yet.
void append_item(std::string& out, std::string_view id, std::string_view status, const ChatMessage& message) {
  ObjectWriter item(out);
  item.field("id", id);
  item.field("type", "message");
  item.field("status", status);
  item.field("role", message.role);
  std::string& content = item.begin("content");
  content += '[';
  if (status != "in_progress" && message.role == "assistant") {
    append_text_part(content, message.content);
  } else if (status != "in_progress") {
    ObjectWriter part(content);
    part.field("type", "input_text");
    part.field("text", message.content);
    part.close();
  }
  content += ']';
  item.close();
}

// What is known of a response at one moment.
struct ResponseFacts {
  std::string_view id;
  std::string_view request;
  std::string_view model;
  std::int64_t created_s = 0;
  std::string_view session;  // empty: none
  std::int32_t turn = 0;
  std::string_view item_id;
  std::string_view text;
  std::optional<FinishReason> reason = std::nullopt;  // absent: it is in progress
  std::string_view error = {};
  std::int32_t prompt_tokens = 0;
  std::int32_t reused_tokens = 0;
  std::int32_t completion_tokens = 0;
  const Usage* receipt = nullptr;  // null: it was not kept
};

void write_usage(ObjectWriter& parent, const ResponseFacts& facts) {
  ObjectWriter usage(parent.begin("usage"));
  usage.field("input_tokens", facts.prompt_tokens);
  ObjectWriter input(usage.begin("input_tokens_details"));
  input.field("cached_tokens", facts.reused_tokens);
  input.close();
  usage.field("output_tokens", facts.completion_tokens);
  ObjectWriter output(usage.begin("output_tokens_details"));
  output.field("reasoning_tokens", 0);
  output.close();
  usage.field("total_tokens", facts.prompt_tokens + facts.completion_tokens);
  usage.close();
}

// Where it is, and once it has ended how and at what cost, in our words.
void write_own(ObjectWriter& parent, const ResponseFacts& facts) {
  ObjectWriter own(parent.begin("uma"));
  if (!facts.session.empty()) {
    own.field("session_id", facts.session);
    own.field("turn", facts.turn);
  }
  if (facts.reason) own.field("reason", finish_reason_name(*facts.reason));
  if (facts.receipt != nullptr) append_usage(own.begin("usage"), *facts.receipt);
  own.close();
}

void append_response(std::string& out, const ResponseFacts& facts) {
  const std::string_view status = facts.reason ? status_of(*facts.reason) : "in_progress";
  ObjectWriter object(out, facts.request);
  object.field("id", facts.id);
  object.field("object", "response");
  object.field("created_at", facts.created_s);
  object.field("status", status);
  object.field("model", facts.model);
  object.field("background", false);
  if (status == "failed") {
    ObjectWriter error(object.begin("error"));
    error.field("code", "server_error");
    error.field("message", facts.error);
    error.close();
  } else {
    object.null_field("error");
  }
  if (status == "incomplete") {
    object.begin("incomplete_details") += R"({"reason":"max_output_tokens"})";
  } else {
    object.null_field("incomplete_details");
  }
  std::string& output = object.begin("output");
  output += '[';
  if (facts.reason) {
    append_item(output, facts.item_id, status == "completed" ? "completed" : "incomplete",
                {"assistant", std::string(facts.text)});
  }
  output += ']';
  object.field("parallel_tool_calls", true);
  object.begin("reasoning") += R"({"effort":null,"summary":null})";
  object.begin("text") += R"({"format":{"type":"text"}})";
  object.field("tool_choice", "auto");
  object.begin("tools") += "[]";
  object.null_field("user");
  if (facts.reason) {
    write_usage(object, facts);
  } else {
    object.null_field("usage");
  }
  write_own(object, facts);
  object.close();
}

// --- items

struct Item {
  std::string id;
  const ChatMessage* message = nullptr;
};

// All that was said, with what waits for a reply; instructions were not said.
std::vector<Item> items_of(const SessionDetail& session) {
  std::vector<Item> items;
  std::size_t next_turn = 0;  // of those that are left
  std::int32_t turn = 0;
  std::int32_t number = 0;
  for (std::size_t i = 0; i < session.messages.size(); ++i) {
    if (next_turn < session.turns_begin.size() && session.turns_begin[next_turn] == static_cast<std::int32_t>(i)) {
      turn = session.info.dropped_turns + static_cast<std::int32_t>(next_turn++);
      number = 0;
    }
    if (i == 0 && session.has_instructions) continue;
    items.push_back({item_id(session.info.id.value, turn, number++), &session.messages[i]});
  }
  turn = session.info.dropped_turns + static_cast<std::int32_t>(session.turns_begin.size());
  number = 0;
  for (std::size_t i = 0; i < session.pending_messages.size(); ++i) {
    if (i == 0 && session.messages.empty() && session.has_instructions) continue;
    items.push_back({item_id(session.info.id.value, turn, number++), &session.pending_messages[i]});
  }
  return items;
}

void append_list(std::string& out, std::span<const Item> items, bool has_more) {
  ObjectWriter list(out);
  list.field("object", "list");
  append_json_array(list.begin("data"), items,
                    [&](const Item& item) { append_item(out, item.id, "completed", *item.message); });
  if (items.empty()) {
    list.null_field("first_id");
    list.null_field("last_id");
  } else {
    list.field("first_id", items.front().id);
    list.field("last_id", items.back().id);
  }
  list.field("has_more", has_more);
  list.close();
}

std::expected<std::string, RejectedBody> page_json(std::vector<Item> items, const ListPage& page) {
  if (!page.is_ascending) std::ranges::reverse(items);
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::ranges::find(items, page.after, &Item::id);
    if (first == items.end()) {
      return std::unexpected(RejectedBody{{ErrorCode::proto_field, "field \"after\" names no item of this list"}, "after"});
    }
    ++first;
  }
  const auto left = static_cast<std::size_t>(items.end() - first);
  std::string out;
  append_list(out, std::span(first, std::min(left, page.limit)), left > page.limit);
  return out;
}

}  // namespace

// --- Ids

std::string response_id_text(const ResponseId& id) {
  return std::format("{}{}{}", kResponsePrefix, id.session, id.response);
}

std::optional<ResponseId> parse_response_id(std::string_view text) {
  if (!text.starts_with(kResponsePrefix)) return std::nullopt;
  text.remove_prefix(kResponsePrefix.size());
  if (text.size() != kSessionDigits + kResponseDigits || !is_hex(text)) return std::nullopt;
  return ResponseId{std::string(text.substr(0, kSessionDigits)), std::string(text.substr(kSessionDigits))};
}

std::string conversation_id_text(std::string_view session) {
  return std::format("{}{}", kConversationPrefix, session);
}

std::optional<std::string> parse_conversation_id(std::string_view text) {
  if (!text.starts_with(kConversationPrefix)) return std::nullopt;
  text.remove_prefix(kConversationPrefix.size());
  if (text.size() != kSessionDigits || !is_hex(text)) return std::nullopt;
  return std::string(text);
}

// --- Requests

std::expected<ResponseCall, RejectedBody> decode_response(std::string_view body, std::string id) {
  return decode_body<ResponseCall>(body, [&](FieldReader& fields) { return read_response(fields, std::move(id)); });
}

std::expected<CreateSessionRequest, RejectedBody> decode_conversation(std::string_view body) {
  return decode_body<CreateSessionRequest>(body.empty() ? "{}" : body, [](FieldReader& fields) {
    CreateSessionRequest request;
    request.mode = SessionMode::chat;
    request.messages = items_field(fields, "items");
    request.metadata = metadata_field(fields);
    return request;
  });
}

std::expected<std::string, RejectedBody> decode_metadata(std::string_view body) {
  return decode_body<std::string>(body, [](FieldReader& fields) {
    if (fields.find("metadata") == nullptr) fields.fail_field("metadata", "is required");
    return metadata_field(fields);
  });
}

std::expected<std::vector<ChatMessage>, RejectedBody> decode_items(std::string_view body) {
  return decode_body<std::vector<ChatMessage>>(body, [](FieldReader& fields) {
    std::vector<ChatMessage> items = items_field(fields, "items");
    if (items.empty()) fields.fail_field("items", "must hold at least one item");
    return items;
  });
}

std::expected<ListPage, RejectedBody> decode_page(std::string_view query) {
  const auto bad = [](std::string_view name, std::string_view what) {
    return std::unexpected(
        RejectedBody{{ErrorCode::proto_field, std::format("field \"{}\" {}", name, what)}, std::string(name)});
  };
  ListPage page;
  if (const std::string limit = query_value(query, "limit"); !limit.empty()) {
    const char* const end = limit.data() + limit.size();
    const auto [read_end, problem] = std::from_chars(limit.data(), end, page.limit);
    const bool is_number = problem == std::errc() && read_end == end;
    if (!is_number || page.limit < 1 || page.limit > kItemsPerPageMax) return bad("limit", "must be 1 to 100");
  }
  if (const std::string order = query_value(query, "order"); !order.empty()) {
    if (order != "asc" && order != "desc") return bad("order", R"(must be "asc" or "desc")");
    page.is_ascending = order == "asc";
  }
  page.after = query_value(query, "after");
  return page;
}

// --- Answers

ResponseEncoder::ResponseEncoder(ResponseId id, std::string request, std::string model, std::int64_t created_s)
    : response_(std::move(id.response)),
      request_(std::move(request)),
      model_(std::move(model)),
      created_s_(created_s),
      id_(response_id_text({std::move(id.session), response_})),
      item_id_("msg_" + response_) {}

void ResponseEncoder::set_place(const ResponseBegunEvent& place) {
  session_ = place.session.value;
  turn_ = place.turn;
  id_ = response_id_text({session_, response_});
  item_id_ = item_id(session_, place.turn, place.number);
}

void ResponseEncoder::append_response(std::string& out, std::string_view text, const EosEvent* eos) const {
  ResponseFacts facts{.id = id_,
                      .request = request_,
                      .model = model_,
                      .created_s = created_s_,
                      .session = session_,
                      .turn = turn_,
                      .item_id = item_id_,
                      .text = text};
  if (eos != nullptr) {
    facts.reason = eos->reason;
    if (eos->error) facts.error = eos->error->message;
    facts.prompt_tokens = eos->usage.prompt_tokens;
    facts.reused_tokens = eos->usage.reused_tokens;
    facts.completion_tokens = eos->usage.completion_tokens;
    facts.receipt = &eos->usage;
  }
  wire::append_response(out, facts);
}

// {"type","sequence_number",…}: write(object) adds the rest.
template <class WriteT>
void ResponseEncoder::append_event(std::string& out, std::string_view type, WriteT&& write) {
  out += std::format("event: {}\ndata: ", type);
  ObjectWriter object(out);
  object.field("type", type);
  object.field("sequence_number", events_++);
  write(object);
  object.close();
  out += "\n\n";
}

// Of the one part of the one item.
template <class WriteT>
void ResponseEncoder::append_part_event(std::string& out, std::string_view type, WriteT&& write) {
  append_event(out, type, [&](ObjectWriter& object) {
    object.field("item_id", item_id_);
    object.field("output_index", 0);
    object.field("content_index", 0);
    write(object);
  });
}

void ResponseEncoder::append_response_event(std::string& out, std::string_view type, const EosEvent* eos) {
  append_event(out, type, [&](ObjectWriter& object) { append_response(object.begin("response"), text_, eos); });
}

void ResponseEncoder::append_first(std::string& out) {
  append_response_event(out, "response.created", nullptr);
  append_response_event(out, "response.in_progress", nullptr);
  append_event(out, "response.output_item.added", [&](ObjectWriter& object) {
    object.field("output_index", 0);
    append_item(object.begin("item"), item_id_, "in_progress", {"assistant", ""});
  });
  append_part_event(out, "response.content_part.added",
                    [](ObjectWriter& object) { append_text_part(object.begin("part"), ""); });
}

void ResponseEncoder::append_text(std::string& out, std::string_view text) {
  text_ += text;
  append_part_event(out, "response.output_text.delta", [&](ObjectWriter& object) {
    object.field("delta", text);
    object.begin("logprobs") += "[]";
  });
}

void ResponseEncoder::append_last(std::string& out, const EosEvent& eos) {
  if (!eos.text.empty()) append_text(out, eos.text);
  const std::string_view status = status_of(eos.reason);
  if (status == "failed") return append_response_event(out, "response.failed", &eos);
  append_part_event(out, "response.output_text.done", [&](ObjectWriter& object) {
    object.field("text", text_);
    object.begin("logprobs") += "[]";
  });
  append_part_event(out, "response.content_part.done",
                    [&](ObjectWriter& object) { append_text_part(object.begin("part"), text_); });
  const bool is_completed = status == "completed";
  append_event(out, "response.output_item.done", [&](ObjectWriter& object) {
    object.field("output_index", 0);
    append_item(object.begin("item"), item_id_, is_completed ? "completed" : "incomplete", {"assistant", text_});
  });
  append_response_event(out, is_completed ? "response.completed" : "response.incomplete", &eos);
}

std::string ResponseEncoder::json(const EosEvent& eos) const {
  std::string out;
  append_response(out, eos.text, &eos);
  return out;
}

std::string response_json(const ResponseDetail& detail) {
  const ResponseRecord& response = *detail.response;
  const std::string& session = detail.session.info.id.value;
  const std::string id = response_id_text({session, response.id});
  const std::vector<Item> items = items_of(detail.session);
  std::string out;
  append_response(out, {.id = id,
                        .request = response.request,
                        .model = detail.session.info.model,
                        .created_s = response.created_s,
                        .session = session,
                        .turn = response.turn,
                        .item_id = items.back().id,
                        .text = items.back().message->content,
                        .reason = response.reason,
                        .error = "the reply ended with an error",
                        .prompt_tokens = response.prompt_tokens,
                        .reused_tokens = response.reused_tokens,
                        .completion_tokens = response.completion_tokens});
  return out;
}

std::expected<std::string, RejectedBody> input_items_json(const ResponseDetail& detail, const ListPage& page) {
  std::vector<Item> items = items_of(detail.session);
  items.pop_back();  // the reply
  return page_json(std::move(items), page);
}

std::string conversation_json(const SessionDetail& conversation) {
  std::string out;
  ObjectWriter object(out);
  object.field("id", conversation_id_text(conversation.info.id.value));
  object.field("object", "conversation");
  object.field("created_at", conversation.info.created_s);
  object.begin("metadata") += conversation.metadata.empty() ? "{}" : conversation.metadata;
  object.close();
  return out;
}

std::expected<std::string, RejectedBody> conversation_items_json(const SessionDetail& conversation, const ListPage& page) {
  return page_json(items_of(conversation), page);
}

std::string appended_items_json(const SessionInfo& conversation, std::span<const ChatMessage> messages) {
  const std::int32_t first = conversation.pending_messages - static_cast<std::int32_t>(messages.size());
  std::vector<Item> items;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    items.push_back({item_id(conversation.id.value, conversation.turns, first + static_cast<std::int32_t>(i)), &messages[i]});
  }
  std::string out;
  append_list(out, items, false);
  return out;
}

std::string deleted_json(std::string_view id, std::string_view object_name) {
  std::string out;
  ObjectWriter object(out);
  object.field("id", id);
  object.field("object", object_name);
  object.field("deleted", true);
  object.close();
  return out;
}

}  // namespace uma::wire
