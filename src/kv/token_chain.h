// The tokens of a session in blocks of 64, each with a hash over its tokens and the hash of the block before it: a block's hash
// stands for everything up to its end, so two chains with an equal hash begin alike (docs/CATALOG.md).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kv/checksum.h"

namespace uma::kv {

inline constexpr std::size_t kTokensPerBlock = 64;

// The last block may be partial. No tokens give no blocks.
[[nodiscard]] std::size_t blocks_count(std::size_t tokens_count);
[[nodiscard]] std::span<const Token> block_of(std::span<const Token> tokens, std::size_t block);

// XXH3-128 over the previous block's hash (zeros for the first block) and the block's tokens. Requires: at most 64 tokens.
[[nodiscard]] Checksum block_hash(const Checksum& previous, std::span<const Token> block);
// The hash of every block. O(tokens), some GB/s.
[[nodiscard]] std::vector<Checksum> block_hashes(std::span<const Token> tokens);

}  // namespace uma::kv
