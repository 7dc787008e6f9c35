// The router's part of embeddings and reranking: admission, tokens, a lane, the reply.
#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "engine/router.h"

namespace uma::engine {
namespace {

constexpr std::int64_t kBackgroundDeadlineMs = 300'000;

std::size_t bytes_of(const EmbedRequest& request) {
  std::size_t bytes = 0;
  for (const EmbedInput& input : request.inputs) {
    bytes += std::visit([](const auto& values) { return values.size() * sizeof values[0]; }, input);
  }
  return bytes;
}

std::size_t bytes_of(const RerankRequest& request) {
  std::size_t bytes = request.query.size() * std::max<std::size_t>(1, request.documents.size());  // it is computed with each
  for (const std::string& document : request.documents) bytes += document.size();
  return bytes;
}

const TextOptions& options_of(const std::variant<EmbedRequest, RerankRequest>& request) {
  return std::visit([](const auto& asked) -> const TextOptions& { return asked.options; }, request);
}

}  // namespace

void Router::embed(RequestId id, const TenantId& tenant, EmbedRequest request, Reply<EmbedResult> reply) {
  open_texts(id, tenant, std::move(request), std::move(reply));
}

void Router::rerank(RequestId id, const TenantId& tenant, RerankRequest request, Reply<RerankResult> reply) {
  open_texts(id, tenant, std::move(request), std::move(reply));
}

void Router::open_texts(RequestId id, const TenantId& tenant, TextsRequest request, TextsReply reply) {
  const TextOptions& options = options_of(request);
  const std::string name = options.model;
  const TimePoint now = clock_.now();
  OpenTexts& open =
      texts_requests_
          .emplace(id,
                   OpenTexts{.reply = std::move(reply), .model = "", .flow = {tenant.value, options.client}, .received = now})
          .first->second;
  note_open();
  unsent_.emplace(id, now);
  waiting_since_us_.set(to_us(unsent_.begin()->second));
  if (auto admitted = admit_texts(request); !admitted) return refuse_texts(id, admitted.error());
  if (const auto known = source_.resolve(name)) open.model = *known;
  const Wanted wanted{.request = id, .is_background = options.request_class == RequestClass::background};
  models_.with(name,
               of(id, [this, id, request = std::move(request)](
                          Expected<ModelUse> use) mutable { prepare_texts(id, std::move(request), std::move(use)); }),
               wanted);
}

Expected<Unit> Router::admit_texts(const TextsRequest& request) const {
  if (draining_) return fail(ErrorCode::limit_wait, "the daemon is shutting down and takes no new requests");
  const std::size_t bytes = std::visit([](const auto& asked) { return bytes_of(asked); }, request);
  if (bytes > options_.limits.max_prompt_bytes) {
    return fail(ErrorCode::limit_prompt,
                std::format("the texts have {} bytes, limits.max_prompt_bytes is {}: send fewer at once", bytes,
                            options_.limits.max_prompt_bytes));
  }
  // The request itself is there already.
  const std::size_t waiting = texts_requests_.size() - 1;
  if (options_.limits.queue_max > 0 && waiting >= options_.limits.queue_max) {
    return fail(ErrorCode::limit_wait, std::format("{} requests wait already, limits.queue_max is {}: try again later", waiting,
                                                   options_.limits.queue_max));
  }
  return Unit{};
}

void Router::prepare_texts(RequestId id, TextsRequest request, Expected<ModelUse> use) {
  const auto found = texts_requests_.find(id);
  if (found == texts_requests_.end()) return;  // cancelled while the model was loading
  if (!use) return refuse_texts(id, use.error());
  const ServedModel& served = **use;
  found->second.use = std::move(*use);
  if (served.embedder == nullptr) {
    return refuse_texts(
        id,
        {ErrorCode::model_capability,
         std::format("model \"{}\" is a chat model, which computes neither embeddings nor scores: name an embedding model or a "
                     "reranker (`models` lists capabilities)",
                     served.name)});
  }
  const TenantId tenant{found->second.flow.tenant};
  const std::size_t bytes = std::visit([](const auto& asked) { return bytes_of(asked); }, request);
  preparer_.post(tenant, bytes, of(id, [this, id, embedder = served.embedder, request = std::move(request)]() mutable {
                   auto texts = std::visit([&](const auto& asked) { return embedder->texts_of(asked); }, request);
                   post(of(id, [this, id, request = std::move(request), texts = std::move(texts)]() mutable {
                     if (!texts_requests_.contains(id)) return;  // cancelled meanwhile
                     if (!texts) return refuse_texts(id, texts.error());
                     send_texts(id, std::move(request), std::move(*texts));
                   }));
                 }));
}

void Router::send_texts(RequestId id, TextsRequest request, capability::EmbedTexts texts) {
  OpenTexts& open = texts_requests_.at(id);
  const TextOptions& options = options_of(request);
  const auto held = options.share ? options.share->grow(static_cast<std::uint64_t>(texts.tokens) * sizeof(Token)) : Unit{};
  if (!held) return refuse_texts(id, held.error());
  const ServedModel& served = *open.use;
  EmbedTask task{.id = id, .texts = std::move(texts), .flow = open.flow, .received = open.received, .done = nullptr};
  task.is_background = options.request_class == RequestClass::background;
  const std::int64_t deadline_ms =
      options.deadline_ms.value_or(task.is_background ? kBackgroundDeadlineMs : options_.limits.deadline_ms);
  // Loading the model is not counted as waiting.
  if (deadline_ms > 0) task.deadline = std::max(open.received, served.loaded_at) + std::chrono::milliseconds(deadline_ms);
  task.done = [this, id, name = served.name, embedder = served.embedder, request = std::move(request)](
                  const capability::EmbedTexts& computed, const Expected<std::vector<float>>& outputs) {
    auto result = contain([&]() -> Expected<TextsResult> {
      if (!outputs) return std::unexpected(outputs.error());
      auto made = std::visit(
          [&](const auto& asked) -> Expected<TextsResult> { return embedder->result_of(asked, computed, *outputs); }, request);
      if (made) std::visit([&](auto& each) { each.model = name; }, *made);
      return made;
    });
    post([this, id, result = std::move(result)]() mutable {
      if (texts_requests_.contains(id)) end_texts(id, std::move(result));
    });
  };
  open.lane = *std::ranges::min_element(served.embed_lanes, {},
                                        [](const EmbedLane* lane) { return lane->stats().queue_bytes.value(); });
  set_sent(id);
  if (open.lane->stats().queue_depth.value() >= open.lane->shape().batch_texts_max) source_.note_queue(served.name);
  open.lane->post(std::move(task));
}

void Router::refuse_texts(RequestId id, Error error) {
  requests_refused_.add();
  end_texts(id, std::unexpected(std::move(error)));
}

void Router::end_texts(RequestId id, Expected<TextsResult> result) {
  const auto found = texts_requests_.find(id);
  UMA_CHECK(found != texts_requests_.end());
  TextsReply reply = std::move(found->second.reply);
  const std::string model = std::move(found->second.model);
  if (!found->second.use.is_empty()) {
    models_.note_use(model);
  } else if (!model.empty()) {
    models_.stop_waiting(model, id);
  }
  texts_requests_.erase(found);
  set_sent(id);
  note_open();
  std::visit(
      [&]<class T>(Reply<T>& answer) {
        if (result) {
          answer(std::get<T>(std::move(*result)));
        } else {
          answer(std::unexpected(std::move(result.error())));
        }
      },
      reply);
}

}  // namespace uma::engine
