// Encodes stored responses and conversations, and parts of their lists of items, as OpenAI's JSON. ResponseEncoder writes a
// response in progress. Pure, any thread.
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
#include "wire/openai/response_writer.h"
#include "wire/openai/responses_decoder.h"

namespace uma::wire {

[[nodiscard]] std::string response_json(const ResponseDetail& detail);
// The events of a stored response, each item's text in one piece; with `after`, the last event alone, numbered behind `after`:
// it repeats the whole output, and how the text was cut into events is not stored.
[[nodiscard]] std::string response_events(const ResponseDetail& detail, std::optional<std::uint64_t> after);
// A part of a list. The caller sets the URLs of its images (ItemImage::url).
struct ItemPage {
  std::vector<Item> items;
  bool has_more = false;
};
[[nodiscard]] std::string item_page_json(const ItemPage& page);
[[nodiscard]] std::string item_json(const Item& item);

// All items of a response's conversation up to its output.
[[nodiscard]] std::vector<Item> items_through(const ResponseDetail& detail);
// The input items of a response, from the beginning of the conversation.
[[nodiscard]] std::expected<ItemPage, RejectedBody> input_items(const ResponseDetail& detail, const ListPage& page);

[[nodiscard]] std::string conversation_json(const SessionInfo& conversation);
[[nodiscard]] std::expected<ItemPage, RejectedBody> conversation_items(const SessionDetail& conversation, const ListPage& page);
// Fails with E_SESSION_001 if the conversation has no such item.
[[nodiscard]] std::expected<Item, RejectedBody> conversation_item(const SessionDetail& conversation, std::string_view id);
// The session that an item's id names; empty: it is no id of an item.
[[nodiscard]] std::string session_of_item(std::string_view id);
// The items of a conversation with these ids; unknown ones are left out.
[[nodiscard]] std::vector<Item> items_with_ids(const SessionDetail& conversation, std::span<const std::string> ids);
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
