// The loads of ModelPool: a load reserves its memory, evicting others if necessary, and reads its files.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <format>
#include <future>
#include <limits>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/system/heap.h"
#include "base/system/thread_name.h"
#include "base/text.h"
#include "base/thrown.h"
#include "llm/context_layout.h"
#include "llm/device/rpc_address.h"
#include "llm/footprint.h"
#include "pool/load_files.h"
#include "pool/model_pool.h"

namespace uma::pool {
namespace {

// How much of the devices' memory a load takes at first, and after it has failed there; at last it takes none.
constexpr std::array kDeviceShares = {1.0, 0.75, 0.0};
constexpr std::uint64_t kDeviceBytesMax = std::uint64_t{1} << 50;  // One that does not say how much it has has less.
constexpr int kFits = 3;  // A device's memory can be taken by others after the layers were fitted.
constexpr Duration kLookAgain = std::chrono::milliseconds(500);  // Interval of a load that waits for memory.

// Whether a load may succeed with less of the devices: one had too little memory, or was lost and is not named, as far as the
// message says so.
bool may_fit_elsewhere(const Error& error, const llm::DeviceOptions& wanted) {
  const auto says = [&](const char* word) { return error.message.contains(word); };
  return says("memory") || says("Memory") || says("alloc") || (says("lost") && !wanted.names);
}

// Whether only background requests wait for the model.
bool is_for_background(std::span<const engine::ModelUsage> usages, const std::string& model) {
  const engine::ModelUsage own = engine::usage_of(usages, model);
  return own.waiting > 0 && own.waiting == own.background_waiting;
}

// Room in coarse steps, so that a little more or less of it places the same layers: their KV could not be used otherwise.
std::uint64_t in_steps(std::uint64_t bytes) {
  return bytes - bytes % std::max<std::uint64_t>(1, std::bit_floor(bytes) / 32);
}

// The next best options of a load that can never fit. First a window longer than agents need is given up, then the second
// context, then more of the window. False: there are none.
bool want_less(engine::LoadWorkersOptions& options, bool is_window_open) {
  const auto shorter = is_window_open ? llm::with_half_the_cells(options.context) : std::nullopt;
  if (shorter && (options.context.cells > llm::kLongWindow || !options.lanes)) {
    options.context = *shorter;
    return true;
  }
  return engine::wants_prefill_context(options) && std::exchange(options.lanes, false);
}

// Says so if `n_ctx` is more than the model supports.
void warn_of_length(const RegisteredModel& model, const llm::ContextOptions& options) {
  const llm::GgufHeader& header = *model.header();
  const std::int64_t supported =
      llm::supported_tokens(options.rope, {.train = header.context_length, .original = header.rope_original_length}, 0);
  if (supported == 0 || options.sequence_cells <= supported) return;
  if (options.rope.freq_base) {
    log_warning("model   {}: n_ctx is {}, but it was made for {} tokens: longer conversations depend on rope.freq_base",
                model.card.name, options.sequence_cells, supported);
  } else {
    log_warning(
        "model   {}: n_ctx is {}, but it supports {} tokens: a conversation has at most these; rope.scale stretches them",
        model.card.name, options.sequence_cells, supported);
  }
}

}  // namespace

void ModelPool::load(const std::string& model) {
  UMA_CHECK(host_ != nullptr);
  const auto begun = contain([&]() -> Expected<Unit> {
    const MutexLock lock(mutex_);
    if (is_stopped_) return Unit{};
    std::unique_ptr<Load>& load = loads_[model];
    // The host knows the end of the last load, so its thread is ending.
    load = std::make_unique<Load>();
    load->number = ++last_load_;
    load->thread = std::jthread([this, model, mine = load.get()] {
      set_thread_name("uma-load");
      host_->on_load_progress(model, 0);
      auto loaded = contain([&] { return load_now(model, *mine); });
      if (!loaded) {
        log_warning("model   {}: {}", model, loaded.error().message);
        if (const auto found = registry()->find(model))
          loaded.error().message = without_folders(loaded.error().message, **found);
      }
      host_->on_loaded(model, std::move(loaded));
    });
    return Unit{};
  });
  if (!begun) host_->on_loaded(model, std::unexpected(begun.error()));  // The load's thread could not be started.
}

Expected<engine::LoadedWorkers> ModelPool::load_now(const std::string& model, Load& load) {
  const TimePoint began = clock_.now();
  look_at_folders();
  const auto known = registry();
  const auto found = known->find(model);
  if (!found) return std::unexpected(found.error());
  const RegisteredModel& registered = **found;
  if (!registered.problem.empty()) return fail(ErrorCode::model_load, registered.problem);
  const LoadControl control = control_of(load);
  // Files of pictures are read by our own reader alone, which checks all of them.
  const bool is_guarded = options_.guard != nullptr && registered.capability != Capability::text_to_image;
  // Until the library has read the file in a trial, the file is not opened here, but the library and its devices are made
  // ready. The rest of the trial goes on beside the load.
  std::promise<bool> trial_goes_on;
  const std::shared_future<Expected<Unit>> model_checked = std::async(std::launch::async, [&]() -> Expected<Unit> {
    set_thread_name("uma-load");
    std::once_flag told;
    const auto tell = [&](bool goes_on) { std::call_once(told, [&] { trial_goes_on.set_value(goes_on); }); };
    Expected<Unit> checked;
    if (is_guarded) {
      checked = contain([&] { return options_.guard->check_model(registered.path, control, [&] { tell(true); }); });
    }
    tell(false);
    return checked;
  });
  const auto is_refused = [&] { return !model_checked.get().has_value(); };
  auto options = options_.prepare(registered);
  if (!trial_goes_on.get_future().get() && is_refused()) return std::unexpected(model_checked.get().error());
  if (!options) return std::unexpected(options.error());
  const llm::ContextOptions given = options->context;
  const bool has_cells = registered.header() == nullptr || registered.header()->head_count_kv_sum > 0;
  const bool is_window_open =
      has_cells && given.cells == 0 && given.sequence_cells == 0 && given.layout == llm::KvLayout::automatic;
  choose_layout(registered, *options);
  if (is_guarded) {
    if (const auto checked = options_.guard->check_load(*options, control); !checked) return std::unexpected(checked.error());
  }
  refuse_adapters(*options, control);

  const llm::DeviceOptions devices_wanted = options->devices;
  const bool wants_lanes = options->lanes;
  const std::int32_t cells_wanted = options->context.cells;
  Expected<engine::LoadedWorkers> loaded;
  Reserved reserved;
  bool is_reduced = false;  // Something was left out.
  std::optional<Error> failed_on_devices;
  bool had_weights = false;
  for (std::size_t i = 0;; ++i) {
    const double share = kDeviceShares.at(i);
    auto got = reserve(registered, *options, devices_wanted, share, load);
    while (!got && load.is_refused && want_less(*options, is_window_open)) {
      load.is_refused = false;
      is_reduced = true;
      got = reserve(registered, *options, devices_wanted, share, load);
    }
    if (!got) return std::unexpected(failed_on_devices.value_or(got.error()));
    is_reduced |= got->need != got->wanted;
    reserved = *std::move(got);
    if (wants_lanes && !options->lanes) {
      log_warning("memory: too short for a second context of model {}: long prompts are computed between the tokens of streams",
                  model);
    }
    if (options->context.cells < cells_wanted) {
      log_warning("memory: too short for {} KV cells of model {}: its conversations share {}", cells_wanted, model,
                  options->context.cells);
    }
    if (reserved.need.states < reserved.wanted.states) {
      log_warning(
          "memory: too short for the longest state of model {}: the KV of long conversations may be dropped when they leave "
          "its contexts",
          model);
    }
    had_weights = options->weights != nullptr;
    if (!had_weights) {
      log_info("loading {}{}{}", options->path, options->draft_path.empty() ? "" : " with the draft model ",
               options->draft_path);
    }
    {
      const GuardedLoad guarded(options_.guard, *options, true);
      loaded = load_beside_streams(*options, control, [&](double progress) {
        host_->on_load_progress(model, progress);
        return progress < 1 || !is_refused();
      });
    }
    if (is_refused()) loaded = std::unexpected(model_checked.get().error());
    if (loaded) break;
    options->weights.reset();
    drop_failed_load(model, std::move(reserved.contexts));
    if (is_refused()) return loaded;
    if (!options->devices.are_used() || load.is_cancelled.load() || !may_fit_elsewhere(loaded.error(), devices_wanted))
      return loaded;
    if (!failed_on_devices) failed_on_devices = loaded.error();
    is_reduced = true;
    log_warning("model   {}: {}: it is tried with less memory of devices", model, loaded.error().message);
  }
  const MemoryNeed taken = correct(registered, reserved.need, *loaded, reserved.contexts);
  if (!is_reduced) measured_.note(registered, reserved.need, taken);
  log_loaded(model, *loaded, options->context);
  loads_total_.add();
  const MutexLock lock(mutex_);
  Resident& resident = residents_.at(model);
  resident.is_loading = false;
  if (!had_weights) resident.load_ms = to_ms(clock_.now() - began);
  // Replicated weights are released with their workers.
  if (loaded->copies == 1) resident.weights = loaded->model;
  resident.loaded_at = clock_.now();
  resident.workers = resident.workers_first = options->workers;
  resident.context = options->context;
  resident.is_serving = true;
  loaded->reservation = std::make_shared<Holding>(std::move(reserved.contexts));
  return loaded;
}

LoadControl ModelPool::control_of(const Load& load) const {
  return {.is_cancelled = [&load] { return load.is_cancelled.load(); }, .has_streams = [this] { return host_->has_streams(); }};
}

// Leaves out the files of adapters that the library may not read.
void ModelPool::refuse_adapters(engine::LoadWorkersOptions& options, const LoadControl& control) const {
  for (llm::AdapterSource& adapter : options.adapters) {
    if (options_.guard == nullptr || !adapter.problem.empty()) continue;
    const auto checked = options_.guard->check_adapter(options, adapter, control);
    if (!checked) adapter.problem = checked.error().message;
  }
}

// Chooses the layout of a chat model's contexts by the memory that would be usable if no other model were loaded.
void ModelPool::choose_layout(const RegisteredModel& model, engine::LoadWorkersOptions& options) {
  if (model.header() == nullptr) return;
  warn_of_length(model, options.context);
  if (model.capability != Capability::chat) return;
  const auto devices = llm::devices_of(options.devices);
  std::uint64_t usable = 0;
  std::uint64_t on_devices = 0;
  {
    const MutexLock eviction_lock(eviction_mutex_);
    update_governor();
    usable = governor_.use().front().usable;
    for (const llm::Device& device : devices.value_or(std::vector<llm::Device>())) {
      const Place place = governor_.place_of(device.name);
      if (device.kind == llm::DeviceKind::gpu) on_devices += std::min(governor_.use()[place].usable, kDeviceBytesMax);
    }
  }
  const auto workers = static_cast<std::uint64_t>(std::max(1, options.workers));
  const std::uint64_t copies = options.replicates ? workers : 1;
  std::uint64_t weights = model.weight_bytes() * copies;
  // The cells are where their layers are. The experts of a mixture need not be there; without them there has to be room for a
  // long conversation.
  const std::uint64_t without_experts = weights - model.header()->expert_bytes * copies;
  const std::uint64_t long_cells = llm::kLongWindow * llm::kv_bytes_of(*model.header(), options.context.kv_types) * workers;
  std::uint64_t all = usable + on_devices;
  if (weights <= on_devices && !options.devices.layers) {
    all = on_devices;
  } else if (without_experts < weights && without_experts + 4 * long_cells <= on_devices && !options.devices.layers) {
    all = on_devices;
    weights = without_experts;
  }
  options.context = llm::with_layout(*model.header(), options.context, (all - std::min(all, weights)) / workers);
}

// Reserves the memory of a load whose layers are fitted to the devices. Errors: E_MODEL_002 with the numbers.
Expected<ModelPool::Reserved> ModelPool::reserve(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                                 const llm::DeviceOptions& wanted, double share, Load& load) {
  for (int i = 0;; ++i) {
    auto placed = place(model, options, wanted, i < kFits ? share : 0);
    if (!placed) return std::unexpected(placed.error());
    Reserved reserved{.contexts = {}, .need = *placed, .wanted = *placed};
    load.is_short_on_device = false;
    auto contexts = acquire(model, reserved.need, options.weights, options.devices, load);
    if (contexts) {
      reserved.contexts = *std::move(contexts);
      return reserved;
    }
    if (!load.is_short_on_device) return std::unexpected(contexts.error());
  }
}

// Chooses the devices of a load, and returns what it needs there. It may have a share of the devices' memory; 0: no devices.
Expected<MemoryNeed> ModelPool::place(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                      const llm::DeviceOptions& wanted, double share) {
  const GuardedLoad guarded(options_.guard, options, false);
  std::optional<llm::DeviceOptions> kept;
  {
    const MutexLock lock(mutex_);
    const auto resident = residents_.find(model.card.name);
    if (resident != residents_.end() && resident->second.weights && resident->second.serves(model)) {
      kept = resident->second.devices;
    }
  }
  options.devices = kept.value_or(llm::DeviceOptions{.names = std::vector<std::string>()});
  if (share == 0) log_info("memory: no layer of model {} is placed on devices", model.card.name);
  if (kept || share == 0 || model.header() == nullptr) return need_of(model, options);
  const auto devices = llm::devices_of(wanted);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) return need_of(model, options);
  if (model.capability == Capability::text_to_image) return place_whole(model, options, *devices, wanted, share);
  const auto fit_in = [&](std::span<const RoomOnDevice> rooms) {
    return fit_devices(*model.header(), wanted, rooms, [&](const llm::DeviceOptions& some) {
      options.devices = some;
      return need_of(model, options);
    });
  };
  const auto layers = static_cast<std::int32_t>(model.header()->block_count) + 1;
  const std::int32_t layers_wanted = std::min(layers, wanted.layers.value_or(layers));
  std::vector<RoomOnDevice> rooms = rooms_for(model, *devices, share, false);
  auto fit = fit_in(rooms);
  const auto is_whole = [&] { return fit->placed() == std::pair(layers_wanted, 0); };
  if (fit && !is_whole()) {
    // Idle models leave the devices for it.
    if (auto more = rooms_for(model, *devices, share, true); more != rooms) {
      rooms = std::move(more);
      if (auto better = fit_in(rooms); !better || better->placed() > fit->placed()) fit = std::move(better);
    }
  }
  if (!fit) return std::unexpected(fit.error());
  options.devices = fit->devices;
  if (!is_whole()) {
    std::string left;
    for (const RoomOnDevice& room : rooms) {
      left += std::format("{}{} of {}", left.empty() ? "" : ", ", readable_bytes(room.bytes), room.name);
    }
    const std::int32_t placed = options.devices.layers.value_or(0);
    const std::int32_t without = options.devices.experts_on_cpu - (layers - placed);
    log_info("memory: {} of {} layers of model {} fit onto devices{}, where it may have {}", placed, layers, model.card.name,
             without > 0 ? std::format(", {} without their experts", without) : "", left);
  }
  return std::move(fit->need);
}

