// What the answers of /v1/responses and /v1/conversations are made of: items, and the response around its output. One message
// is several items where it has thoughts or calls. An item's id says where it is: SESSION _ TURN _ NUMBER of its message
// (MessagePosition), and for the calls of a message _ CALL, behind the prefix of its kind:
//
//   msg_ what was said    rs_ what was thought first    fc_ a call of a tool    fco_ what it gave
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.h"
#include "core/request.h"
#include "core/session_info.h"
#include "core/usage.h"

namespace uma::wire {

// In a user's message.
struct ItemImage {
  std::size_t at = 0;  // it stands before this byte of the text
  std::string id{};    // SHA-256 of its file, in hexadecimal digits
  std::string url{};   // as the client is to see it; empty: it is not shown
};

struct Item {
  enum class Kind : std::uint8_t { message, reasoning, call, call_output };
  Kind kind = Kind::message;
  std::string id;
  std::string text;                 // of a call its arguments
  std::string role{};               // message
  std::string call_id{};            // call, call_output
  std::string name{};               // call
  std::vector<ItemImage> images{};  // message; in order
};

enum class ItemStatus : std::uint8_t { in_progress, completed, incomplete };

[[nodiscard]] std::string item_id(Item::Kind kind, std::string_view session, MessagePosition place, std::int32_t call = 0);
// The items of a message, in OpenAI's order: its thoughts, its text, its calls.
void add_items(std::vector<Item>& items, const ChatMessage& message, std::string_view session, MessagePosition place);
// One in progress has no content yet.
void append_item(std::string& out, const Item& item, ItemStatus status);
// What messages and thoughts have as content.
void append_content_part(std::string& out, const Item& item);

// What is known of a response at one moment.
struct ResponseFacts {
  std::string_view id;
  std::string_view request;  // ResponseRequest::request
  std::string_view model;
  std::int64_t created_s = 0;
  std::string_view session;  // empty: none
  std::int32_t turn = 0;
  std::span<const Item> output;
  std::optional<FinishReason> reason = std::nullopt;  // absent: it is in progress
  std::string_view error = {};
  std::int32_t prompt_tokens = 0;
  std::int32_t reused_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t reasoning_tokens = 0;
  const Usage* receipt = nullptr;  // null: it was not kept
};

// In OpenAI's words: completed, incomplete, cancelled or failed.
[[nodiscard]] std::string_view response_status(FinishReason reason);
void append_response(std::string& out, const ResponseFacts& facts);

}  // namespace uma::wire
