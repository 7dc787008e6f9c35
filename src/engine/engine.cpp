#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <format>
#include <fstream>
#include <future>
#include <iterator>
#include <unistd.h>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/cpu_load.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "base/thrown.h"
#include "capability/message_images.h"
#include "engine/image_fetcher.h"

namespace uma::engine {
namespace {

// A generation that waits has about so much beside what its client sent: its sink, its sampler, its parser.
constexpr std::size_t kGenerationBytes = 16'384;

constexpr int kBesideStreams = 5;  // niceness of who computes what nobody reads token by token

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages_total = 0;
  std::int64_t pages_resident = 0;
  file >> pages_total >> pages_resident;
  return pages_resident * ::sysconf(_SC_PAGESIZE);
}

template <class T>
std::vector<T*> pointers_to(std::vector<T>& values) {
  std::vector<T*> pointers;
  for (T& value : values) pointers.push_back(&value);
  return pointers;
}

// Those from `first` on.
template <class T>
std::vector<T> take_from(std::vector<T>& values, std::size_t first) {
  std::vector<T> taken;
  while (values.size() > first) {
    taken.push_back(std::move(values.back()));
    values.pop_back();
  }
  return taken;
}

double mean(double sum, std::uint64_t count) {
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// Of two times of which 0 is none.
std::int64_t earlier_us(std::int64_t left, std::int64_t right) {
  if (left == 0 || right == 0) return std::max(left, right);
  return std::min(left, right);
}

// Sums a histogram over the lanes.
struct Merged {
  LatencyHistogram::Counts counts{};
  double sum_ms = 0;
  std::uint64_t count = 0;

  void add(const LatencyHistogram& histogram) {
    histogram.add_to(counts);
    sum_ms += histogram.sum_ms();
    count += histogram.count();
  }
  [[nodiscard]] HistogramSnapshot snapshot() const {
    constexpr std::size_t kStep = LatencyHistogram::kPerDoubling;
    constexpr std::size_t kFirst = 7 * kStep;  // the buckets below 128 µs
    HistogramSnapshot few;
    few.sum_s = sum_ms / 1000;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (i >= kFirst && (i - kFirst) % kStep == 0 && (i - kFirst) / kStep < few.at_most.size()) {
        few.at_most[(i - kFirst) / kStep] = few.count;
      }
      few.count += counts[i];
    }
    return few;
  }
  [[nodiscard]] double mean_ms() const { return mean(sum_ms, count); }
  [[nodiscard]] double percentile_ms(double quantile) const { return LatencyHistogram::percentile_ms(counts, quantile); }
};

// What the step returns; where it throws, that it did something.
template <class Step, class Outcome = bool>
Outcome noted(Step step, Outcome outcome = true) {
  run_noting([&] { outcome = step(); });
  return outcome;
}

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<WorkerSource> source, std::unique_ptr<kv::Catalog> catalog,
               std::unique_ptr<kv::ColdStore> cold, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      started_at_(clock.now()),
      source_(std::move(source)),
      catalog_(std::move(catalog)),
      store_(with_engine(options_.store), std::move(cold), clock),
      fetcher_(options_.vision.urls.allow_any()
                   ? std::make_unique<ImageFetcher>(options_.vision.urls, options_.limits.queue_bytes_max)
                   : nullptr),
      memory_(std::make_shared<TenantBudget>(options_.limits.queue_bytes_max, "requests under way", "limits.queue_bytes_max")),
      router_(
          {.limits = options_.limits,
           .seed = secure_u64(),
           .ids = secure_u64,
           .fetcher = fetcher_.get(),
           .on_images_free =
               [this](std::vector<std::string> ids, std::function<bool(const std::string& id)> is_used) {
                 if (const auto& kept = options_.vision.kept) {
                   store_.run_later([kept, ids = std::move(ids), is_used = std::move(is_used)] { kept->remove(ids, is_used); });
                 }
               }},
          *source_, *catalog_, store_, preparer_, clock) {
  if (options_.vision.kept) options_.vision.kept->remove_others(router_.image_ids());
}

// The store is told whether somebody computes.
kv::StoreOptions Engine::with_engine(kv::StoreOptions options) const {
  options.is_busy = [this] { return has_streams(); };
  return options;
}

bool Engine::has_streams() const {
  const MutexLock lock(models_mutex_);
  return std::ranges::any_of(models_, [](const auto& entry) {
    return std::ranges::any_of(entry.second.workers,
                               [](const Worker& worker) { return worker.lane->stats().sequences_active.value() > 0; });
  });
}

Engine::~Engine() {
  stop();
}

void Engine::start() {
  started_ = true;
  auto sessions = router_.session_ids();  // before the router's thread, which may get requests at once
  source_->start(*this);
  router_thread_ = std::thread([this] {
    set_thread_name("uma-router");
    do {
      while (noted([&] { return router_.step(); })) {
      }
    } while (router_.wait());
  });
  for (JobQueue& queue : preparer_.queues()) {
    preparer_threads_.emplace_back([&queue] {
      set_thread_name("uma-prep");
      do {
        while (queue.step()) {
        }
      } while (queue.wait());
    });
  }
  catalog_thread_ = std::thread([this] {
    set_thread_name("uma-catalog");
    do {
      while (noted([&] { return catalog_->step(); })) {
      }
    } while (catalog_->wait());
  });
  store_thread_ = std::thread([this, sessions = std::move(sessions)] { run_store(sessions); });
  load_model(options_.preload, [this](const Expected<Unit>& loaded) {
    if (!options_.on_loaded) return;
    if (!loaded) return options_.on_loaded(std::unexpected(loaded.error()));
    const std::string name = source_->resolve(options_.preload).value();
    const MutexLock lock(models_mutex_);
    options_.on_loaded(models_.at(name).info);
  });
}

// --- Models
// --------------------------------------------------------------------------------------------------------------------

// The library reports every tensor; who waits hears of every percent.
void Engine::on_load_progress(const std::string& model, double progress) {
  double before = 0;
  {
    const MutexLock lock(models_mutex_);
    ModelInfo& info = models_[model].info;
    info.state = ModelState::loading;
    before = std::exchange(info.load_progress, progress);
  }
  if (progress < before || std::floor(progress * 100) > std::floor(before * 100)) {
    router_.post([this, model, progress] { router_.on_load_progress(model, progress); });
  }
}

void Engine::on_load_queued(const std::string& model, std::uint64_t bytes) {
  router_.post([this, model, bytes] { router_.on_load_queued(model, bytes); });
}

// Until states have gone to disk; not for ever, should it be slow.
template <class Condition>
void Engine::wait_for_disk(const Condition& is_done) const {
  constexpr Duration kPatience = std::chrono::seconds(1);
  constexpr Duration kStep = std::chrono::milliseconds(5);
  for (const TimePoint end = clock_.now() + kPatience; !is_done() && clock_.now() < end;) std::this_thread::sleep_for(kStep);
}

void Engine::on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) {
  if (!loaded) {
    {
      const MutexLock lock(models_mutex_);
      models_[model].info = {.name = model, .state = ModelState::failed};
    }
    return router_.post([this, model, error = loaded.error()] { router_.on_load_failed(model, error); });
  }
  if (!loaded->embeddings.empty()) {
    auto embedder = std::make_shared<const capability::TextEmbedder>(loaded->model, loaded->embeddings.front()->shape(),
                                                                     std::exchange(loaded->tasks, {}));
    auto lanes = make_embed_workers(model, std::move(*loaded), embedder);
    return router_.post([this, model, embedder = std::move(embedder), lanes = std::move(lanes)]() mutable {
      router_.on_loaded(model, text_model(std::move(embedder), std::move(lanes)));
    });
  }
  store_is_open_.wait();  // requests of the first moment find what is on disk
  std::shared_ptr<const llm::Model> weights = loaded->model;
  std::shared_ptr<Vision> vision;
  if (loaded->projector) vision = make_vision(model, std::move(loaded->projector));
  std::vector<Lane*> lanes = make_workers(model, std::move(*loaded));
  router_.post([this, model, weights = std::move(weights), lanes = std::move(lanes), vision = std::move(vision)]() mutable {
    router_.on_loaded(model, chat_model(std::move(weights), std::move(lanes), std::move(vision)));
  });
}

