#include "pool/memory_need.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/lane/plan/model_drafter.h"
#include "llm/device/rpc_address.h"
#include "llm/file/adapter_file.h"
#include "llm/file/gguf_files.h"
#include "llm/file/gguf_header.h"
#include "llm/footprint.h"
#include "llm/picture/picture_model.h"

namespace uma::pool {

namespace {

Expected<MemoryNeed> picture_need(const engine::LoadWorkersOptions& options) {
  const auto need = llm::measure_picture_model(options.picture, options.devices, engine::picture_options(options));
  if (!need) return std::unexpected(need.error());
  return MemoryNeed{.weights = need->weights.all,
                    .contexts = need->context.all,
                    .weights_on_devices = need->weights.on_devices,
                    .contexts_on_devices = need->context.on_devices};
}

}  // namespace

bool is_rough_enough(const MemoryNeed& rough, std::int64_t left) {
  constexpr std::uint64_t kLoads = 3;
  return left > 0 && rough.host_bytes(false) <= static_cast<std::uint64_t>(left) / kLoads;
}

Expected<MemoryNeed> estimate_need(const engine::LoadWorkersOptions& options, std::uint64_t image_cache_bytes_max,
                                   Estimate kind) {
  const auto measure = [kind](const std::string& path, std::span<const llm::ContextOptions> contexts,
                              const llm::DeviceOptions& devices) -> Expected<llm::Footprint> {
    if (kind == Estimate::exact) return llm::measure_footprint(path, contexts, devices);
    return llm::read_model_header(path).transform(
        [&](const llm::GgufHeader& header) { return llm::estimate_footprint(header, contexts); });
  };
  if (options.capability == Capability::text_to_image) return picture_need(options);
  // Without a layout the prefill context counts as if it had a whole window.
  const bool has_layout = options.context.sequence_cells > 0;
  const std::array both{options.context, has_layout ? engine::prefill_context_options(options.context) : options.context};
  const auto workers = static_cast<std::uint64_t>(options.workers);
  const auto model = measure(options.path, both, options.devices);
  if (!model) return std::unexpected(model.error());
  const std::uint64_t copies = options.replicates ? workers : 1;
  MemoryNeed need{.workers = workers,
                  .weights = model->weights * copies,
                  .weights_on_devices = model->weights_on_devices * copies,
                  .cache = model->contexts.front().cache * workers};
  const auto add_contexts = [&](const llm::ContextBytes& each) {
    need.contexts += each.total() * workers;
    need.contexts_on_devices += each.on_devices * workers;
  };
  add_contexts(model->contexts.front());
  if (!model->makes_vectors) {
    if (engine::wants_prefill_context(options)) add_contexts(model->one_sequence.back());
    // A third more, because the pool of states rounds up and each cell has a position beside its values.
    need.states = model->one_sequence.front().cache / 3 * 4 * workers;
  }
  for (const llm::AdapterSource& adapter : options.adapters) {
    const auto header = llm::read_adapter_header(adapter.path);
    if (!header || !adapter.problem.empty()) continue;  // It is not loaded.
    need.weights += header->weight_bytes * copies;
  }
  if (!options.projector_path.empty()) {
    const auto projector = llm::read_gguf_header(options.projector_path);
    if (!projector) return std::unexpected(projector.error());
    need.projector = projector->weight_bytes;
    need.weights += need.projector;
    need.images = image_cache_bytes_max;
    const auto devices = llm::devices_of(options.devices);
    if (!devices) return std::unexpected(devices.error());
    const auto here = std::ranges::find_if(*devices, [](const llm::Device& device) { return !llm::is_rpc_name(device.name); });
    if (here != devices->end() && here->kind == llm::DeviceKind::gpu) {
      need.projector_on_devices.add(here->name, need.projector);
      need.weights_on_devices += need.projector_on_devices;
    }
  }
  if (!options.draft_path.empty()) {
    const std::array drafts{engine::draft_context_options(options.context)};
    const auto draft = measure(options.draft_path, drafts, engine::draft_devices(options.devices));
    if (!draft) return std::unexpected(draft.error());
    need.weights += draft->weights;
    need.weights_on_devices += draft->weights_on_devices;
    add_contexts(draft->contexts.front());
  }
  need.contexts += need.states + need.images;
  return need;
}

std::optional<MemoryNeed> MeasuredNeeds::find(const RegisteredModel& model, const MemoryNeed& estimated) const {
  const MutexLock lock(mutex_);
  const auto before = measured_.find(model.card.name);
  const bool is_known = before != measured_.end() && before->second.file == model.file && before->second.estimated == estimated;
  return is_known ? std::optional(before->second.taken) : std::nullopt;
}

void MeasuredNeeds::note(const RegisteredModel& model, const MemoryNeed& need, const MemoryNeed& taken) {
  const MutexLock lock(mutex_);
  const auto [measured, is_new] = measured_.try_emplace(model.card.name);
  // If the need equals the last measurement, that measurement's estimate still applies.
  if (is_new || measured->second.file != model.file || measured->second.taken != need) measured->second.estimated = need;
  measured->second.file = model.file;
  measured->second.taken = taken;
}

}  // namespace uma::pool
