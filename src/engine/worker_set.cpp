#include "engine/worker_set.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/move_only_function.h"
#include "base/system/cpu_load.h"
#include "base/system/thread_name.h"
#include "base/trace.h"
#include "chat/chat.h"
#include "chat/family.h"
#include "engine/run_loop.h"

namespace uma::engine {
namespace {

std::function<std::optional<double>()> others_busy() {
  return [load = std::make_shared<CpuLoad>()] { return load->others_since_last(); };
}

constexpr int kBesideStreams = 5;  // Niceness of threads whose results are not streamed.

template <class T>
std::vector<T*> pointers_to(std::vector<T>& values) {
  std::vector<T*> pointers;
  for (T& value : values) pointers.push_back(&value);
  return pointers;
}

// Removes and returns the values from index `first` on, the last one first.
template <class T>
std::vector<T> take_from(std::vector<T>& values, std::size_t first) {
  std::vector<T> taken;
  while (values.size() > first) {
    taken.push_back(std::move(values.back()));
    values.pop_back();
  }
  return taken;
}

// --- Threads

void run_image_encoder(image::ImageEncoder& encoder, const std::string& model) {
  set_thread_name("uma-vision");
  set_trace_owner(model);
  yield_to_others(kBesideStreams);
  run_loop(encoder);
}

void run_lane(Lane& lane, std::size_t index, const std::string& model) {
  set_thread_name(std::format("uma-lane-{}", index).c_str());
  set_trace_owner(model);
  run_lane_loop(lane);
  lane.cancel_all();
}

void run_prefill_lane(PrefillLane& lane, std::size_t index, const std::string& model) {
  set_thread_name(std::format("uma-prefill-{}", index).c_str());
  set_trace_owner(model);
  run_lane_loop(lane);
  lane.forget_all();
}

void run_embed_lane(EmbedLane& lane, std::size_t index, const std::string& model) {
  set_thread_name(std::format("uma-embed-{}", index).c_str());
  set_trace_owner(model);
  yield_to_others(kBesideStreams);
  run_lane_loop(lane);
  lane.cancel_all();
}

void run_picture_lane(PictureLane& lane, const std::string& model) {
  set_thread_name("uma-draw");
  set_trace_owner(model);
  yield_to_others(kBesideStreams);
  run_lane_loop(lane);
  lane.cancel_all();
}

// Null: the model reads no images.
EncodeImage encode_by(const std::shared_ptr<image::ImageEncoder>& encoder) {
  if (!encoder) return nullptr;
  return [encoder](const TenantId& tenant, const std::string& image, std::stop_token end,
                   MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then) {
    encoder->post(tenant, [encoder, tenant, image, end = std::move(end), then = std::move(then)]() mutable {
      then(contain([&] { return encoder->encode(tenant, image, end); }));
    });
  };
}

std::shared_ptr<const std::string> template_of(const llm::ModelFacts& facts) {
  return facts.chat_template.empty() ? nullptr : std::make_shared<const std::string>(facts.chat_template);
}

}  // namespace

// --- Making

double WorkerSet::set_load_progress(const std::string& model, double progress) {
  const MutexLock lock(mutex_);
  ModelInfo& info = models_[model].info;
  info.state = ModelState::loading;
  return std::exchange(info.load_progress, progress);
}

void WorkerSet::set_failed(const std::string& model, const std::string& why) {
  const MutexLock lock(mutex_);
  models_[model].info = {.name = model, .state = ModelState::failed, .failure = why};
}

std::shared_ptr<image::ImageEncoder> WorkerSet::make_image_encoder(const std::string& model,
                                                                   std::unique_ptr<llm::Projector> projector) {
  const MutexLock lock(mutex_);
  Loaded& loaded = models_[model];
  loaded.image_encoder =
      std::make_shared<image::ImageEncoder>(std::move(projector), options_.image_encoder, clock_, loaded.image_encoder_stats);
  loaded.image_encoder_thread = std::thread([encoder = loaded.image_encoder, model] { run_image_encoder(*encoder, model); });
  return loaded.image_encoder;
}

std::vector<Lane*> WorkerSet::make_workers(const std::string& model, LoadedWorkers made) {
  const llm::ModelFacts& facts = made.model->facts();
  const llm::ContextShape shape = made.workers.front().decode->shape();
  const std::string& family_name = made.defaults.family;
  const chat::Family* const family =
      family_name.empty() ? chat::family_of(facts.chat_template) : chat::family_named(family_name);
  const bool has_tool_template = std::ranges::any_of(facts.named_templates, [](const auto& named) {
    return named.first == chat::kToolTemplate && chat::family_of(named.second) != nullptr;
  });
  const MutexLock lock(mutex_);
  Loaded& loaded = models_[model];
  UMA_CHECK(loaded.workers.empty());
  loaded.info = {.name = model,
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
                 .calls_tools = family != nullptr || has_tool_template,
                 .reasons = !chat::thoughts_of(facts.chat_template, family).open.empty(),
                 .reads_images = loaded.image_encoder != nullptr && loaded.image_encoder->reads(Media::image),
                 .reads_audio = loaded.image_encoder != nullptr && loaded.image_encoder->reads(Media::audio),
                 .image_vectors = loaded.image_encoder != nullptr && loaded.image_encoder->reads(Media::image)
                                      ? ImageVectors::projector
                                      : ImageVectors::none,
                 .fills_gaps = made.model->vocab().gap_marks().has_value(),
                 .chat_template = template_of(facts),
                 .kv_layout = shape.is_unified ? "unified" : "split"};
  loaded.model = made.model;
  loaded.reservation = std::move(made.reservation);
  return add_lanes(loaded, made);
}

std::vector<Lane*> WorkerSet::add_lanes(Loaded& loaded, LoadedWorkers& made) {
  std::vector<Lane*> lanes;
  const std::size_t first = loaded.workers.size();
  for (WorkerContexts& contexts : made.workers) {
    const std::size_t index = loaded.workers.size();
    if (index == loaded.stats.size()) loaded.stats.push_back(std::make_shared<LaneStats>());
    auto lane = make_lane(loaded, made, std::move(contexts), index);
    lanes.push_back(lane.get());
    loaded.workers.push_back({made.reservation, std::move(lane), {}});
    ++loaded.cold_workers;
  }
  for (std::size_t i = first; i < loaded.workers.size(); ++i) start_threads(loaded.workers[i], i, loaded.info.name);
  loaded.count_workers();
  return lanes;
}

std::unique_ptr<Lane> WorkerSet::make_lane(const Loaded& loaded, const LoadedWorkers& made, WorkerContexts contexts,
                                           std::size_t index) {
  LaneOptions options = lane_options(loaded, made, index);
  options.make_prefill_context = std::move(contexts.make_prefill);
  auto lane = std::make_unique<Lane>(std::move(options), std::move(contexts.decode), std::move(contexts.prefill),
                                     loaded.model->vocab(), clock_, on_result_);
  if (contexts.draft) {
    lane->draft_with(std::make_unique<ModelDrafter>(std::move(contexts.draft), loaded.model->vocab(), clock_));
  }
  return lane;
}

LaneOptions WorkerSet::lane_options(const Loaded& loaded, const LoadedWorkers& made, std::size_t index) {
  const llm::ModelFacts& facts = made.model->facts();
  return {.index = static_cast<std::int32_t>(index),
          .threads = made.threads,
          .threads_beside_prefill = made.threads_beside_prefill,
          .is_on_devices = facts.is_on_devices,
          .sampling_threads = made.sampling_threads,
          .tick_ms = options_.tick_ms,
          .target_ttft_ms = options_.target_ttft_ms,
          .target_tbt_ms = options_.target_tbt_ms,
          .weights = {.always = facts.bytes - facts.expert_bytes,
                      .experts = facts.expert_bytes,
                      .experts_count = facts.experts_count,
                      .experts_used = facts.experts_used},
          // A device with memory of its own reads that, and not the machine's.
          .bmt_budget_gbps = facts.is_on_devices && !facts.on_devices.is_empty() ? 0 : options_.bmt_budget_gbps,
          .policy = options_.policy,
          .is_reproducible = options_.is_reproducible,
          .warms_up = options_.warms_up,
          .widths = made.widths,
          .speculates = made.defaults.speculates.value_or(options_.speculates),
          .verify_every = options_.verify_every,
          .workers = busy_workers_,
          .stats = loaded.stats[index],
          .store = &store_,
          .eviction = options_.store.eviction,
          .wait_for_disk = [this](const std::function<bool()>& is_done) { wait_for_disk(is_done); },
          .others_busy = made.threads > 1 ? others_busy() : nullptr,
          .others_busy_while_measured = others_busy(),
          .make_prefill_context = nullptr,
          .encode = encode_by(loaded.image_encoder),
          .on_warm = [this, model = loaded.info.name] { note_warm(model); },
          .on_lost = on_lost_,
          .test_drafter = nullptr,
          .on_logits = nullptr};
}

void WorkerSet::start_threads(Worker& worker, std::size_t index, const std::string& model) {
  worker.threads.emplace_back([index, lane = worker.lane.get(), model] { run_lane(*lane, index, model); });
  if (PrefillLane* prefill = worker.lane->prefill_lane()) {
    worker.threads.emplace_back([index, prefill, model] { run_prefill_lane(*prefill, index, model); });
  }
}

std::vector<EmbedLane*> WorkerSet::make_embed_workers(const std::string& model, LoadedWorkers made,
                                                      const llm::EmbeddingShape& shape) {
  const llm::ModelFacts& facts = made.model->facts();
  const MutexLock lock(mutex_);
  Loaded& loaded = models_[model];
  UMA_CHECK(loaded.embed_workers.empty());
  loaded.info = {.name = model,
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
                 .reads_images = loaded.image_encoder != nullptr && loaded.image_encoder->reads(Media::image),
                 .reads_audio = loaded.image_encoder != nullptr && loaded.image_encoder->reads(Media::audio),
                 .dimensions = facts.capability == Capability::text_embedding ? shape.dimensions : 0};
  if (loaded.info.reads_images) {
    loaded.info.image_vectors = shape.reads_images ? ImageVectors::shared : ImageVectors::projector;
  }
  loaded.model = made.model;
  loaded.reservation = std::move(made.reservation);
  return add_embed_lanes(loaded, made);
}

std::vector<EmbedLane*> WorkerSet::add_embed_lanes(Loaded& loaded, LoadedWorkers& made) {
  std::vector<EmbedLane*> lanes;
  for (std::unique_ptr<llm::EmbeddingContext>& context : made.embeddings) {
    const std::size_t i = loaded.embed_workers.size();
    if (i == loaded.embed_stats.size()) loaded.embed_stats.push_back(std::make_shared<EmbedStats>());
    EmbedLaneOptions options{.index = static_cast<std::int32_t>(i),
                             .threads = made.threads,
                             .queue_depth_warn = options_.queue_depth_warn,
                             .stats = loaded.embed_stats[i],
                             .has_streams = [this] { return has_streams(); },
                             .workers = busy_workers_,
                             .encode = encode_by(loaded.image_encoder),
                             .on_lost = on_lost_};
    auto lane = std::make_unique<EmbedLane>(std::move(options), std::move(context), clock_);
    lanes.push_back(lane.get());
    loaded.embed_workers.push_back(
        {made.reservation, std::move(lane),
         std::thread([i, lane = lanes.back(), model = loaded.info.name] { run_embed_lane(*lane, i, model); })});
  }
  loaded.count_workers();
  return lanes;
}

PictureLane& WorkerSet::make_picture_worker(const std::string& model, LoadedWorkers made) {
  const llm::PictureFacts& facts = made.picture_model->facts();
  const MutexLock lock(mutex_);
  Loaded& loaded = models_[model];
  UMA_CHECK(loaded.picture_workers.empty());
  if (!loaded.picture_stats) loaded.picture_stats = std::make_shared<PictureStats>();
  loaded.info = {.name = model,
                 .description = facts.description,
                 .capability = Capability::text_to_image,
                 .state = ModelState::ready,
                 .load_progress = 1,
                 .bytes = facts.bytes.all,
                 .parameters = facts.parameters,
                 .picture_size = facts.sizes.native};
  PictureLaneOptions options{.threads = made.threads,
                             .queue_depth_warn = options_.queue_depth_warn,
                             .stats = loaded.picture_stats,
                             .has_streams = [this] { return has_streams(); },
                             .workers = busy_workers_,
                             .on_lost = on_lost_};
  loaded.picture_model = std::move(made.picture_model);
  loaded.reservation = std::move(made.reservation);
  auto lane = std::make_unique<PictureLane>(std::move(options), std::move(made.picture), clock_);
  PictureLane& drawing = *lane;
  loaded.picture_workers.push_back({std::move(lane), std::thread([&drawing, model] { run_picture_lane(drawing, model); })});
  loaded.count_workers();
  return drawing;
}

WorkerSet::Added WorkerSet::add_workers(const std::string& model, LoadedWorkers more) {
  const MutexLock lock(mutex_);
  Loaded& loaded = models_.at(model);
  loaded.info.bytes += more.model == loaded.model ? 0 : more.model->facts().bytes;
  return {.lanes = add_lanes(loaded, more), .embed_lanes = add_embed_lanes(loaded, more)};
}

// --- Freeing

void WorkerSet::shrink_workers(const std::string& model, std::size_t count) {
  std::vector<Worker> workers;
  std::vector<EmbedWorker> embed_workers;
  {
    const MutexLock lock(mutex_);
    Loaded& loaded = models_.at(model);
    workers = take_from(loaded.workers, count);
    embed_workers = take_from(loaded.embed_workers, count);
    loaded.count_workers();
  }
  close_workers(pointers_to(workers), pointers_to(embed_workers));
  wait_for_disk([this] { return store_.is_at_rest(); });
}

void WorkerSet::retire(const std::string& model) {
  Loaded freed;
  {
    const MutexLock lock(mutex_);
    Loaded& loaded = models_.at(model);
    Loaded left;
    left.info = {.name = model, .state = ModelState::unloaded};
    left.image_encoder_stats = loaded.image_encoder_stats;
    left.stats = loaded.stats;
    left.embed_stats = loaded.embed_stats;
    left.picture_stats = loaded.picture_stats;
    freed = std::exchange(loaded, std::move(left));
  }
  close_workers(pointers_to(freed.workers), pointers_to(freed.embed_workers));
  close_workers(pointers_to(freed.picture_workers));
  if (freed.on_warm) freed.on_warm();
  // States that are being written count for their model until they are on disk.
  wait_for_disk([this] { return store_.is_at_rest(); });
  if (freed.image_encoder) {
    freed.image_encoder->close();
    freed.image_encoder_thread.join();
  }
}

void WorkerSet::stop() {
  std::vector<Worker*> workers;
  std::vector<std::thread> image_encoder_threads;
  std::vector<EmbedWorker*> embed_workers;
  std::vector<PictureWorker*> picture_workers;
  {
    const MutexLock lock(mutex_);
    for (auto& [name, loaded] : models_) {
      std::ranges::copy(pointers_to(loaded.picture_workers), std::back_inserter(picture_workers));
      std::ranges::copy(pointers_to(loaded.workers), std::back_inserter(workers));
      std::ranges::copy(pointers_to(loaded.embed_workers), std::back_inserter(embed_workers));
      if (!loaded.image_encoder) continue;
      loaded.image_encoder->close();
      image_encoder_threads.push_back(std::move(loaded.image_encoder_thread));
    }
  }
  // The lock is free meanwhile, so that metrics can be read.
  close_workers(workers, embed_workers);
  close_workers(picture_workers);
  for (std::thread& thread : image_encoder_threads) thread.join();
}

void WorkerSet::close_workers(const std::vector<Worker*>& workers, const std::vector<EmbedWorker*>& embed_workers) {
  for (const Worker* worker : workers) worker->lane->close();
  for (const EmbedWorker* worker : embed_workers) worker->lane->close();
  for (EmbedWorker* worker : embed_workers) worker->thread.join();
  for (Worker* worker : workers) {
    for (std::thread& thread : worker->threads) thread.join();
  }
}

void WorkerSet::close_workers(const std::vector<PictureWorker*>& workers) {
  for (const PictureWorker* worker : workers) worker->lane->close();
  for (PictureWorker* worker : workers) worker->thread.join();
}

// Waits until the states are written to disk, but not longer than a limit, in case the disk is slow.
void WorkerSet::wait_for_disk(const std::function<bool()>& is_done) const {
  constexpr Duration kPatience = std::chrono::seconds(1);
  constexpr Duration kStep = std::chrono::milliseconds(5);
  for (const TimePoint end = clock_.now() + kPatience; !is_done() && clock_.now() < end;) std::this_thread::sleep_for(kStep);
}

// --- Queries

void WorkerSet::when_warm(const std::string& model, std::function<void()> then) {
  {
    const MutexLock lock(mutex_);
    Loaded& loaded = models_.at(model);
    if (loaded.cold_workers > 0) {
      loaded.on_warm = std::move(then);
      return;
    }
  }
  then();
}

// A lane of the model has warmed up.
void WorkerSet::note_warm(const std::string& model) {
  std::function<void()> then;
  {
    const MutexLock lock(mutex_);
    Loaded& loaded = models_.at(model);
    // A lane that is being freed is not counted any more.
    if (loaded.cold_workers == 0) return;
    --loaded.cold_workers;
    if (loaded.cold_workers == 0) then = std::exchange(loaded.on_warm, nullptr);
  }
  if (then) then();
}

bool WorkerSet::has_failed(const std::string& model) const {
  const MutexLock lock(mutex_);
  const auto found = models_.find(model);
  return found != models_.end() && found->second.info.state == ModelState::failed;
}

bool WorkerSet::has_streams() const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(models_, [](const auto& entry) {
    return std::ranges::any_of(entry.second.workers,
                               [](const Worker& worker) { return worker.lane->stats().sequences_active.value() > 0; });
  });
}