std::shared_ptr<Vision> Engine::make_vision(const std::string& name, std::unique_ptr<llm::Projector> projector) {
  const MutexLock lock(models_mutex_);
  Loaded& loaded = models_[name];
  loaded.vision = std::make_shared<Vision>(std::move(projector), options_.vision, clock_, loaded.vision_stats);
  loaded.vision_thread = std::thread([vision = loaded.vision] { run_vision(*vision); });
  return loaded.vision;
}

std::vector<Lane*> Engine::make_workers(const std::string& name, LoadedWorkers made) {
  const llm::ModelFacts& facts = made.model->facts();
  const llm::ContextShape shape = made.workers.front().decode->shape();
  const MutexLock lock(models_mutex_);
  Loaded& loaded = models_[name];
  UMA_CHECK(loaded.workers.empty());
  loaded.info = {.name = name,
                 .description = facts.description,
                 .state = ModelState::ready,
                 .load_progress = 1,
                 .bytes = facts.bytes * static_cast<std::uint64_t>(made.copies),
                 .parameters = facts.parameters,
                 .context_tokens = shape.cells,
                 .sequence_tokens_max = shape.sequence_cells_max,
                 .train_tokens = facts.train_tokens,
                 .vocabulary = made.model->vocab().size(),
                 .slots = shape.sequences,
                 .has_chat_template = !facts.chat_template.empty(),
                 .reads_images = loaded.vision != nullptr,
                 .kv_layout = shape.is_unified ? "unified" : "split"};
  loaded.model = made.model;
  loaded.reservation = std::move(made.reservation);
  return add_lanes(loaded, made);
}

