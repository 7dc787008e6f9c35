#include "engine/model/load_workers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane/plan/model_drafter.h"
#include "llm/footprint.h"
#include "llm/llama_model.h"

namespace uma::engine {

namespace {

// Some models rotate keys in another way where the context is longer than their original one, so their prefill context must be
// long, too.
constexpr std::int32_t kPrefillCellsLong = 16'384;

// Whether a sequence computed in `from` can continue in `to`. Both contexts are empty before and after.
bool can_hand_over(llm::Context& from, llm::Context& to) {
  if (from.state_identity() != to.state_identity()) return false;
  // A window may be as long as the short context, which then saves in pieces what the other one takes whole.
  if (from.shape().can_truncate != to.shape().can_truncate) return false;
  const llm::BatchRow row{.token = 0, .position = 0, .sequence = 0, .wants_logits = false};
  Bytes state;
  const auto computed = from.decode(std::span(&row, 1), nullptr);
  const bool moved = computed && *computed == llm::DecodeStatus::done && from.save_state(0, 0, 1, state) &&
                     to.load_state(0, 0, 1, to.fit_state(state));
  return from.truncate(0, 0) && to.truncate(0, 0) && moved;
}

// Gives the worker a context that computes prompts, unless its state cannot be handed over. For most models it has one
// sequence; models with several caches accept only the state of a context with as many sequences.
void add_prefill_context(const std::shared_ptr<const llm::Model>& model, llm::ContextOptions options, WorkerContexts& worker) {
  const llm::ContextShape& shape = worker.decode->shape();
  options.sequence_cells = shape.sequence_cells_max;
  options.layout = shape.is_unified ? llm::KvLayout::unified : llm::KvLayout::split;
  for (const std::int32_t cells_first : {kPrefillCellsFirst, kPrefillCellsLong}) {
    for (const std::int32_t sequences : {1, shape.sequences + (shape.spare >= 0 ? 1 : 0)}) {
      const auto make = [model, options, sequences](std::int32_t cells) {
        return model->new_context(prefill_context_options(options, sequences, cells));
      };
      auto context = make(cells_first);
      if (context && can_hand_over(**context, *worker.decode)) {
        worker.prefill = std::move(*context);
        worker.make_prefill = make;
        return;
      }
      if (!context)
        log_warning("prompts are computed beside streams: the second context for them failed: {}", context.error().message);
    }
    if (shape.sequence_cells_max <= cells_first) return;
  }
}

void add_weights(const llm::Model& model, LoadedWorkers& loaded) {
  loaded.weight_bytes += model.facts().memory_bytes;
  loaded.weights_on_devices += model.facts().on_devices;
}
// `shape`: of a context that computes texts or embeddings.
void add_context(const auto& shape, LoadedWorkers& loaded) {
  loaded.context_bytes += shape.memory_bytes;
  loaded.contexts_on_devices += shape.on_devices;
}

// The CPU only looks up the tokens' embeddings and samples: the worker's thread does that, and sleeps while a device computes.
// Other threads help it with sampling.
void use_one_thread(llm::ContextOptions& options, LoadedWorkers& loaded) {
  constexpr std::int32_t kSamplingThreadsMax = 7;  // Memory has no more bandwidth for more.
  options.threads = options.threads_batch = 1;
  loaded.sampling_threads = std::clamp(loaded.threads - 1, 0, kSamplingThreadsMax);
  loaded.threads = 1;
  loaded.threads_beside_prefill = 0;
}

// One context does: it draws pictures of several requests in a call.
Expected<LoadedWorkers> load_picture_worker(const LoadWorkersOptions& options, const std::function<bool(double)>& on_progress) {
  auto model = llm::load_picture_model(options.picture, options.devices, on_progress);
  if (!model) return std::unexpected(model.error());
  auto context = (*model)->new_context(picture_options(options));
  if (!context) return std::unexpected(context.error());
  const llm::PictureBytes& weights = (*model)->facts().bytes;
  const llm::PictureBytes computations = (*context)->memory();
  LoadedWorkers loaded;
  loaded.picture_model = *std::move(model);
  loaded.picture = *std::move(context);
  loaded.threads = options.threads;
  loaded.weight_bytes = weights.all;
  loaded.weights_on_devices = weights.on_devices;
  loaded.context_bytes = computations.all;
  loaded.contexts_on_devices = computations.on_devices;
  return loaded;
}

}  // namespace

llm::PictureContextOptions picture_options(const LoadWorkersOptions& options) {
  constexpr std::int32_t kRows = 8;
  return {.rows_max = kRows, .threads = options.threads};
}

llm::ContextOptions prefill_context_options(llm::ContextOptions options, std::int32_t sequences, std::int32_t cells_max) {
  options.sequences = sequences;
  options.has_spare = false;
  options.sequence_cells = std::min(options.sequence_cells, cells_max);
  options.cells = options.layout == llm::KvLayout::unified ? options.sequence_cells : options.sequence_cells * sequences;
  return options;
}

llm::DeviceOptions draft_devices(llm::DeviceOptions devices) {
  if (devices.are_used()) {
    devices.layers.reset();
    devices.split.clear();
    devices.main_device.clear();
    devices.experts_on_cpu = 0;
    if (devices.names) devices.names->resize(1);
  }
  return devices;
}

Expected<LoadedWorkers> load_workers(const LoadWorkersOptions& options, const std::function<bool(double)>& on_progress) {
  if (options.capability == Capability::text_to_image) return load_picture_worker(options, on_progress);
  LoadedWorkers loaded;
  loaded.copies = options.replicates ? options.workers : 1;
  loaded.threads = options.threads;
  loaded.tasks = options.tasks;
  loaded.defaults = options.defaults;
  loaded.threads_beside_prefill = options.threads_beside_prefill;
  loaded.widths = options.widths;
  llm::ContextOptions context_options = options.context;
  std::shared_ptr<const llm::Model> model;
  const bool drafts = !options.draft_path.empty();
  const double loads = loaded.copies + (drafts ? 1 : 0);
  const auto load_model = [&](const std::string& path, std::int32_t index, bool shares_file, const llm::DeviceOptions& devices,
                              std::vector<llm::AdapterSource> adapters = {}) {
    const auto report = [&, index](double progress) { return on_progress((index + progress) / loads); };
    return llm::load_llama_model(path, {.on_progress = report,
                                        .shares_file = shares_file,
                                        .devices = devices,
                                        .adapters = std::move(adapters),
                                        .pooling = options.context.pooling});
  };
  for (std::int32_t i = 0; i < options.workers; ++i) {
    if (i == 0 && options.weights != nullptr && !options.replicates) {
      model = options.weights;
    } else if (i < loaded.copies) {
      auto copy = load_model(options.path, i, !options.replicates, options.devices, options.adapters);
      if (!copy) return std::unexpected(copy.error());
      model = std::move(*copy);
    }
    if (i < loaded.copies) add_weights(*model, loaded);
    if (i == 0) {
      loaded.model = model;
      if (model->facts().is_on_devices) use_one_thread(context_options, loaded);
    }
    if (model->facts().capability != Capability::chat) {
      auto context = model->new_embedding(llm::embedding_options(context_options));
      if (!context) return std::unexpected(context.error());
      add_context((*context)->shape(), loaded);
      loaded.embeddings.push_back(std::move(*context));
      continue;
    }
    auto context = model->new_context(context_options);
    if (!context) return std::unexpected(context.error());
    WorkerContexts& worker = loaded.workers.emplace_back(std::move(*context));
    add_context(worker.decode->shape(), loaded);
    if (wants_prefill_context(options)) {
      add_prefill_context(model, context_options, worker);
      if (worker.prefill) add_context(worker.prefill->shape(), loaded);
    }
  }
  if (!options.projector_path.empty()) {
    // Images are encoded while others stream, so half of a worker's threads are left for the streams.
    auto projector = loaded.model->load_projector(options.projector_path, {.threads = std::max(1, options.context.threads / 2),
                                                                           .image_tokens_max = options.image_tokens_max});
    if (!projector) return std::unexpected(projector.error());
    loaded.projector = std::move(*projector);
  }
  if (!drafts) return loaded;
  if (loaded.workers.empty())
    return fail(ErrorCode::model_load, "an embedding model generates no tokens: remove the draft model");
  auto draft = load_model(options.draft_path, loaded.copies, true, draft_devices(options.devices));
  if (!draft) return std::unexpected(draft.error());
  add_weights(**draft, loaded);
  if (auto same = check_same_vocabulary(loaded.model->vocab(), (*draft)->vocab()); !same) return std::unexpected(same.error());
  for (WorkerContexts& worker : loaded.workers) {
    auto context = make_draft_context(**draft, worker.decode->shape(), context_options);
    if (!context) return std::unexpected(context.error());
    worker.draft = std::move(*context);
    add_context(worker.draft->shape(), loaded);
  }
  return loaded;
}

}  // namespace uma::engine
