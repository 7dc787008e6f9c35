#include "pool/model_pool.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/system/heap.h"
#include "base/system/thread_name.h"
#include "base/text.h"
#include "base/thrown.h"
#include "core/model_file_name.h"
#include "pool/load_files.h"

namespace uma::pool {
namespace {

// Time that requests must wait before another worker is worth it.
constexpr Duration kPatience = std::chrono::milliseconds(250);
// Until another look whether the last request for a model that has lost a device has ended.
constexpr Duration kLookAtLost = std::chrono::milliseconds(10);
constexpr double kPressure = 10;  // Percent of time lost to waiting for memory that is worth a log line.

// `places`: the memory of devices. `busy`: devices that were used, also those without memory of their own, which are left out
// while nothing is on them.
std::vector<DeviceMetrics> device_metrics(std::span<const PlaceUse> places, std::span<const llm::DeviceBusy> busy) {
  std::vector<DeviceMetrics> devices;
  for (const PlaceUse& place : places) {
    const auto of_kind = [&](MemoryKind kind) {
      return static_cast<std::int64_t>(place.reserved_by_kind[static_cast<std::size_t>(kind)]);
    };
    devices.push_back({.name = place.name,
                       .memory_usable_bytes = static_cast<std::int64_t>(place.usable),
                       .memory_reserved_bytes = static_cast<std::int64_t>(place.reserved()),
                       .weights_bytes = of_kind(MemoryKind::weights),
                       .context_bytes = of_kind(MemoryKind::context)});
  }
  for (const llm::DeviceBusy& use : busy) {
    auto device = std::ranges::find(devices, use.name, &DeviceMetrics::name);
    if (device == devices.end()) {
      if (!use.is_used) continue;
      device = devices.insert(device, {.name = use.name});
    }
    device->busy_s_total = use.busy_s;
    device->busy_ratio = use.ratio;
  }
  return devices;
}

// The error of a request for which no model is registered.
std::unexpected<Error> no_able_model(std::string_view name, Capability capability) {
  constexpr std::size_t kShownBytesMax = 128;
  const auto purpose = [&]() -> std::string_view {
    switch (capability) {
      case Capability::text_embedding:
        return "makes vectors of texts";
      case Capability::rerank:
        return "ranks documents";
      case Capability::vision:
        return "reads images";
      case Capability::text_to_image:
        return "draws pictures";
      case Capability::chat:
        break;
    }
    return "generates text";
  }();
  const std::string asked = name.empty() ? "" : std::format("no model \"{}\", and ", name.substr(0, kShownBytesMax));
  return fail(ErrorCode::model_unknown,
              std::format("{}no model that {} is registered: add one with uma-cli pull, or to models.yaml", asked, purpose));
}

}  // namespace

ModelPool::ModelPool(PoolOptions options, std::shared_ptr<const ModelRegistry> registry, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      governor_(options_.governor),
      warm_(governor_, clock),
      registry_(std::move(registry)) {}

ModelPool::~ModelPool() {
  stop();
}

// --- Models

std::shared_ptr<const ModelRegistry> ModelPool::registry() const {
  const MutexLock lock(mutex_);
  return registry_;
}

void ModelPool::look_at_folders() const {
  constexpr Duration kInvalidEvery = std::chrono::seconds(1);  // A file that is being written changes all the time.
  bool looks_at_invalid = false;
  {
    const MutexLock lock(mutex_);
    looks_at_invalid = clock_.now() - invalid_seen_at_ >= kInvalidEvery;
    if (looks_at_invalid) invalid_seen_at_ = clock_.now();
  }
  const auto has_changed = [looks_at_invalid](const ModelRegistry& known) {
    return known.have_folders_changed() || (looks_at_invalid && known.have_invalid_files_changed());
  };
  if (!has_changed(*registry())) return;
  const MutexLock reading_lock(reading_mutex_);
  const auto known = registry();
  if (!has_changed(*known)) return;  // Another thread was faster.
  auto next = known->rescan();
  const MutexLock lock(mutex_);
  registry_ = std::move(next);
}

void ModelPool::rescan() {
  const MutexLock reading_lock(reading_mutex_);
  auto next = registry()->rescan();
  const MutexLock lock(mutex_);
  registry_ = std::move(next);
}

Expected<std::string> ModelPool::name_of_file(const std::string& path) const {
  look_at_folders();
  const auto known = registry();
  const auto found = std::ranges::find_if(known->models(), [&](const RegisteredModel& model) {
    std::error_code problem;
    return model.path == path || std::filesystem::equivalent(model.path, path, problem);
  });
  if (found == known->models().end())
    return fail(ErrorCode::model_load, "the file is not a model that can be served: the log says why");
  if (!found->problem.empty()) return fail(ErrorCode::model_load, found->problem);
  return found->card.name;
}

Expected<std::string> ModelPool::resolve(const std::string& name) const {
  auto known = registry();
  if (!name.empty() || !options_.default_model.empty()) {
    const std::string& wanted = name.empty() ? options_.default_model : name;
    auto found = known->find(wanted);
    if (!found) {
      look_at_folders();
      known = registry();
      found = known->find(wanted);
    }
    if (!found) return std::unexpected(found.error());
    return (*found)->card.name;
  }
  if (known->models().empty())
    return fail(ErrorCode::model_unknown, "no model is registered: give --model FILE, or add one with uma-cli models add");
  return known->models().front().card.name;
}

Expected<std::string> ModelPool::choose(const std::string& name, Capability capability) const {
  auto known = resolve(name);
  const bool wants_any = name.empty() && capability == Capability::text_to_image;  // The default model is for texts.
  if (!wants_any && (known || name.empty())) return known;
  const auto models = registry();
  if (const RegisteredModel* meant = wants_any ? nullptr : models->find_spelled(name)) return meant->card.name;
  if (!wants_any && options_.unknown == UnknownModel::refuse) return known;
  const std::vector<const RegisteredModel*> able = able_models(*models, capability);
  if (able.empty()) return no_able_model(name, capability);
  const bool is_meant =
      wants_any || able.size() == 1 || options_.unknown == UnknownModel::use_default || is_name_of_other_vendor(name);
  if (is_meant) return default_among(able).card.name;
  known.error().message +=
      ". Name one of them, or let an unknown name mean the default model: models.unknown: default, and --model NAME to choose "
      "it";
  return known;
}

// The models for such requests, in the order of the registry; those that ship with umad only if there are no others.
std::vector<const RegisteredModel*> ModelPool::able_models(const ModelRegistry& models, Capability capability) const {
  std::vector<const RegisteredModel*> able;
  const auto is_default_able = [&] {
    const auto first = resolve("");
    return first && std::ranges::contains(able, *first, [](const RegisteredModel* model) { return model->card.name; });
  };
  const auto add_able = [&](auto is_able) {
    for (const RegisteredModel& model : models.models()) {
      if (is_able(model)) able.push_back(&model);
    }
  };
  // Vectors of images are best made by a model that was trained for them.
  if (capability == Capability::vision) {
    add_able([](const auto& model) { return image_vectors_of(model, model.encoders) == ImageVectors::shared; });
    if (able.size() > 1 && !is_default_able()) able.clear();
  }
  if (able.empty()) {
    add_able([&](const auto& model) {
      return model.capability == capability || (capability == Capability::chat && model.capability == Capability::vision);
    });
  }
  const auto is_shipped = [this](const RegisteredModel* each) {
    return std::ranges::contains(options_.shipped_models, each->card.name);
  };
  // A request that does not name it does not mean a model that cannot be loaded, nor one that belongs to another program.
  const auto has_problem = [](const RegisteredModel* each) { return !each->problem.empty(); };
  if (!std::ranges::all_of(able, has_problem)) std::erase_if(able, has_problem);
  const auto is_foreign = [this](const RegisteredModel* each) {
    return !each->store.empty() && each->card.name != options_.default_model;
  };
  if (!std::ranges::all_of(able, is_foreign)) std::erase_if(able, is_foreign);
  if (!std::ranges::all_of(able, is_shipped)) std::erase_if(able, is_shipped);
  return able;
}

// The model of these that answers where none of them is named: the default model, else one that is loaded, else one that is
// loaded at the start, else the first.
const RegisteredModel& ModelPool::default_among(std::span<const RegisteredModel* const> able) const {
  const auto first = resolve("");
  const MutexLock lock(mutex_);
  const auto is_default = [&](const RegisteredModel* model) { return first && model->card.name == *first; };
  const auto is_loaded = [this](const RegisteredModel* model) REQUIRES_LOCK(mutex_) {
    const auto resident = residents_.find(model->card.name);
    return resident != residents_.end() && resident->second.is_serving;
  };
  const auto is_preloaded = [](const RegisteredModel* model) { return model->card.is_preloaded || model->card.is_pinned; };
  auto found = std::ranges::find_if(able, is_default);
  if (found == able.end()) found = std::ranges::find_if(able, is_loaded);
  if (found == able.end()) found = std::ranges::find_if(able, is_preloaded);
  return found == able.end() ? *able.front() : **found;
}

std::vector<ModelInfo> ModelPool::list() const {
  std::vector<ModelInfo> infos;
  look_at_folders();
  const auto known = registry();
  infos.reserve(known->models().size());
  const auto first = resolve("");
  for (const RegisteredModel& model : known->models()) {
    ModelInfo info = info_of(model);
    info.idle_unload_s = model.card.is_pinned ? 0 : to_ms(options_.idle_unload) / 1000;
    if (model.card.idle_unload_s && !model.card.is_pinned) info.idle_unload_s = static_cast<double>(*model.card.idle_unload_s);
    if (first && info.name == *first) {
      info.reads_images |= options_.default_encoders.images;
      info.reads_audio |= options_.default_encoders.audio;
      if (info.image_vectors == ImageVectors::none) info.image_vectors = image_vectors_of(model, options_.default_encoders);
    }
    // The default model comes first.
    infos.insert(first && info.name == *first ? infos.begin() : infos.end(), std::move(info));
  }
  const MutexLock lock(mutex_);
  for (ModelInfo& info : infos) {
    const auto resident = residents_.find(info.name);
    if (resident == residents_.end()) continue;
    info.memory_bytes = resident->second.weights_held.bytes_everywhere();
    if (resident->second.is_serving || resident->second.is_loading) info.memory_bytes += resident->second.context_bytes;
  }
  return infos;
}

void ModelPool::add_metrics(MetricsSnapshot& snapshot) const {
  constexpr std::size_t kDecisions = 8;
  const std::vector<PlaceUse> places = governor_.use();
  const PlaceUse& memory = places.front();
  snapshot.memory_usable_bytes = static_cast<std::int64_t>(memory.usable);
  snapshot.memory_reserved_bytes = static_cast<std::int64_t>(memory.reserved());
  snapshot.devices = device_metrics(std::span(places).subspan(1), llm::device_busy());
  for (const DeviceMetrics& device : snapshot.devices) {
    snapshot.device_busy_ratio = std::max(snapshot.device_busy_ratio.value_or(0), device.busy_ratio);
  }
  snapshot.memory_decisions_total = governor_.decisions_total();
  const std::vector<Decision> decisions = governor_.decisions();
  for (std::size_t i = decisions.size() - std::min(decisions.size(), kDecisions); i < decisions.size(); ++i) {
    snapshot.memory_decisions.push_back(decisions[i].text());
  }
  snapshot.model_loads_total = loads_total_.value();
  snapshot.model_unloads_total = unloads_total_.value();
  const MutexLock lock(mutex_);
  snapshot.models_registered = std::ssize(registry_->models());
  snapshot.models_loaded = std::ranges::count_if(residents_, [](const auto& entry) { return entry.second.is_serving; });
}

std::expected<std::size_t, std::vector<std::string>> ModelPool::reload() {
  const MutexLock reading_lock(reading_mutex_);
  auto next = registry()->reload();
  if (!next) return std::unexpected(std::move(next.error()));
  const MutexLock lock(mutex_);
  registry_ = *std::move(next);
  return registry_->models().size();
}

void ModelPool::start(engine::LoaderDelegate& host) {
  host_ = &host;
  holds_.start(host);
  {
    const MutexLock eviction_lock(eviction_mutex_);
    warm_.start(host);
    update_governor();
    warm_.follow_use();
  }
  maintenance_ = std::thread([this] {
    set_thread_name("uma-pool");
    run_maintenance();
  });
}

// --- Further workers

void ModelPool::report_backlog(const std::string& model) {
  const MutexLock lock(mutex_);
  if (queues_.try_emplace(model, clock_.now()).second) changed_.notify_all();
}

void ModelPool::report_lost(const std::string& model) {
  const MutexLock lock(mutex_);
  lost_.insert(model);
  changed_.notify_all();
}

// Starts to add a worker to a model whose requests still wait, if its card, the cores and free memory allow it; nothing is
// evicted. Requires eviction_mutex_.
void ModelPool::grow(const std::string& model) {
  const std::vector<engine::ModelUsage> usages = host_->usage();
  const engine::ModelUsage usage = engine::usage_of(usages, model);
  if (!usage.is_loaded || usage.queued == 0) return;
  const auto known = registry();
  const auto found = known->find(model);
  if (!found || (*found)->card.name != model) return;
  std::shared_ptr<const llm::Model> weights;
  llm::ContextOptions context;
  llm::DeviceOptions devices;
  {
    const MutexLock lock(mutex_);
    const auto resident = residents_.find(model);
    if (resident == residents_.end() || !resident->second.is_serving || resident->second.is_loading) return;
    // The name means another file now, or other adapters.
    if (resident->second.file != (*found)->file || resident->second.adapters != (*found)->adapters) return;
    std::int32_t busy = 0;
    for (const engine::ModelUsage& each : usages) {
      const auto other = residents_.find(each.name);
      if (each.uses > 0 && other != residents_.end()) busy += other->second.workers;
    }
    if (resident->second.workers >= (*found)->card.workers_max || busy >= options_.cores) return;
    weights = resident->second.weights;
    context = resident->second.context;
    devices = resident->second.devices;
  }
  auto options = options_.prepare(**found);
  if (!options) return;
  options->workers = 1;
  options->context = context;
  options->devices = devices;
  options->projector_path.clear();  // The model's first worker reads the images.
  options->weights = std::move(weights);
  const auto need = need_of(**found, *options);
  if (!need) return;
  const bool has_weights = options->weights != nullptr;
  const std::uint64_t bytes = need->host_bytes(has_weights);
  warm_.give_back_unused(governor_.shortage({.model = model, .kind = MemoryKind::context, .bytes = bytes}));
  auto held = governor_.reserve(model, MemoryKind::context, bytes, need->device_bytes(has_weights));
  if (!held) return log_debug("model   {}: cannot add a worker: {}", model, held.error().message);
  const MutexLock lock(mutex_);
  if (is_stopped_) return;
  std::unique_ptr<Load>& load = loads_[model];
  load = std::make_unique<Load>();
  load->thread =
      std::jthread([this, model, options = std::move(*options), held = std::move(*held), mine = load.get()]() mutable {
        set_thread_name("uma-load");
        run_noting([&] { add_worker(model, options, std::move(held), *mine); });
      });
  residents_.at(model).is_loading = true;  // Its thread needs the lock to end.
}

// Runs on its own thread.
void ModelPool::add_worker(const std::string& model, const engine::LoadWorkersOptions& options, Holding held, Load& load) {
  auto loaded = load_beside_streams(options, control_of(load), [](double) { return true; });
  std::uint64_t bytes = 0;
  llm::DeviceBytes on_devices;
  if (loaded) {
    const auto added = contain([&]() -> Expected<Unit> {
      {
        const MutexLock lock(mutex_);
        bytes = loaded->context_bytes + residents_.at(model).state_bytes + (options.weights ? 0 : loaded->weight_bytes);
      }
      on_devices = loaded->contexts_on_devices;
      if (!options.weights) on_devices += loaded->weights_on_devices;
      governor_.correct(held, on_devices.rest_of(bytes), on_devices);
      loaded->reservation = std::make_shared<Holding>(std::move(held));
      host_->add_workers(model, std::move(*loaded));
      return Unit{};
    });
    if (!added) loaded = std::unexpected(added.error());
  }
  const MutexLock lock(mutex_);
  Resident& resident = residents_.at(model);
  resident.is_loading = false;
  ++changes_;
  changed_.notify_all();
  if (!loaded) return log_warning("model   {}: cannot add a worker: {}", model, loaded.error().message);
  resident.context_bytes += bytes;
  resident.further_bytes += bytes;
  resident.contexts_on_devices += on_devices;
  resident.further_on_devices += on_devices;
  ++resident.workers;
  log_info("model   {}: now {} workers, because requests waited", model, resident.workers);
}

// Removes the added workers of a model that was idle for long. Requires eviction_mutex_.
void ModelPool::shrink(const engine::ModelUsage& usage) {
  std::int32_t first = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = residents_.find(usage.name);
    if (found == residents_.end() || found->second.is_loading || found->second.workers <= found->second.workers_first) return;
    first = found->second.workers_first;
  }
  if (usage.idle_s * 1000 < to_ms(options_.min_loaded) || !host_->shrink_workers(usage.name, static_cast<std::size_t>(first)))
    return;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(usage.name);
    resident.workers = first;
    resident.context_bytes -= std::exchange(resident.further_bytes, 0);
    resident.contexts_on_devices -= std::exchange(resident.further_on_devices, {});
  }
  log_info("model   {}: back to {} worker(s), because the others were idle", usage.name, first);
  give_back_free_memory();
  warm_.update(under_way_bytes());
}

