// The places of image rows in a chain, and the rows of each call. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "image/image_encoder.h"
#include "llm/model.h"

namespace uma::image {

// Rows of one image, one after the other, at [begin, begin + count) of a chain.
struct ImageRun {
  std::string image;  // See Image::id.
  std::int32_t begin = 0;
  std::int32_t count = 0;
  std::int32_t first_row = 0;  // Index of the first row in the image.
  EncodedPtr encoded;          // Null until the image is encoded.

  [[nodiscard]] std::int32_t end() const { return begin + count; }
};

// Finds all runs of the chain, in order. `images` are the possible images. Errors: E_MODEL_001 for image tokens of other images
// or of another projector.
[[nodiscard]] Expected<std::vector<ImageRun>> find_image_runs(std::span<const Token> chain, std::span<const std::string> images,
                                                              std::string_view projector);

// The run at the position; null for a text token.
[[nodiscard]] const ImageRun* run_at(std::span<const ImageRun> runs, std::int32_t position);
// Whether cutting the chain at the position splits a run.
[[nodiscard]] bool is_within_run(std::span<const ImageRun> runs, std::int32_t position);
// The position, or the begin of the run that cutting there splits.
[[nodiscard]] std::int32_t before_run(std::span<const ImageRun> runs, std::int32_t position);
// The begin of the first image behind a text token; `length` of the chain if none follows.
[[nodiscard]] std::int32_t text_end(std::span<const ImageRun> runs, std::int32_t position, std::int32_t length);

// Updates the runs after the tokens [begin, end) were removed from the chain. Requires: no run is split.
void drop_runs(std::vector<ImageRun>& runs, std::int32_t begin, std::int32_t end);

// The begin of the call that computes the row at `position`, and the end of a call that begins there. Requires: an encoded run.
[[nodiscard]] std::int32_t call_begin(const ImageRun& run, std::int32_t position);
[[nodiscard]] std::int32_t call_end(const ImageRun& run, std::int32_t position, std::int32_t rows_max);
// The values of the rows at [begin, end) of the chain.
[[nodiscard]] std::span<const float> rows_of(const ImageRun& run, std::int32_t begin, std::int32_t end);

// The positions of the rows at [begin, end) of the chain, which are a whole piece; empty: positions of one dimension.
[[nodiscard]] llm::GridView grid_of(const ImageRun& run, std::int32_t begin, std::int32_t end);

// The most rows of a call for the image in a context of this shape.
[[nodiscard]] std::int32_t call_rows_max(const EncodedImage& encoded, const llm::ContextShape& shape);
[[nodiscard]] std::int32_t call_rows_max(const EncodedImage& encoded, const llm::EmbeddingShape& shape);
// The rows of one call, [begin, end) of the chain. Requires: an encoded run.
[[nodiscard]] llm::ImageRows call_rows(const ImageRun& run, std::span<const Token> chain, std::int32_t begin, std::int32_t end);
// Checks that calls of this many rows can compute the run; `can_widen`: the setting scheduler.ubatch allows more. Errors:
// E_LIMIT_001 for a larger piece; E_RUNTIME_001 if the image has other rows than the chain.
[[nodiscard]] Expected<Unit> check_encoded(const ImageRun& run, const EncodedImage& encoded, std::int32_t rows_max,
                                           bool can_widen = true);

}  // namespace uma::image
