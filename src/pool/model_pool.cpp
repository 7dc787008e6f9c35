#include "pool/model_pool.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread_name.h"
#include "base/thrown.h"
#include "llm/footprint.h"

namespace uma::pool {
namespace {

constexpr Duration kLookAgain = std::chrono::milliseconds(500);  // of a load that waits for memory
constexpr Duration kPatience = std::chrono::milliseconds(250);   // with a queue, before it is worth another worker
constexpr int kLoadNiceness = 15;
constexpr double kPressure = 10;  // percent of time lost to waiting for memory, worth a line

void log_loaded(const std::string& model, const engine::LoadedWorkers& loaded, const llm::ContextOptions& context) {
  const llm::ModelFacts& facts = loaded.model->facts();
  log_info("model   {}: {}, {}, trained for {} tokens", model, facts.description,
           readable_bytes(facts.bytes * static_cast<std::uint64_t>(loaded.copies)), facts.train_tokens);
  if (!loaded.embeddings.empty()) {
    const llm::EmbeddingShape& shape = loaded.embeddings.front()->shape();
    const bool has_vectors = facts.capability == uma::Capability::text_embedding;
    return log_info("layout  {} worker(s) for {} of up to {} tokens{}, {} tokens a call; {} compute thread(s)",
                    loaded.embeddings.size(), has_vectors ? "texts" : "pairs of texts", shape.text_tokens_max,
                    has_vectors ? std::format(", vectors of {} numbers", shape.dimensions) : "", shape.batch_rows_max,
                    loaded.threads * static_cast<std::int32_t>(loaded.embeddings.size()));
  }
  const llm::ContextShape& shape = loaded.workers.front().decode->shape();
  const auto workers = static_cast<std::int32_t>(loaded.workers.size());
  const bool is_even = context.threads_batch == 0 || context.threads_batch == context.threads;
  const std::string for_prompts = is_even ? "" : std::format(", {} for prompts", context.threads_batch * workers);
  log_info("layout  {} worker(s) with {} slots and {} KV cells each ({}, up to {} tokens a session); {} compute thread(s){}",
           workers, shape.sequences, shape.cells, shape.is_unified ? "unified" : "split", shape.sequence_cells_max,
           context.threads * workers, for_prompts);
}

// On a thread of its own: one that gives way cannot take it back, and its children, the model's lanes, would give way too.
Expected<engine::LoadedWorkers> load_beside_streams(const engine::LoadWorkersOptions& options,
                                                    const std::function<bool(double)>& on_progress) {
  return contain([&] {
    Expected<engine::LoadedWorkers> loaded;
    std::thread([&] {
      set_thread_name("uma-load");
      yield_to_others(kLoadNiceness);
      loaded = contain([&] { return engine::load_workers(options, on_progress); });
    }).join();
    return loaded;
  });
}

// Tells the guard, where there is one, that the library reads the files, until it ends.
class GuardedLoad {
 public:
  // `is_whole`: the load itself, not only its beginning.
  GuardedLoad(LoadGuard* guard, const engine::LoadWorkersOptions& options, bool is_whole)
      : guard_(guard), options_(options), is_whole_(is_whole) {
    if (guard_ != nullptr) guard_->begin(options_);
  }
  ~GuardedLoad() {
    if (guard_ != nullptr) guard_->end(options_, is_whole_);
  }
  GuardedLoad(const GuardedLoad&) = delete;
  GuardedLoad& operator=(const GuardedLoad&) = delete;

