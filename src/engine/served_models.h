// The models that somebody has wanted: which are loaded, who waits for one, who uses one, which may leave. Owned by the
// router's thread; a use may end on any. Invariants: (1) Whoever wants a model is answered once, with the model or with why it
// cannot be used; one who gives up is not. (2) A model that is in use is not retired.
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
#include "capability/chat.h"
#include "capability/text_embedding.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/reply.h"
#include "core/task.h"
#include "engine/embed_lane.h"
#include "engine/grammar_cache.h"
#include "engine/lane.h"
#include "engine/vision.h"
#include "engine/worker_source.h"
#include "llm/model.h"

namespace uma::engine {

// What is in memory of a model. One of chat has `model`, `chat`, `grammars` and at least one lane; one of texts has `embedder`
// and at least one of its lanes.
struct ServedModel {
  std::string name{};
  std::shared_ptr<const llm::Model> model{};             // shared with the lanes and the preparer's jobs
  std::shared_ptr<const capability::ChatFormat> chat{};  // likewise
  std::shared_ptr<GrammarCache> grammars{};              // likewise
  std::vector<Lane*> lanes{};
  std::shared_ptr<Vision> vision{};                            // shared with its thread; null: it reads no images
  std::shared_ptr<const capability::TextEmbedder> embedder{};  // shared with the preparer's jobs
  std::vector<EmbedLane*> embed_lanes{};
  TimePoint loaded_at{};

  [[nodiscard]] const llm::ContextShape& shape() const { return lanes.front()->shape(); }
};

// When something that was received then has waited so many ms; 0: never. `loaded`: the model it uses, whose loading is not
// counted as waiting; null: it has none yet.
[[nodiscard]] TimePoint deadline_after(TimePoint received, std::int64_t deadline_ms, const ServedModel* loaded);

// A model of chat, as the engine hands it over. `vision`: what reads images for it; null: nothing does.
[[nodiscard]] ServedModel chat_model(std::shared_ptr<const llm::Model> model, std::vector<Lane*> lanes,
                                     std::shared_ptr<Vision> vision = nullptr);
// One of embeddings or reranking.
[[nodiscard]] ServedModel text_model(std::shared_ptr<const capability::TextEmbedder> embedder, std::vector<EmbedLane*> lanes);

// Who uses a model now, and when somebody did last.
struct ModelUses {
  explicit ModelUses(const Clock& its_clock) : clock(its_clock) {}

  const Clock& clock;
  std::atomic<std::int64_t> all{0};
  std::atomic<std::int64_t> background{0};
  std::atomic<TimePoint> last_used{TimePoint()};
};

// Keeps a loaded model from being retired. Moved along with what is done; may end on any thread.
class ModelUse {
 public:
  ModelUse() = default;
  // Not inlined: of one inside an Expected that holds an error GCC 14 would take it for read (-Wmaybe-uninitialized).
  [[gnu::noinline]] ModelUse(ModelUse&& other) noexcept
      : model_(other.model_), uses_(std::move(other.uses_)), is_background_(other.is_background_) {}
  ModelUse& operator=(ModelUse&& other) noexcept {
    std::swap(model_, other.model_);
    std::swap(uses_, other.uses_);
    std::swap(is_background_, other.is_background_);
    return *this;
  }
  ~ModelUse();

  [[nodiscard]] bool is_empty() const { return uses_ == nullptr; }
  [[nodiscard]] ModelUse again() const { return ModelUse(*model_, uses_, is_background_); }
  [[nodiscard]] const ServedModel& operator*() const { return *model_; }
  [[nodiscard]] const ServedModel* operator->() const { return model_; }

 private:
  friend class ServedModels;
  ModelUse(const ServedModel& model, std::shared_ptr<ModelUses> uses, bool is_background);

  const ServedModel* model_ = nullptr;
  std::shared_ptr<ModelUses> uses_;  // with the model's entry: what was never done may be dropped after that
  bool is_background_ = false;
};

class ServedModels {
 public:
  // The references outlive it.
  ServedModels(WorkerSource& source, TaskRunner& tasks, const Clock& clock) : source_(source), tasks_(tasks), clock_(clock) {}

  // Waits until the model that clients mean by `name` is loaded, which begins if need be, and for a background request until
  // the model is not held. A load ends early where everybody who waits for it has given up. Errors: E_MODEL_001, E_MODEL_002.
  [[nodiscard]] Task<Expected<ModelUse>> lease(std::string name, bool is_background = false);
  // Likewise, of a model of chat. Errors: E_MODEL_003 too.
  [[nodiscard]] Task<Expected<ModelUse>> lease_chat(std::string name, bool is_background = false);
  // Everybody who waits is refused.
  void refuse_waiting(const Error& error);

  // What waits for a model that the source was asked for waits until one of these two is called.
  void add(const std::string& name, ServedModel loaded);
  void set_failed(const std::string& name, const Error& error);
  // Its load waits for so many bytes of memory; 0: it goes on.
  void set_bytes_wanted(const std::string& name, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes_wanted(const std::string& name) const;

  // More workers of a loaded model, of the kind that it has.
  void add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes);
  // True: nobody uses the model, and from now on only its first `count` lanes are used. False: it is in use, or not loaded.
  [[nodiscard]] bool keep_lanes(const std::string& name, std::size_t count);
  // From now on background requests for the model wait as if it were not there, so that it becomes free; or not any more.
  void hold_background(const std::string& name, bool holds);
  // True: nobody uses the model, and from now on its lanes are not used any more; what wants it waits for set_retired(), and
  // then for another load. False: it is in use, or not loaded.
  [[nodiscard]] bool retire(const std::string& name);
  void set_retired(const std::string& name);

  // Null: it is not loaded.
  [[nodiscard]] const ServedModel* find(const std::string& name) const;
  // All that are loaded.
  [[nodiscard]] std::vector<const ServedModel*> loaded() const;
  [[nodiscard]] std::vector<ModelUsage> usage() const;

 private:
  struct Waiting {
    bool is_background = false;
    Reply<ModelUse> reply;  // called once it is known whether the model may be used
    bool is_answered = false;
  };
  class Place;
  struct Entry {
    enum class State : std::uint8_t { away, loading, ready, leaving } state = State::away;
    ServedModel model;
    std::shared_ptr<ModelUses> uses;
    std::optional<Error> error;      // of the last load
    TimePoint retry_at{};            // until then it is the answer
    std::uint64_t bytes_wanted = 0;  // loading: it waits until there is so much memory; 0: it does not
    bool holds_background = false;
    bool is_wanted = true;  // loading: somebody waits for it; false: the load is being ended
    std::list<Waiting> waiting;
  };

  [[nodiscard]] Entry& entry_of(const std::string& name);
  void ask_source_for(Entry& entry);
  void answer_waiting(Entry& entry);
  void leave(Entry& entry, std::list<Waiting>::iterator place);

  WorkerSource& source_;
  TaskRunner& tasks_;
  const Clock& clock_;
  std::unordered_map<std::string, Entry> entries_;  // never removed: uses point at them
};

}  // namespace uma::engine
