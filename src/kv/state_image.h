// A sequence's state as a value: the only way a sequence changes place. Whoever loads it verifies it first: libllama accepts
// damaged bytes without a word (LIBLLAMA.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/checksum.h"

namespace uma::kv {

// The opaque bytes of the positions [begin, end).
struct StatePiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  Bytes bytes;
};

// Sealed where it may lie for a while or leave the process; one that is handed from lane to lane is not.
struct StateImage {
  std::string identity;            // what the context that loads it must be: llm::Context::state_identity()
  std::vector<Token> tokens;       // exactly the tokens whose state this is, from position 0
  std::vector<StatePiece> pieces;  // in order, without gaps, covering all of `tokens`
  Checksum checksum;               // XXH3-128 over all of the above, once sealed

  [[nodiscard]] std::size_t bytes() const;
};

[[nodiscard]] Checksum checksum_of(const StateImage& image);

// Whether the image is one for a context with this identity. Errors, all E_RUNTIME_001: another identity, pieces that do not
// cover the tokens.
[[nodiscard]] Expected<Unit> check_fits(const StateImage& image, const std::string& identity);
// As check_fits, and whether the bytes are those that were sealed. O(bytes), about 10 GB/s.
[[nodiscard]] Expected<Unit> verify(const StateImage& image, const std::string& identity);

}  // namespace uma::kv