std::vector<Lane*> Engine::add_lanes(Loaded& loaded, LoadedWorkers& made) {
  const llm::ModelFacts& facts = made.model->facts();
  const std::size_t first = loaded.workers.size();
  std::vector<Lane*> lanes;
  for (WorkerContexts& worker : made.workers) {
    const std::size_t index = loaded.workers.size();
    if (index == loaded.stats.size()) loaded.stats.push_back(std::make_shared<LaneStats>());
    LaneOptions options{.index = static_cast<std::int32_t>(index),
                        .threads = made.threads,
                        .threads_beside_prefill = made.threads_beside_prefill,
                        .tick_ms = options_.tick_ms,
                        .target_ttft_ms = options_.target_ttft_ms,
                        .target_tbt_ms = options_.target_tbt_ms,
                        .weights = {.always = facts.bytes - facts.expert_bytes,
                                    .experts = facts.expert_bytes,
                                    .experts_count = facts.experts_count,
                                    .experts_used = facts.experts_used},
                        .bmt_budget_gbps = options_.bmt_budget_gbps,
                        .policy = options_.policy,
                        .is_reproducible = options_.is_reproducible,
                        .speculates = options_.speculates,
                        .verify_every = options_.verify_every,
                        .workers = busy_workers_,
                        .stats = loaded.stats[index],
                        .store = &store_,
                        .eviction = options_.store.eviction,
                        .wait_for_disk = [this](const std::function<bool()>& is_done) { wait_for_disk(is_done); },
                        .others_busy = nullptr,
                        .encode = nullptr,
                        .guess = nullptr,
                        .on_logits = nullptr};
    if (loaded.vision) {
      options.encode = [vision = loaded.vision](const TenantId& tenant, const std::string& image,
                                                std::move_only_function<void(Expected<EncodedPtr>)> then) {
        vision->post(tenant, [vision, image, then = std::move(then)]() mutable {
          then(contain([&] { return vision->encode(image); }));
        });
      };
    }
    if (options.threads > 1) {
      options.others_busy = [load = std::make_shared<CpuLoad>()] { return load->others_since_last(); };
    }
    auto lane = std::make_unique<Lane>(
        std::move(options), std::move(worker.decode), std::move(worker.prefill), loaded.model->vocab(), clock_,
        [this](GenerationResult result) {
          router_.post([this, result = std::move(result)]() mutable { router_.generations().on_result(std::move(result)); });
        });
    if (worker.draft) {
      lane->draft_with(std::make_unique<ModelDrafter>(std::move(worker.draft), loaded.model->vocab(), clock_));
    }
    lanes.push_back(lane.get());
    loaded.workers.push_back({made.reservation, std::move(lane), {}});
  }
  for (std::size_t i = first; i < loaded.workers.size(); ++i) {
    Worker& worker = loaded.workers[i];
    worker.threads.emplace_back([i, lane = worker.lane.get()] { run_lane(*lane, i); });
    if (PrefillLane* prefill = worker.lane->prefill_lane()) {
      worker.threads.emplace_back([i, prefill] { run_prefill_lane(*prefill, i); });
    }
  }
  loaded.count_workers();
  return lanes;
}

std::vector<EmbedLane*> Engine::make_embed_workers(const std::string& name, LoadedWorkers made,
                                                   const std::shared_ptr<const capability::TextEmbedder>& embedder) {
  const llm::ModelFacts& facts = made.model->facts();
  const llm::EmbeddingShape& shape = embedder->shape();
  const MutexLock lock(models_mutex_);
  Loaded& loaded = models_[name];
  UMA_CHECK(loaded.embed_workers.empty());
  loaded.info = {.name = name,
                 .description = facts.description,
                 .capability = facts.capability,
                 .state = ModelState::ready,
                 .load_progress = 1,
                 .bytes = facts.bytes * static_cast<std::uint64_t>(made.copies),
                 .parameters = facts.parameters,
                 .context_tokens = shape.batch_rows_max,
                 .sequence_tokens_max = shape.text_tokens_max,
                 .train_tokens = facts.train_tokens,
                 .vocabulary = made.model->vocab().size(),
                 .slots = shape.batch_texts_max,
                 .dimensions = facts.capability == Capability::text_embedding ? shape.dimensions : 0};
  loaded.model = made.model;
  loaded.reservation = std::move(made.reservation);
  return add_embed_lanes(loaded, made);
}

std::vector<EmbedLane*> Engine::add_embed_lanes(Loaded& loaded, LoadedWorkers& made) {
  std::vector<EmbedLane*> lanes;
  for (std::unique_ptr<llm::EmbeddingContext>& context : made.embeddings) {
    const std::size_t i = loaded.embed_workers.size();
    if (i == loaded.embed_stats.size()) loaded.embed_stats.push_back(std::make_shared<EmbedStats>());
    EmbedLaneOptions options{.index = static_cast<std::int32_t>(i),
                             .threads = made.threads,
                             .queue_depth_warn = options_.queue_depth_warn,
                             .stats = loaded.embed_stats[i],
                             .has_streams = [this] { return has_streams(); },
                             .workers = busy_workers_};
    auto lane = std::make_unique<EmbedLane>(std::move(options), std::move(context), clock_);
    lanes.push_back(lane.get());
    loaded.embed_workers.push_back(
        {made.reservation, std::move(lane), std::thread([i, lane = lanes.back()] { run_embed_lane(*lane, i); })});
  }
  loaded.count_workers();
  return lanes;
}

