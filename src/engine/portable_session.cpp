#include "engine/portable_session.h"

#include <algorithm>
#include <format>
#include <utility>

#include "core/limits.h"
#include "engine/preparer.h"
#include "kv/portable_state.h"
#include "kv/session_file.h"
#include "llm/detokenizer.h"
#include "wire/generate_fields.h"

namespace uma::engine {
namespace {

template <class T>
void add_value(Bytes& out, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void add_text(Bytes& out, std::string_view text) {
  add_value(out, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// What making the tokens of a conversation anew costs, in bytes of text; a message is some by itself.
std::size_t text_bytes(const kv::SessionFile& file) {
  constexpr std::size_t kPerMessage = 16;
  std::size_t total = file.text.size();
  for (const std::vector<ChatMessage>* messages : {&file.record.messages, &file.record.pending_messages}) {
    for (const ChatMessage& message : *messages) total += kPerMessage + message.content.size() + message.extra.size();
  }
  return total;
}

// The record of a file whose tokens mean something else here.
Expected<kv::SessionRecord> retokenized(const capability::ChatFormat& format, kv::SessionFile file) {
  kv::SessionRecord& old = file.record;
  kv::SessionRecord made;
  static_cast<kv::SessionHead&>(made) = old;
  made.tools = old.tools;
  made.template_arguments = old.template_arguments;
  made.n_keep = made.turns_dropped = 0;  // numbers of its tokens and turns, which it begins anew
  if (made.mode != SessionMode::chat) {
    if (file.text.empty()) return made;
    return append_to_record(format, made, {.text = std::move(file.text), .messages = {}});
  }
  if (!old.messages.empty()) {
    ChatMessage reply = std::move(old.messages.back());
    old.messages.pop_back();
    auto begun = append_to_record(format, made, {.text = {}, .messages = std::move(old.messages)});
    if (!begun) return begun;
    const auto tokens = format.model().vocab().tokenize(reply.content, false);
    if (!tokens) return std::unexpected(tokens.error());
    made = std::move(*begun);
    made.chain = std::exchange(made.pending, {});
    made.turns = {{.tokens_begin = 0, .reply_begin = static_cast<std::int32_t>(made.chain.size()), .messages_begin = 0}};
    made.chain.insert(made.chain.end(), tokens->begin(), tokens->end());
    made.messages = std::exchange(made.pending_messages, {});
    made.messages.push_back(std::move(reply));
  }
  if (old.pending.empty()) {
    // A system message that waits for the first input has no tokens yet.
    made.pending_messages = std::move(old.pending_messages);
    return made;
  }
  return append_to_record(format, made, {.text = {}, .messages = std::move(old.pending_messages)});
}

// The bytes of the conversation with which a file begins, as long as it says it is; of what cannot be one, no more than that
// has or may have.
Bytes read_conversation(PortableReader& in) {
  Bytes bytes(std::min(in.left(), kv::kSessionPrefixBytes));
  in.read(bytes);
  if (bytes.size() < kv::kSessionPrefixBytes) return bytes;
  const std::size_t length = kv::conversation_bytes(std::span(bytes).first<kv::kSessionPrefixBytes>());
  const std::size_t whole = std::min({length, kv::kSessionPrefixBytes + in.left(), kConversationBytesMax});
  if (whole <= kv::kSessionPrefixBytes) return bytes;
  bytes.resize(whole);
  in.read(std::span(bytes).subspan(kv::kSessionPrefixBytes));
  return bytes;
}

}  // namespace

kv::Checksum vocabulary_of(const llm::Model& model) {
  const llm::Vocab& vocab = model.vocab();
  Bytes all;
  add_value(all, vocab.size());
  for (Token token = 0; token < vocab.size(); ++token) add_text(all, vocab.piece(token));
  add_value(all, vocab.bos().value_or(kNoToken));
  for (const Token token : vocab.end_of_generation()) add_value(all, token);
  add_value(all, vocab.adds_space_prefix());
  add_text(all, model.facts().chat_template);
  return kv::hash_of(all);
}

std::string text_of(const llm::Vocab& vocab, std::span<const Token> chain) {
  std::string text;
  llm::Detokenizer detokenizer(vocab);
  for (const Token token : chain) detokenizer.push(token, text);
  detokenizer.finish(text);
  // The tokenizer's own space at the start of the chain is not part of what was said.
  if (vocab.adds_space_prefix() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

Bytes export_record(const llm::Model& model, const kv::SessionRecord& record) {
  kv::SessionFile file{.record = record, .vocabulary = vocabulary_of(model), .text = {}};
  if (record.mode == SessionMode::text) {
    std::vector<Token> tokens = record.chain;
    tokens.insert(tokens.end(), record.pending.begin(), record.pending.end());
    file.text = text_of(model.vocab(), tokens);
  }
  return kv::encode_session_file(file);
}

Expected<ImportedRecord> import_record(const capability::ChatFormat& format, const PortableFile& portable,
                                       std::size_t text_bytes_max) {
  const llm::Model& model = format.model();
  PortableReader in(portable);
  const Bytes bytes = read_conversation(in);
  auto file = kv::decode_session_file(bytes);
  if (!file) return std::unexpected(file.error());
  const auto is_fine = [](ChatMessage& message) { return wire::normalize_extra(message); };
  if (!std::ranges::all_of(file->record.messages, is_fine) || !std::ranges::all_of(file->record.pending_messages, is_fine) ||
      !wire::normalize_context(file->record.tools, file->record.template_arguments)) {
    return fail(ErrorCode::proto_field,
                "the session file cannot be used: a call of a tool, its result or a tool is impossible");
  }
  const bool has_state = in.left() > 0;
  if (file->vocabulary == vocabulary_of(model)) {
    const auto is_known = [size = model.vocab().size()](Token token) { return token < size; };
    if (!std::ranges::all_of(file->record.chain, is_known) || !std::ranges::all_of(file->record.pending, is_known)) {
      return fail(ErrorCode::proto_field, "the session file cannot be used: a token is not in its vocabulary");
    }
    return ImportedRecord{.record = std::move(file->record), .has_state = has_state};
  }
  if (const std::size_t needed = text_bytes(*file); needed > text_bytes_max) {
    return fail(ErrorCode::limit_prompt,
                std::format("the session is of a model with other tokens and has {} bytes of text, limits.max_prompt_bytes is "
                            "{}: serve its own model, or start umad with a larger limit",
                            needed, text_bytes_max));
  }
  auto record = retokenized(format, std::move(*file));
  if (!record) return std::unexpected(record.error());
  return ImportedRecord{.record = std::move(*record), .are_tokens_kept = false, .has_state = has_state};
}

PortableFile export_state(kv::ImagePtr image, ByteBudget::Share share) {
  struct Held {
    kv::ImagePtr image;
    ByteBudget::Share share;
    Bytes head;
  };
  Bytes head = kv::portable_head(*image);
  const auto held = std::make_shared<const Held>(std::move(image), std::move(share), std::move(head));
  return {.parts = kv::state_parts(held->head, *held->image), .owner = held};
}

Expected<kv::StateImage> import_state(const kv::SessionRecord& record, const PortableFile& file, const std::string& identity,
                                      kv::BytePool& pool) {
  PortableReader in(file);
  (void)read_conversation(in);
  std::vector<Token> chain = record.chain;
  chain.insert(chain.end(), record.pending.begin(), record.pending.end());
  return kv::read_state(in, identity, chain, pool);
}

PortableFile joined(PortableFile first, PortableFile second) {
  first.parts.insert(first.parts.end(), second.parts.begin(), second.parts.end());
  first.owner = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(first.owner), std::move(second.owner));
  return first;
}

}  // namespace uma::engine
