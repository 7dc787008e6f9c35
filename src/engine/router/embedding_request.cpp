#include "engine/router/embedding_request.h"

#include <algorithm>
#include <format>
#include <variant>
#include <vector>

#include "base/thrown.h"
#include "engine/lane/embed_lane.h"
#include "llm/text_embedding.h"

namespace uma::engine {
namespace {

constexpr std::int64_t kBackgroundDeadlineMs = 300'000;

std::size_t bytes_of(const EmbedRequest& call) {
  std::size_t bytes = 0;
  for (const EmbedInput& input : call.inputs) {
    bytes += std::visit([](const auto& values) { return values.size() * sizeof values[0]; }, input);
  }
  return bytes;
}

std::size_t bytes_of(const RerankRequest& call) {
  // The query is computed with each document.
  std::size_t bytes = call.query.size() * std::max<std::size_t>(1, call.documents.size());
  for (const std::string& document : call.documents) bytes += document.size();
  return bytes;
}

}  // namespace

template <class Call, class Result>
void EmbeddingRequests::start(RequestId id, const TenantId& tenant, Call call, Reply<Result> reply) {
  const auto shared = std::make_shared<Reply<Result>>(std::move(reply));  // Shared by the request's task and on_abort.
  InFlight& request = parts_.in_flight.begin({
      .id = id,
      .flow = {tenant.value, call.options.client},
      .received = parts_.clock.now(),
      .deadline_ms = call.options.deadline_ms,
      .sinks = {},
      .share = call.options.share,
      .end = {},
      .lease = {},
      .on_abort =
          [shared](const Abort& how) {
            if (how.reason != FinishReason::error) return (*shared)(fail(ErrorCode::limit_wait, "the request was cancelled"));
            (*shared)(std::unexpected(how.error));
          },
  });
  parts_.in_flight.start(request, run(request, std::move(call), shared));
}

template <class Result, class Call>
Task<> EmbeddingRequests::run(InFlight& request, Call call, std::shared_ptr<Reply<Result>> reply) {
  Expected<Result> result = Result();
  try {
    result = co_await compute<Result>(request, call);
  } catch (...) {
    result = std::unexpected(thrown_error(parts_.tasks.place()));
  }
  if (!result && !request.cancel_in_lane) refused_.add();
  parts_.in_flight.end(request);
  (*reply)(std::move(result));
}

Expected<Unit> EmbeddingRequests::admit(std::size_t bytes) const {
  if (bytes > parts_.limits.max_prompt_bytes) {
    return fail(ErrorCode::limit_prompt,
                std::format("the texts have {} bytes, limits.max_prompt_bytes is {}: send fewer texts in one request", bytes,
                            parts_.limits.max_prompt_bytes));
  }
  // The request itself is counted in the table already.
  return parts_.in_flight.admit(parts_.in_flight.embeddings() - 1);
}

template <class Result, class Call>
Task<Expected<Result>> EmbeddingRequests::compute(InFlight& request, const Call& call) {
  if (auto admitted = admit(bytes_of(call)); !admitted) co_return admitted.error();
  const TextOptions& options = call.options;
  const bool is_background = options.request_class == RequestClass::background;
  if (const auto known = source_.resolve(options.model)) request.model = *known;
  auto lease = co_await parts_.models.lease(options.model, is_background);
  if (!lease) co_return lease.error();
  const ServedModel& served = **lease;
  if (served.embedder == nullptr) {
    co_return Error{
        ErrorCode::model_capability,
        std::format("model \"{}\" is a chat model, which computes neither embeddings nor scores: name an embedding model or a "
                    "reranker (`models` lists capabilities)",
                    served.name)};
  }
  request.lease = std::move(*lease);
  auto texts = co_await parts_.preparer.run(parts_.tasks, TenantId{request.flow.tenant}, bytes_of(call),
                                            [embedder = served.embedder, call] { return embedder->texts_of(call); });
  if (!texts) co_return texts.error();
  if (options.share) {
    if (auto held = options.share->grow(static_cast<std::uint64_t>(texts->tokens) * sizeof(Token)); !held)
      co_return held.error();
  }
  EmbedTask task{
      .id = request.id, .texts = std::move(*texts), .flow = request.flow, .received = request.received, .done = nullptr};
  task.is_background = is_background;
  const std::int64_t deadline_ms =
      options.deadline_ms.value_or(is_background ? kBackgroundDeadlineMs : parts_.limits.deadline_ms);
  task.deadline = deadline_after(request.received, deadline_ms, &served);
  EmbedLane& lane = **std::ranges::min_element(served.embed_lanes, {},
                                               [](const EmbedLane* each) { return each->stats().queue_bytes.value(); });
  if (lane.stats().queue_depth.value() >= lane.shape().batch_texts_max) source_.report_backlog(served.name);
  co_return co_await parts_.tasks.ask<Result>([&](Reply<Result> reply) {
    // Called on the lane's thread.
    task.done = [name = served.name, embedder = served.embedder, call, reply = std::move(reply)](
                    const llm::EmbedTexts& computed, const Expected<std::vector<float>>& outputs) mutable {
      reply(contain([&]() -> Expected<Result> {
        if (!outputs) return std::unexpected(outputs.error());
        auto made = embedder->result_of(call, computed, *outputs);
        if (made) made->model = name;
        return made;
      }));
    };
    parts_.in_flight.set_in_lane(request, [&lane, id = request.id] { lane.cancel(id); });
    lane.post(std::move(task));
  });
}

Task<Expected<ImageEmbeddings>> EmbeddingRequests::embed_images(TenantId tenant, EmbedImagesRequest call) {
  if (auto admitted = parts_.in_flight.admit(0); !admitted) co_return admitted.error();
  const TimePoint received = parts_.clock.now();
  auto lease = co_await parts_.models.lease_chat(call.model);
  if (!lease) co_return lease.error();
  const TimePoint deadline = deadline_after(received, call.deadline_ms.value_or(parts_.limits.deadline_ms), &**lease);
  co_return co_await parts_.images.embed(std::move(*lease), std::move(tenant), std::move(call), deadline);
}

template void EmbeddingRequests::start(RequestId id, const TenantId& tenant, EmbedRequest call, Reply<EmbedResult> reply);
template void EmbeddingRequests::start(RequestId id, const TenantId& tenant, RerankRequest call, Reply<RerankResult> reply);

}  // namespace uma::engine
