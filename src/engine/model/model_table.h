// The table of models that were requested: which are loaded, which requests wait for one, which hold a lease, which may be
// retired. Owned by the router's thread; a lease may end on any thread. Invariants: (1) Every request for a model gets one
// answer, the lease or an error, unless it stops waiting. (2) A model with leases is not retired. (3) There is no new lease of
// a model that has lost a device.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "chat/chat.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/model_defaults.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/lane/lane.h"
#include "engine/lane/run/embed_lane.h"
#include "engine/lane/run/picture_lane.h"
#include "engine/model/grammar_cache.h"
#include "engine/model/model_loader.h"
#include "image/image_encoder.h"
#include "llm/model.h"
#include "llm/picture/picture_model.h"
#include "llm/text_embedding.h"

namespace uma::engine {

// A loaded model. A chat model has `model`, `chat`, `grammars` and at least one lane; an embedding model or reranker has
// `embedder` and at least one embedding lane. Both may have an image encoder. A model that draws has `picture_model` and
// `picture_lane`.
struct ServedModel {
  std::string name{};
  std::shared_ptr<const llm::Model> model{};       // Shared with the lanes and jobs of the work pool.
  std::shared_ptr<const chat::ChatFormat> chat{};  // Shared with the lanes and jobs of the work pool.
  std::shared_ptr<GrammarCache> grammars{};        // Shared with the lanes and jobs of the work pool.
  std::vector<Lane*> lanes{};
  std::shared_ptr<image::ImageEncoder> image_encoder{};  // Shared with its thread; null: the model reads no images.
  std::shared_ptr<const llm::TextEmbedder> embedder{};   // Shared with jobs of the work pool.
  std::vector<EmbedLane*> embed_lanes{};
  std::shared_ptr<const llm::PictureModel> picture_model{};  // Shared with its lane and jobs of the work pool.
  PictureLane* picture_lane = nullptr;
  TimePoint loaded_at{};
  ModelDefaults defaults{};  // For requests to a chat model.

  [[nodiscard]] ImageVectors image_vectors() const {
    if (image_encoder == nullptr) return ImageVectors::none;
    return embedder != nullptr && embedder->reads_images() ? ImageVectors::shared : ImageVectors::projector;
  }
  [[nodiscard]] const llm::ContextShape& shape() const { return lanes.front()->shape(); }
  // A chat model may read images, too.
  [[nodiscard]] Capability capability() const {
    if (picture_model != nullptr) return Capability::text_to_image;
    return embedder != nullptr ? embedder->model().facts().capability : Capability::chat;
  }
  // A device of the model is lost.
  [[nodiscard]] bool is_lost() const {
    if (picture_model != nullptr) return picture_model->is_lost();
    return embedder != nullptr ? embedder->model().is_lost() : model->is_lost();
  }
  // The error of a request for another capability; `advice` names the models to use instead.
  [[nodiscard]] Error wrong_capability(std::string_view advice) const;
};

// The deadline of a request received at `received`. Loading of the model `loaded` does not count as waiting; null: the request
// has no model yet. kNever: `deadline_ms` is 0.
[[nodiscard]] TimePoint deadline_after(TimePoint received, std::int64_t deadline_ms, const ServedModel* loaded);

// The deadline, as deadline_after(), of a request that generates no tokens and has `deadline_ms` until it is done; nullopt: the
// default of its class, for interactive ones `usual_ms`.
[[nodiscard]] TimePoint deadline_of_whole(TimePoint received, RequestClass request_class,
                                          std::optional<std::int64_t> deadline_ms, std::int64_t usual_ms,
                                          const ServedModel& loaded);

// Makes a chat model. `encoder` encodes its images; null: it reads no images.
[[nodiscard]] ServedModel chat_model(std::shared_ptr<const llm::Model> model, std::vector<Lane*> lanes,
                                     std::shared_ptr<image::ImageEncoder> encoder = nullptr, ModelDefaults defaults = {});
// Makes an embedding model or reranker. `encoder` encodes its images; null: it reads no images.
[[nodiscard]] ServedModel text_model(std::shared_ptr<const llm::TextEmbedder> embedder, std::vector<EmbedLane*> lanes,
                                     std::shared_ptr<image::ImageEncoder> encoder = nullptr);
// Makes a model that draws pictures.
[[nodiscard]] ServedModel picture_model(std::shared_ptr<const llm::PictureModel> model, PictureLane& lane);
// How the inputs of an embedding model become tokens (docs/decisions/0060). `encoder` may be null.
[[nodiscard]] llm::InputFormat input_format(const std::shared_ptr<const llm::Model>& model, const llm::EmbeddingShape& shape,
                                            const std::shared_ptr<image::ImageEncoder>& encoder, const ModelDefaults& defaults);

// The number of leases of a model, and when one last began or ended.
struct ModelLeases {
  explicit ModelLeases(const Clock& its_clock) : clock(its_clock) {}

