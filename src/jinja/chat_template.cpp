#include "jinja/chat_template.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/utf8.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"

namespace uma::jinja {
namespace {

constexpr std::uint64_t kSteps = 300'000;
constexpr std::uint64_t kStepsPerMessage = 2'000;
constexpr std::uint64_t kBytes = 4u << 20;
constexpr std::uint64_t kBytesPerInputByte = 32;

std::unexpected<Error> template_error(const TemplateError& error) {
  return fail(ErrorCode::model_capability, std::format("chat template, line {}: {}", error.line, error.message));
}

// Bytes of the texts in a value.
std::uint64_t bytes_in(const Value& value) {
  std::uint64_t bytes = 0;
  if (const Text* text = value.as_text()) bytes += text->size();
  if (const List* list = value.as_list()) {
    for (const Value& item : list->items) bytes += bytes_in(item);
  }
  if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->entries) bytes += key->size() + bytes_in(item);
  }
  return bytes;
}

}  // namespace

struct ChatTemplate::Tree {
  Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Tree> tree) : tree_(std::move(tree)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Expected<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  if (!is_utf8(source)) return template_error({"not UTF-8", 1});
  try {
    return ChatTemplate(std::make_unique<const Tree>(Tree{jinja::parse(source)}));
  } catch (const TemplateError& error) {
    return template_error(error);
  }
}

Expected<Text> ChatTemplate::render(const ChatTemplateInput& input) const {
  std::uint64_t bytes = bytes_in(input.messages) + bytes_in(input.tools);
  for (const auto& [name, value] : input.variables) bytes += bytes_in(value);
  const std::uint64_t messages = input.messages.as_list() == nullptr ? 0 : input.messages.as_list()->items.size();
  const std::uint64_t steps = kSteps + kStepsPerMessage * messages + bytes / 2;
  Budget budget(std::min(steps, input.steps_max), kBytes + kBytesPerInputByte * bytes);
  Environment environment{.variables = input.variables, .unix_s = input.unix_s};
  environment.variables.emplace_back("messages", input.messages);
  // Like in transformers, missing values are none.
  environment.variables.emplace_back("tools", input.tools);
  const auto is_documents = [](const auto& variable) { return variable.first == "documents"; };
  if (std::ranges::none_of(input.variables, is_documents)) environment.variables.emplace_back("documents", Value::none());
  environment.variables.emplace_back("add_generation_prompt", Value::boolean(input.add_generation_prompt));
  environment.variables.emplace_back("bos_token", Value::text(input.bos_token));
  environment.variables.emplace_back("eos_token", Value::text(input.eos_token));
  try {
    return jinja::run(tree_->body, environment, budget);
  } catch (const TemplateError& error) {
    return template_error(error);
  }
}

}  // namespace uma::jinja