ModelInfo WorkerSet::info(const std::string& model) const {
  const MutexLock lock(mutex_);
  return models_.at(model).info;
}

void WorkerSet::complete(std::vector<ModelInfo>& infos) const {
  const MutexLock lock(mutex_);
  for (ModelInfo& info : infos) {
    const auto found = models_.find(info.name);
    if (found == models_.end() || found->second.info.state == ModelState::unloaded) continue;
    const ModelInfo& made = found->second.info;
    if (made.state != ModelState::ready) {  // The facts of the file stay true.
      info.state = made.state;
      info.load_progress = made.load_progress;
      if (info.state == ModelState::failed) {
        info.failure = made.failure;
      } else {
        info.problem.clear();
      }
      continue;
    }
    ModelInfo known = std::exchange(info, made);
    info.aliases = std::move(known.aliases);
    info.adapters = std::move(known.adapters);
    info.file = std::move(known.file);
    info.sampling = std::move(known.sampling);
    info.store = std::move(known.store);
    info.idle_unload_s = known.idle_unload_s;
    info.memory_bytes = known.memory_bytes;
  }
}

void WorkerSet::add_metrics(MetricsCollector& collector) const {
  const MutexLock lock(mutex_);
  for (const auto& [name, loaded] : models_) {
    collector.add(*loaded.image_encoder_stats);
    for (std::size_t i = 0; i < loaded.stats.size(); ++i) {
      collector.add(name, *loaded.stats[i], i < loaded.workers.size() ? loaded.workers[i].lane->shape() : llm::ContextShape());
    }
    for (const auto& stats : loaded.embed_stats) collector.add(*stats);
    if (loaded.picture_stats) collector.add(*loaded.picture_stats);
  }
}

void WorkerSet::add_activity(ActivitySnapshot& activity) const {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  for (const auto& [name, loaded] : models_) {
    for (const Worker& worker : loaded.workers) {
      WorkerActivity& added = activity.workers.emplace_back();
      if (const auto published = worker.lane->activity(now)) {
        added = published->worker;
        for (const auto& [tenant, more] : published->tenants) {
          uma::add_activity(activity.tenants, tenant,
                            {.work = sched::RecentWork::aged(more.work, now - published->as_of),
                             .sequences_active = more.sequences_active,
                             .queue_depth = more.queue_depth});
        }
      }
      added.model = name;
      for (WaitingRequest& each : added.waiting) each.model = name;
      activity.contract_ms = std::max(activity.contract_ms, added.contract_ms);
    }
  }
}

}  // namespace uma::engine
