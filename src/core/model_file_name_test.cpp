#include "core/model_file_name.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(SplitName, IsOfOneForm) {
  const auto name = parse_split_name("/models/big-00002-of-00012.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->stem, "/models/big");
  EXPECT_EQ(name->index, 1);
  EXPECT_EQ(name->count, 12);
  EXPECT_EQ(name->file(11), "/models/big-00012-of-00012.gguf");
  for (const char* other : {"big.gguf", "-00001-of-00002.gguf", "big-00000-of-00002.gguf", "big-00003-of-00002.gguf",
                            "big-0001-of-00002.gguf", "big-00001-of-00002.bin", "big_00001-of-00002.gguf"}) {
    EXPECT_FALSE(parse_split_name(other).has_value()) << other;
    EXPECT_EQ(model_files(other), std::vector<std::string>{other});
  }
  EXPECT_EQ(model_files("/m/big-00002-of-00002.gguf"),
            (std::vector<std::string>{"/m/big-00001-of-00002.gguf", "/m/big-00002-of-00002.gguf"}));
}

TEST(PairingName, LeavesOutHowNumbersAreKept) {
  EXPECT_EQ(pairing_name("mmproj-Gemma-3-4b-it-F16"), "gemma-3-4b-it");
  EXPECT_EQ(pairing_name("gemma-3-4b-it-Q4_K_M"), "gemma-3-4b-it");
  EXPECT_EQ(pairing_name("gemma-3-4b-it.mmproj-q8_0"), "gemma-3-4b-it");
  EXPECT_EQ(pairing_name("Qwen-IQ2_XXS"), "qwen");
  EXPECT_EQ(pairing_name("mmproj-model-f16"), "");
}

}  // namespace
}  // namespace uma