void Engine::add_workers(const std::string& model, LoadedWorkers more) {
  const MutexLock lock(models_mutex_);
  Loaded& loaded = models_.at(model);
  loaded.info.bytes += more.model == loaded.model ? 0 : more.model->facts().bytes;
  router_.post([this, model, lanes = add_lanes(loaded, more), embed_lanes = add_embed_lanes(loaded, more)] {
    router_.add_lanes(model, lanes, embed_lanes);
  });
}

bool Engine::keep_workers(const std::string& model, std::size_t count) {
  if (!ask_router<bool>([&] { return router_.keep_lanes(model, count); })) return false;
  std::vector<Worker> workers;
  std::vector<EmbedWorker> embed_workers;
  {
    const MutexLock lock(models_mutex_);
    Loaded& loaded = models_.at(model);
    workers = take_from(loaded.workers, count);
    embed_workers = take_from(loaded.embed_workers, count);
    loaded.count_workers();
  }
  close_workers(pointers_to(workers), pointers_to(embed_workers));
  wait_for_disk([this] { return store_.is_at_rest(); });
  return true;
}

void Engine::close_workers(const std::vector<Worker*>& workers, const std::vector<EmbedWorker*>& embed_workers) {
  for (const Worker* worker : workers) worker->lane->close();
  for (const EmbedWorker* worker : embed_workers) worker->lane->close();
  for (EmbedWorker* worker : embed_workers) worker->thread.join();
  for (Worker* worker : workers) {
    for (std::thread& thread : worker->threads) thread.join();
  }
}

bool Engine::retire(const std::string& model) {
  if (!ask_router<bool>([this, &model] { return router_.retire(model); })) return false;
  {
    Loaded freed;
    {
      const MutexLock lock(models_mutex_);
      Loaded& loaded = models_.at(model);
      Loaded left;
      left.info = {.name = model, .state = ModelState::unloaded};
      left.vision_stats = loaded.vision_stats;
      left.stats = loaded.stats;
      left.embed_stats = loaded.embed_stats;
      freed = std::exchange(loaded, std::move(left));
    }
    close_workers(pointers_to(freed.workers), pointers_to(freed.embed_workers));
    // What is on its way to disk is paid for by the model that it is of.
    wait_for_disk([this] { return store_.is_at_rest(); });
    if (freed.vision) {
      freed.vision->close();
      freed.vision_thread.join();
    }
  }
  router_.post([this, model] { router_.on_retired(model); });
  return true;
}

void Engine::hold_background(const std::string& model, bool holds) {
  router_.post([this, model, holds] { router_.hold_background(model, holds); });
}

std::vector<ModelUsage> Engine::usage() {
  return ask_router<std::vector<ModelUsage>>([this] { return router_.usage(); });
}

template <class T>
T Engine::ask_router(std::move_only_function<T()> question) {
  std::promise<T> answer;
  router_.post([&] {
    try {
      answer.set_value(question());
    } catch (...) {
      answer.set_exception(std::current_exception());
    }
  });
  return answer.get_future().get();
}

// --- Threads
// -------------------------------------------------------------------------------------------------------------------

void Engine::run_store(const std::unordered_set<SessionId>& sessions) {
  constexpr Duration kSaveLimit = std::chrono::seconds(20);
  set_thread_name("uma-store");
  store_.open(sessions);
  store_opened_.set_value();
  do {
    while (noted([&] { return store_.step(); })) {
    }
  } while (store_.wait());
  store_.save_all(clock_.now() + kSaveLimit);
}

void Engine::run_vision(Vision& vision) {
  set_thread_name("uma-vision");
  yield_to_others(kBesideStreams);
  do {
    while (vision.step()) {
    }
  } while (vision.wait());
}

void Engine::run_lane(Lane& lane, std::size_t index) {
  set_thread_name(std::format("uma-lane-{}", index).c_str());
  for (;;) {
    const StepOutcome outcome = lane.step();
    if (!outcome.did_work && !lane.wait(outcome.wake)) break;
    if (lane.is_closed()) break;
  }
  lane.cancel_all();
}

void Engine::run_prefill_lane(PrefillLane& lane, std::size_t index) {
  set_thread_name(std::format("uma-prefill-{}", index).c_str());
  while (!lane.is_closed()) {
    const StepOutcome outcome = noted([&] { return lane.step(); }, StepOutcome{.did_work = true, .wake = kNever});
    if (!outcome.did_work && !lane.wait(outcome.wake)) break;
  }
  lane.forget_all();
}

void Engine::run_embed_lane(EmbedLane& lane, std::size_t index) {
  set_thread_name(std::format("uma-embed-{}", index).c_str());
  yield_to_others(kBesideStreams);
  while (!lane.is_closed()) {
    const StepOutcome outcome = noted([&] { return lane.step(); }, StepOutcome{.did_work = true, .wake = kNever});
    if (!outcome.did_work && !lane.wait(outcome.wake)) break;
  }
  lane.cancel_all();
}

