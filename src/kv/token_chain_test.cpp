#include "kv/token_chain.h"

#include <numeric>

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

std::vector<Token> tokens_of(std::size_t count) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 7);
  return tokens;
}

TEST(TokenChain, HasAsManyBlocksAsTokensNeed) {
  EXPECT_EQ(blocks_count(0), 0u);
  EXPECT_EQ(blocks_count(1), 1u);
  EXPECT_EQ(blocks_count(64), 1u);
  EXPECT_EQ(blocks_count(65), 2u);
  EXPECT_EQ(block_of(tokens_of(65), 1).size(), 1u);
  EXPECT_TRUE(block_hashes({}).empty());
}

TEST(TokenChain, ABlocksHashStandsForEverythingUpToItsEnd) {
  const std::vector<Token> tokens = tokens_of(200);
  const auto hashes = block_hashes(tokens);
  ASSERT_EQ(hashes.size(), 4u);
  for (std::size_t changed = 0; changed < tokens.size(); ++changed) {
    std::vector<Token> other = tokens;
    ++other[changed];
    const auto others = block_hashes(other);
    for (std::size_t block = 0; block < hashes.size(); ++block) {
      EXPECT_EQ(hashes[block] == others[block], block < changed / kTokensPerBlock) << changed << " " << block;
    }
  }
}

TEST(TokenChain, ALongerChainKeepsTheHashesOfItsFullBlocks) {
  const auto longer = block_hashes(tokens_of(300));
  for (std::size_t count = 0; count < 300; ++count) {
    const auto hashes = block_hashes(tokens_of(count));
    for (std::size_t block = 0; block < hashes.size(); ++block) {
      EXPECT_EQ(hashes[block] == longer[block], (block + 1) * kTokensPerBlock <= count) << count << " " << block;
    }
  }
}

// The values are in files: another result on the same tokens would be another format.
TEST(TokenChain, TheHashIsTheOneInTheFiles) {
  const Checksum hash = block_hash({}, tokens_of(3));
  EXPECT_EQ(hash, (Checksum{0x69bfb2a8bf27dbfb, 0x218aea5e70dab5d7})) << std::hex << hash.low << " " << hash.high;
}

}  // namespace
}  // namespace uma::kv