// Places a model that draws pictures, which is on one device of this machine as a whole: the main one, else the one with the
// most room.
Expected<MemoryNeed> ModelPool::place_whole(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                            std::span<const llm::Device> devices, const llm::DeviceOptions& wanted,
                                            double share) {
  std::vector<RoomOnDevice> rooms = rooms_for(model, devices, share, true);
  std::erase_if(rooms, [](const RoomOnDevice& room) { return llm::is_rpc_name(room.name); });
  std::ranges::stable_sort(rooms, std::ranges::greater(),
                           [&](const RoomOnDevice& room) { return std::pair(room.name == wanted.main_device, room.bytes); });
  for (const RoomOnDevice& room : rooms) {
    options.devices.names = {room.name};
    auto need = need_of(model, options);
    if (!need || need->device_bytes(false).of(room.name) <= room.bytes) return need;
  }
  log_info("memory: model {} fits onto no device", model.card.name);
  options.devices.names = std::vector<std::string>();
  return need_of(model, options);
}

// The room for a load on each device: what is left, and with `evicts` what idle models have there, except for background
// requests.
std::vector<RoomOnDevice> ModelPool::rooms_for(const RegisteredModel& model, std::span<const llm::Device> devices, double share,
                                               bool evicts) {
  const MutexLock eviction_lock(eviction_mutex_);
  update_governor();
  const std::vector<engine::ModelUsage> usages = host_->usage();
  evicts = evicts && !is_for_background(usages, model.card.name);
  std::vector<RoomOnDevice> rooms;
  for (const llm::Device& device : devices) {
    // An integrated GPU has the machine's memory, whose claims are made later.
    const Place place = device.kind == llm::DeviceKind::gpu ? governor_.place_of(device.name) : kHostMemory;
    const PlaceUse use = governor_.use()[place];
    std::uint64_t bytes = use.usable;
    if (place != kHostMemory) {
      bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, use.left()));
      if (evicts) bytes += evictable_bytes(views(model.card.name, usages, place), {.min_loaded = options_.min_loaded});
    }
    rooms.push_back({.name = device.name, .bytes = in_steps(static_cast<std::uint64_t>(share * static_cast<double>(bytes)))});
  }
  return rooms;
}

