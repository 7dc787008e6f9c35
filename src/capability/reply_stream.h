// The reply of one request as its client sees it. Tokens become text, the text becomes content, reasoning and tool calls, and
// each part is delivered as soon as it is certain. One per request; owned by the thread that generates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capability/logprob_queue.h"
#include "capability/reply_parser.h"
#include "capability/text_stream.h"
#include "core/event.h"
#include "core/ids.h"
#include "llm/grammar.h"
#include "llm/model.h"
#include "llm/sampler.h"

namespace uma::capability {

struct ReplyOptions {
  ReplyFormat format{};
  std::vector<std::string> stop{};                     // the reply ends before the first of these strings
  std::shared_ptr<const llm::Grammar> call_grammar{};  // constrains each tool call from its mark on; null: nothing does
  std::uint64_t call_seed = 0;                         // the ids of tool calls are drawn from it
  std::optional<std::int32_t> logprobs{};              // number of alternatives reported with each content token; absent: none
  bool stream = true;                                  // false: everything is reported at the end
};

class ReplyStream {
 public:
  // `keeps_content`: End::content is wanted although the reply is streamed. `vocab` outlives the stream.
  ReplyStream(ReplyOptions options, const llm::Vocab& vocab, bool keeps_content);

  enum class Next : std::uint8_t { more, stop, slow_client };
  // Takes the next token of the reply and delivers what it makes certain. `logits` are the model's own, of this token's row;
  // they are read only where log probabilities are wanted. Where the token begins or ends a tool call, the call's grammar is
  // put on `sampler` or taken off it. Returns `stop` where a stop string or the last allowed tool call is complete.
  [[nodiscard]] Next push(Token token, std::span<const float> logits, llm::Sampler& sampler, EventSink& sink);

  // What was not delivered yet; everything where the reply is not streamed.
  struct End {
    std::string text;
    std::vector<ReplyPart> parts;
    std::vector<TokenLogprobs> logprobs;
    std::string content;        // the whole content, where it is kept
    std::string message_extra;  // the other fields of the message (ChatMessage::extra)
    bool has_tool_calls = false;
  };
  // Call once, after the last token.
  [[nodiscard]] End finish();

  // The control tokens that stand for marks in the text.
  [[nodiscard]] std::span<const std::pair<Token, std::string>> marks() const { return options_.format.marks; }
  [[nodiscard]] bool wants_logprobs() const { return options_.logprobs.has_value(); }
  [[nodiscard]] std::int32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void constrain_call(llm::Sampler& sampler);
  void take_logprobs(std::size_t begin);
  [[nodiscard]] bool deliver(Token token, EventSink& sink);

  const ReplyOptions options_;
  const llm::Vocab& vocab_;
  const bool keeps_content_;
  TextStream detokenized_;
  std::optional<ReplyParser> parser_;  // absent: all of the text is content
  bool ignores_grammar_ = false;       // a tool call did not begin as the grammar demands
  LogprobQueue logprobs_waiting_;
  std::vector<TokenLogprobs> logprobs_kept_;
  std::string content_;
  std::size_t text_bytes_ = 0;  // of the text that is certain, whatever it was parsed into
  std::int32_t reasoning_tokens_ = 0;

  // What the newest token has made certain.
  std::string text_;
  ReplyPieces pieces_;
  std::vector<TokenLogprobs> logprobs_;
};

}  // namespace uma::capability
