// Moves a sequence out of a context and into one, as a StateImage. Called by the lane that owns the context.
#pragma once

#include <span>

#include "core/error.h"
#include "kv/byte_pool.h"
#include "kv/state_image.h"
#include "llm/model.h"

namespace uma::engine {

// The state of a sequence whose cache holds exactly `tokens`, in memory of the pool, for which `room` has been reserved.
// In a unified context that can be cut anywhere it comes in pieces of at most 512 tokens, so that
// later it can be loaded between the ticks of others; other contexts know only whole sequences. The sequence stays.
[[nodiscard]] Expected<kv::StateImage> save_sequence(llm::Context& context, std::int32_t sequence,
                                                     std::span<const Token> tokens, kv::BytePool& pool, ByteBudget::Share room);
// Bytes that the state of so many tokens takes in a pool, about, and of how many pieces it consists.
struct StateSize {
  std::size_t piece_bytes = 0;
  std::size_t pieces = 0;
};
[[nodiscard]] StateSize state_size(const llm::ContextShape& shape, std::int32_t tokens);
// What is to be reserved for the state of a sequence as it is now, and for that of a prompt of so many tokens in a context of
// this shape.
[[nodiscard]] std::uint64_t room_of_state(llm::Context& context, std::int32_t sequence);
[[nodiscard]] std::uint64_t room_of_prompt(const llm::ContextShape& shape, std::int32_t tokens);

// Loads the next piece of an image into `sequence`, which holds those before it. The piece may be of another form afterwards.
// On failure the sequence is empty.
[[nodiscard]] Expected<Unit> restore_piece(llm::Context& context, std::int32_t sequence, kv::StatePiece& piece);
// The same, of an image that others read too. Where it is of a context with another number of sequences, a copy is loaded for
// which the pool has room.
[[nodiscard]] Expected<Unit> restore_shared_piece(llm::Context& context, std::int32_t sequence, const kv::StateImage& image,
                                                  std::size_t piece, const kv::BytePool& pool);

// Makes the empty sequence `to` a copy of `from`, whose cache holds exactly `tokens`, by way of the pool, for which `room` has
// been reserved. Takes as long as saving and loading. On failure `to` is empty.
[[nodiscard]] Expected<Unit> copy_sequence(llm::Context& context, std::int32_t from, std::int32_t to,
                                           std::span<const Token> tokens, kv::BytePool& pool, ByteBudget::Share room);

// Loads an image into the empty `sequence`. On failure the sequence is empty. What is in the image afterwards may be of another
// form.
[[nodiscard]] Expected<Unit> restore_sequence(llm::Context& context, std::int32_t sequence, kv::StateImage& image);

}  // namespace uma::engine