// --- Eviction

// Views of all models that hold memory in the place, except `asking`, and of the stored states.
std::vector<ModelView> ModelPool::views(const std::string& asking, std::span<const engine::ModelUsage> usages,
                                        Place place) const {
  std::vector<ModelView> all;
  const std::string device = governor_.use()[place].name;
  const auto known = registry();
  const MutexLock lock(mutex_);
  // The later one of two waiting loads gives up its weights; otherwise each could wait for the other's.
  const auto waits_behind = [&](const std::string& name) REQUIRES_LOCK(mutex_) {
    const auto other = loads_.find(name);
    const auto own = loads_.find(asking);
    return own != loads_.end() && other != loads_.end() && other->second->is_waiting &&
           other->second->number > own->second->number;
  };
  for (const auto& [name, resident] : residents_) {
    if (name == asking) continue;
    ModelView& view = all.emplace_back();
    view.name = name;
    if (const auto found = known->find(name); found && (*found)->card.name == name) {
      view.is_pinned = (*found)->card.is_pinned;
      view.weight = (*found)->card.weight;
    }
    const engine::ModelUsage usage = engine::usage_of(usages, name);
    view.is_loading = resident.is_loading;
    view.is_held = holds_.contain(name);
    view.sequences_active = static_cast<std::int32_t>(usage.uses);
    view.sequences_background = static_cast<std::int32_t>(usage.background_uses);
    view.requests_waiting = static_cast<std::int32_t>(usage.waiting - (view.is_held ? usage.background_waiting : 0));
    view.idle = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(usage.idle_s));
    view.loaded_for = clock_.now() - resident.loaded_at;
    view.load_ms = resident.load_ms;
    view.weight_bytes = resident.weights_held.bytes(place);
    if (resident.is_serving || resident.is_loading) {
      view.context_bytes = place == kHostMemory ? resident.contexts_on_devices.rest_of(resident.context_bytes)
                                                : resident.contexts_on_devices.of(device);
    }
    if (!resident.is_serving && !resident.is_loading && waits_behind(name)) {
      view.sequences_active = 0;
      view.requests_waiting = 0;
      view.idle = std::max(view.idle, options_.min_loaded);
      view.loaded_for = std::max(view.loaded_for, options_.min_loaded);
    }
  }
  // Stored states are neither weights nor contexts and therefore pinned; those in memory can move to disk.
  if (place == kHostMemory) all.push_back({.name = WarmMemory::kName, .is_pinned = true, .warm_bytes = warm_.bytes()});
  return all;
}

