#include "engine/router/apply_defaults.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "core/sampling_fields.h"
#include "json/field_reader.h"

namespace uma::engine {
namespace {

void apply_sampling(const ModelDefaults& defaults, SamplingParams& sampling) {
  for (const SamplingFieldInfo& info : sampling_fields()) {
    const auto& value = defaults.sampling[info.field];
    if (value && !is_given(sampling, info.field)) set_value(sampling, info.field, *value);
  }
  if (!sampling.dry_sequence_breakers) sampling.dry_sequence_breakers = defaults.dry_sequence_breakers;
}

// The arguments of a chat template; nullopt: they are no object.
std::optional<boost::json::object> arguments_of(const ChatOptions& chat) {
  if (chat.template_arguments.empty()) return boost::json::object();
  boost::system::error_code problem;
  const boost::json::value given = json::parse(chat.template_arguments, {}, problem);
  if (problem || !given.is_object()) return std::nullopt;
  return given.get_object();
}

void apply_template(const std::string& name, ChatOptions& chat) {
  if (name.empty()) return;
  auto arguments = arguments_of(chat);
  if (!arguments || !arguments->emplace("chat_template", name).second) return;
  chat.template_arguments = boost::json::serialize(*arguments);
}

// A request that says whether or how hard to think decides it alone. A budget limits its thoughts, unless it is 0: that would
// refuse them.
void apply_thinking(const ModelDefaults& defaults, ChatOptions& chat) {
  if (!defaults.thinking && defaults.reasoning_effort.empty() && !defaults.thinking_budget) return;
  const auto given = arguments_of(chat);
  if (!given) return;
  boost::json::object arguments = *given;
  bool decides = chat.thinking_budget == 0;
  for (const std::string_view name : {"enable_thinking", "thinking", "reasoning_effort"})
    decides = decides || arguments.contains(name);
  if (!chat.thinking_budget && !(decides && defaults.thinking_budget == 0)) chat.thinking_budget = defaults.thinking_budget;
  if (decides || (!defaults.thinking && defaults.reasoning_effort.empty())) return;
  if (defaults.thinking) arguments["enable_thinking"] = *defaults.thinking;
  if (!defaults.reasoning_effort.empty()) arguments["reasoning_effort"] = defaults.reasoning_effort;
  chat.template_arguments = boost::json::serialize(arguments);
}

bool begins_conversation(const GenerateRequest& request) {
  if (!request.session.empty() || request.input.messages.empty()) return false;
  return !request.response || (request.response->previous.empty() && !request.response->instructions);
}

void apply_system(const std::string& system, GenerateRequest& request) {
  Input& input = request.input;
  if (system.empty() || !begins_conversation(request) || std::ranges::contains(input.messages, "system", &ChatMessage::role))
    return;
  input.messages.insert(input.messages.begin(), {.role = "system", .content = system});
  for (InputImage& image : input.images) ++image.message;
}

}  // namespace

void apply_defaults(const ModelDefaults& defaults, GenerateRequest& request) {
  apply_sampling(defaults, request.options.sampling);
  apply_system(defaults.system, request);
  if (!request.input.messages.empty() || !request.session.empty()) {
    apply_template(defaults.chat_template, request.options.chat);
    apply_thinking(defaults, request.options.chat);
  }
  if (!request.options.deadline_ms) request.options.deadline_ms = defaults.deadline_ms;
}

}  // namespace uma::engine
