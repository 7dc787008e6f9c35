// A client that records all events, and that can be slow or broken. Checks that no event follows the end.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "core/event.h"

namespace uma::testing {

class RecordingSink : public EventSink {
 public:
  bool deliver(const Event& event) override {
    UMA_CHECK(!terminal);
    if (is_terminal(event)) {
      terminal = event;
      return true;
    }
    return is_fast && std::visit([this](const auto& content) { return this->take(content); }, event);
  }

  [[nodiscard]] bool has_eos() const { return terminal && std::holds_alternative<EosEvent>(*terminal); }
  [[nodiscard]] bool has_failed() const { return terminal && std::holds_alternative<FailureEvent>(*terminal); }
  // These throw if the stream ended otherwise.
  [[nodiscard]] const EosEvent& eos() const { return std::get<EosEvent>(terminal.value()); }
  [[nodiscard]] const Error& error() const { return std::get<FailureEvent>(terminal.value()).error; }

  struct Shift : ContextShiftEvent {
    std::size_t after = 0;  // Number of tokens before.
  };

  // Settings of tests.
  bool is_fast = true;                 // False: only the end is accepted.
  std::size_t tokens_max = 1'000'000;  // Number of accepted tokens.
  bool takes_shifts = true;
  std::optional<std::size_t> throws_after;  // Number of tokens before it throws.
  bool throws_at_progress = false;

  // Recorded events.
  std::vector<Token> tokens;
  std::string text;  // The text of the tokens.
  std::vector<TokenLogprobs> logprobs;
  std::string reasoning;
  std::vector<ReplyPart> calls;  // Whole calls; the pieces of each are joined.
  std::vector<ProgressStage> stages;
  std::vector<Shift> shifts;
  std::optional<ResponseBegunEvent> begun;
  std::optional<std::int32_t> prompt_tokens;
  std::optional<Event> terminal;

 private:
  bool take(const TokenEvent& token) {
    if (tokens.size() == tokens_max) return false;
    if (tokens.size() == throws_after) throw std::runtime_error("its connection is broken");
    tokens.push_back(token.token);
    text += token.text;
    logprobs.insert(logprobs.end(), token.logprobs.begin(), token.logprobs.end());
    return true;
  }
  bool take(const ReplyPart& part) {
    if (part.kind == ReplyPart::Kind::reasoning) {
      reasoning += part.text;
    } else if (!part.id.empty()) {
      calls.push_back(part);
    } else {
      calls.back().text += part.text;
    }
    return true;
  }
  bool take(const ProgressEvent& progress) {
    if (throws_at_progress) throw std::runtime_error("its connection is broken");
    stages.push_back(progress.stage);
    return true;
  }
  bool take(const ContextShiftEvent& shift) {
    if (takes_shifts) shifts.push_back({shift, tokens.size()});
    return takes_shifts;
  }
  bool take(const PromptReadyEvent& ready) {
    UMA_CHECK(!prompt_tokens);  // It is reported once.
    prompt_tokens = ready.prompt_tokens;
    return true;
  }
  bool take(const ResponseBegunEvent& place) {
    UMA_CHECK(!begun && tokens.empty());  // The queue position is reported once, before the first token.
    begun = place;
    return true;
  }
  static bool take(const auto&) { return true; }
};

}  // namespace uma::testing
