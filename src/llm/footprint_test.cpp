#include "llm/footprint.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/system/memory_info.h"
#include "llm/file/gguf_files.h"
#include "llm/llama_model.h"
#include "testing/gguf_bytes.h"

namespace uma::llm {
namespace {

std::string model_path(const std::string& name) {
  const char* path = std::getenv("UMA_TEST_MODEL");
  return path == nullptr ? "" : (std::filesystem::path(path).parent_path() / (name + ".gguf")).string();
}

ContextOptions options_of(std::int32_t cells, std::int32_t sequences) {
  ContextOptions options;
  options.cells = cells;
  options.sequences = sequences;
  return options;
}

class FootprintOf : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, FootprintOf,
                         ::testing::Values("tiny", "tiny-chat", "tiny-swa", "tiny-recurrent", "tiny-hybrid", "tiny-qwen3",
                                           "tiny-moe", "tiny-gpt-oss"));

TEST_P(FootprintOf, TheDryRunKnowsWhatTheModelWillTake) {
  const std::vector<ContextOptions> contexts = {options_of(8192, 8), options_of(1024, 1)};
  const auto footprint = measure_footprint(model_path(GetParam()), contexts);
  ASSERT_TRUE(footprint.has_value()) << footprint.error().message;
  EXPECT_TRUE(footprint->is_measured);
  ASSERT_EQ(footprint->contexts.size(), 2u);
  const auto model = load_llama_model(model_path(GetParam()), {});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_GE(footprint->weights, (*model)->facts().memory_bytes);
  EXPECT_LE(footprint->weights, (*model)->facts().memory_bytes * 5 / 4);
  EXPECT_GE((*model)->facts().memory_bytes, (*model)->facts().bytes);
  ASSERT_EQ(footprint->one_sequence.size(), 2u);
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const ContextBytes& bytes = footprint->contexts[i];
    EXPECT_GT(bytes.cache, 0u);
    EXPECT_GT(bytes.compute, 0u);
    const auto context = (*model)->new_context(contexts[i]);
    ASSERT_TRUE(context.has_value()) << context.error().message;
    const ContextShape& shape = (*context)->shape();
    // The library logs sizes in rounded KiB.
    constexpr double kRounding = 32'768;
    if (shape.checks_states) {
      const auto cache = static_cast<double>(shape.kv_bytes_per_token * static_cast<std::uint64_t>(shape.cells));
      EXPECT_NEAR(static_cast<double>(bytes.cache), cache, kRounding);
    }
    const auto vocabulary = static_cast<std::uint64_t>((*model)->vocab().size());
    EXPECT_EQ(bytes.output, static_cast<std::uint64_t>(shape.logits_rows_max) * vocabulary * sizeof(float));
    EXPECT_NEAR(static_cast<double>(shape.memory_bytes), static_cast<double>(bytes.total()), kRounding);
    // The context of the prefill lane.
    ContextOptions one = contexts[i];
    one.sequences = 1;
    one.cells = shape.sequence_cells_max;
    one.layout = shape.is_unified ? KvLayout::unified : KvLayout::split;
    const auto beside = (*model)->new_context(one);
    ASSERT_TRUE(beside.has_value()) << beside.error().message;
    EXPECT_NEAR(static_cast<double>((*beside)->shape().memory_bytes), static_cast<double>(footprint->one_sequence[i].total()),
                kRounding);
  }
}

TEST_P(FootprintOf, TheEstimateIsNotFarOff) {
  const std::vector<ContextOptions> contexts = {options_of(8192, 8)};
  const auto header = read_model_header(model_path(GetParam()));
  const auto measured = measure_footprint(model_path(GetParam()), contexts);
  ASSERT_TRUE(header.has_value() && measured.has_value());
  const Footprint estimated = estimate_footprint(*header, contexts);
  EXPECT_FALSE(estimated.is_measured);
  EXPECT_GE(measured->weights, estimated.weights);
  const auto ratio = static_cast<double>(estimated.total()) / static_cast<double>(measured->total());
  EXPECT_GT(ratio, 0.6);
  EXPECT_LT(ratio, 3.0);  // Window layers are counted as full layers.
}

