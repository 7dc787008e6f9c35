// /v1/chat/completions and /v1/completions.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/text_conversion.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/openai/completion_answer.h"
#include "wire/openai/openai_codec.h"

namespace uma::server {
namespace {

// Writes one choice of an answer.
class ChoiceEncoder final : public AnswerEncoder {
 public:
  ChoiceEncoder(std::shared_ptr<wire::CompletionAnswer> answer, std::size_t choice)
      : answer_(std::move(answer)), choice_(choice) {}

  void append_first(std::string& out) override { answer_->append_first(out, choice_); }
  void append_text(std::string& out, const TokenEvent& token) override {
    answer_->append_text(out, choice_, token.text, token.logprobs);
  }
  void append_part(std::string& out, const ReplyPart& part) override { answer_->append_part(out, choice_, part); }
  void append_last(std::string& out, const EosEvent& eos) override { answer_->append_last(out, choice_, eos); }
  std::string whole(const EosEvent& eos) override { return answer_->whole(choice_, eos); }

 private:
  const std::shared_ptr<wire::CompletionAnswer> answer_;  // Shared, because the encoders of all choices end its life together.
  const std::size_t choice_;
};

handlers::Answer create(wire::CompletionKind kind, HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body,
                                            [kind](std::string_view body) { return wire::decode_completion(kind, body); });
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
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
  if (call->echoes) {
    for (const Input& prompt : call->prompts) {
      std::string& text = form.echoes.emplace_back(prompt.messages.empty() ? prompt.text : prompt.messages.back().content);
      if (prompt.tokens.empty()) continue;
      auto made = co_await connection.ask_until_gone<ConvertedText>([&](Promise<ConvertedText> reply) {
        connection.service().detokenize(connection.tenant(), {.model = call->generate.model, .tokens = prompt.tokens},
                                        std::move(reply));
      });
      if (!made || !*made) {
        co_return co_await connection.respond_with(std::move(made), request,
                                                   [](const ConvertedText&) { return std::string(); });
      }
      text = (*made)->text;
    }
  }
  const auto answer = std::make_shared<wire::CompletionAnswer>(std::move(form));
  std::vector<HttpGeneration> generations;
  for (Input& prompt : call->prompts) {
    HttpGeneration& generation = generations.emplace_back(call->generate);
    generation.request.input = std::move(prompt);
    const std::size_t first = (generations.size() - 1) * call->n;
    for (std::size_t i = 0; i < call->n; ++i) {
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