// Frees what a failed load has left, and then the reservation of its contexts.
void ModelPool::drop_failed_load(const std::string& model, Holding contexts) {
  (void)take_resident(model);
  contexts.release();
  give_back_free_memory();
  const MutexLock eviction_lock(eviction_mutex_);
  warm_.update(under_way_bytes());
  const MutexLock lock(mutex_);
  ++changes_;
  changed_.notify_all();
}

// Removes and returns the resident of a model.
ModelPool::Resident ModelPool::take_resident(const std::string& model) {
  const MutexLock lock(mutex_);
  const auto found = residents_.find(model);
  if (found == residents_.end()) return {};
  Resident taken = std::move(found->second);
  residents_.erase(found);
  return taken;
}

// State of a load that waits for memory.
struct ModelPool::LoadWait {
  BackgroundHold hold;
  bool is_told = false;            // The host was informed.
  std::uint64_t bytes = 0;         // Bytes that it waits for.
  std::uint64_t changes_seen = 0;  // Later changes may have freed memory.
};

// Tries once to reserve the memory of a load, evicting if that is necessary and possible. Returns the reservation of the
// contexts; the resident has that of the weights. Returns nullopt if the load has to wait. `weights` are the kept weights, if
// they still exist. If the model and its contexts fit, but not the longest state, that state is removed from `need`.
Expected<std::optional<Holding>> ModelPool::try_acquire(const RegisteredModel& registered, MemoryNeed& need,
                                                        std::shared_ptr<const llm::Model>& weights,
                                                        const llm::DeviceOptions& devices, Load& load, LoadWait& wait) {
  const std::string& model = registered.card.name;
  const MutexLock eviction_lock(eviction_mutex_);
  for (;;) {
    if (auto may = look_for_kept_weights(registered, weights, load, wait); !may) return std::unexpected(may.error());
    const Claim whole{.model = model, .kind = MemoryKind::weights, .bytes = need.host_bytes(weights != nullptr)};
    wait.bytes = whole.bytes;
    update_governor();
    const std::vector<engine::ModelUsage> usages = host_->usage();
    switch (make_room_on_devices(model, need, weights != nullptr, usages)) {
      case RoomMade::some:
        continue;
      case RoomMade::none:
        if (weights) (void)take_resident(model);
        weights.reset();
        load.is_short_on_device = true;
        return fail(ErrorCode::model_load, "a device has less memory than before");
      case RoomMade::not_needed:
        break;
    }
    warm_.give_back_unused(governor_.shortage(whole));
    if (auto contexts = begin_load(registered, need, weights != nullptr, devices, load)) {
      warm_.update(under_way_bytes());
      return contexts;
    }
    const EvictionOptions options{.min_loaded = options_.min_loaded, .is_background = is_for_background(usages, model)};
    const std::vector<ModelView> now = views(model, usages);
    EvictionPlan plan = plan_evictions(governor_.shortage(whole), now, options);
    if (plan.outcome == Outcome::refuse && need.states > 0) {
      need.contexts -= std::exchange(need.states, 0);
      continue;
    }
    // A wait is decided and logged only once.
    if (plan.outcome != Outcome::wait || !wait.is_told) plan = governor_.decide(whole, now, options, clock_.unix_s());
    if (plan.outcome == Outcome::refuse) return std::unexpected(refuse(model, whole.bytes, load));
    if (plan.outcome == Outcome::fits) {
      const bool done = std::ranges::all_of(plan.steps, [this](const EvictionStep& step) { return take(step); });
      if (done) continue;
    }
    wait.hold.add(plan.holds);
    weights.reset();  // Lets others use their memory meanwhile.
    return std::nullopt;
  }
}

