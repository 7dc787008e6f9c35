// Control of a model's thoughts: the switches that its chat template has, and the budget of a reply. When the budget is used
// up, the mark that closes the thoughts is forced, and the model goes on with its answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/family.h"
#include "core/ids.h"
#include "core/request.h"

namespace uma::chat {

// Completes what a request says about thoughts. The arguments get the names and words that the template knows, and a reply
// without thoughts gets a budget of 0, for templates without a switch and models that think nevertheless. `family` may be null.
void settle_thinking(std::string_view chat_template, const Family* family, ChatOptions& options);

// The variables in which a template differs from the others' custom of writing the thoughts of earlier replies. With these
// values it writes them, so that a conversation grows without being computed again.
[[nodiscard]] std::vector<std::pair<std::string_view, bool>> history_variables(std::string_view chat_template);

struct ThinkingLimit {
  std::int32_t tokens_max = 0;  // Tokens of thoughts, without those of their marks.
  std::vector<Token> closing;   // The mark at the end of thoughts, and what comes before the answer or a call; not empty.
  std::vector<Token> answer{};  // Closing tokens up to the answer, if the model begins to think again; empty: as `closing`.
};

// Counts the tokens of a reply's thoughts, and chooses the tokens that close them.
class ThinkingBudget {
 public:
  explicit ThinkingBudget(ThinkingLimit limit) : limit_(std::move(limit)) {}

  // The next token of the reply, if the budget is used up: one of the closing tokens. `is_thinking`: the text so far ends in
  // thoughts.
  [[nodiscard]] std::optional<Token> next(bool is_thinking);
  // The model has ended the reply within its thoughts: they are closed instead. Returns the first closing token.
  [[nodiscard]] Token close();
  [[nodiscard]] bool is_closing() const { return is_closing_; }
  // A token was added to the reply. `was_thinking`: the text before it ended in thoughts.
  void push(Token token, bool was_thinking);

 private:
  [[nodiscard]] const std::vector<Token>& closing() const;

  const ThinkingLimit limit_;
  std::int32_t used_ = 0;
  bool is_closing_ = false;
  std::size_t forced_ = 0;      // The closing tokens that are in the reply.
  bool has_closed_ = false;     // Thoughts of this reply were closed before.
  bool waits_for_end_ = false;  // They were closed, but the text of the mark may still become a stop string.
};

}  // namespace uma::chat