  const Clock& clock;
  std::atomic<std::int64_t> all{0};
  std::atomic<std::int64_t> background{0};
  std::atomic<TimePoint> last_used{TimePoint()};
};

// The right to use a loaded model, which is not retired meanwhile. It moves along with the work for a request and may end on
// any thread.
class ModelLease {
 public:
  ModelLease() = default;
  // Not inlined, because GCC 14 warns about a lease inside an Expected that holds an error (-Wmaybe-uninitialized).
  [[gnu::noinline]] ModelLease(ModelLease&& other) noexcept
      : model_(other.model_), leases_(std::move(other.leases_)), is_background_(other.is_background_) {}
  ModelLease& operator=(ModelLease&& other) noexcept {
    std::swap(model_, other.model_);
    std::swap(leases_, other.leases_);
    std::swap(is_background_, other.is_background_);
    return *this;
  }
  ~ModelLease();

  [[nodiscard]] bool is_empty() const { return leases_ == nullptr; }
  [[nodiscard]] ModelLease share() const { return ModelLease(*model_, leases_, is_background_); }
  [[nodiscard]] const ServedModel& operator*() const { return *model_; }
  [[nodiscard]] const ServedModel* operator->() const { return model_; }

 private:
  friend class ModelTable;
  ModelLease(const ServedModel& model, std::shared_ptr<ModelLeases> leases, bool is_background);

  const ServedModel* model_ = nullptr;
  std::shared_ptr<ModelLeases> leases_;  // Shared with the model's entry: a lease may end after the entry.
  bool is_background_ = false;
};

class ModelTable {
 public:
  // The references outlive the table.
  ModelTable(ModelLoader& source, TaskRunner& tasks, const Clock& clock) : source_(source), tasks_(tasks), clock_(clock) {}

  // Leases the model that clients mean by `name`. Waits until it is loaded, and starts the load if needed; a background request
  // also waits until the model is not held. A load ends early when no request waits for it any more. Errors: E_MODEL_001,
  // E_MODEL_002.
  [[nodiscard]] Task<Expected<ModelLease>> lease(std::string name, bool is_background = false);
  // Leases a chat model. Errors: those of lease(), E_MODEL_003.
  [[nodiscard]] Task<Expected<ModelLease>> lease_chat(std::string name, bool is_background = false);
  // Refuses all waiting requests.
  void refuse_waiting(const Error& error);

  // Each load of the source ends with one of these two calls, which answer the waiting requests.
  void add(const std::string& name, ServedModel loaded);
  void set_failed(const std::string& name, const Error& error);
  // The load waits for `bytes` of memory; 0: it continues.
  void set_bytes_wanted(const std::string& name, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes_wanted(const std::string& name) const;

  // Adds workers to a loaded model, of the kind that it has.
  void add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes);
  // True: the model has no lease, and from now on only its first `count` lanes are used. False: it has leases, or is not
  // loaded.
  [[nodiscard]] bool shrink_lanes(const std::string& name, std::size_t count);
  // From now on background requests wait even if the model is loaded, so that its leases end; false: they do not wait any more.
  void hold_background(const std::string& name, bool holds);
  // True: the model has no lease, and from now on its lanes are not used; requests for it wait for set_retired() and then for
  // another load. False: it has leases, or is not loaded.
  [[nodiscard]] bool retire(const std::string& name);
  void set_retired(const std::string& name);
  // Takes the models out of service that have lost a device: their requests end, and the source retires them then.
  void take_out_lost();

  // Null: the model is not loaded.
  [[nodiscard]] const ServedModel* find(const std::string& name) const;
  // All loaded models.
  [[nodiscard]] std::vector<const ServedModel*> loaded() const;
  [[nodiscard]] std::vector<ModelUsage> usage() const;

 private:
  struct Waiting {
    bool is_background = false;
    Promise<ModelLease> reply;  // Called once with the lease or an error.
    bool is_answered = false;
  };
  class WaitingEntry;
  struct Entry {
    // lost: a device of the model is lost. As retiring, but there may be leases still.
    enum class State : std::uint8_t { unloaded, loading, ready, lost, retiring } state = State::unloaded;
    ServedModel model;
    std::shared_ptr<ModelLeases> leases;
    std::optional<Error> error;      // The error of the last load.
    TimePoint retry_at{};            // Until then requests get `error`.
    std::uint64_t bytes_wanted = 0;  // While loading: the memory that the load waits for; 0: it does not wait.
    bool holds_background = false;
    bool is_wanted = true;  // While loading: false: no request waits any more, and the load is being cancelled.
    std::list<Waiting> waiting;
  };

  [[nodiscard]] Entry& entry_of(const std::string& name);
  void take_out_if_lost(Entry& entry);
  void request_load(Entry& entry);
  void answer_waiting(Entry& entry);
  void stop_waiting(Entry& entry, std::list<Waiting>::iterator place);

  ModelLoader& source_;
  TaskRunner& tasks_;
  const Clock& clock_;
  std::unordered_map<std::string, Entry> entries_;  // Never removed, because leases point at the entries.
};

}  // namespace uma::engine
