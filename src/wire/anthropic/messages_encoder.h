// Writes one answer of Anthropic's Messages API, as an object or as its server-sent events; and the errors of that API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/event.h"

namespace uma::wire {

// The facts that an answer states of its request.
struct MessageFacts {
  std::string id;
  std::string model;
  std::vector<std::string> stop_sequences;
  // The longest reply by the request and the limits of the daemon; nullopt: the context is the only limit.
  std::optional<std::int32_t> tokens_max{};
  Comparison comparison{};
};

// A stream is written in order: append_first, then append_text and append_part as often as needed, then append_last or
// append_message_error. A block ends before the next one begins.
class MessageEncoder {
 public:
  explicit MessageEncoder(MessageFacts facts) : facts_(std::move(facts)) {}

  // Names a message of a thread, and its model if that is not empty. Called before anything is written.
  void set_place(std::string id, std::string_view model) {
    facts_.id = std::move(id);
    if (!model.empty()) facts_.model = model;
  }
  // Called before append_first. How many of the tokens are reused is known at the end only.
  void set_prompt(const PromptReadyEvent& prompt) {
    prompt_tokens_ = prompt.prompt_tokens;
    cache_miss_ = prompt.cache_miss;
  }

  void append_first(std::string& out) const;
  void append_text(std::string& out, std::string_view text);
  void append_part(std::string& out, const ReplyPart& part);
  // Appends an event that changes nothing.
  void append_ping(std::string& out) const;
  // Requires: the reply has no error.
  void append_last(std::string& out, const EosEvent& eos);
  [[nodiscard]] std::string json(const EosEvent& eos) const;

 private:
  enum class Block : std::uint8_t { none, thinking, text, tool_use };

  void begin_block(std::string& out, Block block, const ReplyPart& part);
  void append_delta(std::string& out, std::string_view type, std::string_view name, std::string_view value) const;
  void end_block(std::string& out);

  MessageFacts facts_;
  std::int32_t prompt_tokens_ = 0;
  CacheMiss cache_miss_;
  Block block_ = Block::none;     // The open block.
  std::size_t blocks_begun_ = 0;  // The open block is the last one of them.
};

// The error object of this API. `field` and `request_id` may be empty. The status determines the type.
[[nodiscard]] std::string message_error_json(const Error& error, int status, std::string_view field,
                                             std::string_view request_id);
// Appends the event that ends a stream with an error.
void append_message_error(std::string& out, const Error& error, int status);

// The answer of /v1/messages/count_tokens.
[[nodiscard]] std::string token_count_json(std::int32_t tokens);

}  // namespace uma::wire
