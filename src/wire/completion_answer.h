// OpenAI's answers to chat/completions and completions: the choices of one request, as one object or as server-sent events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.h"
#include "wire/openai_codec.h"

namespace uma::wire {

// What an answer repeats, and how it is told.
struct AnswerForm {
  CompletionKind kind = CompletionKind::chat;
  std::string id;              // the answer's own, without its prefix
  std::int64_t created_s = 0;  // Unix time
  std::string model;
  std::size_t prompts = 1;
  std::size_t n = 1;  // choices of each prompt
  bool includes_usage = false;
  bool has_logprobs = false;
  std::vector<std::string> echoes{};  // for each prompt what its texts begin with; empty: nothing
};

// One for all choices. What is told of one choice is told by one thread at a time; the ends of all, but for one with an error,
// by the same thread.
class CompletionAnswer {
 public:
  explicit CompletionAnswer(AnswerForm form);

  // --- As a stream: server-sent events, each appended whole. Of a choice: its first one, texts and parts, its last one.

  void append_first(std::string& out, std::size_t choice);  // names the role, or echoes the prompt
  void append_text(std::string& out, std::size_t choice, std::string_view text, std::span<const TokenLogprobs> logprobs);
  // A piece of what the model thinks, or of a call.
  void append_part(std::string& out, std::size_t choice, const ReplyPart& part);
  // The rest of the choice, the reason, the receipt. With the last choice also the usage, where it is wanted, and [DONE]. An
  // error of the engine ends the stream at once, as an event.
  void append_last(std::string& out, std::size_t choice, const EosEvent& eos);

  // --- As one object.

  // The answer, with the last choice that ends; until then nothing.
  [[nodiscard]] std::string whole(std::size_t choice, const EosEvent& eos);

 private:
  struct Choice {
    std::int64_t characters = 0;    // of its text so far, for text_offset
    std::optional<EosEvent> end{};  // streamed: its usage alone
  };

  template <class WriteT>
  void append_chunk(std::string& out, std::size_t choice, const EosEvent* eos, std::span<const TokenLogprobs> logprobs,
                    WriteT&& write_delta);
  void write_choice(std::string& out, std::size_t index);
  void write_logprobs(std::string& out, Choice& choice, std::span<const TokenLogprobs> logprobs) const;
  [[nodiscard]] std::string_view echo(std::size_t choice) const;
  [[nodiscard]] bool end(std::size_t choice, EosEvent eos);
  [[nodiscard]] Usage usage() const;

  const AnswerForm form_;
  std::string whole_head_;
  std::string chunk_head_;
  std::vector<Choice> choices_;
  std::size_t ended_ = 0;
};

}  // namespace uma::wire
