#include "llm/file/llama_model_file.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/system/mapped_file.h"
#include "base/thrown.h"
#include "core/model_file_name.h"

namespace uma::llm {
namespace {

class Mappings {
 public:
  // Held while the library maps files or ends mappings.
  [[nodiscard]] std::shared_lock<std::shared_mutex> change() { return std::shared_lock(changing_); }

  void release(const std::vector<std::string>& files) {
    const MutexLock lock(mutex_);
    waiting_.insert(waiting_.end(), files.begin(), files.end());
    release_waiting();
  }
  // Releases what had to wait for a change that has ended. That is only advice, so a failure is noted and harmless.
  void changed() noexcept {
    run_noting([this] {
      const MutexLock lock(mutex_);
      if (!waiting_.empty()) release_waiting();
    });
  }

 private:
  void release_waiting() REQUIRES_LOCK(mutex_) {
    const std::unique_lock alone(changing_, std::try_to_lock);
    if (!alone.owns_lock()) return;
    for (const std::string& file : std::exchange(waiting_, {})) release_mapped_pages(file);
  }

  std::shared_mutex changing_;
  Mutex mutex_;
  std::vector<std::string> waiting_ GUARDED_BY(mutex_);
};

Mappings& mappings() {
  static Mappings of_process;
  return of_process;
}

// The devices of each model that has some. Any thread.
class ModelDevices {
 public:
  // `devices` ends with null.
  void add(const llama_model* model, const ggml_backend_dev_t* devices) {
    std::vector<ggml_backend_dev_t> all;
    for (; model != nullptr && devices != nullptr && *devices != nullptr; ++devices) all.push_back(*devices);
    const MutexLock lock(mutex_);
    if (!all.empty()) devices_[model] = std::move(all);
  }
  void remove(const llama_model* model) {
    const MutexLock lock(mutex_);
    devices_.erase(model);
  }
  [[nodiscard]] DeviceList of(const llama_model* model) const {
    const MutexLock lock(mutex_);
    const auto found = devices_.find(model);
    return found == devices_.end() ? DeviceList() : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<const llama_model*, std::vector<ggml_backend_dev_t>> devices_ GUARDED_BY(mutex_);
};

ModelDevices& model_devices() {
  static ModelDevices of_process;
  return of_process;
}

}  // namespace

void FreeModel::operator()(llama_model* model) const {
  model_devices().remove(model);
  {
    const auto change = mappings().change();
    llama_model_free(model);
  }
  mappings().changed();
}

LoadedModel load_model_file(const std::string& path, const llama_model_params& params) {
  LoadedModel model;
  {
    const auto change = mappings().change();
    model.reset(llama_model_load_from_file(path.c_str(), params));
  }
  mappings().changed();
  model_devices().add(model.get(), params.devices);
  return model;
}

DeviceList devices_under(const llama_model* model) {
  return model_devices().of(model);
}

void release_copied_weights(const std::string& path) {
  mappings().release(model_files(path));
}

}  // namespace uma::llm
