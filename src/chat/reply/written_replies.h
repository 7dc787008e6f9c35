// The tokens of replies as the model wrote them. A client that keeps a conversation itself sends them back as messages, and a
// template may write those with other tokens: a call's arguments in another order or spacing, a text in other pieces. With the
// model's own tokens the KV behind them is found. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "chat/prompt_tokens.h"
#include "core/ids.h"
#include "core/request.h"
#include "jinja/value.h"
#include "kv/checksum.h"
#include "llm/model.h"

namespace uma::chat {

struct WrittenReply {
  std::size_t prompt_tokens = 0;  // The number of tokens before `tokens`.
  kv::Checksum prompt{};          // The hash of the last block of these tokens (kv/token_chain.h).
  std::vector<Token> tokens{};    // The prompt's last `border` ones and the reply, without the end-of-generation token.
  std::size_t border = 0;         // Text tokens, which a template that goes on may merge with the reply's.
  bool has_calls = false;         // Set by WrittenReplies::note().
  bool operator==(const WrittenReply&) const = default;
};
using WrittenReplyPtr = std::shared_ptr<const WrittenReply>;
[[nodiscard]] WrittenReply written_behind(const llm::Vocab& vocab, std::span<const Token> prompt, std::span<const Token> reply);

// The hash of what a reply says: equal for messages that differ in the blanks around their texts, in the order and spacing of a
// call's arguments, or in the ids of calls.
[[nodiscard]] kv::Checksum meaning_of(const ChatMessage& reply);

class WrittenReplies {
 public:
  static constexpr std::size_t kFoundMax = 8;

  // `tenant_bytes_max`: of the replies of one tenant; the oldest are forgotten.
  explicit WrittenReplies(std::size_t tenant_bytes_max) : tenant_bytes_max_(tenant_bytes_max) {}

  void note(const TenantId& tenant, const ChatMessage& reply, WrittenReply written);
  // The last of the tenant's replies that say the same, the newest first; at most kFoundMax.
  [[nodiscard]] std::vector<WrittenReplyPtr> find(const TenantId& tenant, const ChatMessage& reply) const;

 private:
  struct MeaningHash {
    std::size_t operator()(const kv::Checksum& meaning) const { return static_cast<std::size_t>(meaning.low); }
  };
  struct OfTenant {
    std::unordered_map<kv::Checksum, std::vector<WrittenReplyPtr>, MeaningHash> replies{};  // The oldest first.
    std::deque<kv::Checksum> order{};                                                       // Their meanings by age.
    std::size_t bytes = 0;
  };

  const std::size_t tenant_bytes_max_;
  mutable Mutex mutex_;
  std::map<TenantId, OfTenant> tenants_ GUARDED_BY(mutex_);
};

// The replies of one tenant.
struct OwnReplies {
  std::shared_ptr<const WrittenReplies> all{};  // Null: none are known.
  TenantId tenant{};
};

// `placed` are the tokens of `text`, which begins a chain and was written from `messages`. Returns them with replies as the
// model has written them: behind the very tokens of then, where the template has written the same control tokens and, in any
// order, the same text. What it leaves out or adds stays so.
[[nodiscard]] PlacedTokens with_written_replies(const llm::Vocab& vocab, const jinja::Text& text, PlacedTokens placed,
                                                std::span<const ChatMessage> messages, const OwnReplies& written);

}  // namespace uma::chat
