// Property: decode_completion never crashes; accepted requests satisfy core/request.h, and every refusal has an answer that can
// be sent. The first byte chooses the form.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "wire/openai_codec.h"
#include "wire/request_codec.h"
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
  UMA_CHECK(!request.input.empty() &&
            request.input.text.empty() + request.input.tokens.empty() + request.input.messages.empty() == 2);
  for (const Token token : request.input.tokens) UMA_CHECK(kind == wire::CompletionKind::text && token >= 0);
  UMA_CHECK(options.logprobs.value_or(0) >= 0 && options.logprobs.value_or(0) <= wire::kTopLogprobsMax);
  for (const ChatMessage& message : request.input.messages) check_text(message.content);
  UMA_CHECK(options.sampling.temperature >= 0 && options.sampling.temperature <= wire::kTemperatureMax);
  UMA_CHECK(options.sampling.top_p > 0 && options.sampling.top_p <= 1);
  UMA_CHECK(options.max_tokens.value_or(1) >= 1);
  UMA_CHECK(options.stop.size() <= wire::kStopStringsMax);
  for (const std::string& stop : options.stop) {
    check_text(stop);
    UMA_CHECK(!stop.empty() && stop.size() <= wire::kStopBytesMax);
  }
  UMA_CHECK(options.deadline_ms.value_or(0) >= 0 && options.timeout_ms >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto kind = data[0] % 2 == 0 ? wire::CompletionKind::chat : wire::CompletionKind::text;
  auto request = wire::decode_completion(kind, {reinterpret_cast<const char*>(data) + 1, size - 1});
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
