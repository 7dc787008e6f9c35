// Models are loaded and unloaded with llama-server's requests, and pulled, named and deleted with Ollama's
// (docs/protocol/http.md, ollama.md). All of them are for the administrator (HttpRoute::is_administrative).
#include <algorithm>
#include <format>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "core/model_library.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/ollama/ollama_encoder.h"
#include "wire/own/model_calls.h"

namespace uma::server {
namespace {

using handlers::Answer;

constexpr const char* kSuccess = R"({"success":true})";

// The state of one pull, between the thread that follows it and the connection that reports it. A slow client misses states.
class PullState final : public PullSink {
 public:
  explicit PullState(std::function<void()> wake) : wake_(std::move(wake)) {}

  bool update(const PullProgress& progress) override {
    {
      const MutexLock lock(mutex_);
      if (is_abandoned_) return false;
      progress_ = progress;
    }
    wake_();
    return true;
  }
  void end(Expected<std::string> model) override {
    std::optional<Promise<std::string>> reply;
    {
      const MutexLock lock(mutex_);
      end_ = model;
      reply = std::exchange(reply_, std::nullopt);
    }
    if (reply) return (*reply)(std::move(model));
    wake_();
  }

  // Sends the end there. Called before the pull begins.
  void answer_to(Promise<std::string> reply) {
    const MutexLock lock(mutex_);
    reply_ = std::move(reply);
  }

  // Cancels the pull unless it has ended.
  void abandon() {
    const MutexLock lock(mutex_);
    is_abandoned_ = true;
  }
  [[nodiscard]] std::optional<PullProgress> take_progress() {
    const MutexLock lock(mutex_);
    return std::exchange(progress_, std::nullopt);
  }
  [[nodiscard]] std::optional<Expected<std::string>> outcome() {
    const MutexLock lock(mutex_);
    return end_;
  }

 private:
  const std::function<void()> wake_;
  Mutex mutex_;
  std::optional<PullProgress> progress_ GUARDED_BY(mutex_);
  std::optional<Expected<std::string>> end_ GUARDED_BY(mutex_);
  std::optional<Promise<std::string>> reply_ GUARDED_BY(mutex_);
  bool is_abandoned_ GUARDED_BY(mutex_) = false;
};

// A pull that ends with its answer: who leaves cancels it.
class PullGuard {
 public:
  explicit PullGuard(std::shared_ptr<PullState> state) : state_(std::move(state)) {}
  ~PullGuard() { state_->abandon(); }
  PullGuard(const PullGuard&) = delete;
  PullGuard& operator=(const PullGuard&) = delete;

