#include "engine/worker_source.h"

#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "llm/llama_model.h"

namespace uma::engine {

FixedModelSource::FixedModelSource(FixedModelOptions options) : options_(std::move(options)) {}

FixedModelSource::~FixedModelSource() {
  stop();
}

std::string FixedModelSource::model_name() const {
  return std::filesystem::path(options_.path).stem().string();
}

Expected<LoadedWorkers> FixedModelSource::load_now(const OnProgress& on_progress) {
  auto model = llm::load_llama_model(options_.path, {.on_progress = [&](double progress) {
                                       on_progress(progress);
                                       return !stopping_.load();
                                     }});
  if (!model) return std::unexpected(model.error());
  LoadedWorkers loaded;
  loaded.model = std::move(*model);
  for (std::int32_t i = 0; i < options_.workers; ++i) {
    auto context = loaded.model->new_context(options_.context);
    if (!context) return std::unexpected(context.error());
    loaded.contexts.push_back(std::move(*context));
  }
  return loaded;
}

void FixedModelSource::load(OnProgress on_progress, OnLoaded on_loaded) {
  UMA_CHECK(!thread_.joinable());
  thread_ = std::thread([this, on_progress = std::move(on_progress), on_loaded = std::move(on_loaded)] {
    set_thread_name("uma-load");
    on_loaded(load_now(on_progress));
  });
}

void FixedModelSource::stop() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
}

}  // namespace uma::engine