// Executes a step. Returns false if it is not possible now.
bool ModelPool::take(const EvictionStep& step) {
  switch (step.kind) {
    case StepKind::drop_warm:
      return warm_.give_back(step.bytes);
    case StepKind::drop_contexts:
      return unload_now(step.model, true);
    case StepKind::unload:
      return unload_now(step.model, false);
  }
  return false;
}

// Called under eviction_mutex_, so that no load of the model begins, and without mutex_.
bool ModelPool::unload_now(const std::string& model, bool keeps_weights) {
  bool is_serving = false;
  {
    const MutexLock lock(mutex_);
    const auto found = residents_.find(model);
    if (found == residents_.end() || found->second.is_loading) return false;
    is_serving = found->second.is_serving;
  }
  if (is_serving && !host_->retire(model)) return false;
  log_info("model   {}: {}", model, keeps_weights ? "contexts freed" : "unloaded");
  unloads_total_.add();
  bool are_kept = false;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(model);
    resident.is_serving = false;
    are_kept = keeps_weights && resident.weights;  // Weights of single workers are already gone.
  }
  if (!are_kept) (void)take_resident(model);
  give_back_free_memory();
  warm_.update(under_way_bytes());
  const MutexLock lock(mutex_);
  lost_.erase(model);
  ++changes_;
  changed_.notify_all();
  return true;
}

