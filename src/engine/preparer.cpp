#include "engine/preparer.h"

#include <algorithm>
#include <utility>

namespace uma::engine {
namespace {

Expected<Unit> append_text(const llm::Model& model, kv::SessionRecord& record, const std::string& text) {
  const bool at_start = record.chain.empty() && record.pending.empty();
  auto tokens = capability::tokenize_text(model.vocab(), text, at_start);
  if (!tokens) return std::unexpected(tokens.error());
  if (at_start && record.on_full == OnFull::shift) record.n_keep = std::max(record.n_keep, model.vocab().bos() ? 1 : 0);
  record.pending.insert(record.pending.end(), tokens->begin(), tokens->end());
  return Unit{};
}

Expected<Unit> append_messages(const llm::Model& model, kv::SessionRecord& record, std::vector<ChatMessage> messages) {
  for (ChatMessage& message : messages) record.pending_messages.push_back(std::move(message));
  auto delta = capability::tokenize_chat(model, record.messages, record.pending_messages);
  if (!delta) return std::unexpected(delta.error());
  if (delta->replaces_chain) {
    // The template rewrote the past: one turn now holds all of it.
    record.chain.clear();
    record.turns.clear();
    record.turns_dropped = 0;
    record.pending_messages.insert(record.pending_messages.begin(), record.messages.begin(), record.messages.end());
    record.messages.clear();
  }
  record.pending = std::move(delta->tokens);
  if (record.chain.empty() && record.on_full == OnFull::shift) record.n_keep = std::max(record.n_keep, delta->system_tokens);
  return Unit{};
}

}  // namespace

Expected<kv::SessionRecord> append_to_record(const llm::Model& model, const kv::SessionRecord& record, const Input& input) {
  kv::SessionRecord next = record;
  if (next.mode == SessionMode::automatic) {
    // Created without a mode on a model without a chat template: the first input decides.
    next.mode = input.messages.empty() ? SessionMode::text : SessionMode::chat;
  }
  Expected<Unit> done = Unit{};
  if (next.mode == SessionMode::text) {
    if (!input.messages.empty()) {
      return fail(ErrorCode::proto_field,
                  "field \"messages\" was sent to a session of mode text: send \"text\", or create it with mode chat");
    }
    done = append_text(model, next, input.text);
  } else {
    done =
        append_messages(model, next, input.messages.empty() ? std::vector<ChatMessage>{{"user", input.text}} : input.messages);
  }
  if (!done) return std::unexpected(done.error());
  return next;
}

bool Preparer::step() {
  inbox_.drain(taken_);
  const bool any = !taken_.empty();
  for (Job& job : taken_) job();
  taken_.clear();
  return any;
}

}  // namespace uma::engine
