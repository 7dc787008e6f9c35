#include "pool/load_files.h"

#include <chrono>
#include <format>
#include <future>
#include <thread>

#include "base/log.h"
#include "base/system/thread_name.h"
#include "base/text.h"
#include "base/thrown.h"
#include "pool/load_priority.h"

namespace uma::pool {

void log_loaded(const std::string& model, const engine::LoadedWorkers& loaded, const llm::ContextOptions& context) {
  if (loaded.picture_model) {
    const llm::PictureFacts& facts = loaded.picture_model->facts();
    log_info("model   {}: {}, {}", model, facts.description, readable_bytes(facts.bytes.all));
    return log_info("layout  1 worker for pictures of {0} × {0} pixels, {1} steps each; {2} compute thread(s)",
                    facts.sizes.native, facts.defaults.steps, loaded.threads);
  }
  const llm::ModelFacts& facts = loaded.model->facts();
  log_info("model   {}: {}, {}, trained for {} tokens{}{}", model, facts.description,
           readable_bytes(facts.bytes * static_cast<std::uint64_t>(loaded.copies)), facts.train_tokens,
           facts.devices.empty() ? "" : ", ", facts.devices);
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
  const std::int32_t threads = facts.is_on_devices ? 1 : context.threads;
  const bool is_even = facts.is_on_devices || context.threads_batch == 0 || context.threads_batch == context.threads;
  const std::string for_prompts = is_even ? "" : std::format(", {} for prompts", context.threads_batch * workers);
  log_info("layout  {} worker(s) with {} slots and {} KV cells each ({}, up to {} tokens a session); {} compute thread(s){}",
           workers, shape.sequences, shape.cells, shape.is_unified ? "unified" : "split", shape.sequence_cells_max,
           threads * workers, for_prompts);
}

// The library runs on a separate thread: the model's lanes, children of the thread that asks for the load, would inherit its
// priority.
Expected<engine::LoadedWorkers> load_beside_streams(const engine::LoadWorkersOptions& options, const LoadControl& control,
                                                    const std::function<bool(double)>& on_progress) {
  constexpr std::chrono::milliseconds kLookEvery{20};
  return contain([&] {
    Expected<engine::LoadedWorkers> loaded;
    std::promise<int> id;
    std::promise<void> end;
    std::jthread loader([&] {
      set_thread_name("uma-load");
      id.set_value(own_thread_id());
      loaded = contain([&] {
        return engine::load_workers(options, [&](double progress) { return on_progress(progress) && !control.is_cancelled(); });
      });
      end.set_value();
    });
    LoadPriority priority([thread = id.get_future().get()](int niceness) { return set_niceness(thread, niceness); });
    const auto ended = end.get_future();
    do {
      priority.update(control.has_streams());
    } while (ended.wait_for(kLookEvery) == std::future_status::timeout);
    loader.join();
    return loaded;
  });
}

std::string without_folders(std::string message, const RegisteredModel& model) {
  for (const std::string& path : {model.path, model.projector_path, model.card.draft_model}) {
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    for (std::size_t at = 0; !folder.empty() && (at = message.find(folder, at)) != std::string::npos;) {
      message.erase(at, folder.size());
    }
  }
  return message;
}

}  // namespace uma::pool