// Finds the kept weights again after a wait. They may have been unloaded, and the name may mean another file now. Errors: the
// load was cancelled. Requires eviction_mutex_.
Expected<Unit> ModelPool::look_for_kept_weights(const RegisteredModel& registered, std::shared_ptr<const llm::Model>& weights,
                                                Load& load, LoadWait& wait) {
  bool are_of_no_use = false;
  {
    const MutexLock lock(mutex_);
    if (is_stopped_ || load.is_cancelled.load()) {
      load.is_waiting = false;
      return fail(ErrorCode::model_load, "the load was cancelled");
    }
    wait.changes_seen = changes_;
    const auto kept = residents_.find(registered.card.name);
    are_of_no_use = kept != residents_.end() && !kept->second.serves(registered);
    weights = kept == residents_.end() || are_of_no_use ? nullptr : kept->second.weights;
  }
  if (are_of_no_use) (void)take_resident(registered.card.name);
  return Unit{};
}

// Evicts idle models from devices on which the load does not fit. A load never waits for a device.
ModelPool::RoomMade ModelPool::make_room_on_devices(const std::string& model, const MemoryNeed& need, bool has_weights,
                                                    std::span<const engine::ModelUsage> usages) {
  const llm::DeviceBytes bytes = need.device_bytes(has_weights);
  for (const auto& [device, wanted] : bytes.by_device()) {
    const Claim claim{.model = model, .kind = MemoryKind::weights, .bytes = wanted, .place = governor_.place_of(device)};
    const std::uint64_t shortage = governor_.shortage(claim);
    if (shortage == 0) continue;
    const EvictionOptions options{.min_loaded = options_.min_loaded};
    const std::vector<ModelView> now = views(model, usages, claim.place);
    if (is_for_background(usages, model) || plan_evictions(shortage, now, options).outcome != Outcome::fits) {
      return RoomMade::none;
    }
    const EvictionPlan plan = governor_.decide(claim, now, options, clock_.unix_s());
    const bool done = std::ranges::all_of(plan.steps, [this](const EvictionStep& step) { return take(step); });
    return done ? RoomMade::some : RoomMade::none;
  }
  return RoomMade::not_needed;
}

