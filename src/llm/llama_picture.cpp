#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <functional>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <utility>

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include "base/check.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "llm/device_timer.h"
#include "llm/llama_devices.h"
#include "llm/llama_guard.h"
#include "llm/llama_model.h"
#include "llm/picture_graph.h"
#include "llm/picture_model.h"

namespace uma::llm {
namespace {

constexpr std::size_t kGraphNodesMax = 16'384;
constexpr const char* kPlaces = "places";

// A function that only some backends have; null: this one does not.
template <class Function>
Function function_of(ggml_backend_t backend, const char* name) {
  auto* const registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
}

// The backends that compute: the device, if there is one, and the CPU for what it cannot do.
class Backends {
 public:
  [[nodiscard]] static Expected<Backends> on(ggml_backend_dev_t device) {
    Backends made;
    for (ggml_backend_dev_t each : {device, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)}) {
      if (each == nullptr) continue;
      made.owned_.emplace_back(ggml_backend_dev_init(each, nullptr));
      if (made.owned_.back() == nullptr) {
        return fail(ErrorCode::model_load, std::format("the device {} cannot be used", ggml_backend_dev_name(each)));
      }
      made.all_.push_back(made.owned_.back().get());
    }
    return made;
  }

  [[nodiscard]] std::span<const ggml_backend_t> all() const { return all_; }
  [[nodiscard]] ggml_backend_t cpu() const { return all_.back(); }
  // They are not freed with this object.
  void keep() {
    for (ggml_backend_ptr& backend : owned_) [[maybe_unused]]
      auto* const kept = backend.release();
  }
  // Plans and computes graphs. Null: there is no memory.
  [[nodiscard]] ggml_backend_sched_ptr scheduler() {
    return ggml_backend_sched_ptr(
        ggml_backend_sched_new(all_.data(), nullptr, static_cast<int>(all_.size()), kGraphNodesMax, false, true));
  }

 private:
  std::vector<ggml_backend_ptr> owned_;
  std::vector<ggml_backend_t> all_;
};

std::vector<float> numbers_of(const ggml_tensor* tensor) {
  std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
  ggml_backend_tensor_get(tensor, numbers.data(), 0, numbers.size() * sizeof(float));
  return numbers;
}

void add_bytes(PictureBytes& bytes, ggml_backend_dev_t device, std::size_t more) {
  bytes.all += more;
  if (kind_of(device) == DeviceKind::gpu) bytes.on_devices.add(device_name(device), more);
}

class LlamaPictureContext final : public PictureContext {
 public:
  LlamaPictureContext(const PictureShape& shape, const PictureTensors& tensors, DeviceList devices, Backends backends,
                      const PictureOptions& options)
      : shape_(shape),
        tensors_(tensors),
        devices_(devices),
        timer_(devices),
        options_(options),
        backends_(std::move(backends)),
        scheduler_(backends_.scheduler()) {
    if (const auto set = function_of<ggml_backend_set_abort_callback_t>(backends_.cpu(), "ggml_backend_set_abort_callback")) {
      set(backends_.cpu(), wants_end, &monitor_);
    }
    set_threads(options.threads);
  }

  ~LlamaPictureContext() override {
    if (find_lost(devices_, "")) {
      // Freeing waits for the device and throws (docs/decisions/0071).
      log_warning("a context on a lost device is not freed: its memory is free when umad ends");
      [[maybe_unused]] auto* const kept = scheduler_.release();
      backends_.keep();
      return;
    }
    const std::lock_guard lock(making_mutex());
    scheduler_.reset();
    backends_ = Backends();
  }
  LlamaPictureContext(const LlamaPictureContext&) = delete;
  LlamaPictureContext& operator=(const LlamaPictureContext&) = delete;

  [[nodiscard]] Expected<Unit> reserve() {
    const DenoiseGraph graph = make_denoise_graph(shape_, tensors_, options_.rows_max);
    if (!ggml_backend_sched_reserve(scheduler_.get(), graph.graph)) {
      return fail(ErrorCode::model_load, std::format("there is no memory to compute {} pictures at once", options_.rows_max));
    }
    return Unit{};
  }

  [[nodiscard]] std::int32_t rows_max() const override { return options_.rows_max; }
  [[nodiscard]] PictureBytes memory() const override {
    PictureBytes bytes;
    for (ggml_backend_t backend : backends_.all()) {
      add_bytes(bytes, ggml_backend_get_device(backend), ggml_backend_sched_get_buffer_size(scheduler_.get(), backend));
    }
    return bytes;
  }
  [[nodiscard]] bool is_lost() const override { return LostDevices::of_process().contain_any(devices_); }
  void set_threads(std::int32_t threads) override {
    const auto set = function_of<ggml_backend_set_n_threads_t>(backends_.cpu(), "ggml_backend_set_n_threads");
    if (set != nullptr) set(backends_.cpu(), threads);
  }

