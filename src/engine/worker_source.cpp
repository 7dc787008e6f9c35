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
  LoadedWorkers loaded;
  loaded.copies = options_.replicates ? options_.workers : 1;
  std::shared_ptr<const llm::Model> model;
  for (std::int32_t i = 0; i < options_.workers; ++i) {
    if (i < loaded.copies) {
      auto copy = llm::load_llama_model(options_.path, {.on_progress =
                                                            [&](double progress) {
                                                              on_progress((i + progress) / loaded.copies);
                                                              return !stopping_.load();
                                                            },
                                                        .shares_file = !options_.replicates});
      if (!copy) return std::unexpected(copy.error());
      model = std::move(*copy);
    }
    if (i == 0) loaded.model = model;
    auto context = model->new_context(options_.context);
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