// Reserves the memory of a load and makes its model a resident. Returns the memory of its contexts; nullopt: there is too
// little.
std::optional<Holding> ModelPool::begin_load(const RegisteredModel& registered, const MemoryNeed& need, bool has_weights,
                                             const llm::DeviceOptions& devices, Load& load) {
  const std::string& model = registered.card.name;
  Holding weights;
  if (!has_weights) {
    auto held = governor_.reserve(model, MemoryKind::weights, need.host_weights(), need.weights_on_devices);
    if (!held) return std::nullopt;
    weights = *std::move(held);
  }
  auto contexts = governor_.reserve(model, MemoryKind::context, need.host_contexts(), need.contexts_on_devices);
  if (!contexts) return std::nullopt;
  const MutexLock lock(mutex_);
  Resident& resident = residents_[model];
  if (!has_weights) resident.weights_held = std::move(weights);
  resident.file = registered.file;
  resident.adapters = registered.adapters;
  resident.devices = devices;
  resident.context_bytes = need.contexts;
  resident.contexts_on_devices = need.contexts_on_devices;
  resident.state_bytes = need.states / need.workers;
  resident.further_bytes = 0;
  resident.further_on_devices = {};
  resident.is_loading = true;
  load.is_waiting = false;
  return *std::move(contexts);
}

