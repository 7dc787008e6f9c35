// OpenAI's JSON of responses and conversations: bodies of requests as core requests, and back what is kept. What is being made
// is written by ResponseEncoder. docs/protocol/openai.md lists the fields. Ids say where a thing is:
//
//   resp_ SESSION RESPONSE    conv_ SESSION
//
// SESSION is a SessionId (32 hexadecimal digits), RESPONSE a ResponseRequest::id (16). Those of items: response_writer.h.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.h"
#include "core/request.h"
#include "core/session_info.h"
#include "wire/json_body.h"
#include "wire/response_writer.h"

namespace uma::wire {

// --- Ids. What is not one of ours in every byte is none.

struct ResponseId {
  std::string session;
  std::string response;
  bool operator==(const ResponseId&) const = default;
};
[[nodiscard]] std::string response_id_text(const ResponseId& id);
[[nodiscard]] std::optional<ResponseId> parse_response_id(std::string_view text);
[[nodiscard]] std::string conversation_id_text(std::string_view session);
[[nodiscard]] std::optional<std::string> parse_conversation_id(std::string_view text);  // the session

// --- Requests. Pure. An id that cannot exist is E_SESSION_001.

struct ResponseCall {
  GenerateRequest generate;  // without `response` where it continues nothing and is not to be kept
  std::string request;       // what the response repeats of it: the beginning of a JSON object, as ResponseRequest::request
};

// `id` is the response's own.
[[nodiscard]] std::expected<ResponseCall, RejectedBody> decode_response(std::string_view body, std::string id);
// An empty body has no fields.
[[nodiscard]] std::expected<CreateSessionRequest, RejectedBody> decode_conversation(std::string_view body);
// What a conversation keeps of {"metadata": {…}}: CreateSessionRequest::metadata.
[[nodiscard]] std::expected<std::string, RejectedBody> decode_metadata(std::string_view body);
// {"items": […]}
[[nodiscard]] std::expected<Input, RejectedBody> decode_items(std::string_view body);

// Which part of a list is wanted.
struct ListPage {
  std::size_t limit = 20;
  bool is_ascending = false;
  std::string after = {};  // id of the item before the first one; empty: from the beginning
};
// Of a request's query: limit=…&order=…&after=…; other names are ignored.
[[nodiscard]] std::expected<ListPage, RejectedBody> decode_page(std::string_view query);

// --- Answers

[[nodiscard]] std::string response_json(const ResponseDetail& detail);
// A part of a list. Its images have their addresses from the caller (ItemImage::url).
struct ItemPage {
  std::vector<Item> items;
  bool has_more = false;
};
[[nodiscard]] std::string item_page_json(const ItemPage& page);
[[nodiscard]] std::string item_json(const Item& item);

// The items that it was made from, from the beginning of the conversation.
[[nodiscard]] std::expected<ItemPage, RejectedBody> input_items(const ResponseDetail& detail, const ListPage& page);

[[nodiscard]] std::string conversation_json(const SessionDetail& conversation);
[[nodiscard]] std::expected<ItemPage, RejectedBody> conversation_items(const SessionDetail& conversation, const ListPage& page);
// Of an id that is none of its items: E_SESSION_001.
[[nodiscard]] std::expected<Item, RejectedBody> conversation_item(const SessionDetail& conversation, std::string_view id);
// The message that goes when this item is taken out. Only what is said last can be: the chain stays as it was computed.
// E_PROTO_003 for the others, and for one of several items of a message; but thoughts go with what they led to.
[[nodiscard]] std::expected<MessagePosition, RejectedBody> removable_message(const SessionDetail& conversation,
                                                                             std::string_view item);
// Those that were just appended to `conversation`, which is as it is since.
[[nodiscard]] std::string appended_items_json(const SessionInfo& conversation, const Input& items);

// `object` names what it was.
[[nodiscard]] std::string deleted_json(std::string_view id, std::string_view object);

}  // namespace uma::wire
