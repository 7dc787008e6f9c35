#include "wire/openai/stored_responses.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <iterator>
#include <ranges>
#include <set>
#include <span>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/image_fields.h"
#include "wire/openai/response_encoder.h"
#include "wire/openai/response_ids.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

// Adds the items of a message as lists show them, with their turn.
void add_listed(std::vector<Item>& items, const ChatMessage& message, std::string_view session, MessagePosition place) {
  const std::size_t before = items.size();
  add_items(items, message, session, place);
  for (Item& item : items | std::views::drop(before)) item.turn = place.turn;
}

// All items of a session with its pending input, but without instructions. With `messages_end`: those of the messages before
// it, and no pending input.
std::vector<Item> items_of(const SessionDetail& session, std::size_t messages_end = SIZE_MAX) {
  std::vector<Item> items;
  const std::string& id = session.info.id.value;
  MessagePosition place;
  std::size_t next_turn = 0;  // Index among the remaining turns.
  for (std::size_t i = 0; i < std::min(session.messages.size(), messages_end); ++i) {
    if (next_turn < session.turns_begin.size() && session.turns_begin[next_turn] == static_cast<std::int32_t>(i)) {
      place.turn = session.info.dropped_turns + static_cast<std::int32_t>(next_turn++);
      place.number = 0;
    }
    if (i == 0 && session.has_instructions) continue;
    add_listed(items, session.messages[i], id, place);
    ++place.number;
  }
  if (messages_end < SIZE_MAX) return items;
  place.turn = session.info.dropped_turns + static_cast<std::int32_t>(session.turns_begin.size());
  place.number = 0;
  for (std::size_t i = 0; i < session.pending_messages.size(); ++i) {
    if (i == 0 && session.messages.empty() && session.has_instructions) continue;
    add_listed(items, session.pending_messages[i], id, place);
    ++place.number;
  }
  return items;
}

// Number of the reply in the last turn. Requires: there is a reply.
std::int32_t number_of_reply(const SessionDetail& session) {
  const std::int32_t first = std::max(session.turns_begin.back(), session.has_instructions ? 1 : 0);
  return static_cast<std::int32_t>(session.messages.size()) - 1 - first;
}

constexpr std::string_view kStoredError = "the reply ended with an error";

// The items of the reply.
std::vector<Item> output_of(const ResponseDetail& detail) {
  std::vector<Item> output;
  add_items(output, detail.session.messages.back(), detail.session.info.id.value,
            {.turn = detail.response->turn, .number = number_of_reply(detail.session)},
            ResponseTools::of_stored(detail.response->request));
  return output;
}

// The stored fields of a request as ResponseForm::brief_request.
std::string brief_request_of(const std::string& request) {
  boost::system::error_code problem;
  boost::json::value fields = json::parse(request + "}", {}, problem);
  if (problem || !fields.is_object()) return request;
  boost::json::object& object = fields.get_object();
  const auto replace = [&](std::string_view name, boost::json::value value) {
    if (boost::json::value* const field = object.if_contains(name)) *field = std::move(value);
  };
  replace("instructions", nullptr);
  replace("tools", boost::json::array());
  replace("text", {{"format", {{"type", "text"}}}});
  std::string brief = boost::json::serialize(fields);
  brief.pop_back();  // The object is not closed, like the request.
  return brief;
}

RejectedBody unknown_item() {
  return {{ErrorCode::session_unknown, "the conversation has no such item"}, ""};
}

void append_list(std::string& out, std::span<const Item> items, bool has_more) {
  json::ObjectWriter list(out);
  list.field("object", "list");
  json::append_array(list.begin("data"), items, [&](const Item& item) { append_item(out, item, ItemStatus::completed); });
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

std::expected<ItemPage, RejectedBody> page_of(std::vector<Item> items, const ListPage& page) {
  if (!page.is_ascending) std::ranges::reverse(items);
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::ranges::find(items, page.after, &Item::id);
    if (first == items.end()) {
      return std::unexpected(
          RejectedBody{{ErrorCode::proto_field, "field \"after\" is not the id of an item in this list"}, "after"});
    }
    ++first;
  }
  const auto left = static_cast<std::size_t>(items.end() - first);
  const auto end = first + static_cast<std::ptrdiff_t>(std::min(left, page.limit));
  return ItemPage{.items = {std::move_iterator(first), std::move_iterator(end)}, .has_more = left > page.limit};
}

}  // namespace

std::string response_json(const ResponseDetail& detail) {
  const ResponseRecord& response = *detail.response;
  const SessionDetail& session = detail.session;
  const std::string id = response_id_text({session.info.id.value, response.id});
  const std::vector<Item> output = output_of(detail);
  std::string out;
  append_response(out, {.id = id,
                        .request = response.request,
                        .model = session.info.model,
                        .created_s = response.created_s,
                        .session = session.info.id.value,
                        .turn = response.turn,
                        .output = output,
                        .reason = response.reason,
                        .error = kStoredError,
                        .prompt_tokens = response.prompt_tokens,
                        .reused_tokens = response.reused_tokens,
                        .completion_tokens = response.completion_tokens,
                        .reasoning_tokens = response.reasoning_tokens,
                        .receipt = detail.receipt == nullptr ? nullptr : &detail.receipt->usage});
  return out;
}

