#include "pool/model_pool.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread_name.h"

namespace uma::pool {
namespace {

void log_loaded(const engine::LoadedWorkers& loaded, const llm::ContextOptions& context) {
  const llm::ModelFacts& facts = loaded.model->facts();
  log_info("model   {}: {}, {}, trained for {} tokens", facts.name, facts.description,
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

}  // namespace

ModelPool::ModelPool(std::vector<PooledModel> models) : models_(std::move(models)) {
  UMA_CHECK(!models_.empty());
}

ModelPool::~ModelPool() {
  stop();
}

Expected<std::string> ModelPool::resolve(const std::string& name) const {
  if (name.empty()) return models_.front().name;
  if (std::ranges::contains(models_, name, &PooledModel::name)) return name;
  return fail(ErrorCode::model_unknown, std::format("no model \"{}\": this daemon serves \"{}\"", name, models_.front().name));
}

std::vector<ModelInfo> ModelPool::list() const {
  std::vector<ModelInfo> infos;
  for (const PooledModel& model : models_) infos.push_back({.name = model.name});
  return infos;
}

void ModelPool::start(engine::WorkerHost& host) {
  host_ = &host;
}

void ModelPool::load(const std::string& model) {
  const auto found = std::ranges::find(models_, model, &PooledModel::name);
  UMA_CHECK(host_ != nullptr && found != models_.end());
  const MutexLock lock(mutex_);
  if (is_stopped_) return;
  std::unique_ptr<Load>& load = loads_[model];
  // The host has heard of the end of the last one, so its thread is at its end.
  if (load != nullptr) load->thread.join();
  load = std::make_unique<Load>();
  load->thread = std::thread([this, pooled = &*found, mine = load.get()] { run(*pooled, *mine); });
}

void ModelPool::run(const PooledModel& model, Load& load) {
  set_thread_name("uma-load");
  auto options = model.prepare();
  if (!options) return host_->on_loaded(model.name, std::unexpected(options.error()));
  log_info("loading {}{}{}", options->path, options->draft_path.empty() ? "" : " and, to draft with, ", options->draft_path);
  auto loaded = engine::load_workers(*options, [&](double progress) {
    host_->on_load_progress(model.name, progress);
    return !load.is_cancelled.load();
  });
  if (loaded) log_loaded(*loaded, options->context);
  host_->on_loaded(model.name, std::move(loaded));
}

void ModelPool::unload(const std::string& model, Reply<Unit> reply) {
  const MutexLock lock(mutex_);
  if (is_stopped_) return reply(fail(ErrorCode::limit_wait, "the daemon is shutting down"));
  unloads_.emplace_back([this, model, reply = std::move(reply)]() mutable {
    set_thread_name("uma-unload");
    if (host_->retire(model)) {
      log_info("model   {}: unloaded", model);
      return reply(Unit{});
    }
    reply(fail(ErrorCode::session_busy, std::format("model \"{}\" is in use, or not loaded", model)));
  });
}

void ModelPool::cancel_load(const std::string& model) {
  const MutexLock lock(mutex_);
  if (const auto found = loads_.find(model); found != loads_.end()) found->second->is_cancelled.store(true);
}

void ModelPool::stop() {
  std::vector<std::unique_ptr<Load>> loads;
  std::vector<std::thread> unloads;
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    unloads = std::exchange(unloads_, {});
    for (auto& [model, load] : std::exchange(loads_, {})) loads.push_back(std::move(load));
  }
  for (const auto& load : loads) load->is_cancelled.store(true);
  for (const auto& load : loads) load->thread.join();
  for (std::thread& unload : unloads) unload.join();
}

}  // namespace uma::pool
