// The reply of one request from its client's view. Tokens become text, the text becomes content, reasoning and tool calls, and
// each part is delivered as soon as it is decided. One per request; owned by the thread that generates it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/calls/answer_grammar.h"
#include "chat/reply/logprob_queue.h"
#include "chat/reply/reply_parser.h"
#include "chat/reply/text_stream.h"
#include "chat/reply/thinking.h"
#include "core/event.h"
#include "core/ids.h"
#include "grammar/grammar.h"
#include "llm/model.h"
#include "llm/sampling/sampler.h"

namespace uma::chat {

struct ReplyOptions {
  ReplyFormat format{};
  std::vector<std::string> stop{};  // The reply ends before the first of these strings that is in no call.
  std::vector<std::string> ends{};  // Further `stop` strings, also in a call: the marks of the end of turn that are texts.
  std::shared_ptr<const grammar::Grammar> call_grammar{};  // Constrains each tool call behind its mark; null: no constraint.
  // Constrains the reply outside of thoughts (answer_grammar.h), which `thinking` must limit if there may be some; null: no
  // constraint. Excludes `call_grammar`.
  std::shared_ptr<const grammar::Grammar> answer_grammar{};
  std::optional<ThinkingLimit> thinking{};  // Absent: thoughts have no limit.
  std::uint64_t call_seed = 0;              // Seed for the ids of tool calls.
  std::optional<std::int32_t> logprobs{};   // Number of alternatives reported with each content token; absent: none.
  bool stream = true;                       // False: everything is reported at the end.
};

class ReplyStream {
 public:
  // `keeps_content`: End::content is wanted although the reply is streamed. `vocab` must outlive the stream.
  ReplyStream(ReplyOptions options, const llm::Vocab& vocab, bool keeps_content);

  // The next token, if it closes thoughts that have used up their budget; nullopt: the model chooses.
  [[nodiscard]] std::optional<Token> forced_token();
  // Whether forced_token() may ever give one.
  [[nodiscard]] bool may_force_tokens() const { return thinking_.has_value(); }
  // The model has chosen to end the reply. Returns the token that closes the thoughts instead, if an answer must follow them.
  [[nodiscard]] std::optional<Token> instead_of_end();

  enum class Next : std::uint8_t { more, stop, slow_client };
  // Adds the grammar with which the reply begins to `sampler`, behind the content that the prompt has, if it can begin so.
  void constrain_begin(std::string_view begun, llm::Sampler& sampler) const;
  // Takes the next token of the reply and delivers the decided parts. `logits` are the model's own for this token's row; they
  // are read only if log probabilities are wanted. At the beginning and end of a tool call, the call's grammar is added to
  // `sampler` or removed; at those of thoughts, the answer's is removed or added. Returns `stop` after a stop string or the
  // last allowed tool call.
  [[nodiscard]] Next push(Token token, std::span<const float> logits, llm::Sampler& sampler, EventSink& sink);

  // Everything not delivered yet; the whole reply if it is not streamed.
  struct End {
    std::string text;
    std::vector<ReplyPart> parts;
    std::vector<TokenLogprobs> logprobs;
    std::string content;        // The whole content, if it is kept.
    std::string message_extra;  // The other fields of the message (ChatMessage::extra).
    std::string stop_string;    // The stop string before which the text ends; empty: none.
    bool has_tool_calls = false;
  };
  // Call once, after the last token. `is_cut`: the model has not ended the reply itself.
  [[nodiscard]] End finish(bool is_cut = false);

  // Control tokens with the texts of marks.
  [[nodiscard]] std::span<const std::pair<Token, std::string>> marks() const { return options_.format.marks; }
  // The tokens that end a reply in the model's family.
  [[nodiscard]] std::span<const Token> ends() const { return options_.format.ends; }
  [[nodiscard]] bool is_end(Token token) const { return std::ranges::contains(options_.format.ends, token); }
  [[nodiscard]] bool wants_logprobs() const { return options_.logprobs.has_value(); }
  [[nodiscard]] std::int32_t logprobs_top() const { return options_.logprobs.value_or(0); }
  // Bytes of the log probabilities that are not delivered yet (chat::logprobs_bytes).
  [[nodiscard]] std::size_t logprobs_bytes() const { return logprobs_waiting_.bytes() + logprobs_kept_bytes_; }
  [[nodiscard]] std::int32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  [[nodiscard]] bool is_thinking() const;
  void constrain_call(llm::Sampler& sampler);
  void constrain_answer(llm::Sampler& sampler);
  bool constrain_at(ReplyPlace place, std::string_view text, llm::Sampler& sampler) const;
  [[nodiscard]] std::optional<std::string> undecided_text() const;
  void take_logprobs(std::size_t begin);
  [[nodiscard]] bool deliver(Token token, EventSink& sink);

  const ReplyOptions options_;
  const llm::Vocab& vocab_;
  const bool keeps_content_;
  TextStream detokenized_;
  std::optional<ReplyParser> parser_;  // Absent: the whole text is content.
  std::optional<ThinkingBudget> thinking_;
  bool ignores_grammar_ = false;  // A tool call did not begin as the grammar requires.
  // The numbers of ended thoughts and of left calls (ReplyParser) after which the answer's grammar has begun again.
  std::size_t thoughts_ended_ = 0;
  std::size_t calls_left_ = 0;
  LogprobQueue logprobs_waiting_;
  std::vector<TokenLogprobs> logprobs_kept_;  // Unless the reply is streamed.
  std::size_t logprobs_kept_bytes_ = 0;
  std::string content_;
  std::size_t text_bytes_ = 0;  // Decided text, whatever its kind.
  std::int32_t reasoning_tokens_ = 0;

  // Newly decided by the last token.
  std::string text_;
  ReplyPieces pieces_;
  std::vector<TokenLogprobs> logprobs_;
};

}  // namespace uma::chat
