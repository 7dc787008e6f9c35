#include "llm/picture/loadable_picture.h"

#include <algorithm>
#include <fcntl.h>
#include <format>
#include <mutex>
#include <unistd.h>
#include <utility>

#include "base/system/unique_fd.h"
#include "llm/llama_guard.h"
#include "llm/llama_model.h"
#include "llm/picture/diffusion_file.h"
#include "llm/picture/picture_file.h"

namespace uma::llm {

LoadablePicture::LoadablePicture(ChosenDevices devices, std::size_t tensors_max)
    : weights_(devices.are_used() ? devices.first() : nullptr, tensors_max),
      chosen_(std::move(devices)),
      device_(chosen_.are_used() ? chosen_.first() : nullptr) {}

Expected<Unit> LoadablePicture::load(const OnProgress& on_progress) {
  if (!weights_.allocate()) return fail(ErrorCode::model_load, "there is no memory for its weights");
  if (auto read = read_weights(on_progress); !read) return read;
  facts_.bytes = weights_.bytes();
  return Unit{};
}

Expected<PictureNeed> LoadablePicture::measure(const PictureContextOptions& options) {
  const std::lock_guard lock(making_mutex());
  PictureNeed need{.weights = weights_.measure(), .context = {}};
  auto backends = Backends::on(device_);
  if (!backends) return std::unexpected(backends.error());
  std::vector<std::size_t> most(backends->all().size());
  auto measured = each_graph(options, [&](const ComputeGraph& graph) -> Expected<Unit> {
    const ggml_backend_sched_ptr scheduler = backends->scheduler();
    std::vector<std::size_t> sizes(most.size());
    ggml_backend_sched_reserve_size(scheduler.get(), graph.graph, sizes.data());
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], sizes[i]);
    return Unit{};
  });
  if (!measured) return std::unexpected(measured.error());
  for (std::size_t i = 0; i < most.size(); ++i) {
    add_bytes(need.context, ggml_backend_get_device(backends->all()[i]), most[i]);
  }
  need.context.all += work_bytes();
  return need;
}

Expected<std::unique_ptr<GraphRunner>> LoadablePicture::new_runner(std::int32_t threads) const {
  const std::lock_guard lock(making_mutex());
  auto backends = Backends::on(device_);
  if (!backends) return std::unexpected(backends.error());
  return std::make_unique<GraphRunner>(device_, *std::move(backends), threads);
}

Expected<std::unique_ptr<PictureContext>> LoadablePicture::new_context(const PictureContextOptions& options) const {
  return guarded_on(devices(), ErrorCode::model_load, "making a context", [&]() -> Expected<std::unique_ptr<PictureContext>> {
    auto runner = new_runner(options.threads);
    if (!runner) return std::unexpected(runner.error());
    auto reserved = each_graph(options, [&](const ComputeGraph& graph) -> Expected<Unit> {
      const std::lock_guard lock(making_mutex());
      if ((*runner)->reserve(graph)) return Unit{};
      return fail(ErrorCode::model_load, std::format("there is no memory to compute {} pictures at once", options.rows_max));
    });
    if (!reserved) return std::unexpected(reserved.error());
    return make_context(*std::move(runner), options);
  });
}

Expected<Unit> read_pieces(const std::string& path, std::span<const FilePiece> pieces,
                           const LoadablePicture::OnProgress& on_progress,
                           const std::function<Expected<Unit>(std::size_t index, std::span<const std::byte> bytes)>& use) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t all = 0;
  for (const FilePiece& piece : pieces) all += piece.bytes;
  std::vector<std::byte> bytes;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece& piece = pieces[i];
    if (on_progress && !on_progress(static_cast<double>(done) / static_cast<double>(all)))
      return fail(ErrorCode::model_load, "the load was cancelled");
    done += piece.bytes;
    bytes.resize(piece.bytes);
    // One call reads 2 GiB at most.
    for (std::size_t have = 0; have < bytes.size();) {
      const ssize_t got = file.is_open() ? ::pread(file.get(), bytes.data() + have, bytes.size() - have,
                                                   static_cast<off_t>(piece.offset + have))
                                         : -1;
      if (got <= 0) return fail(ErrorCode::model_load, std::format("tensor {} cannot be read", piece.name));
      have += static_cast<std::size_t>(got);
    }
    if (auto used = use(i, bytes); !used) return used;
  }
  return Unit{};
}

namespace {

// Whether the file is of Stable Diffusion, by its head.
Expected<bool> is_diffusion(const std::string& path) {
  if (is_safetensors_name(path)) return true;
  const auto header = read_gguf_header(path);
  if (!header) return std::unexpected(header.error());
  return header->is_diffusion();
}

// Calls use(model) with the model of a file, whose weights are not read.
template <class Use>
auto with_model(const PictureSource& source, const DeviceOptions& device_options, const Use& use)
    -> decltype(use(std::shared_ptr<LoadablePicture>())) {
  init_llama();
  const auto diffuses = is_diffusion(source.path);
  if (!diffuses) return std::unexpected(diffuses.error());
  auto devices = ChosenDevices::of(device_options);
  if (!devices) return std::unexpected(devices.error());
  const std::vector<ggml_backend_dev_t> used(devices->handles().begin(), devices->handles().end());
  return guarded_on(
      used, ErrorCode::model_load, source.path.c_str(), [&]() -> decltype(use(std::shared_ptr<LoadablePicture>())) {
        auto model = *diffuses ? diffusion_model_of(source, *std::move(devices)) : flow_model_of(source, *std::move(devices));
        if (!model) return std::unexpected(model.error());
        auto result = use(*model);
        if (!result && !result.error().message.starts_with(source.path))
          result.error().message = std::format("{}: {}", source.path, result.error().message);
        return result;
      });
}

}  // namespace

Expected<std::shared_ptr<const PictureModel>> load_picture_model(const PictureSource& source, const DeviceOptions& devices,
                                                                 const std::function<bool(double)>& on_progress) {
  return with_model(source, devices, [&](const auto& model) -> Expected<std::shared_ptr<const PictureModel>> {
    if (auto loaded = model->load(on_progress); !loaded) return std::unexpected(loaded.error());
    return model;
  });
}

Expected<PictureNeed> measure_picture_model(const PictureSource& source, const DeviceOptions& devices,
                                            const PictureContextOptions& options) {
  return with_model(source, devices, [&](const auto& model) { return model->measure(options); });
}

Expected<PictureSizes> picture_sizes_of(const PictureSource& source) {
  const auto diffuses = is_diffusion(source.path);
  if (!diffuses) return std::unexpected(diffuses.error());
  if (*diffuses) {
    const auto file = read_diffusion_file(source);
    return file ? Expected<PictureSizes>(file->sizes) : std::unexpected(file.error());
  }
  if (!source.is_plain()) {
    return fail(
        ErrorCode::model_load,
        std::format("{}: its card has vae, sampler, schedule or prediction, which only Stable Diffusion has", source.path));
  }
  const auto file = read_picture_file(source.path);
  return file ? Expected<PictureSizes>(sizes_of(file->shape)) : std::unexpected(file.error());
}

}  // namespace uma::llm
