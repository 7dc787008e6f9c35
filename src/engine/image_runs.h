// Where the rows of images stand in a chain, and which of them a call computes. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "engine/vision.h"

namespace uma::engine {

// Rows of one image, one after the other, at [begin, begin + count) of a chain.
struct ImageRun {
  std::string image;  // Image::id
  std::int32_t begin = 0;
  std::int32_t count = 0;
  std::int32_t first_row = 0;  // of the image
  EncodedPtr encoded;          // null: not yet

  [[nodiscard]] std::int32_t end() const { return begin + count; }
};

// All of the chain, in order. `images`: those that may be in it. Errors: E_MODEL_001 for image tokens of none of them, as
// another projector makes them.
[[nodiscard]] Expected<std::vector<ImageRun>> find_image_runs(std::span<const Token> chain, std::span<const std::string> images,
                                                              std::string_view projector);

// The run that has the position; null: a token does.
[[nodiscard]] const ImageRun* run_at(std::span<const ImageRun> runs, std::int32_t position);
// Whether cutting the chain there cuts a run.
[[nodiscard]] bool is_within_run(std::span<const ImageRun> runs, std::int32_t position);
// Where the next image behind a token begins; `length` of the chain where none comes.
[[nodiscard]] std::int32_t text_end(std::span<const ImageRun> runs, std::int32_t position, std::int32_t length);

// What they are when the tokens [begin, end) are taken out of the chain. REQUIRES: none of them is cut.
void drop_runs(std::vector<ImageRun>& runs, std::int32_t begin, std::int32_t end);

// Of a run that is encoded: where a call must begin that computes the row at `position`, and where one from there ends.
[[nodiscard]] std::int32_t call_begin(const ImageRun& run, std::int32_t position);
[[nodiscard]] std::int32_t call_end(const ImageRun& run, std::int32_t position, std::int32_t rows_max);
// The numbers of the rows at [begin, end) of the chain.
[[nodiscard]] std::span<const float> rows_of(const ImageRun& run, std::int32_t begin, std::int32_t end);

// Whether calls of so many rows can compute the run. Errors: E_LIMIT_001 for a piece that is larger; E_RUNTIME_001 where the
// image has other rows than the chain.
[[nodiscard]] Expected<Unit> check_encoded(const ImageRun& run, const EncodedImage& encoded, std::int32_t rows_max);

}  // namespace uma::engine
