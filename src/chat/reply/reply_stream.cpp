#include "chat/reply/reply_stream.h"

#include <algorithm>
#include <utility>

#include "llm/sampling/logprobs.h"
#include "llm/sampling/token_constraint.h"

namespace uma::chat {

ReplyStream::ReplyStream(ReplyOptions options, const llm::Vocab& vocab, bool keeps_content)
    : options_(std::move(options)),
      vocab_(vocab),
      keeps_content_(keeps_content || !options_.stream),
      detokenized_(vocab, options_.stop, options_.format.marks, options_.ends) {
  if (!options_.format.is_plain()) {
    parser_.emplace(options_.format, options_.call_seed);
    thoughts_ended_ = parser_->thoughts_ended({});
  }
  if (options_.thinking) thinking_.emplace(*options_.thinking);
}

// The end of the thoughts counts as soon as it is there, although it may be held back for a stop string.
bool ReplyStream::is_thinking() const {
  return parser_ && parser_->is_reasoning(detokenized_.held());
}

std::optional<Token> ReplyStream::forced_token() {
  // A character is completed first, unless the mark has begun.
  if (!thinking_ || (detokenized_.is_inside_character() && !thinking_->is_closing())) return std::nullopt;
  return thinking_->next(is_thinking());
}

std::optional<Token> ReplyStream::instead_of_end() {
  return options_.answer_grammar && thinking_ && is_thinking() ? std::optional(thinking_->close()) : std::nullopt;
}

ReplyStream::Next ReplyStream::push(Token token, std::span<const float> logits, llm::Sampler& sampler, EventSink& sink) {
  const std::size_t token_begin = detokenized_.bytes_made();
  const bool was_thinking = is_thinking();
  text_.clear();
  // A call that a stop string has cut would be run with what is left of its arguments.
  const bool is_calling = !options_.stop.empty() && parser_ && (parser_->is_in_known_call() || parser_->begun_call());
  const bool is_stopped = detokenized_.push(token, text_, !is_calling);
  if (wants_logprobs()) {
    logprobs_waiting_.push(llm::logprobs_of(logits, token, *options_.logprobs, vocab_), token_begin, detokenized_.bytes_made());
  }
  const std::size_t begin = std::exchange(text_bytes_, text_bytes_ + text_.size());
  pieces_.clear();
  if (thinking_) thinking_->push(token, was_thinking);
  if (parser_) {
    parser_->push(text_, pieces_);
    text_ = pieces_.content;
    if (options_.call_grammar) constrain_call(sampler);
  }
  if (was_thinking || is_thinking()) ++reasoning_tokens_;
  if (options_.answer_grammar) constrain_answer(sampler);
  take_logprobs(begin);
  if (keeps_content_) content_ += text_;
  if (options_.stream && !deliver(token, sink)) return Next::slow_client;
  return is_stopped || (parser_ && parser_->has_ended()) ? Next::stop : Next::more;
}

// False: the client is too slow.
bool ReplyStream::deliver(Token token, EventSink& sink) {
  const auto deliver_part = [&](const ReplyPart& part) { return sink.deliver(part); };
  return std::ranges::all_of(pieces_.before, deliver_part) && sink.deliver(TokenEvent{text_, token, logprobs_}) &&
         std::ranges::all_of(pieces_.after, deliver_part);
}

// A tool call follows its grammar from its mark to its end, also where the parser finds an end before the grammar does. If a
// call does not begin as the grammar requires, this and later calls are only parsed.
void ReplyStream::constrain_call(llm::Sampler& sampler) {
  if (sampler.constraint() != nullptr) {
    if (sampler.is_complete() || !parser_->may_be_in_call()) sampler.constrain(nullptr);
    return;
  }
  if (ignores_grammar_) return;
  const auto begun = parser_->begun_call();
  if (!begun) return;
  auto constraint =
      std::make_unique<llm::TokenConstraint>(options_.call_grammar, vocab_, options_.format.marks, options_.format.ends);
  if (constraint->accept_text(*begun + detokenized_.held())) {
    sampler.constrain(std::move(constraint));
  } else {
    ignores_grammar_ = true;
  }
}

void ReplyStream::constrain_begin(std::string_view begun, llm::Sampler& sampler) const {
  if (!options_.answer_grammar || is_thinking()) return;
  if (begun.empty() || !constrain_at(ReplyPlace::begin, begun, sampler)) (void)constrain_at(ReplyPlace::begin, "", sampler);
}

// The answer's grammar goes on at this place of the reply, behind `text`. False: it does not allow that text.
bool ReplyStream::constrain_at(ReplyPlace place, std::string_view text, llm::Sampler& sampler) const {
  auto constraint =
      std::make_unique<llm::TokenConstraint>(options_.answer_grammar, vocab_, options_.format.marks, options_.format.ends);
  const bool is_allowed = constraint->accept_text(text_at(place, text));
  // The parser may leave calls before the grammar does. Where it is wrong, the grammar that holds is right. At the begin
  // another constraint follows one that was refused, and the sampler counts the work of both.
  if (is_allowed || place == ReplyPlace::behind_thoughts || place == ReplyPlace::begin)
    sampler.constrain(std::move(constraint));
  return is_allowed;
}

// The text that the last token has added behind the end of thoughts or of calls, some of which may be held back; nullopt: a
// call whose begin is gone.
std::optional<std::string> ReplyStream::undecided_text() const {
  if (!parser_->is_in_call()) return pieces_.content + parser_->undecided_content(detokenized_.held());
  const auto call = parser_->begun_call();
  return call ? std::optional(*call + detokenized_.held()) : std::nullopt;
}

// Thoughts are free. Behind them the reply follows the answer's grammar again, and so it does behind calls, which may have been
// made in thoughts.
void ReplyStream::constrain_answer(llm::Sampler& sampler) {
  const std::size_t thoughts_ended = std::exchange(thoughts_ended_, parser_->thoughts_ended(detokenized_.held()));
  const std::size_t calls_left = std::exchange(calls_left_, parser_->calls_left());
  if (is_thinking()) return sampler.constrain(nullptr);
  if (thoughts_ended_ == thoughts_ended && calls_left_ == calls_left) return;
  const ReplyPlace place = parser_->calls().empty()       ? ReplyPlace::behind_thoughts
                           : parser_->has_open_thoughts() ? ReplyPlace::behind_call_in_thoughts
                                                          : ReplyPlace::behind_calls;
  if (const auto text = undecided_text()) (void)constrain_at(place, *text, sampler);
}

// Moves the log probabilities of the newly decided content, whose text began at `begin`, to logprobs_.
void ReplyStream::take_logprobs(std::size_t begin) {
  logprobs_.clear();
  if (!wants_logprobs()) return;
  if (!parser_) {
    logprobs_waiting_.take(begin, text_bytes_, logprobs_);
  } else {
    for (const auto& place : pieces_.content_places) logprobs_waiting_.take(place.begin, place.end, logprobs_);
  }
  if (options_.stream) return;
  for (TokenLogprobs& logprobs : logprobs_) {
    logprobs_kept_bytes_ += chat::logprobs_bytes(logprobs);
    logprobs_kept_.push_back(std::move(logprobs));
  }
}

ReplyStream::End ReplyStream::finish(bool is_cut) {
  text_.clear();
  detokenized_.finish(text_);  // Empty after a stop string.
  const std::size_t begin = std::exchange(text_bytes_, text_bytes_ + text_.size());
  pieces_.clear();
  End end;
  if (parser_) {
    parser_->push(text_, pieces_);
    // Before a stop string there may be the begin of a mark.
    parser_->finish(pieces_, is_cut || !detokenized_.stop_string().empty());
    text_ = pieces_.content;
    end.has_tool_calls = !parser_->calls().empty();
    end.message_extra = parser_->message_extra();
    if (options_.stream) {
      end.parts = std::move(pieces_.before);
      end.parts.insert(end.parts.end(), pieces_.after.begin(), pieces_.after.end());
    } else {
      if (!parser_->reasoning().empty())
        end.parts.push_back({.kind = ReplyPart::Kind::reasoning, .text = parser_->reasoning()});
      end.parts.insert(end.parts.end(), parser_->calls().begin(), parser_->calls().end());
    }
  }
  take_logprobs(begin);
  if (keeps_content_) content_ += text_;
  end.stop_string = detokenized_.stop_string();
  end.text = options_.stream ? std::move(text_) : content_;
  end.content = std::move(content_);
  end.logprobs = std::move(options_.stream ? logprobs_ : logprobs_kept_);
  return end;
}

}  // namespace uma::chat
