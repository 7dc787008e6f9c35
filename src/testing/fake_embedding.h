// An embedding context without weights: the output of a text is computed from its tokens, so that a wrong, missing or foreign
// token changes it. Faults and the time of a call can be set.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "llm/embedding.h"
#include "testing/sim_clock.h"

namespace uma::testing {

struct FakeEmbeddingOptions {
  llm::EmbeddingShape shape{.text_tokens_max = 32, .batch_rows_max = 64, .batch_texts_max = 16, .dimensions = 4};
  SimClock* clock = nullptr;  // Advanced by compute(), if set.
  Duration call_cost = std::chrono::milliseconds(1);
  Duration row_cost = std::chrono::microseconds(100);
  std::atomic<bool>* lost = nullptr;  // See FakeOptions.
};

class FakeEmbedding final : public llm::EmbeddingContext {
 public:
  using Text = std::span<const Token>;

  explicit FakeEmbedding(const FakeEmbeddingOptions& options) : options_(options) {}

  [[nodiscard]] const llm::EmbeddingShape& shape() const override { return options_.shape; }
  [[nodiscard]] bool is_lost() const override { return options_.lost != nullptr && options_.lost->load(); }
  [[nodiscard]] Expected<bool> compute(std::span<const Text> texts, llm::CallMonitor* monitor,
                                       std::vector<float>& out) override;
  // The output is that of the tokens; checks that the values of the rows are those of FakeProjector for their tokens.
  [[nodiscard]] Expected<bool> compute_with_images(std::span<const Token> text, std::span<const llm::ImageRows> images,
                                                   llm::CallMonitor* monitor, std::vector<float>& out) override;
  void set_threads(std::int32_t threads) override { threads_ = threads; }

  // Queries and settings of tests.
  [[nodiscard]] std::int32_t threads() const { return threads_; }
  std::function<bool(Text)> fails;                        // Whether a call with this text fails; absent: no call fails.
  std::function<void(std::span<const Text>)> on_compute;  // Called with the texts of each call before it is computed.

 private:
  FakeEmbeddingOptions options_;
  std::int32_t threads_ = 0;
};

// The result of compute() for the text.
[[nodiscard]] std::vector<float> fake_output(std::span<const Token> text, std::int32_t dimensions);

}  // namespace uma::testing
