// A picture context without weights: it predicts a picture of one gray, which follows from the tokens of the caption, so that a
// wrong or foreign caption changes the picture. Faults, the time of a call, and whether pictures are decoded can be set.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "llm/picture/picture_model.h"
#include "testing/sim_clock.h"

namespace uma::testing {

struct FakePictureOptions {
  std::int32_t rows_max = 8;
  SimClock* clock = nullptr;  // Advanced by denoise(), if set.
  Duration row_cost = std::chrono::milliseconds(10);
  std::atomic<bool>* lost = nullptr;  // See FakeOptions.
  bool decodes = false;               // A picture wants to be decoded, which takes as long as a row.
};

class FakePicture final : public llm::PictureContext {
 public:
  explicit FakePicture(const FakePictureOptions& options) : options_(options) {}

  [[nodiscard]] std::int32_t rows_max() const override { return options_.rows_max; }
  [[nodiscard]] llm::PictureBytes memory() const override { return {}; }
  [[nodiscard]] bool is_lost() const override { return options_.lost != nullptr && options_.lost->load(); }
  void set_threads(std::int32_t threads) override { threads_ = threads; }
  [[nodiscard]] std::unique_ptr<llm::PictureDrawing> new_drawing(const llm::DrawingOptions& options,
                                                                 const llm::DrawingStart& start) const override;
  // The first level of the picture, as a gray.
  [[nodiscard]] Expected<bool> encode(std::span<const std::uint8_t> levels, std::int32_t width, std::int32_t height,
                                      llm::CallMonitor* monitor, std::vector<float>& out) override;
  [[nodiscard]] Expected<bool> read_caption(const llm::CaptionTokens& tokens, llm::CallMonitor* monitor,
                                            llm::Caption& out) override;
  [[nodiscard]] Expected<bool> denoise(std::span<const llm::DenoiseRow> rows, llm::CallMonitor* monitor,
                                       std::vector<float>& predicted) override;
  [[nodiscard]] Expected<bool> decode(llm::PictureDrawing& drawing, llm::CallMonitor* monitor) override;

  // Queries and settings of tests.
  [[nodiscard]] std::int32_t threads() const { return threads_; }
  std::function<void(std::span<const llm::DenoiseRow>)> on_denoise;  // Called before each call is computed.
  std::function<bool(std::span<const llm::DenoiseRow>)> fails;       // Whether a call fails; absent: none does.
  std::function<void()> on_decode;                                   // Called before each picture is decoded.
  std::int32_t decoded = 0;                                          // Pictures.
  bool is_damaged = false;                                           // It computes numbers that are none.

 private:
  const FakePictureOptions options_;
  std::int32_t threads_ = 0;
};

// The gray of a picture with this caption, from -1 to 1.
[[nodiscard]] float fake_gray(std::span<const std::int32_t> tokens);

}  // namespace uma::testing
