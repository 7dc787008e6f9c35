// OpenAI's JSON of responses and conversations: decodes requests, and encodes stored objects. ResponseEncoder writes a response
// in progress. docs/protocol/openai.md lists the fields. An id contains the position of its object:
//
//   resp_ SESSION RESPONSE    conv_ SESSION
//
// SESSION is a SessionId (32 hexadecimal digits), RESPONSE a ResponseRequest::id (16 digits). Ids of items: response_writer.h.
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

// --- Ids. A text that differs from umad's format in any byte is no id.

struct ResponseId {
  std::string session;
  std::string response;
  bool operator==(const ResponseId&) const = default;
};
[[nodiscard]] std::string response_id_text(const ResponseId& id);
[[nodiscard]] std::optional<ResponseId> parse_response_id(std::string_view text);
[[nodiscard]] std::string conversation_id_text(std::string_view session);
[[nodiscard]] std::optional<std::string> parse_conversation_id(std::string_view text);  // Returns the session.

// --- Requests. Pure. An impossible id fails with E_SESSION_001.

struct ResponseCall {
  GenerateRequest generate;  // Has no `response` if it continues nothing and is not to be stored.
  // Fields of the request that the response repeats: the beginning of a JSON object, as in ResponseRequest::request.
  std::string request;
};

// `id` is the id of the response.
[[nodiscard]] std::expected<ResponseCall, RejectedBody> decode_response(std::string_view body, std::string id);
// An empty body is valid and has no fields.
[[nodiscard]] std::expected<CreateSessionRequest, RejectedBody> decode_conversation(std::string_view body);
// The metadata of a conversation, {"metadata": {…}}, as CreateSessionRequest::metadata.
[[nodiscard]] std::expected<std::string, RejectedBody> decode_metadata(std::string_view body);
// Decodes {"items": […]}
[[nodiscard]] std::expected<Input, RejectedBody> decode_items(std::string_view body);

// The requested part of a list.
struct ListPage {
  std::size_t limit = 20;
  bool is_ascending = false;
  std::string after = {};  // Id of the item before the first one; empty: from the beginning.
};
// Decodes a query limit=…&order=…&after=…; other names are ignored.
[[nodiscard]] std::expected<ListPage, RejectedBody> decode_page(std::string_view query);

// --- Answers

[[nodiscard]] std::string response_json(const ResponseDetail& detail);
// A part of a list. The caller sets the URLs of its images (ItemImage::url).
struct ItemPage {
  std::vector<Item> items;
  bool has_more = false;
};
[[nodiscard]] std::string item_page_json(const ItemPage& page);
[[nodiscard]] std::string item_json(const Item& item);

// The input items of a response, from the beginning of the conversation.
[[nodiscard]] std::expected<ItemPage, RejectedBody> input_items(const ResponseDetail& detail, const ListPage& page);

[[nodiscard]] std::string conversation_json(const SessionDetail& conversation);
[[nodiscard]] std::expected<ItemPage, RejectedBody> conversation_items(const SessionDetail& conversation, const ListPage& page);
// Fails with E_SESSION_001 if the conversation has no such item.
[[nodiscard]] std::expected<Item, RejectedBody> conversation_item(const SessionDetail& conversation, std::string_view id);
// The message to remove when this item is deleted. Only the end of a conversation can be deleted, because the computed chain
// stays. Fails with E_PROTO_003 for other items, and for one of several items of a message; reasoning, however, is deleted with
// the text or call that follows it.
[[nodiscard]] std::expected<MessagePosition, RejectedBody> removable_message(const SessionDetail& conversation,
                                                                             std::string_view item);
// The items that were just appended to `conversation`, which includes them.
[[nodiscard]] std::string appended_items_json(const SessionInfo& conversation, const Input& items);

// `object` is the type of the deleted object.
[[nodiscard]] std::string deleted_json(std::string_view id, std::string_view object);

}  // namespace uma::wire
