#include "engine/session/record_input.h"

#include <algorithm>
#include <format>
#include <optional>
#include <string_view>
#include <utility>

#include "chat/infill.h"
#include "llm/media/image_tokens.h"

namespace uma::engine {
namespace {

// Whether the tokens that stay when turns are dropped can still be chosen. After the first drop they are fixed: the first
// remaining turn begins where they end.
bool chooses_kept_tokens(const kv::SessionRecord& record) {
  return record.on_full == OnFull::shift && record.turns_dropped == 0;
}

Expected<Unit> append_text(const llm::Model& model, kv::SessionRecord& record, const Input& input) {
  const bool at_start = record.chain.empty() && record.pending.empty();
  auto tokens = chat::tokenize_text(model.vocab(), input.text, at_start, input.parses_special);
  if (!tokens) return std::unexpected(tokens.error());
  if (at_start && chooses_kept_tokens(record)) record.n_keep = std::max(record.n_keep, model.vocab().bos() ? 1 : 0);
  record.pending.insert(record.pending.end(), tokens->begin(), tokens->end());
  return Unit{};
}

Expected<Unit> append_infill(const llm::Model& model, kv::SessionRecord& record, const Input& input) {
  auto tokens = chat::tokenize_infill(model.vocab(), input.text, *input.infill, input.parses_special);
  if (!tokens) return std::unexpected(tokens.error());
  record.pending = std::move(*tokens);
  return Unit{};
}

Expected<Unit> append_tokens(const llm::Model& model, kv::SessionRecord& record, const std::vector<Token>& tokens) {
  const auto unknown =
      std::ranges::find_if(tokens, [size = model.vocab().size()](Token token) { return token < 0 || token >= size; });
  if (unknown != tokens.end()) {
    return std::unexpected(Error{ErrorCode::proto_field,
                                 std::format("field \"prompt\": token {} is not in the vocabulary, whose tokens are 0 to {}",
                                             *unknown, model.vocab().size() - 1),
                                 "prompt"});
  }
  record.pending.insert(record.pending.end(), tokens.begin(), tokens.end());
  return Unit{};
}

// The reply of each turn: its last message, and its tokens up to the next turn.
std::vector<chat::MessagePlace> replies_of(const kv::SessionRecord& record) {
  std::vector<chat::MessagePlace> replies;
  for (std::size_t i = 0; i < record.turns.size(); ++i) {
    const bool is_last = i + 1 == record.turns.size();
    const std::size_t messages_end =
        is_last ? record.messages.size() : static_cast<std::size_t>(record.turns[i + 1].messages_begin);
    const std::size_t end = is_last ? record.chain.size() : static_cast<std::size_t>(record.turns[i + 1].tokens_begin);
    replies.push_back(
        {.message = messages_end - 1, .begin = static_cast<std::size_t>(record.turns[i].reply_begin), .end = end});
  }
  return replies;
}

// An image is dropped with its turn. The kept tokens therefore end before the first turn with an image, but not before the end
// of the system prompt.
std::int32_t kept_without_images(const kv::SessionRecord& record, std::int32_t n_keep, std::int32_t system_tokens) {
  const auto in_chain = std::ranges::find_if(record.chain, llm::is_image_token) - record.chain.begin();
  const auto in_pending = std::ranges::find_if(record.pending, llm::is_image_token) - record.pending.begin();
  const bool is_pending = in_chain == std::ssize(record.chain);
  if ((is_pending ? in_chain + in_pending : in_chain) >= n_keep) return n_keep;
  std::int32_t begin = is_pending ? static_cast<std::int32_t>(in_chain) : 0;
  for (const kv::Turn& turn : record.turns) {
    if (!is_pending && turn.tokens_begin <= in_chain) begin = turn.tokens_begin;
  }
  return std::max(begin, system_tokens);
}

bool has_other_tools(const kv::SessionRecord& record, const ChatOptions& chat) {
  return chat.tools != record.tools || chat.template_arguments != record.template_arguments;
}

// Whether the chain has no turn, only the tokens that stayed when all turns were dropped or taken back.
bool has_kept_tokens_only(const kv::SessionRecord& record) {
  return record.turns.empty() && !record.chain.empty();
}

// The tokens of the whole conversation, in a record with kept tokens only: they continue the chain if it is their beginning.
Expected<chat::ChatTokens> tokenize_behind_kept_tokens(const chat::ChatFormat& format, const kv::SessionRecord& record) {
  std::vector<ChatMessage> all = record.messages;
  all.insert(all.end(), record.pending_messages.begin(), record.pending_messages.end());
  auto added = chat::tokenize_chat(format,
                                   {.messages = {},
                                    .tokens = {},
                                    .replies = {},
                                    .unix_s = record.created_s,
                                    .tools = record.tools,
                                    .template_arguments = record.template_arguments},
                                   all);
  if (!added) return added;
  std::vector<Token>& tokens = added->tokens;
  const auto differing = std::ranges::mismatch(record.chain, tokens);
  if (differing.in1 == record.chain.end() && differing.in2 != tokens.end()) {
    tokens.erase(tokens.begin(), differing.in2);
  } else {
    added->history_change = chat::ChatTokens::History::lost;
  }
  return added;
}

// `is_changed`: the messages are not those that the chain was written from.
Expected<Unit> append_messages(const chat::ChatFormat& formats, kv::SessionRecord& record, std::vector<ChatMessage> messages,
                               const ChatOptions* chat, const chat::OwnReplies& written, PromptOutline* outline,
                               bool is_changed = false) {
  if (chat != nullptr && has_other_tools(record, *chat)) {
    record.tools = chat->tools;
    record.template_arguments = chat->template_arguments;
    is_changed = true;
  }
  for (ChatMessage& message : messages) record.pending_messages.push_back(std::move(message));
  const std::vector<chat::MessagePlace> replies = replies_of(record);
  const chat::ChatFormat& format = formats.chosen(record.tools, record.template_arguments);
  auto added = has_kept_tokens_only(record) ? tokenize_behind_kept_tokens(format, record)
                                            : chat::tokenize_chat(format,
                                                                  {.messages = record.messages,
                                                                   .tokens = record.chain,
                                                                   .replies = replies,
                                                                   .unix_s = record.created_s,
                                                                   .tools = record.tools,
                                                                   .template_arguments = record.template_arguments,
                                                                   .is_changed = is_changed,
                                                                   .continues_reply = chat != nullptr && chat->continues_reply,
                                                                   .written = written},
                                                                  record.pending_messages);
  if (!added) return std::unexpected(added.error());
  using History = chat::ChatTokens::History;
  if (added->history_change == History::rewritten && record.turns_dropped > 0) {
    // It is not known which of these tokens belong to dropped turns.
    added->tokens.insert(added->tokens.begin(), added->history.begin(), added->history.end());
    added->history_change = History::lost;
  }
  switch (added->history_change) {
    case History::stays:
      break;
    case History::rewritten:
      record.chain = std::move(added->history);
      for (std::size_t i = 0; i < record.turns.size(); ++i) {
        record.turns[i].tokens_begin = i == 0 ? 0 : static_cast<std::int32_t>(added->replies[i - 1].end);
        record.turns[i].reply_begin = static_cast<std::int32_t>(added->replies[i].begin);
      }
      break;
    case History::lost:
      // All messages become input of one turn.
      record.chain.clear();
      record.turns.clear();
      record.turns_dropped = 0;
      record.responses.clear();
      record.pending_messages.insert(record.pending_messages.begin(), record.messages.begin(), record.messages.end());
      record.messages.clear();
      break;
  }
  record.pending = std::move(added->tokens);
  if (outline != nullptr) *outline = std::move(added->outline);
  record.head_tokens = record.chain.empty() ? added->head_tokens : 0;
  if (chooses_kept_tokens(record)) {
    record.n_keep = kept_without_images(record, std::max(record.n_keep, added->system_tokens), added->system_tokens);
  }
  return Unit{};
}

// Replaces the instructions at the beginning of the record. True: messages that were written have changed.
bool replace_instructions(kv::SessionRecord& record, const std::optional<std::string>& instructions) {
  std::vector<ChatMessage>& messages = record.messages.empty() ? record.pending_messages : record.messages;
  const bool had_any = record.has_instructions;
  if (had_any == instructions.has_value() && (!had_any || messages.front().content == *instructions)) return false;
  if (had_any) messages.erase(messages.begin());
  if (instructions) messages.insert(messages.begin(), {.role = "system", .content = *instructions});
  for (kv::Turn& turn : record.turns) {
    if (turn.messages_begin > 0) turn.messages_begin += (instructions ? 1 : 0) - (had_any ? 1 : 0);
  }
  record.has_instructions = instructions.has_value();
  return true;
}

}  // namespace

Expected<kv::SessionRecord> begin_response(const chat::ChatFormat& format, const kv::SessionRecord& record, const Input& input,
                                           const ResponseRequest& response, const ChatOptions& chat,
                                           const chat::OwnReplies& replies, PromptOutline* outline) {
  if (record.mode == SessionMode::text) {
    return fail(ErrorCode::proto_field, "the session has mode text: responses need a session of mode chat");
  }
  kv::SessionRecord next = record;
  next.mode = SessionMode::chat;
  bool is_changed = replace_instructions(next, response.instructions);
  if (is_changed && next.turns_dropped == 0) next.n_keep = 0;  // The system prompt has changed.
  if (response.on_full && *response.on_full != next.on_full) {
    if (next.turns_dropped > 0) {
      return fail(
          ErrorCode::proto_field,
          std::format("{} turns of the session were dropped when its context was full: \"truncation\" can only stay \"auto\"",
                      next.turns_dropped));
    }
    next.on_full = *response.on_full;
    is_changed = true;  // The length of the system prompt must be computed.
  }
  const bool is_written = !is_changed && input.messages.empty() && !next.pending.empty() && !has_other_tools(next, chat);
  if (is_written) return next;
  if (auto done = append_messages(format, next, input.messages, &chat, replies, outline, is_changed); !done)
    return std::unexpected(done.error());
  return next;
}

Expected<kv::SessionRecord> append_to_record(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                             const Input& input, const ChatOptions* chat, const chat::OwnReplies& replies,
                                             PromptOutline* outline) {
  kv::SessionRecord next = record;
  if (next.mode == SessionMode::automatic) {
    // The session was created without a mode on a model without a chat template, so the first input sets the mode.
    next.mode = input.messages.empty() ? SessionMode::text : SessionMode::chat;
  }
  Expected<Unit> done = Unit{};
  if (next.mode == SessionMode::text) {
    if (!input.messages.empty()) {
      return fail(ErrorCode::proto_field,
                  "field \"messages\" was sent to a session of mode text: send \"text\", or create a session of mode chat");
    }
    if (chat != nullptr && !chat->tools.empty()) {
      return fail(ErrorCode::proto_field, "field \"tools\" belongs to a chat: send \"messages\", to a session of mode chat");
    }
    if (input.infill) {
      done = append_infill(format.model(), next, input);
    } else {
      done =
          input.tokens.empty() ? append_text(format.model(), next, input) : append_tokens(format.model(), next, input.tokens);
    }
  } else {
    if (input.parses_special && input.messages.empty()) {
      return std::unexpected(
          Error{ErrorCode::proto_field,
                "field \"parse_special\" is for texts, and the session has mode chat: text of messages never "
                "becomes control tokens",
                "parse_special"});
    }
    const bool is_text = input.messages.empty() && !input.text.empty();
    done = append_messages(format, next, is_text ? std::vector<ChatMessage>{{"user", input.text}} : input.messages, chat,
                           replies, outline);
  }
  if (!done) return std::unexpected(done.error());
  return next;
}

Expected<kv::SessionRecord> reopen_last_turn(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                             const kv::SessionRecord& rewound, const ChatOptions& chat,
                                             PromptOutline* outline) {
  kv::SessionRecord next = rewound;
  const kv::Turn last = record.turns.back();
  std::vector<ChatMessage> input;
  if (next.mode == SessionMode::chat) {
    input.assign(record.messages.begin() + last.messages_begin, record.messages.end() - 1);
  }
  // The template has not written this turn as the first one.
  const bool is_first_left = next.turns.empty() && next.turns_dropped > 0;
  if (next.mode == SessionMode::text || is_first_left) {
    next.pending.assign(record.chain.begin() + last.tokens_begin, record.chain.begin() + last.reply_begin);
    next.pending_messages = std::move(input);
    return next;
  }
  // The turn is written again, because the chain may have it as the template writes earlier turns, without the beginning of a
  // new reply.
  if (auto done = append_messages(format, next, std::move(input), &chat, {}, outline); !done)
    return std::unexpected(done.error());
  return next;
}

Expected<kv::SessionRecord> without_last_message(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                                 const kv::SessionRecord& rewound) {
  if (record.pending_messages.empty()) {
    ChatOptions chat;
    chat.tools = record.tools;
    chat.template_arguments = record.template_arguments;
    return reopen_last_turn(format, record, rewound, chat);
  }
  kv::SessionRecord next = record;
  next.pending_messages.pop_back();
  next.pending.clear();
  if (next.messages.empty() && next.has_instructions && next.pending_messages.size() == 1) {
    next.pending_messages.clear();  // Instructions without messages.
    next.has_instructions = false;
  }
  if (next.pending_messages.empty()) return next;
  if (auto done = append_messages(format, next, {}, nullptr, {}, nullptr); !done) return std::unexpected(done.error());
  return next;
}

}  // namespace uma::engine
