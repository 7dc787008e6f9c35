// Models that draw pictures from captions, and contexts in which they compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "llm/call_monitor.h"
#include "llm/device_bytes.h"
#include "llm/devices.h"
#include "llm/picture_file.h"
#include "llm/picture_words.h"

namespace uma::llm {

// What a caption says to the network.
struct Caption {
  std::vector<float> text;    // [text_length, width]
  std::vector<float> pooled;  // [width]
};

// One picture of a call.
struct DenoiseRow {
  std::span<const float> noisy;  // [image_size, image_size, 3], from -1 to 1 where it is clean.
  float time = 1;                // 1: noise, 0: the picture.
  const Caption* caption = nullptr;
};

struct PictureBytes {
  std::uint64_t all = 0;
  DeviceBytes on_devices{};  // Part of `all`.
};

class PictureContext {
 public:
  virtual ~PictureContext() = default;
  PictureContext() = default;
  PictureContext(const PictureContext&) = delete;
  PictureContext& operator=(const PictureContext&) = delete;

  [[nodiscard]] virtual std::int32_t rows_max() const = 0;
  // What its computations take.
  [[nodiscard]] virtual PictureBytes memory() const = 0;
  // A device is lost: every call fails from now on.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // What is lost, for people. Requires: is_lost().
  [[nodiscard]] virtual std::string loss() const { return "a device of the model has failed"; }
  virtual void set_threads(std::int32_t threads) = 0;
  // Reads a caption of PictureWords::encode(). False: the monitor has ended it. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> read_caption(std::span<const std::int32_t> words, CallMonitor* monitor,
                                                    Caption& out) = 0;
  // Predicts the clean pictures of 1 to rows_max() rows, one behind the other. False and errors: as above.
  [[nodiscard]] virtual Expected<bool> denoise(std::span<const DenoiseRow> rows, CallMonitor* monitor,
                                               std::vector<float>& clean) = 0;
};

struct PictureOptions {
  std::int32_t rows_max = 2;
  std::int32_t threads = 1;
};

struct PictureFacts {
  std::string identity;  // As ModelFacts::identity.
  std::string description;
  PictureShape shape;
  std::int32_t steps = 1;  // By default.
  float guidance = 1;      // By default.
  float shift = 1;         // DrawingOptions::shift.
  std::uint64_t parameters = 0;
  PictureBytes bytes;  // Weights in memory.
};

class PictureModel {
 public:
  virtual ~PictureModel() = default;
  PictureModel() = default;
  PictureModel(const PictureModel&) = delete;
  PictureModel& operator=(const PictureModel&) = delete;

  [[nodiscard]] virtual const PictureFacts& facts() const = 0;
  [[nodiscard]] virtual const PictureWords& words() const = 0;
  // As PictureContext::is_lost().
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The model must outlive the context. Errors: E_MODEL_002.
  [[nodiscard]] virtual Expected<std::unique_ptr<PictureContext>> new_context(const PictureOptions& options) const = 0;
};

// Loads a file of read_picture_file() onto the first of the devices, if there are any. `on_progress` is called with values from
// 0 to 1 and returns false to end the load; null: it is not ended. Errors: those of read_picture_file(); E_MODEL_002 if its
// weights cannot be read, there is no memory for them, or the load was ended.
[[nodiscard]] Expected<std::shared_ptr<const PictureModel>> load_picture_model(
    const std::string& path, const DeviceOptions& devices, const std::function<bool(double)>& on_progress = nullptr);

// The memory that a model and one context will take. Allocates nothing. Errors: those of load_picture_model().
struct PictureNeed {
  PictureBytes weights;
  PictureBytes context;
};
[[nodiscard]] Expected<PictureNeed> measure_picture_model(const std::string& path, const DeviceOptions& devices,
                                                          const PictureOptions& options);

}  // namespace uma::llm
