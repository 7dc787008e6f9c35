#include "wire/openai/compaction.h"

#include <algorithm>
#include <array>
#include <format>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/openai/sealed_reasoning.h"

namespace uma::wire {
namespace {

constexpr std::string_view kPreviousField = "previous_response_id";
constexpr int kSummaryTokensMax = 4096;  // For requests that state no max_output_tokens.
constexpr std::string_view kSummaryRequest =
    "Write a summary of this conversation for an assistant that goes on with it and sees nothing else of it than the user's "
    "messages. Say what the user wants, what was done and found out, which decisions were made and why, the names, paths and "
    "values that are needed, and what is left to do. Answer with the summary alone.";
constexpr std::string_view kSummaryHead = "Summary of the conversation so far:\n";

void add_text(std::string& items, std::string_view item) {
  if (!items.empty()) items += ',';
  items += item;
}

// A message without a type is one, too.
bool is_of_user(const boost::json::value& item) {
  const boost::json::object* object = item.if_object();
  if (object == nullptr) return false;
  const boost::json::value* type = object->if_contains("type");
  const boost::json::value* role = object->if_contains("role");
  return role != nullptr && *role == "user" && (type == nullptr || *type == "message");
}

void add_value(Compaction& compaction, const boost::json::value& item) {
  const std::string text = boost::json::serialize(item);
  add_text(compaction.items, text);
  if (is_of_user(item)) add_text(compaction.user_items, text);
}

Compaction read_compaction(json::FieldReader& fields, const boost::json::object& given, std::span<const Item> earlier) {
  Compaction compaction;
  for (const Item& item : earlier) {
    std::string text;
    append_item(text, item, ItemStatus::completed);
    add_text(compaction.items, text);
    if (item.kind == Item::Kind::message && item.role == "user") add_text(compaction.user_items, text);
  }
  const boost::json::value* const input = fields.find("input");
  if (input == nullptr) {
    if (earlier.empty()) fields.fail_field("input", "is required: there is nothing to make shorter");
  } else if (input->is_string()) {
    add_value(compaction, boost::json::object{{"type", "message"}, {"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (const boost::json::value& item : input->get_array()) add_value(compaction, item);
  } else {
    fields.fail_field("input", "must be a string or an array of items");
  }
  boost::json::object rest{{"store", false}, {"max_output_tokens", kSummaryTokensMax}};
  for (const std::string_view name : {"model", "instructions", "max_output_tokens"}) {
    if (const boost::json::value* value = given.if_contains(name)) rest[name] = *value;
  }
  compaction.body = boost::json::serialize(rest);
  compaction.body.pop_back();
  std::string items = compaction.items;
  add_text(items, boost::json::serialize(boost::json::object{{"role", "user"}, {"content", kSummaryRequest}}));
  compaction.body += ",\"input\":[" + items + "]}";
  return compaction;
}

}  // namespace

std::expected<std::optional<ResponseId>, RejectedBody> decode_compacted_response(std::string_view body) {
  return decode_body<std::optional<ResponseId>>(body, [](json::FieldReader& fields) -> std::optional<ResponseId> {
    const auto text = fields.text(kPreviousField);
    if (!text) return std::nullopt;
    auto id = parse_response_id(*text);
    if (!id) {
      fields.fail_field(kPreviousField, "is not the id of an existing response: it never existed or was deleted",
                        ErrorCode::session_unknown);
    }
    return id;
  });
}

std::expected<Compaction, RejectedBody> decode_compaction(std::string_view body, std::span<const Item> earlier) {
  const auto object = parse_body(body, {});
  if (!object) return std::unexpected(object.error());
  return read_object<Compaction>(*object, [&](json::FieldReader& fields) { return read_compaction(fields, *object, earlier); });
}

std::string compaction_json(const Compaction& compaction, std::string_view id, std::int64_t created_s, const EosEvent& eos) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("id", std::format("resp_{}", id));
  object.field("object", "response.compaction");
  object.field("created_at", created_s);
  std::string& output = object.begin("output");
  output += '[';
  if (eos.text.empty()) {
    output += compaction.items;
  } else {
    std::string summary;
    json::ObjectWriter item(summary);
    item.field("id", std::format("cmp_{}", id));
    item.field("type", "compaction");
    item.field("encrypted_content", sealed_reasoning(eos.text));
    item.close();
    std::string items = compaction.user_items;
    add_text(items, summary);
    output += items;
  }
  output += ']';
  const Usage& used = eos.usage;
  json::ObjectWriter usage(object.begin("usage"));
  usage.field("input_tokens", used.prompt_tokens);
  json::ObjectWriter input(usage.begin("input_tokens_details"));
  input.field("cached_tokens", used.reused_tokens);
  input.close();
  usage.field("output_tokens", used.completion_tokens);
  json::ObjectWriter details(usage.begin("output_tokens_details"));
  details.field("reasoning_tokens", used.reasoning_tokens);
  details.close();
  usage.field("total_tokens", used.prompt_tokens + used.completion_tokens);
  usage.close();
  object.close();
  return out;
}

std::string text_of_compaction(std::string_view encrypted_content) {
  const std::string summary = reasoning_of(encrypted_content);
  return summary.empty() ? "" : std::string(kSummaryHead) + summary;
}

}  // namespace uma::wire
