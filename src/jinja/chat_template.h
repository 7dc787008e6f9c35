// A model's chat template, written in Jinja: parsed once and rendered for each conversation. This is the subset that models'
// templates use; other constructs are refused with name and line. Templates come from downloaded files and are not trusted:
// steps, depth and bytes are bounded, and a template has no access to anything but the arguments of render().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "jinja/value.h"

namespace uma::jinja {

// The values for a template. Texts of users are marked as input (Text), so that they never become special tokens.
struct ChatTemplateInput {
  Value messages;               // A list of dicts with role, content and other fields of the template.
  Value tools = Value::none();  // A list of dicts.
  bool add_generation_prompt = true;
  std::string bos_token;  // Empty: the model has none.
  std::string eos_token;
  std::int64_t unix_s = 0;               // The time of strftime_now().
  std::vector<Value::Entry> variables;   // The template's own options, such as enable_thinking.
  std::uint64_t steps_max = UINT64_MAX;  // Below the limit that the size of the input gives.
};

// Immutable: any thread.
class ChatTemplate {
 public:
  // Errors: E_MODEL_003, with the line.
  [[nodiscard]] static Expected<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Ends within about 50 ms for any template, plus 10 ms for each 100 KB of input. Errors: E_MODEL_003, with the line.
  [[nodiscard]] Expected<Text> render(const ChatTemplateInput& input) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<const Tree> tree);

  std::unique_ptr<const Tree> tree_;
};

}  // namespace uma::jinja
