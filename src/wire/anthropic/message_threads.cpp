#include "wire/anthropic/message_threads.h"

#include <cstddef>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/openai/response_form.h"
#include "wire/openai/response_tools.h"

namespace uma::wire {
namespace {

constexpr json::TextBytes kMessageIdBytes{1, 256};

ThreadField read_thread(json::FieldReader& thread) {
  const std::string type = thread.required_text("type");
  if (type == "create") return {};
  if (type != "continue") {
    thread.fail_field("type", R"(must be "create" or "continue")");
    return {};
  }
  const std::string id = thread.required_text("previous_message_id", kMessageIdBytes);
  auto previous = parse_message_id(id);
  if (!previous) {
    thread.fail_field("previous_message_id",
                      R"(is not the id of a message in a thread: send the whole conversation with )"
                      R"({"type": "create"})",
                      ErrorCode::session_unknown);
  }
  return {.previous = std::move(previous)};
}

// The object member `name`, or null.
const boost::json::object* object_in(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value == nullptr ? nullptr : value->if_object();
}

std::string text_in(const boost::json::object* object, std::string_view name) {
  const boost::json::value* value = object == nullptr ? nullptr : object->if_contains(name);
  const boost::json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : std::string(*text);
}

std::size_t size_in(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_int64() ? static_cast<std::size_t>(value->get_int64()) : 0;
}

boost::json::value parsed(const std::string& text) {
  boost::system::error_code problem;
  return json::parse(text, {}, problem);
}

// Calls use(element) with the objects of an array.
template <class UseT>
void for_each_object(const boost::json::value* array, UseT&& use) {
  if (array == nullptr || !array->is_array()) return;
  for (const boost::json::value& element : array->get_array()) {
    if (const boost::json::object* object = element.if_object()) use(*object);
  }
}

}  // namespace

std::expected<std::optional<ThreadField>, RejectedBody> decode_thread(std::string_view body) {
  if (!body.contains("\"thread\"")) return std::nullopt;  // The decoder of the rest refuses one whose name is escaped.
  return decode_body<std::optional<ThreadField>>(body, [](json::FieldReader& fields) -> std::optional<ThreadField> {
    const boost::json::object* object = fields.object(kThreadField);
    if (object == nullptr) return std::nullopt;
    json::FieldReader thread(*object, "thread.");
    ThreadField field = read_thread(thread);
    if (!thread.ok()) fields.fail_as(thread);
    return field;
  });
}

std::optional<HeldThread> held_thread(const ResponseDetail& detail) {
  const boost::json::value request = parsed(detail.response->request + "}");
  const boost::json::object* thread = request.is_object() ? object_in(request.get_object(), kThreadField) : nullptr;
  if (thread == nullptr) return std::nullopt;
  const SessionDetail& session = detail.session;
  HeldThread held{.previous = {session.info.id.value, detail.response->id},
                  .system = "",
                  .tools = text_in(thread, "tools"),
                  .tool_names = {},
                  .call_names = {}};
  const std::size_t first = session.has_instructions ? 1 : 0;
  if (session.messages.size() > first && session.messages[first].role == "system")
    held.system = session.messages[first].content.substr(0, size_in(*thread, "system_bytes"));
  const boost::json::value tools = parsed(held.tools);
  for_each_object(&tools, [&](const boost::json::object& tool) {
    held.tool_names.push_back(text_in(object_in(tool, "function"), "name"));
  });
  const boost::json::value extra = parsed(session.messages.back().extra);
  if (!extra.is_object()) return held;
  for_each_object(extra.get_object().if_contains("tool_calls"), [&](const boost::json::object& call) {
    held.call_names.insert_or_assign(text_in(&call, "id"), text_in(object_in(call, "function"), "name"));
  });
  return held;
}

ResponseRequest thread_response(const GenerateRequest& generate, std::string id, const ThreadFacts& facts,
                                const HeldThread* continued) {
  ResponseRequest response;
  response.id = std::move(id);
  if (continued != nullptr) response.previous = continued->previous.response;
  const boost::json::object no_fields;  // The fields of /v1/responses have other forms here.
  json::FieldReader fields(no_fields);
  const std::string previous = continued == nullptr ? "" : response_id_text(continued->previous);
  const std::string repeated = repeated_fields(
      fields, {.generate = generate, .response = response, .tools = ResponseTools(), .previous = previous}, Repeated::all);
  std::string request;
  json::ObjectWriter object(request, repeated);
  json::ObjectWriter thread(object.begin(kThreadField));
  thread.field("system_bytes", facts.system_bytes);
  thread.field("tools", facts.tools);  // A text, so that the prompt stays the same to the byte.
  thread.close();
  response.request = std::move(request);
  return response;
}

}  // namespace uma::wire
