// /v1/messages, also in threads, and /v1/messages/count_tokens: Anthropic's Messages API.
#include <algorithm>
#include <cstdint>
#include <expected>
#include <format>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/capability.h"
#include "core/limits.h"
#include "core/request.h"
#include "server/http/handlers/stored_replies.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "wire/anthropic/message_threads.h"
#include "wire/anthropic/messages_decoder.h"
#include "wire/anthropic/messages_encoder.h"
#include "wire/openai/response_ids.h"

namespace uma::server {
namespace {

class MessageWriter final : public AnswerEncoder {
 public:
  // `response`: ResponseRequest::id of a message in a thread; empty: it is in none.
  MessageWriter(wire::MessageFacts facts, std::string response) : encoder_(std::move(facts)), response_(std::move(response)) {}

  void set_place(const ResponseBegunEvent& place) override {
    session_ = place.session.value;
    encoder_.set_place(wire::message_id_text({session_, response_}), place.model);
  }
  void set_prompt(const PromptReadyEvent& prompt) override { encoder_.set_prompt(prompt); }
  void append_first(std::string& out) override { encoder_.append_first(out); }
  void append_text(std::string& out, const TokenEvent& token) override { encoder_.append_text(out, token.text); }
  void append_part(std::string& out, const ReplyPart& part) override { encoder_.append_part(out, part); }
  void append_last(std::string& out, const EosEvent& eos) override {
    if (eos.error) return wire::append_message_error(out, *eos.error, http_status(eos.error->code));
    encoder_.append_last(out, eos);
  }
  std::string whole(const EosEvent& eos) override { return encoder_.json(eos); }
  void append_keep_alive(std::string& out) override { encoder_.append_ping(out); }
  [[nodiscard]] std::string session() const override { return session_; }

 private:
  wire::MessageEncoder encoder_;
  const std::string response_;
  std::string session_;  // Empty: none, or not known yet.
};

// The longest reply to the request: its own limit, or the daemon's if that is smaller; nullopt: neither has one.
std::optional<std::int32_t> reply_tokens_max(const GenerateOptions& options, const Limits& limits) {
  if (limits.max_tokens == 0) return options.max_tokens;
  return std::min(options.max_tokens.value_or(limits.max_tokens), limits.max_tokens);
}

// Chooses the model of the request, unless it is that of its thread, and tells the client what was left out of it.
void prepare_message(HttpConnection& connection, wire::MessagesCall& call) {
  std::string& model = call.generate.model;
  if (call.generate.session.empty() || !model.empty()) model = connection.choose_model(model, Capability::chat);
  connection.warn(call.warnings);
}

bool has_threads_beta(const HttpRequest& request) {
  const auto [first, last] = request.head.equal_range("anthropic-beta");
  return std::any_of(first, last, [](const auto& field) { return lists_value(field.value(), wire::kThreadsBeta); });
}

using DecodedMessage = std::expected<wire::MessagesCall, wire::RejectedBody>;

// Reads a request with `thread`, and what the server holds of that thread. Nullopt: the client is gone.
Awaitable<std::optional<DecodedMessage>> decode_in_thread(HttpConnection& connection, KeptBodyPtr body,
                                                          wire::ThreadField thread, std::string id) {
  if (!thread.previous) {
    co_return co_await connection.read_body(std::move(body), [id = std::move(id)](std::string_view text) {
      return wire::decode_thread_message(text, id, nullptr);
    });
  }
  connection.note_session(thread.previous->session);
  auto detail = co_await ask_for_response(connection, *thread.previous);
  if (!detail) co_return std::nullopt;
  const auto unknown = [] {
    return std::unexpected(wire::RejectedBody{{ErrorCode::session_unknown,
                                               "no such message in a thread: it never existed or was deleted: send the whole "
                                               "conversation with {\"type\": \"create\"}"},
                                              std::string(wire::kPreviousMessageField)});
  };
  if (!*detail && detail->error().code != ErrorCode::session_unknown)
    co_return std::unexpected(wire::RejectedBody{detail->error(), detail->error().field});
  if (!*detail) co_return unknown();
  const std::size_t bytes = (*detail)->session.bytes();
  const auto share = connection.hold(2 * bytes);
  if (!share) co_return std::unexpected(wire::RejectedBody{share.error(), share.error().field});
  auto held = co_await connection.run_apart(
      bytes, [detail = std::move(**detail), share = *share] { return wire::held_thread(detail); });
  if (!held) co_return unknown();
  co_return co_await connection.read_body(std::move(body),
                                          [id = std::move(id), held = std::move(*held), share = *share](std::string_view text) {
                                            return wire::decode_thread_message(text, id, &held);
                                          });
}

}  // namespace

handlers::Answer handlers::create_message(HttpConnection& connection, const HttpRequest& request) {
  const auto thread = co_await connection.read_body(request.body, wire::decode_thread);
  if (!thread) co_return co_await connection.respond_rejected(thread.error(), request);
  std::string id = random_name();
  DecodedMessage call;
  if (!*thread) {
    call = co_await connection.read_body(request.body, wire::decode_messages);
  } else if (!has_threads_beta(request)) {
    const Error error{ErrorCode::proto_field,
                      std::format("field \"thread\" needs the header anthropic-beta: {}", wire::kThreadsBeta)};
    co_return co_await connection.respond_error(400, error, request.keep_alive, wire::kThreadField);
  } else {
    auto decoded = co_await decode_in_thread(connection, connection.keep_body(), **thread, id);
    if (!decoded) co_return false;
    call = std::move(*decoded);
  }
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  const bool is_in_thread = call->generate.response.has_value();
  if (is_in_thread) call->generate.response->ttl_s = kReplySessionTtlSeconds;
  if (!call->generate.session.empty()) keep_model_of_session(connection, call->generate.model);
  prepare_message(connection, *call);
  const GenerateOptions& options = call->generate.options;
  wire::MessageFacts facts{.id = "msg_" + id,
                           .model = call->generate.model,
                           .stop_sequences = options.stop,
                           .tokens_max = reply_tokens_max(options, connection.server().options.limits),
                           .comparison = call->generate.comparison};
  call->generate.comparison.id = id;
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(call->generate))
      .encoders.push_back(std::make_unique<MessageWriter>(std::move(facts), is_in_thread ? std::move(id) : ""));
  co_return co_await connection.generate(std::move(generations), request, wire::kPreviousMessageField);
}

handlers::Answer handlers::count_message_tokens(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_messages);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  prepare_message(connection, *call);
  co_return co_await connection.count_tokens(std::move(call->generate), request, wire::token_count_json);
}

}  // namespace uma::server