  Expected<bool> read_caption(std::span<const std::int32_t> words, CallMonitor* monitor, Caption& out) override {
    UMA_CHECK(std::cmp_equal(words.size(), shape_.text_length));
    const auto give = [&] { ggml_backend_tensor_set(caption_->words, words.data(), 0, words.size_bytes()); };
    auto done = run([&] { return !caption_; }, [&] { caption_ = make_caption_graph(shape_, tensors_); }, monitor, give);
    if (!done || !*done) return done;
    out.text = numbers_of(caption_->text);
    out.pooled = numbers_of(caption_->pooled);
    return true;
  }

  Expected<bool> denoise(std::span<const DenoiseRow> rows, CallMonitor* monitor, std::vector<float>& clean) override {
    UMA_CHECK(!rows.empty() && std::cmp_less_equal(rows.size(), options_.rows_max));
    const auto make = [&] { denoise_ = make_denoise_graph(shape_, tensors_, static_cast<std::int32_t>(rows.size())); };
    auto done = run([&] { return !denoise_ || std::cmp_not_equal(denoise_->patches->ne[2], rows.size()); }, make, monitor,
                    [&] { give(*denoise_, rows); });
    if (!done || !*done) return done;
    from_patches(numbers_of(denoise_->clean), rows.size(), clean);
    return true;
  }

 private:
  static bool wants_end(void* data) {
    auto* const monitor = static_cast<std::atomic<CallMonitor*>*>(data)->load(std::memory_order_acquire);
    return monitor != nullptr && monitor->wants_end();
  }

  // Computes a graph after `give` has set its inputs, whose memory other tensors have taken since the last time. make() makes
  // it if another one is planned: the scheduler's memory belongs to one graph at a time, and an earlier one points into what
  // was freed.
  template <class IsOther, class Make, class Give>
  Expected<bool> run(const IsOther& is_other, const Make& make, CallMonitor* monitor, const Give& give) {
    return guarded_on(devices_, ErrorCode::runtime_decode, "drawing", [&]() -> Expected<bool> {
      if (is_other()) {
        ggml_backend_sched_reset(scheduler_.get());
        caption_.reset();
        denoise_.reset();
        make();
        if (!ggml_backend_sched_alloc_graph(scheduler_.get(), planned())) {
          caption_.reset();
          denoise_.reset();
          return fail(ErrorCode::runtime_decode, "there is no memory for the computation of a picture");
        }
      }
      give();
      monitor_.store(monitor, std::memory_order_release);
      const auto computing = timer_.begin();
      const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), planned());
      monitor_.store(nullptr, std::memory_order_release);
      if (status == GGML_STATUS_ABORTED) return false;
      if (status != GGML_STATUS_SUCCESS) {
        return fail(ErrorCode::runtime_decode,
                    std::format("the library failed to compute a picture (status {})", static_cast<int>(status)));
      }
      return true;
    });
  }
  [[nodiscard]] ggml_cgraph* planned() const { return caption_ ? caption_->graph : denoise_->graph; }

  void give(const DenoiseGraph& graph, std::span<const DenoiseRow> rows) const {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      set_row(graph.patches, row, to_patches(rows[row].noisy));
      set_row(graph.waves, row, waves_of(rows[row].time));
      set_row(graph.text, row, rows[row].caption->text);
      set_row(graph.pooled, row, rows[row].caption->pooled);
    }
  }
  static void set_row(ggml_tensor* tensor, std::size_t row, std::span<const float> numbers) {
    ggml_backend_tensor_set(tensor, numbers.data(), row * numbers.size_bytes(), numbers.size_bytes());
  }

  [[nodiscard]] std::vector<float> waves_of(float time) const {
    const auto half = static_cast<std::size_t>(shape_.time_frequencies / 2);
    std::vector<float> waves(2 * half);
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = 1000.0 * time * std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
      waves[i] = static_cast<float>(std::cos(angle));
      waves[half + i] = static_cast<float>(std::sin(angle));
    }
    return waves;
  }

  // Calls `move(index in the picture, index in the patches)` for each line of each patch.
  template <class Move>
  void each_line(const Move& move) const {
    const auto patch = static_cast<std::size_t>(shape_.patch);
    const auto grid = static_cast<std::size_t>(shape_.grid());
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t y = 0; y < patch; ++y) {
        const std::size_t row = place / grid * patch + y;
        const std::size_t column = place % grid * patch;
        move((row * grid * patch + column) * 3, (place * patch + y) * patch * 3);
      }
    }
  }
  [[nodiscard]] std::vector<float> to_patches(std::span<const float> picture) const {
    std::vector<float> patches(picture.size());
    const auto line = static_cast<std::size_t>(shape_.patch) * 3;
    each_line([&](std::size_t from, std::size_t to) {
      std::ranges::copy(picture.subspan(from, line), patches.begin() + static_cast<std::ptrdiff_t>(to));
    });
    return patches;
  }
  void from_patches(std::span<const float> patches, std::size_t rows, std::vector<float>& pictures) const {
    pictures.resize(patches.size());
    const auto line = static_cast<std::size_t>(shape_.patch) * 3;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t begin = row * static_cast<std::size_t>(shape_.numbers());
      each_line([&](std::size_t to, std::size_t from) {
        std::ranges::copy(patches.subspan(begin + from, line), pictures.begin() + static_cast<std::ptrdiff_t>(begin + to));
      });
    }
  }

  const PictureShape& shape_;
  const PictureTensors& tensors_;
  const DeviceList devices_;
  const DeviceTimer timer_;
  const PictureOptions options_;
  Backends backends_;
  ggml_backend_sched_ptr scheduler_;
  // The graph that the scheduler has memory for; one of the two at most.
  std::optional<CaptionGraph> caption_;
  std::optional<DenoiseGraph> denoise_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // Of the running call; read by the library's threads.
};