Error ModelPool::refuse(const std::string& model, std::uint64_t bytes, Load& load) {
  const PlaceUse place = governor_.use().front();
  const MutexLock lock(mutex_);
  load.is_waiting = false;
  load.is_refused = true;
  return {ErrorCode::model_load,
          std::format("model \"{}\" needs {} of memory, but the limit is {}: {}", model, readable_bytes(bytes),
                      readable_bytes(place.usable), "use a smaller --n-ctx or --kv-cells, or a smaller model")};
}

// Repeats try_acquire() until there is memory. Errors: E_MODEL_002 with the numbers.
Expected<Holding> ModelPool::acquire(const RegisteredModel& registered, MemoryNeed& need,
                                     std::shared_ptr<const llm::Model>& weights, const llm::DeviceOptions& devices,
                                     Load& load) {
  LoadWait wait{.hold = BackgroundHold(holds_)};
  for (;;) {
    auto contexts = try_acquire(registered, need, weights, devices, load, wait);
    if (!contexts || *contexts) {
      {
        const MutexLock lock(mutex_);
        load.is_waiting = false;
      }
      if (wait.is_told) host_->on_load_queued(registered.card.name, 0);
      if (!contexts) return std::unexpected(contexts.error());
      return std::move(**contexts);
    }
    if (!std::exchange(wait.is_told, true)) host_->on_load_queued(registered.card.name, wait.bytes);
    const MutexLock lock(mutex_);
    load.is_waiting = true;
    if (changes_ == wait.changes_seen && !is_stopped_) {
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kLookAgain);
    }
  }
}

