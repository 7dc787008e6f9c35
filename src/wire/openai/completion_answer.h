// Writes OpenAI's answers to chat/completions and completions: the choices of one request, as one object or as server-sent
// events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.h"
#include "json/json_writer.h"
#include "wire/openai/openai_codec.h"

namespace uma::wire {

// The fields that an answer repeats, and its format.
struct AnswerForm {
  CompletionKind kind = CompletionKind::chat;
  std::string id;              // The answer's id without its prefix.
  std::int64_t created_s = 0;  // Unix time.
  std::string model;
  std::size_t prompts = 1;
  std::size_t n = 1;  // Choices of each prompt.
  bool includes_usage = false;
  bool has_logprobs = false;
  // For each prompt the text that its choices begin with; empty: none. With log probabilities those of the prompt come first.
  std::vector<std::string> echoes{};
  std::vector<std::string> custom_tools{};  // See ChatOptions.
  bool is_compared = false;                 // The request names a reply to compare its prompt with.
};

// One object for all choices. Each choice is written by one thread at a time. The ends of all choices come from the same
// thread, except the end of a choice with an error.
class CompletionAnswer {
 public:
  explicit CompletionAnswer(AnswerForm form);

  // --- As server-sent events, each appended completely. For each choice: append_first, then texts and parts, then append_last.

  void append_first(std::string& out, std::size_t choice);  // Names the role, or echoes the prompt.
  void append_text(std::string& out, std::size_t choice, std::string_view text, std::span<const TokenLogprobs> logprobs);
  // Appends a piece of reasoning or of a tool call. A call of a custom tool is held until it is whole, since its input is one
  // JSON text among the arguments.
  void append_part(std::string& out, std::size_t choice, const ReplyPart& part);
  // Appends the rest of the choice, the finish reason and the receipt. The last choice also adds the usage, if requested, and
  // [DONE]. An error of the engine ends the stream at once with an error event.
  void append_last(std::string& out, std::size_t choice, const EosEvent& eos);

  // --- As one object.

  // Returns the answer when the last choice ends; before that an empty string.
  [[nodiscard]] std::string whole(std::size_t choice, const EosEvent& eos);

 private:
  struct Choice {
    std::int64_t characters = 0;             // Length of its text so far, for text_offset.
    std::optional<EosEvent> end{};           // End of the choice; if streamed, only the usage.
    std::optional<ReplyPart> custom_call{};  // A call of a custom tool that is not whole.
  };

  template <class WriteT>
  void append_chunk(std::string& out, std::size_t choice, const EosEvent* eos, std::span<const TokenLogprobs> logprobs,
                    WriteT&& write_delta);
  void append_custom_call(std::string& out, std::size_t choice);
  void write_reply(json::ObjectWriter& message, std::size_t choice) const;
  void write_choice(std::string& out, std::size_t index);
  // The further replies to a prompt are not compared.
  [[nodiscard]] bool is_compared(std::size_t choice) const { return form_.is_compared && choice % form_.n == 0; }
  void write_logprobs(std::string& out, Choice& choice, std::span<const TokenLogprobs> logprobs, bool is_first_unknown) const;
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
