#include "kv/token_chain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <xxhash.h>

#include "base/check.h"

namespace uma::kv {

// Stored hashes are over little-endian bytes.
static_assert(std::endian::native == std::endian::little);

std::size_t blocks_count(std::size_t tokens_count) {
  return (tokens_count + kTokensPerBlock - 1) / kTokensPerBlock;
}

std::span<const Token> block_of(std::span<const Token> tokens, std::size_t block) {
  const std::size_t begin = block * kTokensPerBlock;
  return tokens.subspan(begin, std::min(kTokensPerBlock, tokens.size() - begin));
}

Checksum block_hash(const Checksum& previous, std::span<const Token> block) {
  UMA_CHECK(block.size() <= kTokensPerBlock);
  std::array<std::byte, sizeof(Checksum) + kTokensPerBlock * sizeof(Token)> bytes;
  std::memcpy(bytes.data(), &previous, sizeof previous);
  if (!block.empty()) std::memcpy(bytes.data() + sizeof previous, block.data(), block.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), sizeof previous + block.size_bytes());
  return {hash.low64, hash.high64};
}

std::vector<Checksum> block_hashes(std::span<const Token> tokens) {
  std::vector<Checksum> hashes;
  hashes.reserve(blocks_count(tokens.size()));
  Checksum previous;
  for (std::size_t block = 0; block < blocks_count(tokens.size()); ++block) {
    previous = block_hash(previous, block_of(tokens, block));
    hashes.push_back(previous);
  }
  return hashes;
}

}  // namespace uma::kv
