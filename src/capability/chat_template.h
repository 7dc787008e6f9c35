// A model's own chat template, in Jinja as models carry it, read once and rendered for each conversation. The subset that
// models' templates use; what is not in it is refused by name and line. A template comes with a downloaded file, so nothing in
// it is trusted: steps, depth and bytes are bounded, and it sees nothing but what render() is given.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capability/jinja_value.h"
#include "core/error.h"

namespace uma::capability {

// What a template may ask for. Texts that are input say so (jinja::Text): they never become special tokens.
struct ChatTemplateInput {
  jinja::Value messages;                      // a list of dicts: role, content, and what else the template knows
  jinja::Value tools = jinja::Value::none();  // a list of dicts
  bool add_generation_prompt = true;
  std::string bos_token;  // empty: the model has none
  std::string eos_token;
  std::int64_t unix_s = 0;                     // the time of strftime_now()
  std::vector<jinja::Value::Entry> variables;  // the template's own switches, such as enable_thinking
};

// Immutable: any thread.
class ChatTemplate {
 public:
  // Errors: E_MODEL_003, with the line.
  [[nodiscard]] static Expected<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Ends within about 50 ms for whatever template, and 10 more for each 100 KB of input. Errors: E_MODEL_003, with the line.
  [[nodiscard]] Expected<jinja::Text> render(const ChatTemplateInput& input) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<const Tree> tree);

  std::unique_ptr<const Tree> tree_;
};

}  // namespace uma::capability