 private:
  LoadGuard* guard_;
  const engine::LoadWorkersOptions& options_;
  const bool is_whole_;
};

// Of a model that nobody uses, where it is not among them.
engine::ModelUsage usage_of(std::span<const engine::ModelUsage> usages, const std::string& model) {
  const auto found = std::ranges::find(usages, model, &engine::ModelUsage::name);
  return found == usages.end() ? engine::ModelUsage{.name = model} : *found;
}

// For who asked for the model: its files have names, where they are is nobody's business.
std::string without_folders(std::string message, const RegisteredModel& model) {
  for (const std::string& path : {model.path, model.projector_path, model.card.draft_model}) {
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    for (std::size_t at = 0; !folder.empty() && (at = message.find(folder, at)) != std::string::npos;) {
      message.erase(at, folder.size());
    }
  }
  return message;
}

}  // namespace

Expected<ModelPool::Need> ModelPool::foretell(const engine::LoadWorkersOptions& options) const {
  const std::span<const llm::ContextOptions> context(&options.context, 1);
  const auto workers = static_cast<std::uint64_t>(options.workers);
  const auto model = llm::measure_footprint(options.path, context);
  if (!model) return std::unexpected(model.error());
  Need need{.workers = workers, .weights = model->weights * (options.replicates ? workers : 1)};
  need.contexts = model->contexts.front().total() * workers;
  if (!model->makes_vectors) {
    const bool has_prefill = options.lanes && options.context.sequences > 1;
    if (has_prefill) need.contexts += model->one_sequence.front().total() * workers;
    // With what the pool of states rounds up, and the numbers of each cell.
    need.states = model->one_sequence.front().cache / 3 * 4 * workers;
  }
  if (!options.projector_path.empty()) {
    const auto projector = llm::read_gguf_header(options.projector_path);
    if (!projector) return std::unexpected(projector.error());
    need.projector = projector->weight_bytes;
    need.weights += need.projector;
    need.images = options_.image_cache_bytes_max;
  }
  if (!options.draft_path.empty()) {
    const auto draft = llm::measure_footprint(options.draft_path, context);
    if (!draft) return std::unexpected(draft.error());
    need.weights += draft->weights;
    need.contexts += draft->contexts.front().total() * workers;
  }
  need.contexts += need.states + need.images;
  return need;
}

// What is foretold, or what it came to the last time that this was foretold of this file.
Expected<ModelPool::Need> ModelPool::need_of(const RegisteredModel& model, const engine::LoadWorkersOptions& options) const {
  auto need = foretell(options);
  if (!need) return need;
  const MutexLock lock(mutex_);
  const auto before = measured_.find(model.card.name);
  if (before == measured_.end() || before->second.file != model.file || before->second.foretold != *need) return need;
  return before->second.taken;
}

// Reserves what the library says that the load really took.
ModelPool::Need ModelPool::correct(const RegisteredModel& model, const Need& need, const engine::LoadedWorkers& loaded,
                                   Reservation& contexts) {
  constexpr double kFar = 0.1;
  Need taken = need;
  taken.weights = loaded.weight_bytes + need.projector;
  taken.contexts = loaded.context_bytes + need.states + need.images;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(model.card.name);
    if (!resident.weights) resident.weights_held.correct(taken.weights);  // those that were kept are right already
    resident.context_bytes = taken.contexts;
  }
  contexts.correct(taken.contexts);
  const auto foretold = static_cast<double>(need.weights + need.contexts);
  const double off = static_cast<double>(taken.weights + taken.contexts) / foretold - 1;
  if (std::abs(off) > kFar) {
    log_info("memory: model {} takes {} of weights and {} of contexts, {:+.0f} % of what was foretold", model.card.name,
             readable_bytes(taken.weights), readable_bytes(taken.contexts), 100 * off);
  }
  if (governor_.excess(kHostMemory) > 0) {
    const MutexLock relief(relief_mutex_);
    warm_.give_back_unused(governor_.excess(kHostMemory));
  }
  return taken;
}

// For the next time. What was known from the last time is as it was foretold then.
void ModelPool::note_measured(const RegisteredModel& model, const Need& need, const Need& taken) {
  const MutexLock lock(mutex_);
  const auto [measured, is_new] = measured_.try_emplace(model.card.name);
  if (is_new || measured->second.file != model.file || measured->second.taken != need) measured->second.foretold = need;
  measured->second.file = model.file;
  measured->second.taken = taken;
}

