#include "kv/state_image.h"

#include <format>
#include <memory>

#include <xxhash.h>

namespace uma::kv {

std::size_t StateImage::bytes() const {
  std::size_t total = tokens.size() * sizeof(Token);
  for (const StatePiece& piece : pieces) total += piece.bytes.size();
  return total;
}

Checksum checksum_of(const StateImage& image) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const auto add = [&](const void* bytes, std::size_t size) { XXH3_128bits_update(state.get(), bytes, size); };
  // Every variable part goes in with its length, so that bytes cannot move from one part into the next unseen.
  const auto add_size = [&](std::uint64_t size) { add(&size, sizeof size); };
  add_size(image.identity.size());
  add(image.identity.data(), image.identity.size());
  add_size(image.tokens.size());
  add(image.tokens.data(), image.tokens.size() * sizeof(Token));
  add_size(image.pieces.size());
  for (const StatePiece& piece : image.pieces) {
    add(&piece.begin, sizeof piece.begin);
    add(&piece.end, sizeof piece.end);
    add_size(piece.bytes.size());
    add(piece.bytes.data(), piece.bytes.size());
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state.get());
  return {digest.low64, digest.high64};
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

Expected<Unit> verify(const StateImage& image, const std::string& identity) {
  if (auto fits = check_fits(image, identity); !fits) return fits;
  if (checksum_of(image) != image.checksum)
    return fail(ErrorCode::runtime_decode, "stored state is damaged: its checksum is wrong");
  return Unit{};
}

}  // namespace uma::kv