// Whether the CPU multiplies a matrix of this type and these sizes in the layout.
bool multiplies_in(ggml_backend_buffer_type_t layout, ggml_type type, std::int64_t columns, std::int64_t rows) {
  constexpr std::int64_t kSome = 64;
  // With rows of 32 numbers AMX computes wrong products of many rows (docs/LIBLLAMA.md).
  constexpr std::int64_t kColumnsMin = 64;
  if (columns < kColumnsMin) return false;
  const ggml_context_ptr context(ggml_init({.mem_size = 4 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(layout, 0));
  ggml_tensor* const matrix = ggml_new_tensor_2d(context.get(), type, columns, rows);
  matrix->buffer = empty.get();
  ggml_tensor* const product =
      ggml_mul_mat(context.get(), matrix, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns, kSome));
  return empty != nullptr && ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), product);
}

// The weights that are in one kind of memory.
struct WeightPart {
  ggml_context_ptr context;
  ggml_backend_buffer_type_t type = nullptr;
  ggml_backend_buffer_ptr buffer{};
};

class LlamaPictureModel final : public PictureModel {
 public:
  LlamaPictureModel(PictureFile file, ChosenDevices devices)
      : file_(std::move(file)),
        devices_(std::move(devices)),
        device_(devices_.are_used() ? devices_.first() : nullptr),
        words_(file_.words, file_.shape.text_length) {
    lay_out();
  }