// Unloads a model that has lost a device, unless requests still use it. Requires eviction_mutex_.
void ModelPool::unload_lost(const std::string& model) {
  {
    const MutexLock lock(mutex_);
    if (!lost_.contains(model)) return;  // Unloaded meanwhile, and perhaps loaded again.
  }
  if (unload_now(model, false))
    log_warning("model   {}: unloaded, because it has lost a device; the next request loads it again", model);
}

// Keeps the model's states in memory if there is free memory, since nothing is short. Requires eviction_mutex_.
void ModelPool::keep_warm(const std::string& model) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto found = residents_.find(model); found != residents_.end()) bytes = found->second.context_bytes;
  }
  warm_.grow(bytes);
}

// Passes the system's present figures to the governor. Requires eviction_mutex_.
void ModelPool::update_governor() {
  std::vector<llm::DeviceMemory> devices = llm::gpu_memory();
  {
    // Memory that loads have reserved may not be allocated yet, and would count as free once more.
    const MutexLock lock(mutex_);
    for (llm::DeviceMemory& device : devices) {
      for (const auto& [name, resident] : residents_) {
        if (!resident.is_loading) continue;
        const std::uint64_t bytes =
            resident.weights_held.bytes(governor_.place_of(device.name)) + resident.contexts_on_devices.of(device.name);
        device.free -= std::min(device.free, bytes);
      }
    }
  }
  governor_.update(options_.memory(), devices);
  warm_.update(under_way_bytes());
}