std::string response_events(const ResponseDetail& detail, std::optional<std::uint64_t> after) {
  const ResponseRecord& response = *detail.response;
  const SessionInfo& session = detail.session.info;
  ResponseEncoder encoder({session.id.value, response.id}, {.request = response.request,
                                                            .brief_request = brief_request_of(response.request),
                                                            .model = session.model,
                                                            .created_s = response.created_s,
                                                            .tools = ResponseTools::of_stored(response.request)});
  encoder.set_place({.session = session.id, .turn = response.turn, .number = number_of_reply(detail.session)});
  EosEvent eos{.reason = response.reason, .usage = {}, .text = "", .error = std::nullopt};
  if (detail.receipt != nullptr) {
    eos.usage = detail.receipt->usage;
  } else {
    eos.usage.prompt_tokens = response.prompt_tokens;
    eos.usage.reused_tokens = response.reused_tokens;
    eos.usage.recomputed_tokens = response.prompt_tokens - response.reused_tokens;
    eos.usage.completion_tokens = response.completion_tokens;
    eos.usage.reasoning_tokens = response.reasoning_tokens;
  }
  if (response.reason == FinishReason::error) eos.error = Error{ErrorCode::runtime_decode, std::string(kStoredError)};
  std::string out;
  if (after) {
    encoder.append_end(out, *after + 1, output_of(detail), eos);
  } else {
    encoder.append_whole(out, output_of(detail), eos);
  }
  return out;
}

std::string item_page_json(const ItemPage& page) {
  std::string out;
  append_list(out, page.items, page.has_more);
  return out;
}

std::string item_json(const Item& item) {
  std::string out;
  append_item(out, item, ItemStatus::completed);
  return out;
}

std::vector<Item> items_through(const ResponseDetail& detail) {
  return items_of(detail.session, detail.session.messages.size());
}

std::expected<ItemPage, RejectedBody> input_items(const ResponseDetail& detail, const ListPage& page) {
  return page_of(items_of(detail.session, detail.session.messages.size() - 1), page);  // Without the reply.
}

std::string conversation_json(const SessionInfo& conversation) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("id", conversation_id_text(conversation.id.value));
  object.field("object", "conversation");
  object.field("created_at", conversation.created_s);
  object.begin("metadata") += conversation.metadata.empty() ? "{}" : conversation.metadata;
  object.close();
  return out;
}

std::expected<ItemPage, RejectedBody> conversation_items(const SessionDetail& conversation, const ListPage& page) {
  return page_of(items_of(conversation), page);
}

std::expected<Item, RejectedBody> conversation_item(const SessionDetail& conversation, std::string_view id) {
  std::vector<Item> items = items_of(conversation);
  const auto found = std::ranges::find(items, id, &Item::id);
  if (found == items.end()) return std::unexpected(unknown_item());
  return std::move(*found);
}

std::string session_of_item(std::string_view id) {
  const std::size_t begin = id.find('_');
  if (begin == std::string_view::npos) return "";
  const std::string_view rest = id.substr(begin + 1);
  const std::size_t end = std::min(rest.find('_'), rest.size());
  // The digits are those of the conversation's id.
  return parse_conversation_id(std::format("conv_{}", rest.substr(0, end))).value_or("");
}

std::vector<Item> items_with_ids(const SessionDetail& conversation, std::span<const std::string> ids) {
  const std::set<std::string_view> wanted(ids.begin(), ids.end());
  std::vector<Item> items = items_of(conversation);
  std::erase_if(items, [&](const Item& item) { return !wanted.contains(item.id); });
  return items;
}

std::expected<MessagePosition, RejectedBody> removable_message(const SessionDetail& conversation, std::string_view item) {
  const SessionInfo& info = conversation.info;
  const auto turns = info.dropped_turns + static_cast<std::int32_t>(conversation.turns_begin.size());
  const std::vector<Item> all = items_of(conversation);
  if (!std::ranges::contains(all, item, &Item::id)) return std::unexpected(unknown_item());
  const auto refuse = [item] {
    return std::unexpected(RejectedBody{
        {ErrorCode::proto_field,
         std::format(
             "item {} cannot be deleted alone: only the last item of a conversation can be deleted, and only if it is the "
             "whole message apart from its reasoning",
             item)},
        ""});
  };
  const bool waits = !conversation.pending_messages.empty();
  // The input belongs to a turn that was dropped, but is still stored.
  if (!waits && conversation.turns_begin.empty()) return refuse();
  const bool waits_behind_instructions = conversation.has_instructions && conversation.messages.empty();
  const auto pending = static_cast<std::int32_t>(conversation.pending_messages.size());
  const MessagePosition last = waits ? MessagePosition{turns, pending - 1 - (waits_behind_instructions ? 1 : 0)}
                                     : MessagePosition{turns - 1, number_of_reply(conversation)};
  std::vector<Item> items;
  add_items(items, waits ? conversation.pending_messages.back() : conversation.messages.back(), info.id.value, last);
  const auto is_thought = [](const Item& other) { return other.kind == Item::Kind::reasoning; };
  const bool is_alone = std::ranges::all_of(items | std::views::take(items.size() - 1), is_thought);
  return items.back().id == item && is_alone ? std::expected<MessagePosition, RejectedBody>(last) : refuse();
}

std::string appended_items_json(const SessionInfo& conversation, const Input& input) {
  MessagePosition place{.turn = conversation.turns,
                        .number = conversation.pending_messages - static_cast<std::int32_t>(input.messages.size())};
  std::vector<Item> items;
  for (std::size_t i = 0; i < input.messages.size(); ++i) {
    add_listed(items, input.messages[i], conversation.id.value, place);
    ++place.number;
    for (const InputImage& image : input.images) {
      if (image.message == i) items.back().images.push_back({.at = image.at, .id = "", .url = url_of_image(image.source)});
    }
  }
  std::string out;
  append_list(out, items, false);
  return out;
}

std::string deleted_json(std::string_view id, std::string_view object_name) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("id", id);
  object.field("object", object_name);
  object.field("deleted", true);
  object.close();
  return out;
}

}  // namespace uma::wire
