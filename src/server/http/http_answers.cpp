// Answers that are made while they are sent: generations, whole or as a stream, and other streams; and what a request that
// computes is given by its connection: its model, and the caller who is charged.
#include <algorithm>
#include <chrono>
#include <format>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "core/adapter_name.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "server/http/rules.h"
#include "server/outbox.h"
#include "wire/ollama/ollama_models.h"
#include "wire/openai/openai_codec.h"

namespace uma::server {
namespace {

// A part of a body: in version 1.1 a chunk.
void append_body_part(std::string& out, std::string_view bytes, bool is_chunked, bool is_last) {
  if (!is_chunked) {
    out += bytes;
    return;
  }
  if (!bytes.empty()) {
    out += std::format("{:x}\r\n", bytes.size());
    out += bytes;
    out += "\r\n";
  }
  if (is_last) out += "0\r\n\r\n";
}

}  // namespace

// Charges a generation to its caller when it ends, even after the connection has ended.
class HttpConnection::MeteredSink final : public EventSink {
 public:
  MeteredSink(std::shared_ptr<EventSink> inner, std::shared_ptr<Account> caller, std::shared_ptr<Spent> spent,
              bool charges_prompt)
      : inner_(std::move(inner)), caller_(std::move(caller)), spent_(std::move(spent)), charges_prompt_(charges_prompt) {}

  bool deliver(const Event& event) override {
    if (const auto* eos = std::get_if<EosEvent>(&event)) {
      const Usage& usage = eos->usage;
      const std::int64_t prompt_tokens = charges_prompt_ ? usage.prompt_tokens : 0;
      caller_->charge_tokens(prompt_tokens + usage.completion_tokens, SteadyClock().now());
      spent_->prompt_tokens.add(static_cast<std::uint64_t>(prompt_tokens));
      spent_->completion_tokens.add(static_cast<std::uint64_t>(usage.completion_tokens));
      spent_->generations.add();
    }
    return inner_->deliver(event);
  }

 private:
  const std::shared_ptr<EventSink> inner_;
  const std::shared_ptr<Account> caller_;
  const std::shared_ptr<Spent> spent_;
  const bool charges_prompt_;
};

// Cancels the generations of an answer that is abandoned.
class HttpConnection::GenerationGuard {
 public:
  GenerationGuard(Service& service, std::shared_ptr<Outbox> outbox) : service_(service), outbox_(std::move(outbox)) {}
  ~GenerationGuard() {
    outbox_->seal();
    for (const RequestId id : running_) service_.cancel(id, [](Expected<bool>) {});
  }
  GenerationGuard(const GenerationGuard&) = delete;
  GenerationGuard& operator=(const GenerationGuard&) = delete;

  void add_running(RequestId id) { running_.push_back(id); }
  void set_all_ended() { running_.clear(); }

 private:
  Service& service_;
  const std::shared_ptr<Outbox> outbox_;
  std::vector<RequestId> running_;  // Some may have ended.
};

// Writes the output of generations as the answer to a request: whole, or as a stream.
class HttpConnection::HttpOutput final : public GenerationOutput {
 public:
  // `generation` is the first of the answer.
  HttpOutput(HttpConnection& connection, const HttpRequest& request, const HttpGeneration& generation)
      : connection_(connection),
        request_(request),
        is_stream_(generation.request.options.stream),
        stream_type_(generation.encoders.front()->stream_type()) {}

  Awaitable<bool> refuse(const Error& error, std::string_view field) override {
    co_return co_await connection_.respond_error(http_status(error.code), error, request_.keep_alive, field,
                                                 retry_header(error.code));
  }
  Awaitable<bool> write(std::string bytes, bool is_last) override {
    if (!is_stream_) co_return co_await connection_.respond(200, kJson, std::move(bytes), request_.keep_alive);
    const bool is_chunked = request_.version >= 11;
    std::string out;
    if (!std::exchange(has_begun_, true)) out = connection_.stream_head(stream_type_, request_);
    append_body_part(out, bytes, is_chunked, is_last);
    const bool is_written = co_await connection_.write(std::move(out));
    co_return is_written && (!is_last || (request_.keep_alive && is_chunked));
  }

