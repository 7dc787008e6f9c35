#include "testing/fake_picture.h"

#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "llm/picture/flow_drawing.h"

namespace uma::testing {

namespace {

// A drawing whose picture must be decoded, which changes nothing.
class DecodedDrawing final : public llm::PictureDrawing {
 public:
  explicit DecodedDrawing(const llm::DrawingOptions& options) : PictureDrawing(options), flow_(options, 1, {}) {}

  [[nodiscard]] bool is_done() const override { return is_finished_; }
  [[nodiscard]] bool is_decoded() const override { return true; }
  [[nodiscard]] bool wants_decoding() const override { return flow_.is_done() && !is_finished_; }
  [[nodiscard]] std::span<const float> noisy() const override { return flow_.noisy(); }
  [[nodiscard]] float time() const override { return flow_.time(); }
  void advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) override {
    flow_.advance(predicted, predicted_of_negative);
    count_step();
  }
  void finish(const std::vector<std::uint8_t>& /*levels*/) override { is_finished_ = true; }
  [[nodiscard]] std::vector<std::uint8_t> levels() const override { return flow_.levels(); }

 private:
  llm::FlowDrawing flow_;
  bool is_finished_ = false;
};

}  // namespace

float fake_gray(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0x452821e638d01377ull;
  for (const std::int32_t token : tokens) hash = Random(hash ^ static_cast<std::uint64_t>(token + 1)).next_u64();
  return static_cast<float>(2 * Random(hash).next_unit() - 1);
}

std::unique_ptr<llm::PictureDrawing> FakePicture::new_drawing(const llm::DrawingOptions& options,
                                                              const llm::DrawingStart& start) const {
  if (options_.decodes) return std::make_unique<DecodedDrawing>(options);
  return std::make_unique<llm::FlowDrawing>(options, 1, start);
}

Expected<bool> FakePicture::encode(std::span<const std::uint8_t> levels, std::int32_t /*width*/, std::int32_t /*height*/,
                                   llm::CallMonitor* monitor, std::vector<float>& out) {
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  out.assign(levels.size(), static_cast<float>(levels.front()) / 127.5F - 1);
  return true;
}

Expected<bool> FakePicture::read_caption(const llm::CaptionTokens& tokens, llm::CallMonitor* monitor, llm::Caption& out) {
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  out = {.text = {}, .pooled = {fake_gray(tokens.ids)}};
  return true;
}

Expected<bool> FakePicture::denoise(std::span<const llm::DenoiseRow> rows, llm::CallMonitor* monitor,
                                    std::vector<float>& predicted) {
  UMA_CHECK(!rows.empty() && rows.size() <= static_cast<std::size_t>(rows_max()));
  if (on_denoise) on_denoise(rows);
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  if (options_.clock != nullptr) options_.clock->advance(options_.row_cost * static_cast<std::int64_t>(rows.size()));
  if (fails && fails(rows)) return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  predicted.clear();
  for (const llm::DenoiseRow& row : rows) {
    const float gray = is_damaged ? std::numeric_limits<float>::quiet_NaN() : row.caption->pooled.front();
    predicted.insert(predicted.end(), row.noisy.size(), gray);
  }
  return true;
}

Expected<bool> FakePicture::decode(llm::PictureDrawing& drawing, llm::CallMonitor* monitor) {
  UMA_CHECK(drawing.wants_decoding());
  if (on_decode) on_decode();
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  if (options_.clock != nullptr) options_.clock->advance(options_.row_cost);
  ++decoded;
  drawing.finish({});
  return true;
}

}  // namespace uma::testing