void Engine::drain() {
  router_.post([this] { router_.drain(); });
}

void Engine::stop() {
  if (!started_) return;
  started_ = false;
  if (fetcher_) fetcher_->stop();
  source_->stop();
  std::vector<Worker*> workers;
  std::vector<std::thread> vision_threads;
  std::vector<EmbedWorker*> embed_workers;
  {
    const MutexLock lock(models_mutex_);
    for (auto& [name, loaded] : models_) {
      std::ranges::copy(pointers_to(loaded.workers), std::back_inserter(workers));
      std::ranges::copy(pointers_to(loaded.embed_workers), std::back_inserter(embed_workers));
      if (!loaded.vision) continue;
      loaded.vision->close();
      vision_threads.push_back(std::move(loaded.vision_thread));
    }
  }
  // Nobody adds or removes any more; metrics are still read.
  close_workers(workers, embed_workers);
  for (std::thread& thread : vision_threads) thread.join();
  store_.close();
  store_thread_.join();
  preparer_.close();
  for (std::thread& thread : preparer_threads_) thread.join();
  // What the lanes have reported is committed before the catalog closes.
  std::promise<void> has_ended_all;
  router_.post([&] { router_.end_all([&] { has_ended_all.set_value(); }); });
  has_ended_all.get_future().wait();
  catalog_->close();
  catalog_thread_.join();
  router_.close();
  router_thread_.join();
}

// --- Service: each call is one command to the router
// ----------------------------------------------------------------------------

// What the request has been decoded to is counted as long as the share lives.
Expected<RequestShare> Engine::hold(const TenantId& tenant, std::size_t bytes) {
  RequestShare share = memory_->open(tenant);
  if (auto held = share->grow(bytes); !held) return std::unexpected(held.error());
  return share;
}

// The request's share; nothing where there is no room, which the reply then says.
template <class T, class RequestT>
std::optional<RequestShare> Engine::hold_or_refuse(const TenantId& tenant, const RequestT& request, Reply<T>& reply) {
  auto share = hold(tenant, memory_of(request));
  if (share) return std::move(*share);
  router_.post([this, reply = std::move(reply), error = std::move(share.error())]() mutable {
    router_.refuse(reply, std::move(error));
  });
  return std::nullopt;
}

// The reply, with which the request's share ends; nothing as above.
template <class T, class RequestT>
std::optional<Reply<T>> Engine::holding(const TenantId& tenant, const RequestT& request, Reply<T> reply) {
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return std::nullopt;
  return Reply<T>(
      [share = std::move(*share), reply = std::move(reply)](Expected<T> value) mutable { reply(std::move(value)); });
}

RequestId Engine::generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) {
  const RequestId id{last_request_.fetch_add(sinks.size()) + 1};
  auto share = hold(tenant, memory_of(request) + sinks.size() * kGenerationBytes);
  if (!share) {
    router_.post([this, sinks = std::move(sinks), error = std::move(share.error())] { router_.refuse(sinks, error); });
    return id;
  }
  request.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), sinks = std::move(sinks)]() mutable {
    router_.generations().start(id, tenant, std::move(request), std::move(sinks));
  });
  return id;
}

RequestId Engine::embed(TenantId tenant, EmbedRequest request, Reply<EmbedResult> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.options.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    router_.embeddings().embed(id, tenant, std::move(request), std::move(reply));
  });
  return id;
}

RequestId Engine::rerank(TenantId tenant, RerankRequest request, Reply<RerankResult> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.options.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    router_.embeddings().rerank(id, tenant, std::move(request), std::move(reply));
  });
  return id;
}

// The task is begun, and answers, on the router's thread.
template <class T>
void Engine::answer(Reply<T> reply, Task<Expected<T>> task) {
  router_.post([this, reply = std::move(reply), task = std::move(task)]() mutable {
    router_.tasks().answer(std::move(reply), std::move(task));
  });
}

void Engine::cancel(RequestId id, Reply<bool> reply) {
  router_.post([this, id, reply = std::move(reply)]() mutable { reply(router_.cancel(id)); });
}

void Engine::cancel_session(TenantId tenant, std::string session, Reply<bool> reply) {
  router_.post([this, tenant = std::move(tenant), session = std::move(session), reply = std::move(reply)]() mutable {
    reply(router_.cancel_session(tenant, session));
  });
}

void Engine::create_session(TenantId tenant, CreateSessionRequest request, Reply<SessionInfo> reply) {
  auto held = holding(tenant, request, std::move(reply));
  if (held) answer(std::move(*held), router_.sessions().create(std::move(tenant), std::move(request)));
}

void Engine::append_input(TenantId tenant, AppendRequest request, Reply<SessionInfo> reply) {
  auto held = holding(tenant, request, std::move(reply));
  if (held) answer(std::move(*held), router_.sessions().append(std::move(tenant), std::move(request)));
}

void Engine::end_session(TenantId tenant, std::string session, Reply<Unit> reply) {
  answer(std::move(reply), router_.sessions().end(std::move(tenant), std::move(session)));
}

