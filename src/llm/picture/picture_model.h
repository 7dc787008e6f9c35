// Models that draw pictures from captions, and contexts in which they compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/picture.h"
#include "llm/device/call_monitor.h"
#include "llm/device/device_bytes.h"
#include "llm/device/devices.h"
#include "llm/picture/picture_drawing.h"

namespace uma::llm {

// A caption as a model reads it.
struct CaptionTokens {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;  // How much each of them counts; empty: all equally.
  std::int64_t count = 0;      // Without those that only fill up.
};

// A caption as the network takes it.
struct Caption {
  std::vector<float> text;    // [tokens, width]
  std::vector<float> pooled;  // [width]; empty: the model has none.
};

// One picture of a call.
struct DenoiseRow {
  std::span<const float> noisy;  // This and the next three: those of its PictureDrawing.
  float time = 1;
  std::int32_t width = 0;
  std::int32_t height = 0;
  const Caption* caption = nullptr;
};

struct PictureBytes {
  std::uint64_t all = 0;
  DeviceBytes on_devices{};  // Part of `all`.
};

// One thread at a time. Borrows its model.
class PictureContext {
 public:
  virtual ~PictureContext() = default;
  PictureContext() = default;
  PictureContext(const PictureContext&) = delete;
  PictureContext& operator=(const PictureContext&) = delete;

  [[nodiscard]] virtual std::int32_t rows_max() const = 0;
  // The memory that its computations take.
  [[nodiscard]] virtual PictureBytes memory() const = 0;
  // A device is lost: every call fails from now on.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The loss as a text for people. Requires: is_lost().
  [[nodiscard]] virtual std::string loss() const { return "a device of the model has failed"; }
  virtual void set_threads(std::int32_t threads) = 0;
  // A picture of this model. The sides are those of PictureSizes.
  [[nodiscard]] virtual std::unique_ptr<PictureDrawing> new_drawing(const DrawingOptions& options,
                                                                    const DrawingStart& start) const = 0;
  // Converts a picture to begin with: `levels` [height, width, 3], with the sides of PictureSizes. Requires: reads_pictures.
  // False: the monitor has ended it. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> encode(std::span<const std::uint8_t> levels, std::int32_t width, std::int32_t height,
                                              CallMonitor* monitor, std::vector<float>& out) = 0;
  // Reads a caption of PictureModel::read_caption(). False: the monitor has ended it. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> read_caption(const CaptionTokens& tokens, CallMonitor* monitor, Caption& out) = 0;
  // Predicts what PictureDrawing::advance() takes for 1 to rows_max() rows, one behind the other. False and errors: as above.
  [[nodiscard]] virtual Expected<bool> denoise(std::span<const DenoiseRow> rows, CallMonitor* monitor,
                                               std::vector<float>& predicted) = 0;
  // Finishes a drawing that wants to be decoded. False and errors: as above.
  [[nodiscard]] virtual Expected<bool> decode(PictureDrawing& drawing, CallMonitor* monitor) = 0;
};

struct PictureContextOptions {
  std::int32_t rows_max = 2;
  std::int32_t threads = 1;
};

// The pictures that a model draws.
struct PictureSizes {
  std::int32_t native = 0;    // Pixels of a side where nothing else is asked for.
  std::int32_t multiple = 0;  // Sides may be multiples of it from it on; 0: pictures are always native.
  std::int64_t pixels_max = 0;
  std::int32_t pixels_per_place = 1;  // Along a side; the network computes places.

  [[nodiscard]] bool contain(std::int32_t width, std::int32_t height) const {
    if (multiple == 0) return width == native && height == native;
    return width > 0 && height > 0 && width % multiple == 0 && height % multiple == 0 &&
           std::int64_t{width} * height <= pixels_max;
  }
  [[nodiscard]] std::int64_t places_of(std::int32_t width, std::int32_t height) const {
    return std::int64_t{width / pixels_per_place} * (height / pixels_per_place);
  }
  bool operator==(const PictureSizes&) const = default;
};

// The values for a request that does not ask for others.
struct DrawingDefaults {
  std::int32_t steps = 1;
  float guidance = 1;
  PictureSampler sampler = PictureSampler::euler;
  std::optional<NoiseSchedule> schedule{};
};

struct PictureFacts {
  std::string identity;  // See ModelFacts::identity.
  std::string description;
  PictureSizes sizes;
  DrawingDefaults defaults;
  bool reads_pictures = false;  // Drawings may begin with one.
  bool has_samplers = false;    // All of PictureSampler and NoiseSchedule; false: only the defaults.
  std::uint64_t drawing_bytes_per_pixel = 0;
  std::uint64_t parameters = 0;
  PictureBytes bytes;  // Weights in memory.
};

// Any thread.
class PictureModel {
 public:
  virtual ~PictureModel() = default;
  PictureModel() = default;
  PictureModel(const PictureModel&) = delete;
  PictureModel& operator=(const PictureModel&) = delete;

  [[nodiscard]] virtual const PictureFacts& facts() const = 0;
  // Errors: E_PROTO_003 for words that it does not know, or too many.
  [[nodiscard]] virtual Expected<CaptionTokens> read_caption(std::string_view caption) const = 0;
  // A device of the model is lost; see PictureContext::is_lost().
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The model must outlive the context. Errors: E_MODEL_002.
  [[nodiscard]] virtual Expected<std::unique_ptr<PictureContext>> new_context(const PictureContextOptions& options) const = 0;
};

// A file that draws, with what its card says.
struct PictureSource {
  std::string path;                     // GGUF or safetensors.
  std::string vae_path{};               // For Stable Diffusion: another file that makes pictures of latent ones; empty: none.
  std::optional<std::int32_t> steps{};  // These stand for the file's or the family's own.
  std::optional<float> guidance{};
  std::optional<PictureSampler> sampler{};
  std::optional<NoiseSchedule> schedule{};
  std::optional<bool> predicts_velocity{};

  // Without the path.
  [[nodiscard]] bool is_empty() const { return is_plain() && !steps && !guidance; }
  // Nothing that only Stable Diffusion has.
  [[nodiscard]] bool is_plain() const { return vae_path.empty() && !sampler && !schedule && !predicts_velocity; }
};

// Loads a file onto the first of the devices, if there are any. `on_progress` is called with values from 0 to 1 and returns
// false to end the load; null: it is not ended. Errors: E_MODEL_002 if a tensor is missing or has a wrong shape, its weights
// cannot be read, there is no memory for them, or the load was ended.
[[nodiscard]] Expected<std::shared_ptr<const PictureModel>> load_picture_model(
    const PictureSource& source, const DeviceOptions& devices, const std::function<bool(double)>& on_progress = nullptr);

// The memory that a model and one context will take. Allocates nothing. Errors: those of load_picture_model().
struct PictureNeed {
  PictureBytes weights;
  PictureBytes context;
};
[[nodiscard]] Expected<PictureNeed> measure_picture_model(const PictureSource& source, const DeviceOptions& devices,
                                                          const PictureContextOptions& options);

// The sizes of its pictures, by its file's head. Errors: E_MODEL_002 for a file that cannot be one.
[[nodiscard]] Expected<PictureSizes> picture_sizes_of(const PictureSource& source);

}  // namespace uma::llm
