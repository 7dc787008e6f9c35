// A sequence's state as a value: the only way a sequence changes place. libllama accepts damaged bytes without a word
// (docs/LIBLLAMA.md): an image that left the process is verified by its checksum when it comes back (cold_store.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/byte_pool.h"
#include "kv/checksum.h"

struct XXH3_state_s;

namespace uma::kv {

// The opaque bytes of the positions [begin, end).
struct StatePiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  Bytes bytes;
};

struct StateImage {
  std::string identity;            // what the context that loads it must be: llm::Context::state_identity()
  std::vector<Token> tokens;       // exactly the tokens whose state this is, from position 0
  ByteBudget::Share room{};        // of the pool that the memory is from, until that is given back
  std::vector<StatePiece> pieces;  // in order, without gaps, covering all of `tokens`

  // Of memory that it takes.
  [[nodiscard]] std::size_t bytes() const;
};

using ImagePtr = std::shared_ptr<const StateImage>;  // shared: a lane loads it while the store forgets it

// Whose memory goes back to the pool, which outlives it. It has the room that it takes, from now on.
[[nodiscard]] ImagePtr share_image(StateImage image, BytePool& pool);
void recycle(StateImage image, BytePool& pool);

// XXH3-128 over all of it. O(bytes), about 10 GB/s.
[[nodiscard]] Checksum checksum_of(const StateImage& image);

// The same checksum for an image whose bytes arrive one after another: begin_piece() and then its bytes, for every piece.
class RunningChecksum {
 public:
  RunningChecksum(std::string_view identity, std::span<const Token> tokens, std::size_t pieces_count);
  void begin_piece(std::int32_t begin, std::int32_t end, std::uint64_t bytes_count);
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Checksum value() const;

 private:
  void add_number(std::uint64_t number);

  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
};

// Whether the image is one for a context with this identity. Errors, all E_RUNTIME_001: another identity, pieces that do not
// cover the tokens.
[[nodiscard]] Expected<Unit> check_fits(const StateImage& image, const std::string& identity);

}  // namespace uma::kv
