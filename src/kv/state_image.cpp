#include "kv/state_image.h"

#include <format>

#include <xxhash.h>

namespace uma::kv {

std::size_t StateImage::bytes() const {
  std::size_t total = tokens.size() * sizeof(Token);
  for (const StatePiece& piece : pieces) total += piece.bytes.capacity();
  return total;
}

void recycle(StateImage image, BytePool& pool) {
  for (StatePiece& piece : image.pieces) pool.give(std::move(piece.bytes));
}

ImagePtr share_image(StateImage image, BytePool& pool) {
  pool.correct(image.room, image.bytes());
  return {new StateImage(std::move(image)), [&pool](StateImage* shared) {
            recycle(std::move(*shared), pool);
            delete shared;
          }};
}

RunningChecksum::RunningChecksum(std::string_view identity, std::span<const Token> tokens, std::size_t pieces_count)
    : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
  // Every variable part goes in with its length, so that bytes cannot move from one part into the next unseen.
  add_number(identity.size());
  add(std::as_bytes(std::span(identity)));
  add_number(tokens.size());
  add(std::as_bytes(tokens));
  add_number(pieces_count);
}

void RunningChecksum::begin_piece(std::int32_t begin, std::int32_t end, std::uint64_t bytes_count) {
  XXH3_128bits_update(state_.get(), &begin, sizeof begin);
  XXH3_128bits_update(state_.get(), &end, sizeof end);
  add_number(bytes_count);
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void RunningChecksum::add_number(std::uint64_t number) {
  XXH3_128bits_update(state_.get(), &number, sizeof number);
}

Checksum RunningChecksum::value() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_.get());
  return {digest.low64, digest.high64};
}

Checksum checksum_of(const StateImage& image) {
  RunningChecksum checksum(image.identity, image.tokens, image.pieces.size());
  for (const StatePiece& piece : image.pieces) {
    checksum.begin_piece(piece.begin, piece.end, piece.bytes.size());
    checksum.add(piece.bytes);
  }
  return checksum.value();
}

Expected<Unit> check_fits(const StateImage& image, const std::string& identity) {
  if (image.identity != identity) {
    return fail(ErrorCode::runtime_decode,
                std::format("stored state is of \"{}\", this context is \"{}\"", image.identity, identity));
  }
  std::int32_t covered = 0;
  for (const StatePiece& piece : image.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin) return fail(ErrorCode::runtime_decode, "stored state has gaps");
    covered = piece.end;
  }
  if (static_cast<std::size_t>(covered) != image.tokens.size()) {
    return fail(ErrorCode::runtime_decode, std::format("stored state covers {} of {} tokens", covered, image.tokens.size()));
  }
  return Unit{};
}

}  // namespace uma::kv
