// /v1/chat/completions and /v1/completions.
#include <atomic>
#include <cstddef>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/text_conversion.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/openai/completion_answer.h"
#include "wire/openai/openai_codec.h"

namespace uma::server {
namespace {

// The answer of all choices. Each is written by one thread at a time, and an end may be written apart from the others.
struct SharedAnswer {
  SharedAnswer(wire::AnswerForm form, std::size_t echoed_bytes) : answer(std::move(form)), bytes(echoed_bytes) {}

  Mutex mutex;
  wire::CompletionAnswer answer GUARDED_BY(mutex);
  std::atomic<std::size_t> bytes;  // Echoes, and choices that have ended: the last one writes them all.
};

// Writes one choice of an answer.
class ChoiceEncoder final : public AnswerEncoder {
 public:
  ChoiceEncoder(std::shared_ptr<SharedAnswer> shared, std::size_t choice) : shared_(std::move(shared)), choice_(choice) {}

  void append_first(std::string& out) override {
    const MutexLock lock(shared_->mutex);
    shared_->answer.append_first(out, choice_);
  }
  void append_text(std::string& out, const TokenEvent& token) override {
    const MutexLock lock(shared_->mutex);
    shared_->answer.append_text(out, choice_, token.text, token.logprobs);
  }
  void append_part(std::string& out, const ReplyPart& part) override {
    const MutexLock lock(shared_->mutex);
    shared_->answer.append_part(out, choice_, part);
  }
  void append_last(std::string& out, const EosEvent& eos) override {
    const MutexLock lock(shared_->mutex);
    shared_->answer.append_last(out, choice_, eos);
  }
  std::string whole(const EosEvent& eos) override {
    const MutexLock lock(shared_->mutex);
    return shared_->answer.whole(choice_, eos);
  }
  std::size_t end_bytes(const EosEvent& eos) override {
    const std::size_t bytes = answer_bytes(eos);
    return shared_->bytes.fetch_add(bytes) + bytes;
  }

 private:
  const std::shared_ptr<SharedAnswer> shared_;  // Shared, because the encoders of all choices end its life together.
  const std::size_t choice_;
};

// A decoded request, and the texts that its choices begin with.
struct EchoedCall {
  wire::CompletionRequest call;
  std::vector<std::string> echoes{};  // One for each prompt; empty: none.
};

std::expected<EchoedCall, wire::RejectedBody> decode_with_echoes(wire::CompletionKind kind, std::string_view body) {
  auto call = wire::decode_completion(kind, body);
  if (!call) return std::unexpected(std::move(call.error()));
  EchoedCall made{.call = *std::move(call)};
  if (!made.call.echoes) return made;
  for (const Input& prompt : made.call.prompts) {
    made.echoes.push_back(prompt.messages.empty() ? prompt.text : prompt.messages.back().content);
  }
  return made;
}

// A request for each prompt.
std::vector<GenerateRequest> requests_of(wire::CompletionRequest call) {
  std::vector<GenerateRequest> requests;
  for (Input& prompt : call.prompts) {
    const bool is_last = &prompt == &call.prompts.back();
    GenerateRequest& request = requests.emplace_back(is_last ? std::move(call.generate) : call.generate);
    request.input = std::move(prompt);
  }
  return requests;
}

handlers::Answer create(wire::CompletionKind kind, HttpConnection& connection, const HttpRequest& request) {
  auto decoded =
      co_await connection.read_body(request.body, [kind](std::string_view body) { return decode_with_echoes(kind, body); });
  if (!decoded) co_return co_await connection.respond_rejected(decoded.error(), request);
  wire::CompletionRequest* const call = &decoded->call;
  connection.warn(call->warnings);
  call->generate.model = connection.choose_model(call->generate.model, Capability::chat);
  wire::AnswerForm form{.kind = kind,
                        .id = random_name(),
                        .created_s = unix_time_s(),
                        .model = call->generate.model,
                        .prompts = call->prompts.size(),
                        .n = call->n,
                        .includes_usage = call->includes_usage,
                        .has_logprobs = call->generate.options.logprobs.has_value(),
                        .custom_tools = call->generate.options.chat.custom_tools,
                        .is_compared = !call->generate.comparison.with.empty()};
  call->generate.comparison.id = form.id;
  std::size_t echoed_bytes = 0;
  if (call->echoes) {
    form.echoes = std::move(decoded->echoes);
    for (std::size_t i = 0; i < call->prompts.size(); ++i) {
      const Input& prompt = call->prompts[i];
      std::string& text = form.echoes[i];
      echoed_bytes += text.size() * call->n;
      if (prompt.tokens.empty()) continue;
      auto made = co_await connection.ask_until_gone<ConvertedText>([&](Promise<ConvertedText> reply) {
        connection.service().detokenize(connection.tenant(), {.model = call->generate.model, .tokens = prompt.tokens},
                                        std::move(reply));
      });
      if (!made || !*made) {
        co_return co_await connection.respond_with(std::move(made), request,
                                                   [](const ConvertedText&) { return std::string(); });
      }
      text = std::move((*made)->text);
      echoed_bytes += text.size() * call->n;
    }
  }
  const auto answer = std::make_shared<SharedAnswer>(std::move(form), echoed_bytes);
  const std::size_t n = call->n;
  // Each prompt but the last one has a copy of the options, until the service has them.
  const std::size_t bytes = memory_of(call->generate) * (call->prompts.size() - 1);
  auto held = connection.hold(bytes);
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  auto requests = co_await connection.run_apart(
      bytes, [call = std::move(*call), share = *held]() mutable { return requests_of(std::move(call)); });
  (*held)->give_back();
  std::vector<HttpGeneration> generations;
  for (GenerateRequest& each : requests) {
    HttpGeneration& generation = generations.emplace_back(std::move(each));
    const std::size_t first = (generations.size() - 1) * n;
    for (std::size_t i = 0; i < n; ++i) {
      generation.encoders.push_back(std::make_unique<ChoiceEncoder>(answer, first + i));
    }
  }
  co_return co_await connection.generate(std::move(generations), request);
}

}  // namespace

handlers::Answer handlers::create_chat_completion(HttpConnection& connection, const HttpRequest& request) {
  return create(wire::CompletionKind::chat, connection, request);
}

handlers::Answer handlers::create_completion(HttpConnection& connection, const HttpRequest& request) {
  return create(wire::CompletionKind::text, connection, request);
}

}  // namespace uma::server
