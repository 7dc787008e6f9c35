#include "wire/own/cache_diagnostics.h"

#include <string>

#include <boost/json/object.hpp>

#include "wire/openai/response_ids.h"

namespace uma::wire {
namespace {

constexpr std::size_t kIdBytesMax = 256;

Comparison comparison_field(json::FieldReader& fields, std::string_view object_name, std::string_view name) {
  Comparison comparison;
  const boost::json::object* object = fields.object(object_name);
  if (object == nullptr) return comparison;
  json::FieldReader options(*object, std::string(object_name) + ".");
  comparison.is_wanted = object->contains(name);
  if (const auto id = options.text(name, {1, kIdBytesMax})) comparison.with = reply_name(*id);
  if (!options.ok()) fields.fail_as(options);
  return comparison;
}

// Empty: the requests do not differ.
std::string_view message_reason(CacheMissKind kind) {
  switch (kind) {
    case CacheMissKind::none:
    case CacheMissKind::tokens:
    case CacheMissKind::not_held:
      return "";
    case CacheMissKind::model:
      return "model_changed";
    case CacheMissKind::system:
      return "system_changed";
    case CacheMissKind::tools:
      return "tools_changed";
    case CacheMissKind::not_found:
      return "previous_message_not_found";
    case CacheMissKind::settings:
    case CacheMissKind::template_text:
      return "unavailable";
    case CacheMissKind::text:
    case CacheMissKind::reasoning:
    case CacheMissKind::call:
    case CacheMissKind::result:
    case CacheMissKind::image:
      break;
  }
  return "messages_changed";
}

std::string_view openai_reason(CacheMissKind kind) {
  switch (kind) {
    case CacheMissKind::model:
      return "model_changed";
    case CacheMissKind::settings:
      return "reasoning_effort_changed";
    case CacheMissKind::tools:
      return "tools_changed";
    default:
      return "input_changed";
  }
}

std::int32_t tokens_behind(const CacheMiss& miss) {
  return miss.known_tokens - miss.token;
}

}  // namespace

std::string_view reply_name(std::string_view id) {
  auto placed = parse_response_id(id);
  if (!placed) placed = parse_message_id(id);
  if (placed) return id.substr(id.size() - placed->response.size());
  for (const std::string_view prefix : {"msg_", "chatcmpl-", "cmpl-"}) {
    if (id.size() > prefix.size() && id.starts_with(prefix)) return id.substr(prefix.size());
  }
  return id;
}

Comparison message_comparison(json::FieldReader& fields) {
  return comparison_field(fields, "diagnostics", "previous_message_id");
}

Comparison openai_comparison(json::FieldReader& fields) {
  return comparison_field(fields, "prompt_cache_options", "comparison_response_id");
}

void write_message_diagnostics(json::ObjectWriter& parent, const CacheMiss& miss) {
  const std::string_view type = message_reason(miss.kind);
  if (type.empty()) return parent.null_field("diagnostics");
  json::ObjectWriter diagnostics(parent.begin("diagnostics"));
  json::ObjectWriter reason(diagnostics.begin("cache_miss_reason"));
  reason.field("type", type);
  if (type.ends_with("_changed")) reason.field("cache_missed_input_tokens", tokens_behind(miss));
  reason.close();
  diagnostics.close();
}

void write_openai_diagnostics(json::ObjectWriter& parent, const CacheMiss& miss) {
  json::ObjectWriter object(parent.begin("prompt_cache_diagnostics"));
  switch (miss.kind) {
    case CacheMissKind::none:
    case CacheMissKind::tokens:
      object.field("type", "cache_hit");
      break;
    case CacheMissKind::not_found:
      object.field("type", "comparison_response_not_found");
      break;
    case CacheMissKind::not_held:
      object.field("type", "unavailable");  // OpenAI's reasons are all differences.
      break;
    default:
      object.field("type", "cache_miss");
      object.field("reason", openai_reason(miss.kind));
      object.field("cache_missed_tokens", tokens_behind(miss));
      object.field("comparison_reusable_tokens", miss.known_tokens);
  }
  object.close();
}

}  // namespace uma::wire