ModelPool::ModelPool(PoolOptions options, std::shared_ptr<const ModelRegistry> registry, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      governor_(options_.governor),
      warm_(governor_, clock),
      registry_(std::move(registry)) {}

ModelPool::~ModelPool() {
  stop();
}

// --- What there is
// ----------------------------------------------------------------------------------------------------------------

std::shared_ptr<const ModelRegistry> ModelPool::registry() const {
  const MutexLock lock(mutex_);
  return registry_;
}

Expected<std::string> ModelPool::resolve(const std::string& name) const {
  const auto known = registry();
  if (!name.empty() || !options_.default_model.empty()) {
    const auto found = known->find(name.empty() ? options_.default_model : name);
    if (!found) return std::unexpected(found.error());
    return (*found)->card.name;
  }
  if (known->models().empty()) return fail(ErrorCode::model_unknown, "there is no model: none is registered");
  return known->models().front().card.name;
}

std::vector<ModelInfo> ModelPool::list() const {
  std::vector<ModelInfo> infos;
  const auto known = registry();
  infos.reserve(known->models().size());
  const auto first = resolve("");
  for (const RegisteredModel& model : known->models()) {
    ModelInfo info{.name = model.card.name};
    if (const llm::GgufHeader* header = model.header()) {
      info.description = header->architecture;
      info.bytes = header->weight_bytes;
      info.parameters = header->parameters;
      info.train_tokens = static_cast<std::int32_t>(header->context_length);
      info.vocabulary = static_cast<std::int32_t>(header->vocabulary_size);
      info.has_chat_template = header->has_chat_template;
    }
    info.capability = model.capability;
    info.reads_images = model.capability == Capability::vision || !model.projector_path.empty() ||
                        (options_.default_has_projector && first && info.name == *first);
    info.aliases = model.card.aliases;
    info.problem = model.problem;
    if (!model.problem.empty()) info.state = ModelState::failed;
    // The default one comes first.
    infos.insert(first && info.name == *first ? infos.begin() : infos.end(), std::move(info));
  }
  return infos;
}

void ModelPool::add_metrics(MetricsSnapshot& snapshot) const {
  constexpr std::size_t kDecisions = 8;
  const PlaceUse memory = governor_.use().front();
  snapshot.memory_usable_bytes = static_cast<std::int64_t>(memory.usable);
  snapshot.memory_reserved_bytes = static_cast<std::int64_t>(memory.reserved());
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
  auto next = registry()->reload();
  if (!next) return std::unexpected(std::move(next.error()));
  const MutexLock lock(mutex_);
  registry_ = *std::move(next);
  return registry_->models().size();
}

// --- Loads
// ------------------------------------------------------------------------------------------------------------------------

void ModelPool::start(engine::WorkerHost& host) {
  host_ = &host;
  {
    const MutexLock relief(relief_mutex_);
    warm_.start(host);
    update_governor();
    warm_.follow_use();
  }
  maintenance_ = std::thread([this] {
    set_thread_name("uma-pool");
    run_maintenance();
  });
}

void ModelPool::load(const std::string& model) {
  UMA_CHECK(host_ != nullptr);
  const auto begun = contain([&]() -> Expected<Unit> {
    const MutexLock lock(mutex_);
    if (is_stopped_) return Unit{};
    std::unique_ptr<Load>& load = loads_[model];
    // The host has heard of the end of the last one, so its thread is at its end.
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
  if (!begun) host_->on_loaded(model, std::unexpected(begun.error()));  // there was no thread for it
}

Expected<engine::LoadedWorkers> ModelPool::load_now(const std::string& model, Load& load) {
  const TimePoint began = clock_.now();
  const auto known = registry();
  const auto found = known->find(model);
  if (!found) return std::unexpected(found.error());
  const RegisteredModel& registered = **found;
  if (!registered.problem.empty()) return fail(ErrorCode::model_load, registered.problem);
  auto options = options_.prepare(registered);
  if (!options) return std::unexpected(options.error());
  if (options_.guard != nullptr) {
    const auto checked = options_.guard->check(*options, [&load] { return load.is_cancelled.load(); });
    if (!checked) return std::unexpected(checked.error());
  }
  const auto measure = [&] {
    const GuardedLoad guarded(options_.guard, *options, false);
    return need_of(registered, *options);
  };
  auto need = measure();
  if (!need) return std::unexpected(need.error());

  const Need all = *need;
  auto held = acquire(registered, *need, options->weights, load);
  if (!held && load.is_refused && options->lanes) {
    options->lanes = false;
    need = measure();
    if (!need) return std::unexpected(need.error());
    held = acquire(registered, *need, options->weights, load);
    if (held) log_warning("memory: no room for a second context of model {}: long prompts are computed between tokens", model);
  }
  if (!held) return std::unexpected(held.error());
  if (need->states < all.states) {
    log_warning("memory: no room for the longest state of model {}: conversations leave its contexts as far as memory is left",
                model);
  }
  const bool had_weights = options->weights != nullptr;
  if (options->weights == nullptr) {
    log_info("loading {}{}{}", options->path, options->draft_path.empty() ? "" : " and, to draft with, ", options->draft_path);
  }
  Expected<engine::LoadedWorkers> loaded;
  {
    const GuardedLoad guarded(options_.guard, *options, true);
    loaded = load_beside_streams(*options, [&](double progress) {
      host_->on_load_progress(model, progress);
      return !load.is_cancelled.load();
    });
  }
  if (!loaded) {
    options->weights.reset();
    (void)take_resident(model);  // freed before what it held
    held->release();
    give_back_free_memory();
    const MutexLock relief(relief_mutex_);
    warm_.update(under_way_bytes());
    const MutexLock lock(mutex_);
    ++changes_;
    changed_.notify_all();
    return loaded;
  }
  const Need taken = correct(registered, *need, *loaded, *held);
  if (*need == all) note_measured(registered, all, taken);
  const MutexLock lock(mutex_);
  Resident& resident = residents_.at(model);
  resident.is_loading = false;
  log_loaded(model, *loaded, options->context);
  loads_total_.add();
  if (!had_weights) resident.load_ms = to_ms(clock_.now() - began);
  // Replicated weights go with their workers.
  if (loaded->copies == 1) resident.weights = loaded->model;
  resident.loaded_at = clock_.now();
  resident.workers = resident.workers_first = options->workers;
  resident.is_serving = true;
  loaded->reservation = std::make_shared<Reservation>(std::move(*held));
  return loaded;
}

// What is in memory of a model, which is not known as such from now on.
ModelPool::Resident ModelPool::take_resident(const std::string& model) {
  const MutexLock lock(mutex_);
  const auto found = residents_.find(model);
  if (found == residents_.end()) return {};
  Resident taken = std::move(found->second);
  residents_.erase(found);
  return taken;
}

// What one load holds back, until it is under way or has failed.
class ModelPool::Holds {
 public:
  explicit Holds(ModelPool& pool) : pool_(pool) {}
  ~Holds() { pool_.change_holds(models_, -1); }
  Holds(const Holds&) = delete;
  Holds& operator=(const Holds&) = delete;

  void add(std::vector<std::string> models) {
    std::erase_if(models, [this](const std::string& model) { return std::ranges::contains(models_, model); });
    pool_.change_holds(models, 1);
    std::ranges::move(models, std::back_inserter(models_));
  }

 private:
  ModelPool& pool_;
  std::vector<std::string> models_;
};

// Reserves what a load needs, after making room where that is necessary and possible; waits while it is not. Returns that of
// the contexts; that of the weights is with the resident. `weights` are those that were kept, if they still are when the load
// begins. Where a model and its contexts would fit, but not the longest state beside them, `need` is without that: states then
// have what is left. Errors: E_MODEL_002 with the numbers.
Expected<Reservation> ModelPool::acquire(const RegisteredModel& registered, Need& need,
                                         std::shared_ptr<const llm::Model>& weights, Load& load) {
  const std::string& model = registered.card.name;
  const auto begin = [&](Reservation all) {
    Reservation contexts = all.split(MemoryKind::context, need.contexts);
    const MutexLock lock(mutex_);
    Resident& resident = residents_[model];
    if (!weights) resident.weights_held = std::move(all);
    resident.file = registered.file;
    resident.context_bytes = need.contexts;
    resident.state_bytes = need.states / need.workers;
    resident.further_bytes = 0;
    resident.is_loading = true;
    load.is_waiting = false;
    return contexts;
  };
  bool is_told = false;
  Holds holds(*this);
  for (;;) {
    std::uint64_t seen = 0;
    Claim whole{.model = model, .kind = MemoryKind::weights, .bytes = need.contexts};
    {
      const MutexLock relief(relief_mutex_);
      bool is_of_another_file = false;
      {
        const MutexLock lock(mutex_);
        if (is_stopped_ || load.is_cancelled.load()) {
          load.is_waiting = false;
          return fail(ErrorCode::model_load, "the load was ended");
        }
        seen = changes_;
        // While it waited somebody may have unloaded what was kept, and the name may stand for another file.
        const auto kept = residents_.find(model);
        is_of_another_file = kept != residents_.end() && kept->second.file != registered.file;
        weights = kept == residents_.end() || is_of_another_file ? nullptr : kept->second.weights;
      }
      if (is_of_another_file) (void)take_resident(model);
      if (!weights) whole.bytes += need.weights;
      update_governor();
      warm_.give_back_unused(governor_.shortage(whole));
      if (auto all = governor_.reserve(whole)) {
        if (is_told) host_->on_load_queued(model, 0);
        Reservation contexts = begin(std::move(*all));
        warm_.update(under_way_bytes());
        return contexts;
      }
      const std::vector<engine::ModelUsage> usages = host_->usage();
      const engine::ModelUsage own = usage_of(usages, model);
      const bool is_background = own.waiting > 0 && own.waiting == own.background_waiting;
      const LadderOptions ladder{.min_loaded = options_.min_loaded, .is_background = is_background};
      const std::vector<ModelView> now = views(model, usages);
      LadderPlan plan = plan_relief(governor_.shortage(whole), now, ladder);
      if (plan.outcome == Outcome::refuse && need.states > 0) {
        need.contexts -= std::exchange(need.states, 0);
        continue;
      }
      // Waiting is decided, and written down, once.
      if (plan.outcome != Outcome::wait || !is_told) plan = governor_.decide(whole, now, ladder, clock_.unix_s());
      if (plan.outcome == Outcome::refuse) {
        const PlaceUse place = governor_.use().front();
        const MutexLock lock(mutex_);
        load.is_waiting = false;
        load.is_refused = true;
        return fail(ErrorCode::model_load, std::format("model \"{}\" needs {} of memory, {} may be used in all: {}", model,
                                                       readable_bytes(whole.bytes), readable_bytes(place.usable),
                                                       "a shorter --n-ctx, or a smaller model, takes less"));
      }
      if (plan.outcome == Outcome::fits) {
        const bool done = std::ranges::all_of(plan.steps, [this](const LadderStep& step) { return take(step); });
        if (done) continue;
      }
      holds.add(plan.holds);
      weights.reset();  // whoever needs memory more may have it meanwhile
    }
    if (!std::exchange(is_told, true)) host_->on_load_queued(model, whole.bytes);
    const MutexLock lock(mutex_);
    load.is_waiting = true;
    if (changes_ == seen && !is_stopped_) changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kLookAgain);
  }
}

// --- Further workers
// ---------------------------------------------------------------------------------------------------------------

void ModelPool::note_queue(const std::string& model) {
  const MutexLock lock(mutex_);
  if (queues_.try_emplace(model, clock_.now()).second) changed_.notify_all();
}

// Begins to make one more worker of a model that still has more requests than places, where its card, the cores and memory
// allow it: nobody gives way for it. Under relief_mutex_.
void ModelPool::grow(const std::string& model) {
  const std::vector<engine::ModelUsage> usages = host_->usage();
  const engine::ModelUsage usage = usage_of(usages, model);
  if (!usage.is_loaded || usage.queued == 0) return;
  const auto known = registry();
  const auto found = known->find(model);
  if (!found || (*found)->card.name != model) return;
  std::shared_ptr<const llm::Model> weights;
  {
    const MutexLock lock(mutex_);
    const auto resident = residents_.find(model);
    if (resident == residents_.end() || !resident->second.is_serving || resident->second.is_loading) return;
    if (resident->second.file != (*found)->file) return;  // the name stands for another file now
    std::int32_t busy = 0;
    for (const engine::ModelUsage& each : usages) {
      const auto other = residents_.find(each.name);
      if (each.uses > 0 && other != residents_.end()) busy += other->second.workers;
    }
    if (resident->second.workers >= (*found)->card.workers_max || busy >= options_.cores) return;
    weights = resident->second.weights;
  }
  auto options = options_.prepare(**found);
  if (!options) return;
  options->workers = 1;
  options->projector_path.clear();  // its images are read by the model's first one
  options->weights = std::move(weights);
  const auto need = need_of(**found, *options);
  if (!need) return;
  const std::uint64_t bytes = need->contexts + (options->weights ? 0 : need->weights);
  const Claim claim{.model = model, .kind = MemoryKind::context, .bytes = bytes};
  warm_.give_back_unused(governor_.shortage(claim));
  auto held = governor_.reserve(claim);
  if (!held) return log_debug("model   {}: no further worker: {}", model, held.error().message);
  const MutexLock lock(mutex_);
  if (is_stopped_) return;
  std::unique_ptr<Load>& load = loads_[model];
  load = std::make_unique<Load>();
  load->thread =
      std::jthread([this, model, options = std::move(*options), held = std::move(*held), mine = load.get()]() mutable {
        set_thread_name("uma-load");
        run_noting([&] { add_worker(model, options, std::move(held), *mine); });
      });
  residents_.at(model).is_loading = true;  // the thread's end waits for the lock
}

// On a thread of its own.
void ModelPool::add_worker(const std::string& model, const engine::LoadWorkersOptions& options, Reservation held, Load& load) {
  auto loaded = load_beside_streams(options, [&load](double) { return !load.is_cancelled.load(); });
  std::uint64_t bytes = 0;
  if (loaded) {
    const auto added = contain([&]() -> Expected<Unit> {
      {
        const MutexLock lock(mutex_);
        bytes = loaded->context_bytes + residents_.at(model).state_bytes + (options.weights ? 0 : loaded->weight_bytes);
      }
      held.correct(bytes);
      loaded->reservation = std::make_shared<Reservation>(std::move(held));
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
  if (!loaded) return log_warning("model   {}: no further worker: {}", model, loaded.error().message);
  resident.context_bytes += bytes;
  resident.further_bytes += bytes;
  ++resident.workers;
  log_info("model   {}: {} workers, for requests wait", model, resident.workers);
}

// Frees the further workers of a model that nobody used for long. Under relief_mutex_.
void ModelPool::shrink(const engine::ModelUsage& usage) {
  std::int32_t first = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = residents_.find(usage.name);
    if (found == residents_.end() || found->second.is_loading || found->second.workers <= found->second.workers_first) return;
    first = found->second.workers_first;
  }
  if (usage.idle_s * 1000 < to_ms(options_.min_loaded) || !host_->keep_workers(usage.name, static_cast<std::size_t>(first)))
    return;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(usage.name);
    resident.workers = first;
    resident.context_bytes -= std::exchange(resident.further_bytes, 0);
  }
  log_info("model   {}: {} worker(s) again, the others were idle", usage.name, first);
  give_back_free_memory();
  warm_.update(under_way_bytes());
}

// --- Room
// -----------------------------------------------------------------------------------------------------------------------

// Of all models that memory is held for but `asking`, and what is stored.
std::vector<ModelView> ModelPool::views(const std::string& asking, std::span<const engine::ModelUsage> usages) const {
  std::vector<ModelView> all;
  const auto known = registry();
  const MutexLock lock(mutex_);
  // Of two loads that wait the later one gives the weights that it has: else each could wait for the other's.
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
    const engine::ModelUsage usage = usage_of(usages, name);
    view.is_loading = resident.is_loading;
    view.is_held = holds_.contains(name);
    view.sequences_active = static_cast<std::int32_t>(usage.uses);
    view.sequences_background = static_cast<std::int32_t>(usage.background_uses);
    view.requests_waiting = static_cast<std::int32_t>(usage.waiting - (view.is_held ? usage.background_waiting : 0));
    view.idle = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(usage.idle_s));
    view.loaded_for = clock_.now() - resident.loaded_at;
    view.load_ms = resident.load_ms;
    view.weight_bytes = resident.weights_held.bytes();
    view.context_bytes = resident.is_serving || resident.is_loading ? resident.context_bytes : 0;
    if (!resident.is_serving && !resident.is_loading && waits_behind(name)) {
      view.sequences_active = 0;
      view.requests_waiting = 0;
      view.idle = std::max(view.idle, options_.min_loaded);
      view.loaded_for = std::max(view.loaded_for, options_.min_loaded);
    }
  }
  // They are nobody's weights or contexts, so pinned; what is in memory can go to disk.
  all.push_back({.name = WarmMemory::kName, .is_pinned = true, .warm_bytes = warm_.bytes()});
  return all;
}

// New background requests for these models wait while at least one load holds them.
void ModelPool::change_holds(const std::vector<std::string>& models, std::int32_t change) {
  for (const std::string& model : models) {
    const MutexLock lock(mutex_);
    std::int32_t& count = holds_[model];
    const bool was_held = std::exchange(count, count + change) > 0;
    const bool is_held = count > 0;
    if (!is_held) holds_.erase(model);
    if (was_held != is_held) host_->hold_background(model, is_held);
  }
}

// False: it turned out that it cannot be done now.
bool ModelPool::take(const LadderStep& step) {
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

// Under relief_mutex_, so that no load of it begins meanwhile; not under mutex_.
bool ModelPool::unload_now(const std::string& model, bool keeps_weights) {
  bool is_serving = false;
  {
    const MutexLock lock(mutex_);
    const auto found = residents_.find(model);
    if (found == residents_.end() || found->second.is_loading) return false;
    is_serving = found->second.is_serving;
  }
  if (is_serving && !host_->retire(model)) return false;
  log_info("model   {}: {}", model, keeps_weights ? "its contexts are freed" : "unloaded");
  unloads_total_.add();
  bool are_kept = false;
  {
    const MutexLock lock(mutex_);
    Resident& resident = residents_.at(model);
    resident.is_serving = false;
    are_kept = keeps_weights && resident.weights;  // each worker's own went with it
  }
  if (!are_kept) (void)take_resident(model);
  give_back_free_memory();
  warm_.update(under_way_bytes());
  const MutexLock lock(mutex_);
  ++changes_;
  changed_.notify_all();
  return true;
}

// What the model has computed may stay in memory, where there is some: nobody is short of it. Under relief_mutex_.
void ModelPool::keep_warm(const std::string& model) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto found = residents_.find(model); found != residents_.end()) bytes = found->second.context_bytes;
  }
  warm_.grow(bytes);
}