void Engine::fork_session(TenantId tenant, std::string session, std::string name, Reply<SessionInfo> reply) {
  answer(std::move(reply), router_.sessions().fork(std::move(tenant), std::move(session), std::move(name)));
}

void Engine::rewind_session(TenantId tenant, std::string session, std::int32_t turn, Reply<SessionInfo> reply) {
  answer(std::move(reply), router_.sessions().rewind(std::move(tenant), std::move(session), turn));
}

void Engine::touch_session(TenantId tenant, std::string session, Reply<SessionInfo> reply) {
  answer(std::move(reply), router_.sessions().touch(std::move(tenant), std::move(session)));
}

void Engine::get_session(TenantId tenant, std::string session, Reply<SessionDetail> reply) {
  answer(std::move(reply), router_.sessions().get(std::move(tenant), std::move(session)));
}

void Engine::set_metadata(TenantId tenant, std::string session, std::string metadata, Reply<SessionDetail> reply) {
  answer(std::move(reply), router_.sessions().set_metadata(std::move(tenant), std::move(session), std::move(metadata)));
}

void Engine::remove_last_message(TenantId tenant, std::string session, MessagePosition place, Reply<SessionDetail> reply) {
  answer(std::move(reply), router_.sessions().remove_last_message(std::move(tenant), std::move(session), place));
}

void Engine::get_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) {
  answer(std::move(reply), router_.sessions().get_response(std::move(tenant), std::move(session), std::move(response)));
}

void Engine::cancel_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) {
  answer(std::move(reply), router_.sessions().cancel_response(std::move(tenant), std::move(session), std::move(response)));
}

void Engine::forget_response(TenantId tenant, std::string session, std::string response, Reply<Unit> reply) {
  answer(std::move(reply), router_.sessions().forget_response(std::move(tenant), std::move(session), std::move(response)));
}

void Engine::export_session(TenantId tenant, std::string session, bool with_kv, Reply<ExportedSession> reply) {
  answer(std::move(reply), router_.transfer().export_session(std::move(tenant), std::move(session), with_kv));
}

void Engine::import_session(TenantId tenant, ImportRequest request, Reply<ImportedSession> reply) {
  answer(std::move(reply), router_.transfer().import_session(std::move(tenant), std::move(request)));
}

void Engine::embed_images(TenantId tenant, EmbedImagesRequest request, Reply<ImageEmbeddings> reply) {
  auto held = holding(tenant, request, std::move(reply));
  if (held) answer(std::move(*held), router_.embeddings().embed_images(std::move(tenant), std::move(request)));
}

void Engine::list_sessions(TenantId tenant, SessionListRequest request, Reply<SessionList> reply) {
  router_.post([this, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    reply(router_.sessions().list(tenant, request));
  });
}

void Engine::read_images(std::vector<std::string> ids, std::size_t bytes_max, Reply<std::vector<Bytes>> reply) {
  store_.run_later([this, ids = std::move(ids), bytes_max, reply = std::move(reply)]() mutable {
    std::vector<Bytes> files(ids.size());
    for (std::size_t i = 0; i < ids.size() && options_.vision.kept; ++i) {
      const auto size = options_.vision.kept->size_of(ids[i]);
      if (!size || *size > bytes_max) continue;
      bytes_max -= *size;
      if (auto file = options_.vision.kept->read(ids[i])) files[i] = std::move(*file);
    }
    reply(std::move(files));
  });
}

void Engine::load_model(std::string model, Reply<Unit> reply) {
  answer(std::move(reply), router_.load_model(std::move(model)));
}

void Engine::unload_model(std::string model, Reply<Unit> reply) {
  auto known = source_->resolve(model);
  if (!known)
    return router_.post([reply = std::move(reply), error = known.error()]() mutable { reply(std::unexpected(error)); });
  source_->unload(*known, [this, reply = std::move(reply)](Expected<Unit> done) mutable {
    router_.post([reply = std::move(reply), done = std::move(done)]() mutable { reply(std::move(done)); });
  });
}

// --- What is known without asking anybody
// ---------------------------------------------------------------------------------------

std::vector<ModelInfo> Engine::models() const {
  std::vector<ModelInfo> infos = source_->list();
  const MutexLock lock(models_mutex_);
  for (ModelInfo& info : infos) {
    const auto found = models_.find(info.name);
    if (found == models_.end() || found->second.info.state == ModelState::unloaded) continue;
    std::vector<std::string> aliases = std::move(info.aliases);
    std::string problem = std::move(info.problem);
    const bool will_read_images = info.reads_images;
    info = found->second.info;
    if (info.state != ModelState::ready) info.reads_images = will_read_images;
    info.aliases = std::move(aliases);
    if (info.state == ModelState::failed) info.problem = std::move(problem);
  }
  return infos;
}

