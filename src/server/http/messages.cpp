// /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/capability.h"
#include "core/limits.h"
#include "core/request.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "wire/messages_decoder.h"
#include "wire/messages_encoder.h"

namespace uma::server {
namespace {

class MessageWriter final : public AnswerEncoder {
 public:
  explicit MessageWriter(wire::MessageFacts facts) : encoder_(std::move(facts)) {}

  void set_prompt(const PromptReadyEvent& prompt) override { encoder_.set_prompt_tokens(prompt.prompt_tokens); }
  void append_first(std::string& out) override { encoder_.append_first(out); }
  void append_text(std::string& out, const TokenEvent& token) override { encoder_.append_text(out, token.text); }
  void append_part(std::string& out, const ReplyPart& part) override { encoder_.append_part(out, part); }
  void append_last(std::string& out, const EosEvent& eos) override {
    if (eos.error) return wire::append_message_error(out, *eos.error, http_status(eos.error->code));
    encoder_.append_last(out, eos);
  }
  std::string whole(const EosEvent& eos) override { return encoder_.json(eos); }
  void append_keep_alive(std::string& out) override { encoder_.append_ping(out); }

 private:
  wire::MessageEncoder encoder_;
};

// The longest reply to the request: its own limit, or the daemon's if that is smaller; nullopt: neither has one.
std::optional<std::int32_t> reply_tokens_max(const GenerateOptions& options, const Limits& limits) {
  if (limits.max_tokens == 0) return options.max_tokens;
  return std::min(options.max_tokens.value_or(limits.max_tokens), limits.max_tokens);
}

// Chooses the model of the request, and tells the client what was left out of it.
void prepare_message(HttpConnection& connection, wire::MessagesCall& call) {
  call.generate.model = connection.choose_model(call.generate.model, Capability::chat);
  connection.warn(call.warnings);
}

}  // namespace

handlers::Answer handlers::create_message(HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_messages(request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  prepare_message(connection, *call);
  const GenerateOptions& options = call->generate.options;
  wire::MessageFacts facts{.id = random_name(),
                           .model = call->generate.model,
                           .stop_sequences = options.stop,
                           .tokens_max = reply_tokens_max(options, connection.server().options.limits)};
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(call->generate)).encoders.push_back(std::make_unique<MessageWriter>(std::move(facts)));
  co_return co_await connection.generate(std::move(generations), request);
}

handlers::Answer handlers::count_message_tokens(HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_messages(request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  prepare_message(connection, *call);
  co_return co_await connection.count_tokens(std::move(call->generate), request, wire::token_count_json);
}

}  // namespace uma::server
