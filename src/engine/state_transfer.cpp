#include "engine/state_transfer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace uma::engine {
namespace {

// Small enough to be loaded between two ticks, large enough to cost little each.
std::int32_t piece_tokens(const llm::ContextShape& shape) {
  return std::clamp(shape.sequence_cells_max / 8, 16, 512);
}

}  // namespace

Expected<kv::StateImage> save_sequence(llm::Context& context, std::int32_t sequence, std::span<const Token> tokens,
                                       Bytes spare) {
  const auto length = static_cast<std::int32_t>(tokens.size());
  UMA_CHECK(length > 0 && context.sequence_length(sequence) == length);
  kv::StateImage image;
  image.identity = context.state_identity();
  image.tokens.assign(tokens.begin(), tokens.end());
  const bool knows_pieces = context.shape().is_unified && context.shape().can_truncate;
  const std::int32_t step = knows_pieces ? piece_tokens(context.shape()) : length;
  for (std::int32_t begin = 0; begin < length; begin += step) {
    const std::int32_t end = std::min(length, begin + step);
    kv::StatePiece& piece = image.pieces.emplace_back(begin, end, std::exchange(spare, {}));
    if (auto saved = context.save_state(sequence, begin, end, piece.bytes); !saved) return std::unexpected(saved.error());
  }
  return image;
}

Expected<Unit> restore_piece(llm::Context& context, std::int32_t sequence, kv::StatePiece& piece) {
  return context.load_state(sequence, piece.begin, piece.end, context.fit_state(piece.bytes));
}

Expected<Unit> restore_shared_piece(llm::Context& context, std::int32_t sequence, const kv::StateImage& image,
                                    std::size_t piece) {
  if (piece == 0) {
    if (auto fits = kv::check_fits(image, context.state_identity()); !fits) return fits;
  }
  const kv::StatePiece& next = image.pieces[piece];
  return context.load_state(sequence, next.begin, next.end, next.bytes);
}

Expected<Unit> restore_sequence(llm::Context& context, std::int32_t sequence, kv::StateImage& image) {
  if (auto verdict = kv::check_fits(image, context.state_identity()); !verdict) return verdict;
  for (kv::StatePiece& piece : image.pieces) {
    if (auto loaded = restore_piece(context, sequence, piece); !loaded) return loaded;
  }
  return Unit{};
}

}  // namespace uma::engine
