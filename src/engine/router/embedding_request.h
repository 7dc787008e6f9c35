// Requests for embeddings of texts and images, and for rankings, from their admission to their reply. Owned by the router's
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/metrics.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/model/model_loader.h"
#include "engine/router/router_parts.h"

namespace uma::engine {

class EmbeddingRequests {
 public:
  // The references outlive this object.
  EmbeddingRequests(const RouterParts& parts, ModelLoader& source, Counter& refused)
      : parts_(parts), source_(source), refused_(refused) {}

  // Accepts a request and starts it.
  void embed(RequestId id, const TenantId& tenant, EmbedRequest call, Promise<EmbedResult> reply) {
    start(id, tenant, std::move(call), std::move(reply));
  }
  void rerank(RequestId id, const TenantId& tenant, RerankRequest call, Promise<RerankResult> reply) {
    start(id, tenant, std::move(call), std::move(reply));
  }
  // A vector for each image, by the language model if it embeds images, else by the projector alone.
  void embed_images(RequestId id, const TenantId& tenant, EmbedImagesRequest call, Promise<ImageEmbeddings> reply) {
    start(id, tenant, std::move(call), std::move(reply));
  }

 private:
  template <class Call, class Result>
  void start(RequestId id, const TenantId& tenant, Call call, Promise<Result> reply);
  template <class Result, class Call>
  [[nodiscard]] Task<> run(InFlight& request, Call call, std::shared_ptr<Promise<Result>> reply);
  template <class Result, class Call>
  [[nodiscard]] Task<Expected<Result>> compute(InFlight& request, Call& call);
  [[nodiscard]] Task<Expected<ImageEmbeddings>> compute_images(InFlight& request, EmbedImagesRequest& call);
  template <class Result, class Call>
  [[nodiscard]] Task<Expected<Result>> compute_texts(InFlight& request, Call& call);
  template <class Result, class Call>
  [[nodiscard]] Task<Expected<Result>> compute_in_lane(InFlight& request, Call& call);
  // Reads the images of the inputs; the hold keeps them until the request ends.
  [[nodiscard]] Task<Expected<ImageHold>> read_images(InFlight& request, EmbedRequest& call);
  [[nodiscard]] ImageIntake::Reading reading(const InFlight& request, const TextOptions& options) const;
  [[nodiscard]] TimePoint deadline_of(const InFlight& request, const TextOptions& options) const;
  [[nodiscard]] Expected<Unit> admit(std::size_t bytes) const;

  const RouterParts parts_;
  ModelLoader& source_;
  Counter& refused_;
};

}  // namespace uma::engine
