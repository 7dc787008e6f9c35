#include "llm/context_layout.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

ContextOptions layout_options(std::int32_t sequences, std::int32_t sequence_cells = 0, std::int32_t cells = 0,
                              KvLayout layout = KvLayout::automatic) {
  ContextOptions options;
  options.sequences = sequences;
  options.sequence_cells = sequence_cells;
  options.cells = cells;
  options.layout = layout;
  return options;
}

void expect_layout(const ContextLayout& layout, std::int32_t cells, std::int32_t sequence_cells, bool is_unified) {
  EXPECT_EQ(layout.cells, cells);
  EXPECT_EQ(layout.sequence_cells, sequence_cells);
  EXPECT_EQ(layout.is_unified, is_unified);
}

TEST(ContextLayout, ASmallWindowIsSplit) {
  expect_layout(choose_layout(layout_options(8), {.train_tokens = 4096, .kv_bytes_per_token = 1000, .memory = kGib}), 32'768,
                4096, false);
  expect_layout(choose_layout(layout_options(8), {}), 32'768, 4096, false);
}

TEST(ContextLayout, WithoutAWindowAConversationMayBeAsLongAsTheModelAllows) {
  const LayoutFacts facts{.train_tokens = 32'768, .kv_bytes_per_token = 36'864, .memory = 16 * kGib};
  expect_layout(choose_layout(layout_options(8), facts), 32'768, 32'768, true);
  expect_layout(choose_layout(layout_options(8, 0, 0, KvLayout::split), facts), 32'768, 4096, false);
  expect_layout(choose_layout(layout_options(1), facts), 32'768, 32'768, false);
}

TEST(ContextLayout, AWindowBeyondWhatAgentsNeedIsWithinAQuarterOfTheMemory) {
  const auto with = [&](std::optional<std::uint64_t> memory) {
    return choose_layout(layout_options(8), {.train_tokens = 131'072, .kv_bytes_per_token = 131'072, .memory = memory});
  };
  expect_layout(with(64 * kGib), 131'072, 131'072, true);
  expect_layout(with(24 * kGib), 49'152, 49'152, true);
  expect_layout(with(6 * kGib), 32'768, 32'768, true);
  expect_layout(with(0), 32'768, 32'768, true);
  expect_layout(with(std::nullopt), 131'072, 131'072, true);
}

TEST(ContextLayout, CellsThatTakeNoMemoryAreNotShared) {
  expect_layout(choose_layout(layout_options(4), {.train_tokens = 131'072, .kv_bytes_per_token = 0, .memory = kGib}), 524'288,
                131'072, false);
}

TEST(ContextLayout, HalfTheCellsAreShared) {
  const LayoutFacts facts{.train_tokens = 4096, .kv_bytes_per_token = 1000, .memory = kGib};
  ContextOptions options = layout_options(8, 4096, 32'768, KvLayout::split);
  for (const std::int32_t cells : {16'384, 8192, 4096}) {
    const auto less = with_half_the_cells(options);
    ASSERT_TRUE(less);
    options = *less;
    expect_layout(choose_layout(options, facts), cells, 4096, true);
  }
  EXPECT_FALSE(with_half_the_cells(options));
}

TEST(ContextLayout, AWindowThatIsGivenIsKept) {
  const LayoutFacts facts{.train_tokens = 131'072, .kv_bytes_per_token = 131'072, .memory = 4 * kGib};
  expect_layout(choose_layout(layout_options(8, 65'536), facts), 65'536, 65'536, true);
  expect_layout(choose_layout(layout_options(8, 1024), facts), 8192, 1024, false);
  expect_layout(choose_layout(layout_options(8, 500'000), facts), 131'072, 131'072, true);
  expect_layout(choose_layout(layout_options(4, 8192, 0, KvLayout::split), facts), 32'768, 8192, false);
}

TEST(ContextLayout, CellsThatAreGivenAreKept) {
  const LayoutFacts facts{.train_tokens = 32'768, .kv_bytes_per_token = 1000, .memory = kGib};
  expect_layout(choose_layout(layout_options(4, 0, 8192), facts), 8192, 2048, false);
  expect_layout(choose_layout(layout_options(8, 0, 8192), facts), 8192, 8192, true);
  expect_layout(choose_layout(layout_options(8, 0, 8192, KvLayout::split), facts), 8192, 1024, false);
  expect_layout(choose_layout(layout_options(2, 0, 8192, KvLayout::unified), facts), 8192, 8192, true);
  expect_layout(choose_layout(layout_options(4, 4096, 8192), facts), 8192, 4096, true);
  expect_layout(choose_layout(layout_options(2, 4096, 8192), facts), 8192, 4096, false);
}

}  // namespace
}  // namespace uma::llm
