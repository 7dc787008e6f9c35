// The parts of answers of /v1/responses and /v1/conversations: items, and the response around its output. A message with
// reasoning or tool calls becomes several items. An item's id consists of the prefix of its kind and SESSION _ TURN _ NUMBER of
// its message (MessagePosition), for a tool call followed by _ CALL:
//
//   msg_ message text    rs_ reasoning    fc_ tool call    fco_ output of a tool call
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
#include "wire/openai/response_tools.h"

namespace uma::wire {

// An image in a user's message or the result of a tool.
struct ItemImage {
  std::size_t at = 0;  // The image precedes this byte of the text.
  std::string id{};    // SHA-256 of its file in hexadecimal digits.
  std::string url{};   // URL for the client; empty: the image is not shown.
};

struct Item {
  enum class Kind : std::uint8_t { message, reasoning, call, call_output };
  Kind kind = Kind::message;
  std::string id;
  std::optional<std::int32_t> turn{};         // In lists: MessagePosition::turn of its message.
  std::string text;                           // For a call, its arguments.
  std::string role{};                         // Set for a message.
  std::string call_id{};                      // Set for a call and its output.
  std::string name{};                         // Set for a call: the client's name of the tool.
  std::string space{};                        // Set for a call of a tool in a namespace.
  bool is_custom = false;                     // For a call of a custom tool, whose text has the input as an argument.
  bool seals_reasoning = false;               // For reasoning: with its encrypted_content.
  std::vector<ItemImage> images{};            // Set for a message and the result of a tool; in order.
  std::span<const TokenLogprobs> logprobs{};  // Log probabilities of a message that is a reply; borrowed.
};

enum class ItemStatus : std::uint8_t { in_progress, completed, incomplete };

[[nodiscard]] std::string item_id(Item::Kind kind, std::string_view session, MessagePosition place, std::int32_t call = 0);
// Adds the items of a message in OpenAI's order: reasoning, text, tool calls, which have the names that `tools` knows.
void add_items(std::vector<Item>& items, const ChatMessage& message, std::string_view session, MessagePosition place,
               const ResponseTools& tools = {});
// Names the tool of a call by the name that the model knows.
void set_tool(Item& call, const ResponseTools& tools, std::string_view function);
// An item in progress has no content yet.
void append_item(std::string& out, const Item& item, ItemStatus status);
// Appends the content of a message or of reasoning.
void append_content_part(std::string& out, const Item& item);

// The state of a response at one moment.
struct ResponseFacts {
  std::string_view id;
  std::string_view request;  // See ResponseRequest::request.
  std::string_view model;
  std::int64_t created_s = 0;
  std::string_view session;  // Empty: none.
  std::int32_t turn = 0;
  std::span<const Item> output;
  std::optional<FinishReason> reason = std::nullopt;  // Nullopt: the response is in progress.
  std::string_view error = {};
  std::string_view error_code = "server_error";
  std::int32_t prompt_tokens = 0;
  std::int32_t reused_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t reasoning_tokens = 0;
  const Usage* receipt = nullptr;  // Null: the receipt was not stored.
  bool is_compared = false;        // With the prompt of a response that the request names.
};

// OpenAI's status: completed, incomplete, cancelled or failed.
[[nodiscard]] std::string_view response_status(FinishReason reason);
void append_response(std::string& out, const ResponseFacts& facts);

}  // namespace uma::wire