 private:
  HttpConnection& connection_;
  const HttpRequest& request_;
  const bool is_stream_;
  const std::string_view stream_type_;
  bool has_begun_ = false;
};

// --- generations

Awaitable<bool> HttpConnection::generate(std::vector<HttpGeneration> generations, const HttpRequest& request,
                                         std::string_view session_field) {
  if (server_.draining) {
    co_return co_await respond_error(503, {ErrorCode::limit_wait, "the daemon is stopping and accepts no new generations"},
                                     false);
  }
  drop_body();
  warn_of_unseen(generations.front().request);
  HttpOutput output(*this, request, generations.front());
  const auto goes_on = co_await until_gone(run_generations(std::move(generations), output, session_field));
  co_return goes_on.value_or(false);
}

// Starts them all. The sinks are numbered in the order of the replies, which is their id in the outbox.
std::vector<std::shared_ptr<GenerationSink>> HttpConnection::start_generations(std::vector<HttpGeneration> generations,
                                                                               const std::shared_ptr<Outbox>& outbox,
                                                                               GenerationGuard& guard) {
  std::vector<std::shared_ptr<GenerationSink>> sinks;
  const bool is_stream = generations.front().request.options.stream;
  const RequestShare share = server_.service.open_share(tenant());
  for (HttpGeneration& generation : generations) {
    std::vector<std::shared_ptr<EventSink>> metered;
    for (auto& encoder : generation.encoders) {
      sinks.push_back(std::make_shared<GenerationSink>(std::to_string(sinks.size()), outbox, std::move(encoder), is_stream,
                                                       apart(), share));
      metered.push_back(
          std::make_shared<MeteredSink>(sinks.back(), current_.caller, current_.spent, /*charges_prompt=*/metered.empty()));
    }
    set_caller(generation.request);
    const std::size_t count = metered.size();
    const RequestId first =
        server_.service.generate(current_.caller->tenant(), std::move(generation.request), std::move(metered));
    for (std::size_t i = 0; i < count; ++i) guard.add_running({first.value + i});
  }
  return sinks;
}

void HttpConnection::generate_detached(GenerateRequest request, std::shared_ptr<EventSink> sink) {
  set_caller(request);
  std::vector<std::shared_ptr<EventSink>> metered{
      std::make_shared<MeteredSink>(std::move(sink), current_.caller, current_.spent, /*charges_prompt=*/true)};
  server_.service.generate(current_.caller->tenant(), std::move(request), std::move(metered));
}

RequestId HttpConnection::draw(PictureRequest request, std::shared_ptr<PictureSink> sink, Promise<PictureReceipt> reply) {
  request.client = client_;
  if (!request.deadline_ms) request.deadline_ms = current_.caller->deadline_ms();
  return server_.service.draw(
      tenant(), std::move(request), std::move(sink),
      [caller = current_.caller, spent = current_.spent, reply = std::move(reply)](Expected<PictureReceipt> receipt) mutable {
        if (receipt) {
          caller->charge_tokens(receipt->caption_tokens + receipt->picture_tokens, SteadyClock().now());
          spent->prompt_tokens.add(static_cast<std::uint64_t>(receipt->caption_tokens));
          spent->completion_tokens.add(static_cast<std::uint64_t>(receipt->picture_tokens));
          spent->generations.add();
        }
        reply(std::move(receipt));
      });
}

// Fills in what the connection, the headers and the key decide.
void HttpConnection::set_caller(GenerateRequest& request) {
  request.client = client_;
  if (current_.agent.is_known()) request.agent = current_.agent;
  current_.last_agent = request.agent;
  if (!request.options.deadline_ms) request.options.deadline_ms = current_.caller->deadline_ms();
}

Awaitable<bool> HttpConnection::run_generations(std::vector<HttpGeneration> generations, GenerationOutput& output,
                                                std::string_view session_field) {
  const bool is_stream = generations.front().request.options.stream;
  // Engine threads copy the weak pointer and never own the connection, which is destroyed on the server's thread.
  const auto outbox = std::make_shared<Outbox>(server_.options.limits.tx_bytes_max,
                                               [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); });
  GenerationGuard guard(server_.service, outbox);
  const auto sinks = start_generations(std::move(generations), outbox, guard);  // Shared with the engine.

  bool has_begun = false;
  TimePoint last_write = SteadyClock().now();
  std::string bytes;
  std::vector<std::string> ended;
  while (is_open_) {
    bytes.clear();
    outbox->take(bytes, ended);
    GenerationSink* failed = nullptr;
    for (const std::string& id : ended) {
      GenerationSink& sink = *sinks[std::stoul(id)];
      if (sink.failure() != nullptr) failed = &sink;
    }
    const bool have_all_ended = ended.size() == sinks.size();
    if (have_all_ended) guard.set_all_ended();
    if (failed != nullptr) {
      outbox->seal();  // Drops events of the other generations.
      while (outbox->bytes_unsent() > bytes.size()) outbox->take(bytes, ended);
    }
    if (failed != nullptr && !has_begun && bytes.empty()) {
      const Error error = *failed->failure();
      const bool is_session = error.code == ErrorCode::session_unknown || error.code == ErrorCode::session_busy;
      co_return co_await output.refuse(error, is_session ? session_field : error.field);
    }
    // Long events are taken one by one.
    const bool is_last = failed != nullptr || (have_all_ended && outbox->bytes_unsent() == bytes.size());
    if (bytes.empty() && !is_last) {
      const TimePoint silent_until = last_write + server_.options.keep_alive_interval;
      if (!is_stream) {
        co_await has_events_.wait();
      } else if (!co_await has_events_.wait_until(silent_until)) {
        sinks.front()->keep_alive();
      }
      continue;
    }
    note_session(sinks.front()->session());
    if (!std::exchange(has_begun, true)) {
      const PromptReadyEvent prompt = sinks.front()->prompt();
      note_schema_left_out(prompt.schema_left_out);
      if (const std::string warning = clock_warning(prompt.cache_miss); !warning.empty()) warn(warning);
    }
    if (is_last && !is_stream) {
      for (const auto& sink : sinks) sink->give_back_share();
    }
    const std::size_t events_bytes = bytes.size();
    if (is_stream && failed != nullptr) failed->append_failure(bytes);
    last_write = SteadyClock().now();
    const bool goes_on = co_await output.write(std::exchange(bytes, {}), is_last);
    if (is_last || !goes_on) co_return goes_on;
    outbox->mark_written(events_bytes);
  }
  co_return false;
}