MetricsSnapshot Engine::metrics() const {
  MetricsSnapshot snapshot;
  Merged image_encode, inter_token, ttft, queue_wait, decode_call, prefill_call, sampling, restore, warm_restore, cold_restore,
      save, handover;
  std::uint64_t decode_ticks = 0;
  std::uint64_t decode_rows = 0;
  double bytes_moved = 0;
  std::uint64_t logits_rows = 0;
  std::uint64_t logits_copied = 0;
  double bytes_moved_total = 0;
  double calls_s = 0;
  std::int64_t cells_used = 0;
  std::int64_t cells_total = 0;
  std::int64_t last_call_us = 0;
  std::int64_t last_decode_us = 0;
  std::int64_t waiting_since_us = router_.waiting_since_us();

  if (const auto known = source_->resolve(options_.preload)) snapshot.model = *known;
  source_->add_metrics(snapshot);
  snapshot.crashes = options_.crashes;
  snapshot.uptime_s = to_ms(clock_.now() - started_at_) / 1000;
  snapshot.sessions = router_.sessions_count();
  snapshot.requests_open = router_.requests_open();
  snapshot.request_bytes = memory_->bytes_used();
  snapshot.kept_image_bytes = options_.vision.kept ? options_.vision.kept->bytes() : 0;
  snapshot.exceptions_total = thrown_count();
  snapshot.requests_total = last_request_.load();
  snapshot.requests_failed_total = router_.requests_refused();
  snapshot.rss_bytes = resident_bytes();
  const auto add = [&](const std::string& model, const LaneStats& stats, const llm::ContextShape& shape) {
    snapshot.requests_failed_total += stats.requests_failed_total.value();
    snapshot.requests_cancelled_total += stats.requests_cancelled_total.value();
    snapshot.tokens_total += stats.tokens_total.value();
    snapshot.prompt_tokens_total += stats.prompt_tokens_total.value();
    snapshot.reused_tokens_total += stats.reused_tokens_total.value();
    snapshot.batch_calls_total += stats.batch_calls_total.value();
    snapshot.ticks_total += stats.ticks_total.value();
    snapshot.sequences_active += stats.sequences_active.value();
    snapshot.queue_depth += stats.queue_depth.value();
    snapshot.preemptions_total += stats.preemptions_total.value();
    snapshot.context_shifts_total += stats.context_shifts_total.value();
    snapshot.reuses_verified_total += stats.reuses_verified_total.value();
    snapshot.reuses_wrong_total += stats.reuses_wrong_total.value();
    snapshot.not_finite_total += stats.not_finite_total.value();
    snapshot.promises_kept_total += stats.promises_kept_total.value();
    snapshot.promises_broken_total += stats.promises_broken_total.value();
    snapshot.drafted_tokens_total += stats.drafted_tokens_total.value();
    snapshot.drafted_accepted_total += stats.drafted_accepted_total.value();
    cells_used += stats.cells_used.value();
    cells_total += shape.cells;
    last_call_us = std::max(last_call_us, stats.last_call_us.value());
    last_decode_us = std::max(last_decode_us, stats.last_decode_us.value());
    waiting_since_us = earlier_us(waiting_since_us, stats.waiting_since_us.value());
    snapshot.hot_sessions += stats.hot_sessions.value();
    snapshot.hot_bytes += stats.cells_used.value() * static_cast<std::int64_t>(shape.kv_bytes_per_token);
    snapshot.hot_hits_total += stats.hot_hits_total.value();
    snapshot.warm_sessions += stats.swapped_sequences.value();
    snapshot.warm_bytes += stats.swapped_bytes.value();
    snapshot.warm_hits_total += stats.warm_hits_total.value();
    snapshot.cold_hits_total += stats.cold_hits_total.value();
    decode_ticks += stats.decode_ticks_total.value();
    decode_rows += stats.decode_rows_total.value();
    bytes_moved = std::max(bytes_moved, stats.bytes_moved_per_token.load());
    bytes_moved_total += static_cast<double>(stats.bytes_moved_total.value());
    calls_s += static_cast<double>(stats.calls_us_total.value()) / 1e6;
    logits_rows += stats.logits_rows_total.value();
    logits_copied += stats.logits_copied_total.value();
    snapshot.threads += stats.threads.value();
    handover.add(stats.handover);
    inter_token.add(stats.inter_token);
    ttft.add(stats.ttft);
    queue_wait.add(stats.queue_wait);
    decode_call.add(stats.decode_call);
    prefill_call.add(stats.prefill_call);
    sampling.add(stats.sampling);
    for (Merged* merged : {&restore, &warm_restore}) merged->add(stats.warm_restore);
    for (Merged* merged : {&restore, &cold_restore}) merged->add(stats.cold_restore);
    save.add(stats.save);
    snapshot.workers.push_back({.model = model,
                                .sequences_active = stats.sequences_active.value(),
                                .queue_depth = stats.queue_depth.value(),
                                .cells_used = stats.cells_used.value(),
                                .cells_total = shape.cells,
                                .tokens_total = stats.tokens_total.value(),
                                .batch_calls_total = stats.batch_calls_total.value()});
  };
  Merged embed_call, embed_request;
  const auto add_embed = [&](const EmbedStats& stats) {
    snapshot.requests_failed_total += stats.requests_failed_total.value();
    snapshot.requests_cancelled_total += stats.requests_cancelled_total.value();
    snapshot.embed_queue_depth += stats.queue_depth.value();
    snapshot.embed_texts_total += stats.texts_total.value();
    snapshot.embed_tokens_total += stats.tokens_total.value();
    snapshot.embed_calls_total += stats.calls_total.value();
    last_call_us = std::max(last_call_us, stats.last_call_us.value());
    waiting_since_us = earlier_us(waiting_since_us, stats.waiting_since_us.value());
    embed_call.add(stats.call);
    embed_request.add(stats.request);
  };
  {
    const MutexLock lock(models_mutex_);
    for (const auto& [name, loaded] : models_) {
      const VisionStats& vision = *loaded.vision_stats;
      snapshot.images_encoded_total += vision.images_encoded_total.value();
      snapshot.image_cache_hits_total += vision.cache_hits_total.value();
      snapshot.image_cache_bytes += vision.cache_bytes.value();
      image_encode.add(vision.encode);
      for (std::size_t i = 0; i < loaded.stats.size(); ++i) {
        add(name, *loaded.stats[i], i < loaded.workers.size() ? loaded.workers[i].lane->shape() : llm::ContextShape());
      }
      for (const auto& stats : loaded.embed_stats) add_embed(*stats);
    }
  }
  snapshot.image_encode_ms_avg = image_encode.mean_ms();
  snapshot.embed_texts_per_call = mean(static_cast<double>(snapshot.embed_texts_total), snapshot.embed_calls_total);
  snapshot.embed_call_ms_avg = embed_call.mean_ms();
  snapshot.embed_request_p50_ms = embed_request.percentile_ms(0.5);
  snapshot.embed_request_p95_ms = embed_request.percentile_ms(0.95);
  snapshot.embed_call = embed_call.snapshot();
  snapshot.embed_request = embed_request.snapshot();
  const kv::StoreStats& stored = store_.stats();
  snapshot.warm_sessions += stored.warm_states.value();
  snapshot.warm_bytes += stored.warm_bytes.value();
  snapshot.cold_sessions = stored.cold_states.value();
  snapshot.cold_bytes = stored.cold_bytes.value();
  snapshot.states_dropped_total = stored.dropped_total.value();
  snapshot.states_expired_total = stored.expired_total.value();
  snapshot.states_failed_total = stored.failed_total.value();
  snapshot.save_ms_avg = save.mean_ms();
  snapshot.cold_read_ms_avg = mean(stored.read.sum_ms(), stored.read.count());
  snapshot.cold_write_ms_avg = mean(stored.write.sum_ms(), stored.write.count());
  snapshot.avg_batch = mean(static_cast<double>(decode_rows), decode_ticks);
  snapshot.p50_ms = inter_token.percentile_ms(0.50);
  snapshot.p95_ms = inter_token.percentile_ms(0.95);
  snapshot.p99_ms = inter_token.percentile_ms(0.99);
  snapshot.per_token_latency_ms = inter_token.mean_ms();
  snapshot.ttft_p50_ms = ttft.percentile_ms(0.50);
  snapshot.ttft_p95_ms = ttft.percentile_ms(0.95);
  snapshot.decode_ms_avg = decode_call.mean_ms();
  snapshot.prefill_ms_avg = prefill_call.mean_ms();
  snapshot.sample_ms_avg = sampling.mean_ms();
  snapshot.queue_wait_ms_avg = queue_wait.mean_ms();
  snapshot.restore_ms_avg = restore.mean_ms();
  snapshot.warm_restore_ms_avg = warm_restore.mean_ms();
  snapshot.cold_restore_ms_avg = cold_restore.mean_ms();
  snapshot.bmt_mb_per_token = bytes_moved / 1e6;
  snapshot.bmt_gbps = calls_s > 0 ? bytes_moved_total / calls_s / 1e9 : 0;
  snapshot.handovers_total = handover.count;
  snapshot.handover_ms_avg = handover.mean_ms();
  snapshot.kv_cache_utilization = mean(static_cast<double>(cells_used), static_cast<std::uint64_t>(cells_total));
  const auto seconds_since = [now_us = to_us(clock_.now())](std::int64_t then_us) -> std::optional<double> {
    if (then_us == 0) return std::nullopt;
    return std::max(0.0, static_cast<double>(now_us - then_us) / 1e6);
  };
  snapshot.progress = {.last_tick_s = seconds_since(last_call_us),
                       .last_decode_s = seconds_since(last_decode_us),
                       .oldest_waiting_s = seconds_since(waiting_since_us)};
  snapshot.ttft = ttft.snapshot();
  snapshot.inter_token = inter_token.snapshot();
  snapshot.queue_wait = queue_wait.snapshot();
  snapshot.decode_call = decode_call.snapshot();
  snapshot.prefill_call = prefill_call.snapshot();
  snapshot.warm_restore = warm_restore.snapshot();
  snapshot.cold_restore = cold_restore.snapshot();
  snapshot.copy_free_ratio = 1 - mean(static_cast<double>(logits_copied), logits_rows);
  return snapshot;
}

}  // namespace uma::engine