// Bytes for states in transfer to or from the present contexts.
std::uint64_t ModelPool::under_way_bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [name, resident] : residents_) {
    const bool has_contexts = resident.is_serving || resident.is_loading;
    if (has_contexts) bytes += resident.state_bytes * static_cast<std::uint64_t>(std::max(1, resident.workers));
  }
  return bytes;
}

// --- The pool's thread

void ModelPool::run_maintenance() {
  TimePoint next = clock_.now() + options_.maintenance;
  for (;;) {
    std::vector<UnloadRequest> requests;
    std::vector<std::string> queued;
    std::vector<std::string> lost;
    {
      const MutexLock lock(mutex_);
      if (is_stopped_) break;
      TimePoint wake = next;
      for (const auto& [model, since] : queues_) wake = std::min(wake, since + kPatience);
      if (!lost_.empty()) wake = std::min(wake, clock_.now() + kLookAtLost);
      if (unloads_.empty() && clock_.now() < wake) changed_.wait_until(mutex_, wake);
      if (is_stopped_) break;
      lost.assign(lost_.begin(), lost_.end());
      requests = std::exchange(unloads_, {});
      std::erase_if(queues_, [&, now = clock_.now()](const auto& queue) {
        if (queue.second + kPatience > now) return false;
        queued.push_back(queue.first);
        return true;
      });
    }
    for (const std::string& model : queued) {
      const MutexLock eviction_lock(eviction_mutex_);
      run_noting([&] { grow(model); });
    }
    for (const std::string& model : lost) {
      const MutexLock eviction_lock(eviction_mutex_);
      run_noting([&] { unload_lost(model); });
    }
    for (UnloadRequest& request : requests) {
      const auto do_now = [&] {
        const MutexLock eviction_lock(eviction_mutex_);
        return unload_as_asked(request);
      };
      request.reply(contain(do_now));  // With no lock held, because the reply may write files.
    }
    if (clock_.now() >= next) {
      run_noting([this] { maintain(); });
      next = clock_.now() + options_.maintenance;
    }
  }
}