TEST(Footprint, FollowsWhatIsAskedFor) {
  const std::string path = model_path("tiny");
  ContextOptions quantized = options_of(32'768, 8);
  quantized.kv_types = KvTypes::both(KvType::q8_0);
  ContextOptions unified = options_of(32'768, 8);
  unified.layout = KvLayout::unified;
  const std::vector<ContextOptions> contexts = {options_of(32'768, 8), options_of(16'384, 8), quantized, unified};
  for (const bool is_estimated : {false, true}) {
    const auto header = read_model_header(path);
    const auto footprint =
        is_estimated ? Expected<Footprint>(estimate_footprint(*header, contexts)) : measure_footprint(path, contexts);
    ASSERT_TRUE(footprint.has_value()) << footprint.error().message;
    const std::vector<ContextBytes>& bytes = footprint->contexts;
    EXPECT_NEAR(static_cast<double>(bytes[0].cache), 2.0 * static_cast<double>(bytes[1].cache), 32'768.0);
    EXPECT_NEAR(static_cast<double>(bytes[2].cache), static_cast<double>(bytes[0].cache) * 17 / 32, 32'768.0);
    EXPECT_NEAR(static_cast<double>(bytes[3].cache), static_cast<double>(bytes[0].cache), 32'768.0);
    EXPECT_EQ(footprint->total(),
              footprint->weights + bytes[0].total() + bytes[1].total() + bytes[2].total() + bytes[3].total());
  }
}

TEST(Footprint, KnowsTheLongerContextOfScaledPositions) {
  const auto header = read_model_header(model_path("tiny"));
  ASSERT_TRUE(header);
  ContextOptions options = options_of(0, 1);
  options.sequence_cells = 1 << 20;
  EXPECT_EQ(with_layout(*header, options, 1 << 30).sequence_cells, header->context_length);
  options.rope = {.scaling = RopeScaling::yarn, .scale = 2};
  EXPECT_EQ(with_layout(*header, options, 1 << 30).sequence_cells, 2 * header->context_length);
  EXPECT_EQ(embedding_options(options).rope, options.rope);
  const auto measured = measure_footprint(model_path("tiny"), std::vector{options});
  ASSERT_TRUE(measured.has_value() && measured->is_measured);
  options.rope = {};
  EXPECT_NEAR(static_cast<double>(measured->contexts.front().cache),
              2.0 * static_cast<double>(measure_footprint(model_path("tiny"), std::vector{options})->contexts.front().cache),
              32'768.0);
}

TEST(Footprint, AnEmbeddingModelsContextIsOneOfItsOwn) {
  const std::string path = model_path("tiny-embed");
  const ContextOptions options = options_of(256, 4);
  const auto footprint = measure_footprint(path, std::vector{options});
  ASSERT_TRUE(footprint.has_value()) << footprint.error().message;
  EXPECT_TRUE(footprint->is_measured);
  EXPECT_TRUE(footprint->makes_vectors);
  EXPECT_TRUE(footprint->one_sequence.empty());
  const auto model = load_llama_model(path, {});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto context = (*model)->new_embedding(embedding_options(options));
  ASSERT_TRUE(context.has_value()) << context.error().message;
  EXPECT_NEAR(static_cast<double>((*context)->shape().memory_bytes), static_cast<double>(footprint->contexts.front().total()),
              32'768.0);
  EXPECT_TRUE(estimate_footprint(*read_model_header(path), std::vector{options}).makes_vectors);
}

TEST(Footprint, ABadFileIsAnErrorAndOneWithoutWeightsIsEstimated) {
  const auto absent = measure_footprint("/nonexistent/model.gguf", {});
  ASSERT_FALSE(absent.has_value());
  EXPECT_EQ(absent.error().code, ErrorCode::model_load);
  // A correct header of a model without layers, which the library cannot lay out.
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / ("uma-foot-" + std::to_string(::getpid()));
  testing::GgufBytes::small_model().write(path);
  const auto estimated = measure_footprint(path.string(), std::vector{options_of(256, 1)});
  std::filesystem::remove(path);
  ASSERT_TRUE(estimated.has_value()) << estimated.error().message;
  EXPECT_FALSE(estimated->is_measured);
  EXPECT_GT(estimated->total(), 0u);
}

TEST(Footprint, DisturbsNoLoadsAndNoComputations) {
  const std::string path = model_path("tiny");
  const std::vector<ContextOptions> contexts = {options_of(2048, 4)};
  const auto expected = measure_footprint(path, contexts);
  ASSERT_TRUE(expected.has_value());
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    std::vector<float> first;
    while (!is_over) {
      const auto model = load_llama_model(path, {});
      ASSERT_TRUE(model.has_value()) << model.error().message;
      const auto context = (*model)->new_context(options_of(512, 1));
      ASSERT_TRUE(context.has_value()) << context.error().message;
      for (std::int32_t i = 0; i < 8; ++i) {
        const BatchRow row{.token = 5, .position = i, .sequence = 0, .wants_logits = true};
        const auto status = (*context)->decode(std::span(&row, 1), nullptr);
        ASSERT_TRUE(status.has_value() && *status == DecodeStatus::done);
      }
      const std::span<float> logits = (*context)->logits(0);
      if (first.empty()) first.assign(logits.begin(), logits.end());
      EXPECT_TRUE(std::ranges::equal(first, logits));
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto footprint = measure_footprint(path, contexts);
    ASSERT_TRUE(footprint.has_value());
    EXPECT_TRUE(footprint->is_measured);
    EXPECT_EQ(footprint->contexts, expected->contexts);
    // The reason of one failed load must not appear in the next.
    EXPECT_FALSE(load_llama_model("/nonexistent/model.gguf", {}).has_value());
  }
  is_over = true;
  other.join();
}

}  // namespace
}  // namespace uma::llm
