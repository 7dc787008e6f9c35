// The base of all picture models: weights that are measured before they are loaded, and contexts that take the memory of their
// graphs at once. Internal to llm, because it includes the library's headers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llm/device/llama_devices.h"
#include "llm/picture/graph_runner.h"
#include "llm/picture/picture_file.h"
#include "llm/picture/picture_model.h"
#include "llm/picture/picture_weights.h"

namespace uma::llm {

class LoadablePicture : public PictureModel {
 public:
  using OnProgress = std::function<bool(double)>;

  LoadablePicture(ChosenDevices devices, std::size_t tensors_max);

  // Reads the weights.
  [[nodiscard]] Expected<Unit> load(const OnProgress& on_progress);
  // Instead of load().
  [[nodiscard]] Expected<PictureNeed> measure(const PictureContextOptions& options);

  [[nodiscard]] const PictureFacts& facts() const override { return facts_; }
  [[nodiscard]] bool is_lost() const override { return LostDevices::of_process().contain_any(devices()); }
  [[nodiscard]] Expected<std::unique_ptr<PictureContext>> new_context(const PictureContextOptions& options) const override;
  [[nodiscard]] DeviceList devices() const { return {&device_, device_ == nullptr ? 0U : 1U}; }

 protected:
  using UseGraph = std::function<Expected<Unit>(const ComputeGraph& graph)>;

  // The largest graphs of a context, one after the other.
  [[nodiscard]] virtual Expected<Unit> each_graph(const PictureContextOptions& options, const UseGraph& use) const = 0;
  [[nodiscard]] virtual std::unique_ptr<PictureContext> make_context(std::unique_ptr<GraphRunner> runner,
                                                                     const PictureContextOptions& options) const = 0;
  // The memory that a computation takes on the CPU besides its graph.
  [[nodiscard]] virtual std::size_t work_bytes() const { return 0; }
  // Into the memory of `weights_`. Fills `facts_` in, but for `bytes`.
  [[nodiscard]] virtual Expected<Unit> read_weights(const OnProgress& on_progress) = 0;

  [[nodiscard]] Expected<std::unique_ptr<GraphRunner>> new_runner(std::int32_t threads) const;

  PictureWeights weights_;
  PictureFacts facts_;

 private:
  const ChosenDevices chosen_;
  ggml_backend_dev_t device_;  // Null: the CPU.
};

// A context on a runner.
class RunnerContext : public PictureContext {
 public:
  RunnerContext(std::unique_ptr<GraphRunner> runner, const PictureContextOptions& options, std::size_t work_bytes = 0)
      : runner_(std::move(runner)), options_(options), work_bytes_(work_bytes) {}

  [[nodiscard]] std::int32_t rows_max() const override { return options_.rows_max; }
  [[nodiscard]] PictureBytes memory() const override {
    PictureBytes bytes = runner_->memory();
    bytes.all += work_bytes_;
    return bytes;
  }
  [[nodiscard]] bool is_lost() const override { return runner_->is_lost(); }
  void set_threads(std::int32_t threads) override { runner_->set_threads(threads); }

 protected:
  const std::unique_ptr<GraphRunner> runner_;
  const PictureContextOptions options_;
  const std::size_t work_bytes_;
};

struct FilePiece {
  std::string name;
  std::uint64_t offset = 0;  // From the beginning of the file.
  std::uint64_t bytes = 0;
};
// Reads parts of a file, one after the other. `use(index, bytes)` gets each. Errors: E_MODEL_002 with the part's name, or if
// on_progress ends the load.
[[nodiscard]] Expected<Unit> read_pieces(
    const std::string& path, std::span<const FilePiece> pieces, const LoadablePicture::OnProgress& on_progress,
    const std::function<Expected<Unit>(std::size_t index, std::span<const std::byte> bytes)>& use);

[[nodiscard]] PictureSizes sizes_of(const PictureShape& shape);

// A model whose weights are not read yet.
[[nodiscard]] Expected<std::shared_ptr<LoadablePicture>> flow_model_of(const PictureSource& source, ChosenDevices devices);
[[nodiscard]] Expected<std::shared_ptr<LoadablePicture>> diffusion_model_of(const PictureSource& source, ChosenDevices devices);

}  // namespace uma::llm