// Requires eviction_mutex_, so that no load of the model begins meanwhile.
Expected<Unit> ModelPool::unload_as_asked(const UnloadRequest& request) {
  const auto known = registry();
  const auto found = known->find(request.model);
  if (request.deletes_files) {
    if (!found) return std::unexpected(found.error());
    std::error_code problem;
    const std::filesystem::path folder = std::filesystem::path((*found)->path).parent_path();
    if ((*found)->path.empty() || options_.own_folder.empty() ||
        !std::filesystem::equivalent(folder, options_.own_folder, problem)) {
      return fail(ErrorCode::model_capability,
                  std::format("model \"{}\" is not deleted, because its file is not in the folder of pulled models: delete it "
                              "by hand",
                              request.model));
    }
  }
  bool has_memory = false;
  {
    const MutexLock lock(mutex_);
    has_memory = residents_.contains(request.model);
  }
  if (has_memory || !request.deletes_files) {
    keep_warm(request.model);
    if (!unload_now(request.model, false))
      return fail(ErrorCode::session_busy, std::format("model \"{}\" is in use, or not loaded", request.model));
  }
  return request.deletes_files ? delete_files(**found) : Expected<Unit>(Unit{});
}

Expected<Unit> ModelPool::delete_files(const RegisteredModel& model) {
  std::vector<std::string> files = model_files(model.path);
  // Its projector, too, unless another model has it.
  const std::filesystem::path projector = model.projector_path;
  const auto registered = registry();
  const bool is_shared = std::ranges::any_of(registered->models(), [&](const RegisteredModel& other) {
    return other.card.name != model.card.name && other.projector_path == projector;
  });
  if (!is_shared && projector.parent_path() == std::filesystem::path(model.path).parent_path()) files.push_back(projector);
  for (const std::string& path : files) {
    std::error_code problem;
    std::filesystem::remove(path, problem);
    if (problem) {
      return fail(ErrorCode::io_failed,
                  std::format("{}: {}", std::filesystem::path(path).filename().string(), problem.message()));
    }
  }
  log_info("model   {}: its file was deleted", model.card.name);
  look_at_folders();
  return Unit{};
}

