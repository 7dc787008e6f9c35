// POST /v1/responses/compact: a conversation becomes the messages of its user and a summary that the model writes. Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/event.h"
#include "wire/json_body.h"
#include "wire/openai/response_ids.h"
#include "wire/openai/response_writer.h"

namespace uma::wire {

// The response whose conversation precedes the input; nullopt: none. An impossible id fails with E_SESSION_001.
[[nodiscard]] std::expected<std::optional<ResponseId>, RejectedBody> decode_compacted_response(std::string_view body);

struct Compaction {
  std::string body;        // Body of POST /v1/responses: the conversation, and behind it the request for a summary.
  std::string items;       // All items of the conversation as JSON, separated by commas.
  std::string user_items;  // Items that are messages of the user.
};
// `earlier` are the items before the input; with them the input may be missing.
[[nodiscard]] std::expected<Compaction, RejectedBody> decode_compaction(std::string_view body, std::span<const Item> earlier);

// The answer. Without a summary the conversation stays as it is.
[[nodiscard]] std::string compaction_json(const Compaction& compaction, std::string_view id, std::int64_t created_s,
                                          const EosEvent& eos);

// The message in place of an item {"type": "compaction"} with this content; empty: it is not one of ours.
[[nodiscard]] std::string text_of_compaction(std::string_view encrypted_content);

}  // namespace uma::wire