 private:
  const std::shared_ptr<PullState> state_;
};

Answer respond_without_library(HttpConnection& connection, const HttpRequest& request) {
  const Error error{ErrorCode::model_capability, "this server does not manage models"};
  co_return co_await connection.respond_error(501, error, request.keep_alive);
}

// The next lines of a pull; false after the last one.
bool append_lines(PullState& state, std::string& out) {
  const auto outcome = state.outcome();  // Taken first, so that no progress comes after it.
  if (const auto progress = state.take_progress()) out += wire::ollama_pull_json(*progress) + "\n";
  if (!outcome) return true;
  out += (*outcome ? wire::ollama_pulled_json() : wire::ollama_error_json(outcome->error())) + "\n";
  return false;
}

// The first line is sent before the hub has answered; a source that is no source is refused with a status.
Answer stream_pull(HttpConnection& connection, const HttpRequest& request, std::string source) {
  const auto state = std::make_shared<PullState>(connection.waker());
  const PullGuard guard(state);
  connection.server().options.library->pull(std::move(source), state);
  if (const auto outcome = state->outcome(); outcome && !*outcome) {
    const Error& error = outcome->error();
    co_return co_await connection.respond_error(http_status(error.code), error, request.keep_alive, "model",
                                                retry_header(error.code));
  }
  bool has_begun = false;
  co_return co_await connection.stream(
      "application/x-ndjson",
      [&has_begun, state](std::string& out) {
        if (!std::exchange(has_begun, true)) out += wire::ollama_pull_json({}) + "\n";
        return append_lines(*state, out);
      },
      request);
}

Answer await_pull(HttpConnection& connection, const HttpRequest& request, std::string source) {
  const auto state = std::make_shared<PullState>(connection.waker());
  const PullGuard guard(state);
  auto done = co_await connection.ask_until_gone<std::string>([&](Promise<std::string> reply) {
    state->answer_to(std::move(reply));
    connection.server().options.library->pull(std::move(source), state);
  });
  co_return co_await connection.respond_with(std::move(done), request,
                                             [](const std::string&) { return wire::ollama_pulled_json(); });
}

}  // namespace

Answer handlers::load_model(HttpConnection& connection, const HttpRequest& request) {
  const auto model = co_await connection.read_body(request.body, wire::decode_model_call);
  if (!model) co_return co_await connection.respond_rejected(model.error(), request);
  auto done =
      co_await connection.ask<Unit>([&](Promise<Unit> reply) { connection.service().load_model(*model, std::move(reply)); });
  co_return co_await connection.respond_with(std::move(done), request, [](Unit) { return std::string(kSuccess); });
}

Answer handlers::unload_model(HttpConnection& connection, const HttpRequest& request) {
  const auto asked = co_await connection.read_body(request.body, wire::decode_model_call);
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  const std::string name = connection.service().resolve_model(*asked).value_or(*asked);
  const std::vector<ModelInfo> models = connection.service().models();
  const auto known = std::ranges::find(models, name, &ModelInfo::name);
  if (known != models.end() && (known->state == ModelState::unloaded || known->state == ModelState::failed)) {
    co_return co_await connection.respond(200, kJson, kSuccess, request.keep_alive);
  }
  auto done =
      co_await connection.ask<Unit>([&](Promise<Unit> reply) { connection.service().unload_model(name, std::move(reply)); });
  co_return co_await connection.respond_with(std::move(done), request, [](Unit) { return std::string(kSuccess); });
}

Answer handlers::ollama_pull(HttpConnection& connection, const HttpRequest& request) {
  auto pull = co_await connection.read_body(request.body, wire::decode_ollama_pull);
  if (!pull) co_return co_await connection.respond_rejected(pull.error(), request);
  if (connection.server().options.library == nullptr) co_return co_await respond_without_library(connection, request);
  if (pull->stream) co_return co_await stream_pull(connection, request, std::move(pull->source));
  co_return co_await await_pull(connection, request, std::move(pull->source));
}

Answer handlers::ollama_delete(HttpConnection& connection, const HttpRequest& request) {
  const auto name = co_await connection.read_body(request.body, wire::decode_ollama_delete);
  if (!name) co_return co_await connection.respond_rejected(name.error(), request);
  ModelLibrary* const library = connection.server().options.library;
  if (library == nullptr) co_return co_await respond_without_library(connection, request);
  auto done = co_await connection.ask<Unit>([&](Promise<Unit> reply) { library->remove(*name, std::move(reply)); });
  co_return co_await connection.respond_with(std::move(done), request, [](Unit) { return std::string(); });
}

Answer handlers::ollama_copy(HttpConnection& connection, const HttpRequest& request) {
  const auto copy = co_await connection.read_body(request.body, wire::decode_ollama_copy);
  if (!copy) co_return co_await connection.respond_rejected(copy.error(), request);
  ModelLibrary* const library = connection.server().options.library;
  if (library == nullptr) co_return co_await respond_without_library(connection, request);
  auto done = co_await connection.ask<Unit>(
      [&](Promise<Unit> reply) { library->add_alias(copy->source, copy->destination, std::move(reply)); });
  co_return co_await connection.respond_with(std::move(done), request, [](Unit) { return std::string(); });
}

}  // namespace uma::server