void ModelPool::maintain() {
  const MutexLock eviction_lock(eviction_mutex_);
  update_governor();
  const PlaceUse place = governor_.use().front();
  if (const auto pressure = options_.memory().pressure; pressure && *pressure > kPressure) {
    log_warning("memory: programs waited for memory for {:.0f} % of the last 10 s; umad has reserved {} of {}", *pressure,
                readable_bytes(place.reserved()), readable_bytes(place.usable));
  }
  warm_.give_back_unused(governor_.excess(kHostMemory));
  if (governor_.excess(kHostMemory) > 0) {
    // Other programs have taken memory. No load waits for it, so models in use stay.
    const EvictionPlan plan = governor_.decide({.model = {}, .kind = MemoryKind::weights, .bytes = 0},
                                               views({}, host_->usage()), {.min_loaded = options_.min_loaded}, clock_.unix_s());
    for (const EvictionStep& step : plan.steps) (void)take(step);
  } else {
    warm_.follow_use();
  }
  const auto known = registry();
  for (const engine::ModelUsage& usage : host_->usage()) {
    if (usage.uses + usage.waiting >= options_.queue_depth_warn) {
      log_warning("model   {}: {} requests are in flight or waiting", usage.name, usage.uses + usage.waiting);
    }
    shrink(usage);
    const auto found = known->find(usage.name);
    const ModelCard* card = found ? &(*found)->card : nullptr;
    const double limit_s =
        card != nullptr && card->idle_unload_s ? static_cast<double>(*card->idle_unload_s) : to_ms(options_.idle_unload) / 1000;
    const bool is_pinned = card != nullptr && card->is_pinned;
    const bool is_gone = !found;  // Its file has left its folder.
    if ((limit_s > 0 || is_gone) && !is_pinned && usage.is_loaded && usage.uses == 0 && usage.waiting == 0 &&
        (is_gone || usage.idle_s >= limit_s)) {
      keep_warm(usage.name);
      (void)unload_now(usage.name, false);
    }
  }
}

