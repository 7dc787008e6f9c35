#include "engine/router/embedding_request.h"

#include <algorithm>
#include <format>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/thrown.h"
#include "engine/lane/run/embed_lane.h"
#include "image/image_runs.h"
#include "image/message_images.h"
#include "llm/text_embedding.h"

namespace uma::engine {
namespace {

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

// The text that preparing the request reads: each input may be written into a chat template.
std::size_t bytes_to_prepare(const EmbedRequest& call) {
  constexpr std::size_t kFrameBytes = 256;
  return bytes_of(call) + call.inputs.size() * kFrameBytes;
}

std::size_t bytes_to_prepare(const RerankRequest& call) {
  return bytes_of(call);
}

// Images are bounded where they are read (ImageIntake).
std::size_t bytes_of(const EmbedImagesRequest& /*call*/) {
  return 0;
}

bool is_background(const TextOptions& options) {
  return options.request_class == RequestClass::background;
}

struct Prepared {
  llm::EmbedTexts texts;
  std::vector<std::vector<image::ImageRun>> images;  // EmbedTask::images
};

// `encoder` is null for a model that reads no images.
template <class Call>
Expected<Prepared> prepare(const llm::TextEmbedder& embedder, const image::ImageEncoder* encoder, const Call& call) {
  auto texts = embedder.texts_of(call);
  if (!texts) return std::unexpected(texts.error());
  Prepared prepared{.texts = std::move(*texts), .images = {}};
  if constexpr (std::is_same_v<Call, EmbedRequest>) {
    if (call.extras.empty() || encoder == nullptr) return prepared;
    for (const auto& text : prepared.texts.texts) {
      auto runs = image::find_image_runs(text.tokens, image::image_ids(call.extras[text.input]), encoder->identity());
      if (!runs) return std::unexpected(runs.error());
      prepared.images.push_back(std::move(*runs));
    }
  }
  return prepared;
}

}  // namespace

template <class Call, class Result>
void EmbeddingRequests::start(RequestId id, const TenantId& tenant, Call call, Promise<Result> reply) {
  const auto shared = std::make_shared<Promise<Result>>(std::move(reply));  // Shared by the request's task and on_abort.
  InFlight& request = parts_.in_flight.begin({
      .id = id,
      .flow = {tenant.value, call.options.client},
      .received = parts_.clock.now(),
      .deadline_ms = call.options.deadline_ms,
      .sinks = {},
      .is_background = is_background(call.options),
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
Task<> EmbeddingRequests::run(InFlight& request, Call call, std::shared_ptr<Promise<Result>> reply) {
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
Task<Expected<Result>> EmbeddingRequests::compute(InFlight& request, Call& call) {
  if (auto admitted = admit(bytes_of(call)); !admitted) co_return admitted.error();
  const TextOptions& options = call.options;
  if (const auto known = source_.resolve(options.model)) request.model = *known;
  auto lease = co_await parts_.models.lease(options.model, is_background(options));
  if (!lease) co_return lease.error();
  request.lease = std::move(*lease);
  if constexpr (std::is_same_v<Call, EmbedImagesRequest>) {
    co_return co_await compute_images(request, call);
  } else {
    co_return co_await compute_texts<Result>(request, call);
  }
}

Task<Expected<ImageEmbeddings>> EmbeddingRequests::compute_images(InFlight& request, EmbedImagesRequest& call) {
  const ServedModel& served = *request.lease;
  if (served.image_vectors() != ImageVectors::shared) {
    co_return co_await parts_.images.embed(served, std::move(call.images), reading(request, call.options));
  }
  const std::size_t count = call.images.size();
  EmbedRequest embed{.options = call.options, .inputs = std::vector<EmbedInput>(count), .task = ""};
  for (std::size_t i = 0; i < count; ++i) {
    embed.images.push_back(
        {.message = i, .source = std::move(call.images[i]), .field = count == 1 ? "" : std::format("images[{}]", i)});
  }
  auto made = co_await compute_texts<EmbedResult>(request, embed);
  if (!made) co_return made.error();
  ImageEmbeddings embeddings{.embeddings = {}, .rows = made->tokens};
  for (std::size_t i = 0; i < made->count(); ++i) {
    const auto vector = made->vector(i);
    embeddings.embeddings.emplace_back(vector.begin(), vector.end());
  }
  co_return embeddings;
}

template <class Result, class Call>
Task<Expected<Result>> EmbeddingRequests::compute_texts(InFlight& request, Call& call) {
  const ServedModel& served = *request.lease;
  if (served.embedder == nullptr) {
    co_return served.wrong_capability("name an embedding model or a reranker to compute vectors or scores");
  }
  ImageHold hold;
  if constexpr (std::is_same_v<Call, EmbedRequest>) {
    if (!call.images.empty()) {
      auto read = co_await read_images(request, call);
      if (!read) co_return read.error();
      hold = std::move(*read);
    }
  }
  co_return co_await compute_in_lane<Result>(request, call);
}

Task<Expected<ImageHold>> EmbeddingRequests::read_images(InFlight& request, EmbedRequest& call) {
  const ServedModel& served = *request.lease;
  if (served.image_vectors() == ImageVectors::projector) {
    co_return Error{ErrorCode::model_capability,
                    std::format("model \"{}\" embeds texts only, and its projector images only: send images alone to "
                                "/v1/images/embeddings, or name a model whose image_vectors are \"shared\"",
                                served.name)};
  }
  Input input;
  input.messages.resize(call.inputs.size());
  input.images = std::exchange(call.images, {});
  auto hold = co_await parts_.images.read(served, input, reading(request, call.options));
  if (!hold) co_return hold.error();
  for (ChatMessage& message : input.messages) call.extras.push_back(std::move(message.extra));
  co_return std::move(*hold);
}

template <class Result, class Call>
Task<Expected<Result>> EmbeddingRequests::compute_in_lane(InFlight& request, Call& given) {
  const ServedModel& served = *request.lease;
  const auto call = std::make_shared<const Call>(std::move(given));  // Shared with jobs and with the lane.
  auto prepared = co_await parts_.work.run(
      parts_.tasks, TenantId{request.flow.tenant}, bytes_to_prepare(*call),
      [embedder = served.embedder, encoder = served.image_encoder, call] { return prepare(*embedder, encoder.get(), *call); },
      request.end.get_token());
  if (!prepared) co_return prepared.error();
  const TextOptions& options = call->options;
  if (options.share) {
    if (auto held = options.share->grow(static_cast<std::uint64_t>(prepared->texts.tokens) * sizeof(Token)); !held)
      co_return held.error();
  }
  EmbedTask task{.id = request.id,
                 .texts = std::move(prepared->texts),
                 .images = std::move(prepared->images),
                 .flow = request.flow,
                 .received = request.received,
                 .done = nullptr};
  task.is_background = is_background(options);
  task.deadline = deadline_of(request, options);
  EmbedLane& lane = **std::ranges::min_element(served.embed_lanes, {},
                                               [](const EmbedLane* each) { return each->stats().queue_bytes.value(); });
  co_return co_await parts_.tasks.ask<Result>([&](Promise<Result> reply) {
    // Called on the lane's thread.
    task.done = [name = served.name, embedder = served.embedder, call, reply = std::move(reply)](
                    const llm::EmbedTexts& computed, const Expected<std::vector<float>>& outputs) mutable {
      reply(contain([&]() -> Expected<Result> {
        if (!outputs) return std::unexpected(outputs.error());
        auto made = embedder->result_of(*call, computed, *outputs);
        if (made) made->model = name;
        return made;
      }));
    };
    parts_.in_flight.set_in_lane(request, [&lane, id = request.id] { lane.cancel(id); });
    lane.post(std::move(task));
    if (lane.backlog() > 0) source_.report_backlog(served.name);
  });
}

TimePoint EmbeddingRequests::deadline_of(const InFlight& request, const TextOptions& options) const {
  return deadline_of_whole(request.received, options.request_class, options.deadline_ms, parts_.limits.deadline_ms,
                           *request.lease);
}

ImageIntake::Reading EmbeddingRequests::reading(const InFlight& request, const TextOptions& options) const {
  return {.tenant = TenantId{request.flow.tenant},
          .deadline = deadline_of(request, options),
          .end = request.end.get_token(),
          .share = options.share};
}

template void EmbeddingRequests::start(RequestId id, const TenantId& tenant, EmbedRequest call, Promise<EmbedResult> reply);
template void EmbeddingRequests::start(RequestId id, const TenantId& tenant, RerankRequest call, Promise<RerankResult> reply);
template void EmbeddingRequests::start(RequestId id, const TenantId& tenant, EmbedImagesRequest call,
                                       Promise<ImageEmbeddings> reply);

}  // namespace uma::engine
