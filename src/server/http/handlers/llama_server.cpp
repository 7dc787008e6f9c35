// llama-server's paths that other APIs do not have (docs/protocol/llama-server.md).
#include <algorithm>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/capability.h"
#include "core/text_conversion.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "server/http/routes.h"
#include "wire/llama_server/llama_server_decoder.h"
#include "wire/llama_server/llama_server_encoder.h"
#include "wire/openai/openai_codec.h"
#include "wire/query.h"

namespace uma::server {
namespace {

using handlers::Answer;

class TextWriter final : public AnswerEncoder {
 public:
  explicit TextWriter(wire::TextAnswer answer) : answer_(std::move(answer)) {}

  void append_first(std::string& out) override { out += ": the prompt is ready\n\n"; }
  void append_text(std::string& out, const TokenEvent& token) override { answer_.append_text(out, token.text); }
  void append_last(std::string& out, const EosEvent& eos) override { answer_.append_last(out, eos); }
  std::string whole(const EosEvent& eos) override { return answer_.whole(eos); }

 private:
  wire::TextAnswer answer_;
};

constexpr std::size_t kTokenBytes = 8;  // Size of a token in JSON.

std::size_t json_bytes(const TokenizedText& made) {
  return made.tokens.size() * kTokenBytes;
}

std::size_t json_bytes(const ConvertedText& made) {
  return made.text.size();
}

std::string text_of(const ConvertedText& converted) {
  return wire::text_json("content", converted.text);
}

std::string prompt_of(const ConvertedText& converted) {
  return wire::text_json("prompt", converted.text);
}

Answer write_text(std::expected<wire::TextCall, wire::RejectedBody> call, HttpConnection& connection,
                  const HttpRequest& request) {
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  call->generate.model = connection.choose_model(call->generate.model, Capability::chat);
  connection.warn(call->warnings);
  wire::TextAnswer answer(call->generate.model);
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(call->generate)).encoders.push_back(std::make_unique<TextWriter>(std::move(answer)));
  co_return co_await connection.generate(std::move(generations), request);
}

}  // namespace

Answer handlers::tokenize(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, wire::decode_tokenize);
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  asked->model = connection.choose_model(asked->model, Capability::chat);
  auto made = co_await connection.ask_until_gone<TokenizedText>([&](Promise<TokenizedText> reply) {
    connection.service().tokenize(connection.tenant(), std::move(*asked), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, wire::tokens_json, json_bytes);
}

Answer handlers::detokenize(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, wire::decode_detokenize);
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  asked->model = connection.choose_model(asked->model, Capability::chat);
  auto made = co_await connection.ask_until_gone<ConvertedText>([&](Promise<ConvertedText> reply) {
    connection.service().detokenize(connection.tenant(), std::move(*asked), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, text_of, json_bytes);
}

Answer handlers::apply_template(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(
      request.body, [](std::string_view body) { return wire::decode_completion(wire::CompletionKind::chat, body); });
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  GenerateRequest& generate = call->generate;
  generate.input = std::move(call->prompts.front());
  if (!generate.input.images.empty()) {
    const Error error{ErrorCode::proto_field,
                      "field \"messages\" has an image, but the prompt as a text has none: leave the images out"};
    co_return co_await connection.respond_error(400, error, request.keep_alive, "messages");
  }
  generate.model = connection.choose_model(generate.model, Capability::chat);
  auto made = co_await connection.ask_until_gone<ConvertedText>([&](Promise<ConvertedText> reply) {
    connection.service().format_chat(connection.tenant(), std::move(generate), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, prompt_of, json_bytes);
}

Answer handlers::create_infill(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_infill);
  co_return co_await write_text(std::move(call), connection, request);
}

Answer handlers::complete_text(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_plain_completion);
  co_return co_await write_text(std::move(call), connection, request);
}

// Loads no model: clients ask from time to time, also while they do nothing.
Answer handlers::get_props(HttpConnection& connection, const HttpRequest& request) {
  const std::string name = connection.choose_model(wire::query_value(request.query, "model"), Capability::chat);
  const std::vector<ModelInfo> models = wire::with_adapters(connection.service().models());
  const auto model = std::ranges::find(models, name, &ModelInfo::name);
  if (model == models.end()) {
    const Error error{ErrorCode::model_unknown, "no such model: /v1/models lists the models"};
    co_return co_await connection.respond_error(404, error, request.keep_alive);
  }
  co_return co_await connection.respond(200, kJson, wire::props_json(*model, connection.server().options.version),
                                        request.keep_alive);
}

}  // namespace uma::server