void ModelPool::unload(const std::string& model, Promise<Unit> reply) {
  const MutexLock lock(mutex_);
  if (is_stopped_) return reply(fail(ErrorCode::limit_wait, "the daemon is stopping"));
  unloads_.push_back({.model = model, .reply = std::move(reply)});
  changed_.notify_all();
}

void ModelPool::remove(const std::string& model, Promise<Unit> reply) {
  const MutexLock lock(mutex_);
  if (is_stopped_) return reply(fail(ErrorCode::limit_wait, "the daemon is stopping"));
  unloads_.push_back({.model = model, .deletes_files = true, .reply = std::move(reply)});
  changed_.notify_all();
}

void ModelPool::cancel_load(const std::string& model) {
  const MutexLock lock(mutex_);
  if (const auto found = loads_.find(model); found != loads_.end()) found->second->is_cancelled.store(true);
  ++changes_;
  changed_.notify_all();
}

void ModelPool::stop() {
  std::map<std::string, std::unique_ptr<Load>> loads;
  std::vector<UnloadRequest> unloads;
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
    loads = std::exchange(loads_, {});
    unloads = std::exchange(unloads_, {});
  }
  for (const auto& [model, load] : loads) load->is_cancelled.store(true);
  loads.clear();
  if (maintenance_.joinable()) maintenance_.join();
  for (UnloadRequest& request : unloads) request.reply(fail(ErrorCode::limit_wait, "the daemon is stopping"));
}

}  // namespace uma::pool
