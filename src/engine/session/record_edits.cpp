#include "engine/session/record_edits.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "engine/session/context_shift.h"

namespace uma::engine {
namespace {

std::int32_t turns_end(const kv::SessionRecord& record) {
  return record.turns_dropped + static_cast<std::int32_t>(record.turns.size());
}

}  // namespace

std::size_t tokens_count(const kv::SessionRecord& record) {
  return record.chain.size() + record.pending.size();
}

bool is_rewritten(const kv::SessionRecord& before, const kv::SessionRecord& after) {
  const std::vector<Token> now = kv::all_tokens(after);
  const auto differing = std::ranges::mismatch(before.chain, now);
  return differing.in1 != before.chain.end() && differing.in2 != now.end();
}

ResponsePtr find_response(const kv::SessionRecord& record, const std::string& id) {
  const auto found = std::ranges::find(record.responses, id, [](const ResponsePtr& response) { return response->id; });
  return found == record.responses.end() ? nullptr : *found;
}

std::size_t turns_through(const kv::SessionRecord& record, const ResponseRecord& response) {
  return static_cast<std::size_t>(response.turn - record.turns_dropped) + 1;
}

std::optional<MessagePosition> last_message_position(const kv::SessionRecord& record) {
  const bool is_pending = !record.pending_messages.empty();
  if (!is_pending && (record.messages.empty() || record.turns.empty())) return std::nullopt;
  const std::size_t count = is_pending ? record.pending_messages.size() : record.messages.size();
  const std::int32_t begin = is_pending ? 0 : record.turns.back().messages_begin;
  const bool begins_with_instructions = record.has_instructions && begin == 0 && (!is_pending || record.messages.empty());
  return MessagePosition{.turn = is_pending ? turns_end(record) : turns_end(record) - 1,
                         .number = static_cast<std::int32_t>(count) - 1 - begin - (begins_with_instructions ? 1 : 0)};
}

kv::SessionRecord rewound(const kv::SessionRecord& record, std::size_t turns_kept, std::int64_t now_s) {
  kv::SessionRecord next = record;
  if (turns_kept < next.turns.size()) {
    const kv::Turn& first_dropped = next.turns[turns_kept];
    next.chain.resize(static_cast<std::size_t>(first_dropped.tokens_begin));
    next.messages.resize(static_cast<std::size_t>(first_dropped.messages_begin));
    next.turns.resize(turns_kept);
    next.fork_turn = std::min(next.fork_turn, turns_end(next));
    std::erase_if(next.responses, [end = turns_end(next)](const ResponsePtr& response) { return response->turn >= end; });
  }
  next.pending.clear();
  next.pending_messages.clear();
  next.last_used_s = now_s;
  return next;
}

kv::SessionRecord forked(const kv::SessionRecord& record, SessionId id, std::string name, std::int64_t now_s) {
  kv::SessionRecord copy = record;
  copy.parent = record.id;
  copy.fork_turn = turns_end(record);
  copy.id = std::move(id);
  copy.name = std::move(name);
  copy.created_s = now_s;
  copy.last_used_s = now_s;
  copy.responses.clear();
  copy.is_of_responses = false;
  return copy;
}

kv::SessionRecord with_system_only(const kv::SessionRecord& record, std::int64_t now_s) {
  UMA_CHECK(record.mode != SessionMode::text);
  kv::SessionRecord next = rewound(record, 0, now_s);
  next.chain.clear();
  next.messages.clear();
  next.responses.clear();
  next.turns_dropped = 0;
  next.has_instructions = false;
  if (record.has_instructions) next.n_keep = 0;  // Its system prompt had the instructions.
  const std::vector<ChatMessage>& said = record.messages.empty() ? record.pending_messages : record.messages;
  // Instructions are the last response's, and no part of the conversation.
  for (const ChatMessage& message : said | std::views::drop(record.has_instructions ? 1 : 0)) {
    if (message.role != "system") break;
    next.pending_messages.push_back(message);
  }
  return next;
}

kv::SessionRecord forked_for_responses(const kv::SessionRecord& record, std::size_t turns_kept, SessionId id,
                                       std::int64_t now_s) {
  kv::SessionRecord copy = forked(rewound(record, turns_kept, now_s), std::move(id), "", now_s);
  copy.metadata.clear();
  copy.is_of_responses = true;
  copy.is_public = false;
  return copy;
}

kv::SessionRecord for_other_model(const kv::SessionRecord& record, std::string model) {
  kv::SessionRecord next = record;
  next.model = std::move(model);
  next.pending_messages.insert(next.pending_messages.begin(), next.messages.begin(), next.messages.end());
  next.messages.clear();
  next.chain.clear();
  next.pending.clear();
  next.turns.clear();
  next.responses.clear();
  next.turns_dropped = 0;
  next.fork_turn = 0;
  next.n_keep = 0;
  next.head_tokens = 0;
  next.has_foreign_kv = false;
  return next;
}

kv::SessionRecord without_response(const kv::SessionRecord& record, const std::string& id, std::int64_t now_s) {
  kv::SessionRecord next = record;
  std::erase_if(next.responses, [&](const ResponsePtr& response) { return response->id == id; });
  if (!next.is_of_responses) return next;
  UMA_CHECK(!next.responses.empty());
  return rewound(next, turns_through(next, *next.responses.back()), now_s);
}

kv::SessionRecord with_turn(const kv::SessionRecord& record, FinishedTurn turn, std::int64_t now_s) {
  kv::SessionRecord next = turn.dropped_turns > 0 ? without_oldest_turns(record, turn.dropped_turns) : record;
  const bool continues_last_turn = next.pending.empty() && !next.turns.empty();
  if (!continues_last_turn) {
    const auto tokens_begin = static_cast<std::int32_t>(next.chain.size());
    next.turns.push_back({.tokens_begin = tokens_begin,
                          .reply_begin = tokens_begin + static_cast<std::int32_t>(next.pending.size()),
                          .messages_begin = static_cast<std::int32_t>(next.messages.size())});
  }
  next.turns.back().receipt = std::move(turn.receipt);
  next.fork_turn = std::min(next.fork_turn, turns_end(next) - 1);
  next.chain.insert(next.chain.end(), next.pending.begin(), next.pending.end());
  next.chain.insert(next.chain.end(), turn.generated.begin(), turn.generated.end());
  next.pending.clear();
  if (next.mode == SessionMode::chat) {
    if (continues_last_turn) {
      next.messages.back().content += turn.reply;
    } else {
      std::ranges::move(next.pending_messages, std::back_inserter(next.messages));
      next.pending_messages.clear();
      next.messages.push_back({"assistant", std::move(turn.reply), std::move(turn.reply_extra)});
    }
  }
  next.last_used_s = now_s;
  return next;
}

}  // namespace uma::engine