// The system's figures as they are now. Under relief_mutex_.
void ModelPool::update_governor() {
  governor_.update(options_.memory(), llm::gpu_memory());
  warm_.update(under_way_bytes());
}

// Reserved with the contexts there are, for states that leave one or come into it.
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
// ---------------------------------------------------------------------------------------------------------

void ModelPool::run_maintenance() {
  TimePoint next = clock_.now() + options_.maintenance;
  for (;;) {
    std::vector<UnloadRequest> requests;
    std::vector<std::string> queued;
    {
      const MutexLock lock(mutex_);
      if (is_stopped_) break;
      TimePoint wake = next;
      for (const auto& [model, since] : queues_) wake = std::min(wake, since + kPatience);
      if (unloads_.empty() && clock_.now() < wake) changed_.wait_until(mutex_, wake);
      if (is_stopped_) break;
      requests = std::exchange(unloads_, {});
      std::erase_if(queues_, [&, now = clock_.now()](const auto& queue) {
        if (queue.second + kPatience > now) return false;
        queued.push_back(queue.first);
        return true;
      });
    }
    for (const std::string& model : queued) {
      const MutexLock relief(relief_mutex_);
      run_noting([&] { grow(model); });
    }
    for (UnloadRequest& request : requests) {
      const MutexLock relief(relief_mutex_);
      request.reply(contain([&]() -> Expected<Unit> {
        keep_warm(request.model);
        if (unload_now(request.model, false)) return Unit{};
        return fail(ErrorCode::session_busy, std::format("model \"{}\" is in use, or not loaded", request.model));
      }));
    }
    if (clock_.now() >= next) {
      run_noting([this] { maintain(); });
      next = clock_.now() + options_.maintenance;
    }
  }
}

