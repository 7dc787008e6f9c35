#include "wire/agent_fields.h"

#include <array>
#include <string>
#include <string_view>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

namespace uma::wire {
namespace {

constexpr std::size_t kUserIdBytesMax = 4096;
constexpr std::array<std::string_view, 2> kSessionNames = {"session_id", "sessionId"};

std::string name_in(const boost::json::value* value) {
  const boost::json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr || text->size() > Agent::kNameBytesMax ? std::string() : std::string(*text);
}

std::string session_in(const boost::json::value* value) {
  const boost::json::object* object = value == nullptr ? nullptr : value->if_object();
  if (object == nullptr) return {};
  for (const std::string_view name : kSessionNames) {
    if (std::string session = name_in(object->if_contains(name)); !session.empty()) return session;
  }
  return {};
}

// Claude Code's `user_id` is an object as text, with a session. Others' is the name of a user, who may have several agents.
std::string name_in_user_id(const boost::json::value* metadata, bool& is_shared) {
  const boost::json::object* object = metadata == nullptr ? nullptr : metadata->if_object();
  const boost::json::value* value = object == nullptr ? nullptr : object->if_contains("user_id");
  const boost::json::string* text = value == nullptr ? nullptr : value->if_string();
  is_shared = text != nullptr && !text->starts_with('{');
  if (text == nullptr || text->size() > kUserIdBytesMax || is_shared) return name_in(value);
  boost::system::error_code problem;
  const boost::json::value parsed = boost::json::parse(*text, problem, {}, {.max_depth = 2});
  return problem ? std::string() : session_in(&parsed);
}

}  // namespace

Agent agent_of_fields(const json::FieldReader& fields) {
  const boost::json::value* metadata = fields.find("metadata");
  std::string id = name_in(fields.find("prompt_cache_key"));
  if (id.empty()) id = session_in(metadata);
  bool is_shared = false;
  if (id.empty()) id = name_in_user_id(metadata, is_shared);
  if (id.empty()) {
    id = name_in(fields.find("user"));
    is_shared = true;
  }
  return {.id = id, .run = id, .is_shared = is_shared && !id.empty()};
}

}  // namespace uma::wire