// The estimated need of a load, as far as it is known now.
Expected<MemoryNeed> ModelPool::need_of(const RegisteredModel& model, const engine::LoadWorkersOptions& options) const {
  const llm::GgufHeader* header = model.header();
  // The header does not say how much layers with a window or with states need, and models of vectors.
  const bool generates = model.capability == Capability::chat || model.capability == Capability::vision;
  const bool is_plain = header != nullptr && generates && header->sliding_window == 0 && header->state_bytes == 0;
  if (is_plain && !options.devices.are_used()) {
    const auto rough = estimate_need(options, options_.image_cache_bytes_max, Estimate::rough);
    if (!rough) return rough;
    if (auto measured = measured_.find(model, *rough)) return *std::move(measured);
    if (is_rough_enough(*rough, governor_.use().front().left())) return rough;
  }
  const auto estimated = estimate_need(options, options_.image_cache_bytes_max);
  if (!estimated) return estimated;
  return measured_.find(model, *estimated).value_or(*estimated);
}

// Corrects the reservations to the memory that the load really took.
MemoryNeed ModelPool::correct(const RegisteredModel& model, const MemoryNeed& need, const engine::LoadedWorkers& loaded,
                              Holding& contexts) {
  constexpr double kFar = 0.1;
  MemoryNeed taken = need;
  taken.weights = loaded.weight_bytes + need.projector;
  taken.contexts = loaded.context_bytes + need.states + need.images;
  taken.weights_on_devices = loaded.weights_on_devices + need.projector_on_devices;
  taken.contexts_on_devices = loaded.contexts_on_devices;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(model.card.name);
    // The memory of kept weights is already exact.
    if (!resident.weights) governor_.correct(resident.weights_held, taken.host_weights(), taken.weights_on_devices);
    resident.context_bytes = taken.contexts;
    resident.contexts_on_devices = taken.contexts_on_devices;
  }
  governor_.correct(contexts, taken.host_contexts(), taken.contexts_on_devices);
  const auto estimated = static_cast<double>(need.weights + need.contexts);
  const double off = static_cast<double>(taken.weights + taken.contexts) / estimated - 1;
  if (const LogLevel level = std::abs(off) > kFar ? LogLevel::info : LogLevel::debug; log_shows(level)) {
    log_line(level,
             std::format("memory: model {} takes {} for weights and {} for contexts, {:+.1f} % compared with the estimate",
                         model.card.name, readable_bytes(taken.weights), readable_bytes(taken.contexts), 100 * off));
  }
  if (governor_.excess(kHostMemory) > 0) {
    const MutexLock eviction_lock(eviction_mutex_);
    warm_.give_back_unused(governor_.excess(kHostMemory));
  }
  return taken;
}

}  // namespace uma::pool