  Expected<Unit> load(const std::string& path, const std::function<bool(double)>& on_progress) {
    auto identity = model_identity(path);
    if (!identity) return std::unexpected(identity.error());
    for (WeightPart& part : parts_) {
      part.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(part.context.get(), part.type));
      if (part.buffer == nullptr)
        return fail(ErrorCode::model_load, std::format("{}: there is no memory for its weights", path));
      ggml_backend_buffer_set_usage(part.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    if (auto read = read_weights(path, on_progress); !read) return read;
    facts_ = {.identity = *std::move(identity),
              .description =
                  std::format("{}, {:.3g} M parameters", file_.header.name, static_cast<double>(file_.header.parameters) / 1e6),
              .shape = file_.shape,
              .steps = file_.steps,
              .guidance = file_.guidance,
              .shift = file_.shift,
              .parameters = file_.header.parameters,
              .bytes = {}};
    for (const WeightPart& part : parts_) add_bytes(facts_.bytes, home(), ggml_backend_buffer_get_size(part.buffer.get()));
    return Unit{};
  }

  // Without load().
  Expected<PictureNeed> measure(const PictureOptions& options) {
    const std::lock_guard lock(making_mutex());
    PictureNeed need;
    for (WeightPart& part : parts_) {
      add_bytes(need.weights, home(), ggml_backend_alloc_ctx_tensors_from_buft_size(part.context.get(), part.type));
      // An empty buffer says where the weights will be; without one the scheduler would want memory for them.
      part.buffer.reset(ggml_backend_buft_alloc_buffer(part.type, 0));
      ggml_backend_buffer_set_usage(part.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
      for (ggml_tensor* tensor = ggml_get_first_tensor(part.context.get()); tensor != nullptr;
           tensor = ggml_get_next_tensor(part.context.get(), tensor)) {
        tensor->buffer = part.buffer.get();
      }
    }
    auto backends = Backends::on(device_);
    if (!backends) return std::unexpected(backends.error());
    const ggml_backend_sched_ptr scheduler = backends->scheduler();
    const DenoiseGraph graph = make_denoise_graph(file_.shape, tensors_, options.rows_max);
    std::vector<std::size_t> sizes(backends->all().size());
    ggml_backend_sched_reserve_size(scheduler.get(), graph.graph, sizes.data());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      add_bytes(need.context, ggml_backend_get_device(backends->all()[i]), sizes[i]);
    }
    return need;
  }

  [[nodiscard]] const PictureFacts& facts() const override { return facts_; }
  [[nodiscard]] const PictureWords& words() const override { return words_; }
  [[nodiscard]] bool is_lost() const override { return LostDevices::of_process().contain_any(list()); }

  Expected<std::unique_ptr<PictureContext>> new_context(const PictureOptions& options) const override {
    return guarded_on(list(), ErrorCode::model_load, "making a context", [&]() -> Expected<std::unique_ptr<PictureContext>> {
      std::unique_ptr<LlamaPictureContext> context;  // Freed without the lock, which freeing takes.
      const std::lock_guard lock(making_mutex());
      auto backends = Backends::on(device_);
      if (!backends) return std::unexpected(backends.error());
      context = std::make_unique<LlamaPictureContext>(file_.shape, tensors_, list(), *std::move(backends), options);
      if (auto reserved = context->reserve(); !reserved) return std::unexpected(reserved.error());
      return context;
    });
  }

 private:
  [[nodiscard]] DeviceList list() const { return {&device_, device_ == nullptr ? 0U : 1U}; }
  // Where the weights are.
  [[nodiscard]] ggml_backend_dev_t home() const {
    return device_ != nullptr ? device_ : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }

  // Makes the tensors, without memory for their numbers.
  void lay_out() {
    auto* const usual = ggml_backend_dev_buffer_type(home());
    const std::vector<ggml_backend_buffer_type_t> layouts =
        device_ == nullptr ? cpu_layouts() : std::vector<ggml_backend_buffer_type_t>();
    for (const GgufTensor& tensor : file_.header.tensors) {
      const PictureShape& shape = file_.shape;
      if (const auto scores = scores_of(tensor.name)) {
        tensors_[*scores] = ggml_new_tensor_3d(in(usual), GGML_TYPE_F32, shape.tokens(), shape.tokens(), shape.heads);
        continue;
      }
      const auto type = static_cast<ggml_type>(tensor.type);
      std::array<std::int64_t, GGML_MAX_DIMS> sizes{1, 1, 1, 1};
      std::ranges::copy(tensor.sizes, sizes.begin());
      const auto takes = [&](ggml_backend_buffer_type_t layout) { return multiplies_in(layout, type, sizes[0], sizes[1]); };
      const auto layout = tensor.name.ends_with(".weight") ? std::ranges::find_if(layouts, takes) : layouts.end();
      tensors_[tensor.name] = ggml_new_tensor(in(layout == layouts.end() ? usual : *layout), type,
                                              static_cast<int>(tensor.sizes.size()), sizes.data());
    }
    tensors_[kPlaces] = ggml_new_tensor_2d(in(usual), GGML_TYPE_F32, file_.shape.width, file_.shape.patches());
  }
  // The context of the weights in this kind of memory.
  ggml_context* in(ggml_backend_buffer_type_t type) {
    const auto known = std::ranges::find(parts_, type, &WeightPart::type);
    if (known != parts_.end()) return known->context.get();
    const std::size_t bytes = (file_.header.tensors.size() + 1) * ggml_tensor_overhead();
    ggml_context_ptr context(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true}));
    return parts_.emplace_back(std::move(context), type).context.get();
  }

  Expected<Unit> read_weights(const std::string& path, const std::function<bool(double)>& on_progress) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<std::byte> bytes;
    std::uint64_t done = 0;
    for (const GgufTensor& tensor : file_.header.tensors) {
      if (on_progress && !on_progress(static_cast<double>(done) / static_cast<double>(file_.header.weight_bytes)))
        return fail(ErrorCode::model_load, "the load was cancelled");
      done += tensor.bytes;
      bytes.resize(tensor.bytes);
      const auto at = static_cast<off_t>(file_.header.data_offset + tensor.offset);
      if (!file.is_open() || ::pread(file.get(), bytes.data(), bytes.size(), at) != static_cast<ssize_t>(bytes.size())) {
        return fail(ErrorCode::model_load, std::format("{}: tensor {} cannot be read", path, tensor.name));
      }
      if (const auto scores = scores_of(tensor.name)) {
        set_scores(tensors_.at(*scores), {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)});
      } else {
        ggml_backend_tensor_set(tensors_.at(tensor.name), bytes.data(), 0, bytes.size());
      }
    }
    set_places();
    return Unit{};
  }

  void set_places() {
    const auto width = static_cast<std::size_t>(file_.shape.width);
    const auto grid = static_cast<std::size_t>(file_.shape.grid());
    const std::vector<float> rows = numbers_of(tensors_.at("pos_row"));
    const std::vector<float> columns = numbers_of(tensors_.at("pos_col"));
    const std::vector<float> types = numbers_of(tensors_.at("type_embd"));
    std::vector<float> places;
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t i = 0; i < width; ++i) {
        places.push_back(rows[place / grid * width + i] + columns[place % grid * width + i] + types[width + i]);
      }
    }
    set_numbers(kPlaces, places);
  }

  // "blk.N.scores" for "blk.N.attn_bias".
  static std::optional<std::string> scores_of(const std::string& name) {
    constexpr std::string_view kBias = ".attn_bias";
    if (!name.ends_with(kBias)) return std::nullopt;
    return name.substr(0, name.size() - kBias.size()) + ".scores";
  }

  // From [bias_rows, heads] to [heads, queries, keys].
  void set_scores(ggml_tensor* tensor, std::span<const float> bias) const {
    const PictureShape& shape = file_.shape;
    const std::int32_t side = 2 * shape.grid() - 1;
    const auto row_of = [&](std::int32_t query, std::int32_t key) {
      const std::int32_t from = query - shape.text_length;
      const std::int32_t to = key - shape.text_length;
      if (from < 0) return side * side + (to < 0 ? 0 : 1);
      if (to < 0) return side * side + 2;
      const std::int32_t down = from / shape.grid() - to / shape.grid() + shape.grid() - 1;
      return down * side + from % shape.grid() - to % shape.grid() + shape.grid() - 1;
    };
    std::vector<float> scores;  // Of one head: those of all may be a gigabyte.
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      scores.clear();
      for (std::int32_t query = 0; query < shape.tokens(); ++query) {
        for (std::int32_t key = 0; key < shape.tokens(); ++key) {
          const auto row = static_cast<std::size_t>(row_of(query, key));
          scores.push_back(bias[row * static_cast<std::size_t>(shape.heads) + static_cast<std::size_t>(head)]);
        }
      }
      const std::size_t size = scores.size() * sizeof(float);
      ggml_backend_tensor_set(tensor, scores.data(), static_cast<std::size_t>(head) * size, size);
    }
  }

  void set_numbers(const std::string& name, std::span<const float> numbers) {
    ggml_backend_tensor_set(tensors_.at(name), numbers.data(), 0, numbers.size_bytes());
  }

  const PictureFile file_;
  const ChosenDevices devices_;
  ggml_backend_dev_t device_;  // Null: the CPU.
  const PictureWords words_;
  PictureFacts facts_;
  std::vector<WeightPart> parts_;
  PictureTensors tensors_;
};

}  // namespace