void ModelPool::maintain() {
  const MutexLock relief(relief_mutex_);
  update_governor();
  const PlaceUse place = governor_.use().front();
  if (const auto pressure = options_.memory().pressure; pressure && *pressure > kPressure) {
    log_warning("memory: programs waited for it {:.0f} % of the last 10 s; {} of {} are reserved here", *pressure,
                readable_bytes(place.reserved()), readable_bytes(place.usable));
  }
  warm_.give_back_unused(governor_.excess(kHostMemory));
  if (governor_.excess(kHostMemory) > 0) {
    // Others have taken memory since. Nobody waits for it here, so what is in use stays.
    const LadderPlan plan = governor_.decide({.model = {}, .kind = MemoryKind::weights, .bytes = 0}, views({}, host_->usage()),
                                             {.min_loaded = options_.min_loaded}, clock_.unix_s());
    for (const LadderStep& step : plan.steps) (void)take(step);
  } else {
    warm_.follow_use();
  }
  const auto known = registry();
  for (const engine::ModelUsage& usage : host_->usage()) {
    if (usage.uses + usage.waiting >= options_.queue_depth_warn) {
      log_warning("model   {}: {} requests are under way or wait for it", usage.name, usage.uses + usage.waiting);
    }
    shrink(usage);
    const auto found = known->find(usage.name);
    const ModelCard* card = found ? &(*found)->card : nullptr;
    const double limit_s =
        card != nullptr && card->idle_unload_s ? static_cast<double>(*card->idle_unload_s) : to_ms(options_.idle_unload) / 1000;
    const bool is_pinned = card != nullptr && card->is_pinned;
    if (limit_s > 0 && !is_pinned && usage.is_loaded && usage.uses == 0 && usage.waiting == 0 && usage.idle_s >= limit_s) {
      keep_warm(usage.name);
      (void)unload_now(usage.name, false);
    }
  }
}

void ModelPool::unload(const std::string& model, Reply<Unit> reply) {
  const MutexLock lock(mutex_);
  if (is_stopped_) return reply(fail(ErrorCode::limit_wait, "the daemon is shutting down"));
  unloads_.push_back({model, std::move(reply)});
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
  for (UnloadRequest& request : unloads) request.reply(fail(ErrorCode::limit_wait, "the daemon is shutting down"));
}

}  // namespace uma::pool
