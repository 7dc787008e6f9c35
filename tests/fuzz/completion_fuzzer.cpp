// Property: decode_completion and decode_messages never crash; accepted requests satisfy core/request.h, and every refusal has
// an answer that can be sent. The first byte chooses the form: a chat, a text, or Anthropic's messages.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "json/field_reader.h"
#include "wire/anthropic/messages_decoder.h"
#include "wire/anthropic/messages_encoder.h"
#include "wire/openai/openai_codec.h"
#include "wire/own/request_codec.h"
#include "wire_checks.h"

namespace {

using namespace uma;
using namespace uma::fuzz;

void check(wire::CompletionKind kind, const GenerateRequest& request) {
  const GenerateOptions& options = request.options;
  check_text(request.model);
  check_text(request.input.text);
  UMA_CHECK(request.session.empty() && !request.regenerate);
  UMA_CHECK((kind == wire::CompletionKind::text ? request.input.messages.empty() : request.input.text.empty()));
  const bool has_text = !request.input.text.empty() || request.input.infill;
  UMA_CHECK(has_text + !request.input.tokens.empty() + !request.input.messages.empty() == 1);
  if (request.input.infill) check_text(request.input.infill->suffix);
  for (const Token token : request.input.tokens) UMA_CHECK(kind == wire::CompletionKind::text && token >= 0);
  UMA_CHECK(options.logprobs.value_or(0) >= 0 && options.logprobs.value_or(0) <= wire::kTopLogprobsMax);
  check_messages(request.input.messages);
  check_sampling(options.sampling);
  UMA_CHECK(options.max_tokens.value_or(0) >= 0);
  UMA_CHECK(options.stop.size() <= wire::kStopStringsMax);
  for (const std::string& stop : options.stop) {
    check_text(stop);
    UMA_CHECK(!stop.empty() && stop.size() <= wire::kStopBytesMax);
  }
  UMA_CHECK(options.deadline_ms.value_or(0) >= 0 && options.timeout_ms >= 0);
}

void check_anthropic(std::string_view body) {
  const auto call = wire::decode_messages(body);
  if (!call) return check_object(wire::message_error_json(call.error().error, 400, call.error().field, "1"));
  const GenerateRequest& request = call->generate;
  check(wire::CompletionKind::chat, request);
  UMA_CHECK(call->warnings.size() <= 3);
  const ChatOptions& chat = request.options.chat;
  UMA_CHECK(chat.tools.empty() == chat.tool_names.empty());
  UMA_CHECK(chat.tool_choice == ToolChoice::automatic || !chat.tools.empty());
  if (!chat.tools.empty()) {
    check_text(chat.tools);
    boost::system::error_code problem;
    UMA_CHECK(json::parse(chat.tools, {}, problem).is_array() && !problem);
  }
  if (!chat.template_arguments.empty()) check_object(chat.template_arguments);
  UMA_CHECK(chat.thinking_budget.value_or(0) >= -1);
  const std::vector<ChatMessage>& messages = request.input.messages;
  for (std::size_t i = 0; i < messages.size(); ++i) UMA_CHECK(messages[i].role != "system" || i == 0);
  check_images(request.input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 2) {
    check_anthropic(body);
    return 0;
  }
  const auto kind = data[0] % 2 == 0 ? wire::CompletionKind::chat : wire::CompletionKind::text;
  auto request = wire::decode_completion(kind, body);
  if (is_accepted(request)) {
    UMA_CHECK(request->n >= 1 && request->n * request->prompts.size() <= wire::kAnswerChoicesMax);
    for (Input& prompt : request->prompts) {
      GenerateRequest generate = request->generate;
      generate.input = std::move(prompt);
      check(kind, generate);
    }
  }
  return 0;
}