namespace {

// Calls use(model) with the model of a file, whose weights are not read.
template <class Use>
auto with_picture_model(const std::string& path, const DeviceOptions& device_options, const Use& use)
    -> decltype(use(std::shared_ptr<LlamaPictureModel>())) {
  init_llama();
  auto file = read_picture_file(path);
  if (!file) return std::unexpected(file.error());
  auto devices = ChosenDevices::of(device_options);
  if (!devices) return std::unexpected(devices.error());
  const std::vector<ggml_backend_dev_t> used(devices->handles().begin(), devices->handles().end());
  return guarded_on(used, ErrorCode::model_load, path.c_str(),
                    [&] { return use(std::make_shared<LlamaPictureModel>(*std::move(file), *std::move(devices))); });
}

}  // namespace

Expected<std::shared_ptr<const PictureModel>> load_picture_model(const std::string& path, const DeviceOptions& devices,
                                                                 const std::function<bool(double)>& on_progress) {
  return with_picture_model(path, devices, [&](const auto& model) -> Expected<std::shared_ptr<const PictureModel>> {
    if (auto loaded = model->load(path, on_progress); !loaded) return std::unexpected(loaded.error());
    return model;
  });
}

Expected<PictureNeed> measure_picture_model(const std::string& path, const DeviceOptions& devices,
                                            const PictureOptions& options) {
  return with_picture_model(path, devices, [&](const auto& model) { return model->measure(options); });
}

}  // namespace uma::llm
