#include "wire/openai/response_events.h"

#include <algorithm>
#include <array>
#include <format>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/openai/openai_codec.h"

namespace uma::wire {
namespace {

constexpr std::string_view kCreateType = "response.create";
constexpr json::TextBytes kStreamIdBytes{0, 128};
// Fields that are about the connection, or that are written anew.
constexpr std::array<std::string_view, 10> kFieldsOfEvent = {
    "type",      "event_id", "stream",     "stream_options", "generate",
    "stream_id", "response", "background", "input",          "previous_response_id"};

void append_item_text(std::string& items, std::string_view item) {
  if (item.empty()) return;
  if (!items.empty()) items += ',';
  items += item;
}

// Appends the items of `input`, a text or a list, as JSON; other values stay what they are, for the decoder to refuse.
void append_input(std::string& items, const boost::json::value& input) {
  if (input.is_string()) {
    append_item_text(items, boost::json::serialize(boost::json::object{{"role", "user"}, {"content", input}}));
  } else if (input.is_array()) {
    for (const boost::json::value& item : input.get_array()) append_item_text(items, boost::json::serialize(item));
  } else if (!input.is_null()) {
    append_item_text(items, boost::json::serialize(input));
  }
}

CreateEvent read_create(json::FieldReader& event, const boost::json::object& object, const HeldResponses& held) {
  CreateEvent create;
  if (const std::string type = event.required_text("type"); event.ok() && type != kCreateType)
    event.fail_field("type", std::format("must be \"{}\"", kCreateType), ErrorCode::proto_type);
  const boost::json::object* const inner = event.object("response");  // Some clients put the fields there.
  const boost::json::object& given = inner == nullptr ? object : *inner;
  json::FieldReader fields(given);
  create.stream = event.text("stream_id", kStreamIdBytes).value_or("");
  create.generates = event.boolean("generate").value_or(fields.boolean("generate").value_or(true));
  create.is_stored = create.generates && (fields.boolean("store").value_or(true) || fields.find("conversation") != nullptr);
  create.previous = fields.text("previous_response_id").value_or("");
  if (fields.boolean("background").value_or(false))
    fields.fail_field("background", "is not served over WebSocket: the response ends with its connection");
  if (!create.generates && fields.find("conversation") != nullptr)
    fields.fail_field("conversation", "needs a response: it cannot stand beside \"generate\": false");
  if (!fields.ok()) event.fail_as(fields);
  if (!event.ok()) return create;

  const HeldResponse* const continued = create.previous.empty() ? nullptr : held.find(create.previous);
  create.is_held = continued != nullptr;
  create.stored_previous = create.is_held ? continued->previous : create.previous;
  std::string items = create.is_held ? continued->items : "";
  const boost::json::value* const input = given.if_contains("input");
  if (input != nullptr) append_input(items, *input);

  boost::json::object rest = given;
  for (const std::string_view name : kFieldsOfEvent) rest.erase(name);
  rest["stream"] = true;
  if (!create.generates) rest["store"] = false;
  if (!create.stored_previous.empty()) rest["previous_response_id"] = create.stored_previous;
  create.body = boost::json::serialize(rest);
  if (create.is_held || input != nullptr) {
    create.body.pop_back();
    create.body += ",\"input\":[" + items + "]}";
  }
  create.items = std::move(items);
  return create;
}

}  // namespace

std::expected<CreateEvent, RejectedBody> decode_create_event(std::string_view text, const HeldResponses& held) {
  const auto object = parse_body(text, {});
  if (!object) return std::unexpected(object.error());
  return read_object<CreateEvent>(*object, [&](json::FieldReader& event) { return read_create(event, *object, held); });
}

std::optional<ServerEvent> take_event(std::string_view& events) {
  constexpr std::string_view kName = "event: ";
  constexpr std::string_view kData = "data: ";
  while (!events.empty()) {
    const std::string_view block = events.substr(0, events.find("\n\n"));
    events.remove_prefix(std::min(events.size(), block.size() + 2));
    if (!block.starts_with(kName)) continue;
    const std::size_t line = block.find('\n');
    if (line == std::string_view::npos || !block.substr(line + 1).starts_with(kData)) continue;
    return ServerEvent{.type = block.substr(kName.size(), line - kName.size()), .json = block.substr(line + 1 + kData.size())};
  }
  return std::nullopt;
}

void append_stream_event(std::string& out, std::string_view json, std::string_view stream) {
  if (stream.empty()) {
    out += json;
    return;
  }
  json::ObjectWriter event(out);
  event.field("stream_id", stream);
  out += ',';
  out += json.substr(1);  // Behind its brace.
}

std::optional<HeldResponse> held_response(const ServerEvent& last) {
  if (last.type != "response.completed" && last.type != "response.incomplete") return std::nullopt;
  boost::system::error_code problem;
  const boost::json::value event = json::parse(last.json, {}, problem);
  if (problem || !event.is_object())
    return std::nullopt;  // It repeats fields of the request that are nested too deeply to read.
  const boost::json::object& response = event.at("response").as_object();
  HeldResponse held{.id = std::string(response.at("id").as_string()), .previous = "", .items = ""};
  append_input(held.items, response.at("output"));
  return held;
}

std::string socket_error_event(const Error& error, int status, std::string_view field, std::string_view stream) {
  // OpenAI's name, by which its clients send the whole conversation again.
  const bool is_lost = error.code == ErrorCode::session_unknown && field == "previous_response_id";
  const int shown = is_lost ? 400 : status;
  std::string out;
  json::ObjectWriter event(out);
  event.field("type", "error");
  if (!stream.empty()) event.field("stream_id", stream);
  event.field("status", shown);
  json::ObjectWriter inner(event.begin("error"));
  inner.field("type", error_type(shown));
  inner.field("code", is_lost ? "previous_response_not_found" : openai_code(error.code));
  inner.field("message", error.message);
  if (field.empty()) {
    inner.null_field("param");
  } else {
    inner.field("param", field);
  }
  inner.close();
  event.close();
  return out;
}

}  // namespace uma::wire