// --- streams

Awaitable<bool> HttpConnection::stream(std::string_view content_type, MoveOnlyFunction<bool(std::string& out)> next,
                                       const HttpRequest& request) {
  drop_body();
  const auto goes_on = co_await until_gone(write_stream(content_type, std::move(next), request));
  co_return goes_on.value_or(false);
}

Awaitable<bool> HttpConnection::write_stream(std::string_view content_type, MoveOnlyFunction<bool(std::string& out)> next,
                                             const HttpRequest& request) {
  const bool is_chunked = request.version >= 11;
  const bool is_of_events = content_type == "text/event-stream";
  std::string out = stream_head(content_type, request);
  if (current_.method == "HEAD") {
    const bool is_written = co_await write(std::move(out));
    co_return (is_written && request.keep_alive && is_chunked);
  }
  TimePoint last_write = SteadyClock().now();
  while (is_open_) {
    std::string bytes;
    const bool is_last = !next(bytes);
    if (bytes.empty() && !is_last) {
      const TimePoint silent_until = last_write + server_.options.keep_alive_interval;
      if (co_await has_events_.wait_until(is_of_events ? silent_until : TimePoint::max())) continue;
      bytes = ": keep-alive\n\n";
    }
    append_body_part(out, bytes, is_chunked, is_last);
    last_write = SteadyClock().now();
    if (!co_await write(std::exchange(out, {}))) co_return false;
    if (is_last) co_return (request.keep_alive && is_chunked);
  }
  co_return false;
}

std::string HttpConnection::stream_head(std::string_view content_type, const HttpRequest& request) {
  const bool is_chunked = request.version >= 11;
  return head_bytes(
      200, content_type, request.keep_alive && is_chunked,
      is_chunked ? "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n" : "Cache-Control: no-cache\r\n\r\n");
}

// --- models, and what they cost

std::string HttpConnection::choose_model(const std::string& asked, Capability capability) {
  if (const auto known = server_.service.resolve_model(asked)) {
    return capability == Capability::chat ? with_adapter(*known, asked) : *known;
  }
  const std::string_view plain = wire::without_latest_tag(asked);
  if (plain != asked) return choose_model(std::string(plain), capability);
  auto chosen = server_.service.choose_model(asked, capability);
  if (!chosen) {
    current_.unknown_model = std::move(chosen.error());
    return asked;
  }
  warn(std::format("model {} is unknown here; {} answers", asked, *chosen));
  return *std::move(chosen);
}

// The model's name, followed by the adapter that the request means by "MODEL:ADAPTER".
std::string HttpConnection::with_adapter(const std::string& model, std::string_view asked) const {
  if (asked == model || !asked.contains(':')) return model;
  const std::vector<ModelInfo> models = server_.service.models();
  const auto info = std::ranges::find(models, model, &ModelInfo::name);
  if (info == models.end()) return model;
  const std::string_view adapter = adapter_in_name(*info, asked);
  return adapter.empty() ? model : std::format("{}:{}", model, adapter);
}

// Usage::unseen_images, which the APIs of others have no field for.
void HttpConnection::warn_of_unseen(const GenerateRequest& request) {
  const auto count = std::ranges::count_if(request.input.images, [&](const InputImage& image) {
    return image.source.media == Media::image && request.input.messages[image.message].role == "tool";
  });
  if (count == 0) return;
  const std::string name = server_.service.resolve_model(request.model).value_or(request.model);
  const std::vector<ModelInfo> models = server_.service.models();
  const auto info = std::ranges::find(models, name, &ModelInfo::name);
  if (info == models.end() || info->reads_images) return;
  warn(std::format("model {} sees no images: a line of text stands in place of {} in results of tools", name, count));
}

Awaitable<bool> HttpConnection::count_tokens(GenerateRequest counted, const HttpRequest& request,
                                             std::string (*json)(std::int32_t tokens)) {
  std::stop_source end;
  auto tokens = co_await ask_until_gone<std::int32_t>([&](Promise<std::int32_t> reply) {
    service().count_tokens(tenant(), std::move(counted), end.get_token(), std::move(reply));
  });
  if (!tokens) (void)end.request_stop();
  co_return co_await respond_with(std::move(tokens), request, json);
}

void HttpConnection::charge(std::int64_t tokens) {
  current_.caller->charge_tokens(tokens, SteadyClock().now());
  current_.spent->prompt_tokens.add(static_cast<std::uint64_t>(tokens));
  current_.spent->generations.add();
}

}  // namespace uma::server
