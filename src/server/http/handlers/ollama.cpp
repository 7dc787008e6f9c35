// Ollama's API, /api/... (docs/protocol/ollama.md), except for embeddings, which are in embeddings.cpp.
#include <algorithm>
#include <format>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/ollama/ollama_decoder.h"
#include "wire/ollama/ollama_encoder.h"
#include "wire/ollama/ollama_models.h"
#include "wire/openai/openai_codec.h"

namespace uma::server {
namespace {

using handlers::Answer;

// Writes a reply as lines of JSON. It begins with a line without text, so that the header is sent at once.
class OllamaWriter final : public AnswerEncoder {
 public:
  explicit OllamaWriter(wire::OllamaAnswer answer) : answer_(std::move(answer)) {}

  void append_first(std::string& out) override { answer_.append_empty(out); }
  void append_text(std::string& out, const TokenEvent& token) override { answer_.append_text(out, token.text, token.logprobs); }
  void append_part(std::string& out, const ReplyPart& part) override { answer_.append_part(out, part); }
  void append_last(std::string& out, const EosEvent& eos) override { answer_.append_last(out, eos); }
  std::string whole(const EosEvent& eos) override { return answer_.whole(eos); }
  void append_keep_alive(std::string& out) override { answer_.append_empty(out); }
  void append_waiting(std::string& out) override { answer_.append_empty(out); }
  [[nodiscard]] std::string_view stream_type() const override { return "application/x-ndjson"; }

 private:
  wire::OllamaAnswer answer_;
};

std::optional<ModelInfo> find_model(HttpConnection& connection, std::string_view name) {
  std::vector<ModelInfo> models = wire::with_adapters(connection.service().models());
  const auto found = std::ranges::find(models, name, &ModelInfo::name);
  return found == models.end() ? std::nullopt : std::optional(std::move(*found));
}

// Answers a request without a prompt, which loads the model or, with keep_alive 0, unloads it.
Answer load_or_unload(HttpConnection& connection, const HttpRequest& request, const wire::OllamaCall& call,
                      const wire::OllamaAnswer& answer) {
  const std::string& model = call.generate.model;
  if (const auto known = connection.service().resolve_model(model); !known) {
    co_return co_await connection.respond_with(std::optional<Expected<Unit>>(std::unexpected(known.error())), request,
                                               [](Unit) { return std::string(); });
  }
  const bool unloads = call.keep_alive_s == 0;
  if (unloads && !connection.is_administrator()) co_return co_await connection.refuse_administration(request.keep_alive);
  const std::string body = answer.without_reply(unloads ? "unload" : "load");
  const auto known = find_model(connection, model);
  if (unloads && known && known->state == ModelState::unloaded) {
    co_return co_await connection.respond(200, kJson, body, request.keep_alive);
  }
  auto done = co_await connection.ask<Unit>([&](Promise<Unit> reply) {
    if (unloads) return connection.service().unload_model(model, std::move(reply));
    connection.service().load_model(model, std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(done), request, [&](Unit) { return body; });
}

bool has_no_template(HttpConnection& connection, std::string_view name) {
  const auto model = find_model(connection, name);
  return model && model->file.bytes > 0 && !model->has_chat_template;
}

void warn_of_window(HttpConnection& connection, const wire::OllamaCall& call) {
  if (call.context_wanted <= 0) return;
  const auto model = find_model(connection, call.generate.model);
  if (!model || model->sequence_tokens_max <= 0 || call.context_wanted <= model->sequence_tokens_max) return;
  connection.warn(std::format(
      "num_ctx {} is larger than the window of {} tokens, which is used; n_ctx, kv.cells and the free memory set it",
      call.context_wanted, model->sequence_tokens_max));
}

Answer answer_ollama(wire::OllamaKind kind, HttpConnection& connection, const HttpRequest& request) {
  auto call =
      co_await connection.read_body(request.body, [kind](std::string_view body) { return wire::decode_ollama(kind, body); });
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  GenerateRequest& generate = call->generate;
  const std::string asked = generate.model;
  // Loading and unloading takes registered names only.
  const std::string plain(wire::without_latest_tag(asked));
  generate.model = call->is_empty ? connection.service().resolve_model(plain).value_or(plain)
                                  : connection.choose_model(asked, Capability::chat);
  wire::OllamaAnswer answer(kind, asked.empty() ? generate.model : asked, unix_time_s());
  if (call->is_empty) co_return co_await load_or_unload(connection, request, *call, answer);
  warn_of_window(connection, *call);
  // A prompt for a model without a template is written as it is, as Ollama does.
  if (kind == wire::OllamaKind::generate && generate.input.images.empty() && has_no_template(connection, generate.model))
    wire::write_as_text(generate.input);
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(generate)).encoders.push_back(std::make_unique<OllamaWriter>(std::move(answer)));
  co_return co_await connection.generate(std::move(generations), request);
}

}  // namespace

Answer handlers::get_ollama_version(HttpConnection& connection, const HttpRequest& request) {
  return connection.respond(200, kJson, wire::ollama_version_json(connection.server().options.version), request.keep_alive);
}

Answer handlers::list_ollama_models(HttpConnection& connection, const HttpRequest& request) {
  return connection.respond(200, kJson, wire::ollama_tags_json(connection.service().models()), request.keep_alive);
}

Answer handlers::list_ollama_loaded(HttpConnection& connection, const HttpRequest& request) {
  return connection.respond(200, kJson, wire::ollama_ps_json(connection.service().models(), unix_time_s()), request.keep_alive);
}

Answer handlers::show_ollama_model(HttpConnection& connection, const HttpRequest& request) {
  const auto asked = co_await connection.read_body(request.body, wire::decode_ollama_show);
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  const auto model = find_model(connection, connection.choose_model(*asked, Capability::chat));
  if (!model) {
    const Error error{ErrorCode::model_unknown, std::format("no model \"{}\": /api/tags lists the models", *asked)};
    co_return co_await connection.respond_error(404, error, request.keep_alive);
  }
  co_return co_await connection.respond(200, kJson, wire::ollama_show_json(*model), request.keep_alive);
}

Answer handlers::ollama_chat(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama(wire::OllamaKind::chat, connection, request);
}

Answer handlers::ollama_generate(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama(wire::OllamaKind::generate, connection, request);
}

Answer handlers::refuse_ollama_change(HttpConnection& connection, const HttpRequest& request) {
  const Error error{ErrorCode::model_capability, "umad does not make models and uploads none: POST /api/pull downloads one"};
  co_return co_await connection.respond_error(501, error, request.keep_alive);
}

}  // namespace uma::server
