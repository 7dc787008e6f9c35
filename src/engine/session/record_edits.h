// Edits of a session's record that need neither its model nor its text. Pure; a record is never changed in place.
// record_input.h has the edits that tokenize, context_shift.h those of a full context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/receipt.h"
#include "core/response.h"
#include "core/service.h"
#include "kv/catalog/catalog.h"

namespace uma::engine {

// The tokens of all finished turns and of the pending input.
[[nodiscard]] std::size_t tokens_count(const kv::SessionRecord& record);

// Whether tokens that a reply ended with have changed, because the template has written the past differently.
[[nodiscard]] bool is_rewritten(const kv::SessionRecord& before, const kv::SessionRecord& after);

// The stored response with this id; null: the record has none.
[[nodiscard]] ResponsePtr find_response(const kv::SessionRecord& record, const std::string& id);
// The number of turns up to and including the response's. Requires: the response is one of the record's.
[[nodiscard]] std::size_t turns_through(const kv::SessionRecord& record, const ResponseRecord& response);
// The position of the last message; absent if there is no message, or only messages kept from dropped turns.
[[nodiscard]] std::optional<MessagePosition> last_message_position(const kv::SessionRecord& record);

// The record with its first `turns_kept` turns only, without pending input and without the responses of later turns.
[[nodiscard]] kv::SessionRecord rewound(const kv::SessionRecord& record, std::size_t turns_kept, std::int64_t now_s);
// A copy under a new id, whose parent is the original. Responses stay with the original, because a response's id belongs to one
// session.
[[nodiscard]] kv::SessionRecord forked(const kv::SessionRecord& record, SessionId id, std::string name, std::int64_t now_s);
// The record with its system message alone, which is pending again. Requires: not a text.
[[nodiscard]] kv::SessionRecord with_system_only(const kv::SessionRecord& record, std::int64_t now_s);
// The first turns as a new session, which only responses use.
[[nodiscard]] kv::SessionRecord forked_for_responses(const kv::SessionRecord& record, std::size_t turns_kept, SessionId id,
                                                     std::int64_t now_s);
// The record for another model, whose tokens are not known: all messages are pending.
[[nodiscard]] kv::SessionRecord for_other_model(const kv::SessionRecord& record, std::string model);
// The record without one response; if only responses use the session, also without the turns that no remaining response needs.
// Requires: another response is left, or the session is also used as a conversation.
[[nodiscard]] kv::SessionRecord without_response(const kv::SessionRecord& record, const std::string& id, std::int64_t now_s);

struct FinishedTurn {
  std::vector<Token> generated;  // Without the end-of-generation token.
  // Number of oldest turns that were dropped before and during the turn, because the context was full.
  std::int32_t dropped_turns = 0;
  std::string reply;        // Chat: the content of the assistant's message.
  std::string reply_extra;  // Chat: its other fields (ChatMessage::extra).
  ReceiptPtr receipt{};     // Null: it is not kept.
};
// The record with the pending input and the reply as a new turn; without pending input the reply continues the last turn, which
// then has the receipt of this reply.
[[nodiscard]] kv::SessionRecord with_turn(const kv::SessionRecord& record, FinishedTurn turn, std::int64_t now_s);

}  // namespace uma::engine
