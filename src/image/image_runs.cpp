#include "image/image_runs.h"

#include <algorithm>
#include <format>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "image/image_id.h"
#include "llm/media/image_tokens.h"

namespace uma::image {
namespace {

// A piece of the image; its range is in rows.
struct Piece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};
Piece piece_of(const EncodedImage& image, std::int32_t row) {
  const auto end = std::ranges::upper_bound(image.pieces_end, row);
  return {.begin = end == image.pieces_end.begin() ? 0 : *(end - 1), .end = *end};
}

}  // namespace

Expected<std::vector<ImageRun>> find_image_runs(std::span<const Token> chain, std::span<const std::string> images,
                                                std::string_view projector) {
  std::vector<ImageRun> runs;
  // Indexed by the first token, because a chain may begin any of many images at each of its tokens.
  std::unordered_map<Token, std::string_view> by_first_token;
  for (const std::string& id : images) by_first_token.try_emplace(llm::image_token(content_of(id), projector, 0), id);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    if (!llm::is_image_token(chain[i])) continue;
    const auto position = static_cast<std::int32_t>(i);
    if (!runs.empty()) {
      ImageRun& last = runs.back();
      const std::int32_t row = last.first_row + last.count;
      if (llm::image_token(content_of(last.image), projector, row) == chain[i]) {
        if (last.end() == position) {
          ++last.count;
        } else {
          runs.push_back({.image = last.image, .begin = position, .count = 1, .first_row = row, .encoded = nullptr});
        }
        continue;
      }
    }
    const auto image = by_first_token.find(chain[i]);
    if (image == by_first_token.end()) {
      return fail(ErrorCode::model_unknown,
                  "the session has images of another projector: load the model with that projector to continue it");
    }
    runs.push_back({.image = std::string(image->second), .begin = position, .count = 1, .first_row = 0, .encoded = nullptr});
  }
  return runs;
}

const ImageRun* run_at(std::span<const ImageRun> runs, std::int32_t position) {
  const auto found = std::ranges::find_if(runs, [&](const ImageRun& run) { return position < run.end(); });
  return found == runs.end() || position < found->begin ? nullptr : &*found;
}

bool is_within_run(std::span<const ImageRun> runs, std::int32_t position) {
  const auto found = std::ranges::upper_bound(runs, position, {}, &ImageRun::end);
  return found != runs.end() && found->begin < position;
}

std::int32_t before_run(std::span<const ImageRun> runs, std::int32_t position) {
  return is_within_run(runs, position) ? run_at(runs, position)->begin : position;
}

std::int32_t text_end(std::span<const ImageRun> runs, std::int32_t position, std::int32_t length) {
  const auto found = std::ranges::find_if(runs, [&](const ImageRun& run) { return position < run.end(); });
  return found == runs.end() ? length : std::max(found->begin, position);
}

void drop_runs(std::vector<ImageRun>& runs, std::int32_t begin, std::int32_t end) {
  std::erase_if(runs, [&](const ImageRun& run) { return run.begin >= begin && run.end() <= end; });
  for (ImageRun& run : runs) {
    UMA_CHECK(run.end() <= begin || run.begin >= end);
    if (run.begin >= end) run.begin -= end - begin;
  }
}

std::int32_t call_begin(const ImageRun& run, std::int32_t position) {
  if (!run.encoded->is_whole()) return position;
  const std::int32_t row = run.first_row + position - run.begin;
  return std::max(run.begin, run.begin + piece_of(*run.encoded, row).begin - run.first_row);
}

std::int32_t call_end(const ImageRun& run, std::int32_t position, std::int32_t rows_max) {
  const std::int32_t row = run.first_row + position - run.begin;
  const std::int32_t piece_end = run.begin + piece_of(*run.encoded, row).end - run.first_row;
  return std::min({run.end(), piece_end, position + rows_max});
}

std::span<const float> rows_of(const ImageRun& run, std::int32_t begin, std::int32_t end) {
  const auto width = static_cast<std::size_t>(run.encoded->row_width);
  const auto first = static_cast<std::size_t>(run.first_row + begin - run.begin);
  return std::span(run.encoded->rows).subspan(first * width, static_cast<std::size_t>(end - begin) * width);
}

llm::GridView grid_of(const ImageRun& run, std::int32_t begin, std::int32_t end) {
  const llm::ImageGrid& grid = run.encoded->grid;
  if (grid.places.empty()) return {};
  const std::int32_t row = run.first_row + begin - run.begin;
  const auto piece = std::ranges::upper_bound(run.encoded->pieces_end, row) - run.encoded->pieces_end.begin();
  return {.places = std::span(grid.places).subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(end - begin)),
          .moves = grid.moves,
          .advance = grid.advance[static_cast<std::size_t>(piece)]};
}

std::int32_t call_rows_max(const EncodedImage& encoded, const llm::ContextShape& shape) {
  // The library divides the rows of a call, unless they attend to each other.
  return encoded.is_causal && encoded.is_whole() ? shape.batch_rows_max : shape.image_rows_max;
}

std::int32_t call_rows_max(const EncodedImage& encoded, const llm::EmbeddingShape& shape) {
  return encoded.is_causal ? shape.batch_rows_max : shape.image_rows_max;
}

llm::ImageRows call_rows(const ImageRun& run, std::span<const Token> chain, std::int32_t begin, std::int32_t end) {
  return {.tokens = chain.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
          .values = rows_of(run, begin, end),
          .position = begin,
          .is_causal = run.encoded->is_causal,
          .grid = grid_of(run, begin, end)};
}

Expected<Unit> check_encoded(const ImageRun& run, const EncodedImage& encoded, std::int32_t rows_max, bool can_widen) {
  if (encoded.pieces_end.empty() || run.first_row + run.count > encoded.pieces_end.back()) {
    return fail(ErrorCode::runtime_decode,
                "the projector encodes this image differently than when the session was made: serve the earlier projector to "
                "continue it");
  }
  std::int32_t begin = 0;
  bool has_begin = run.first_row == 0;
  bool has_end = false;
  for (const std::int32_t end : encoded.pieces_end) {
    const std::int32_t rows = end - std::exchange(begin, end);
    has_begin |= run.first_row == end;
    has_end |= run.first_row + run.count == end;
    if (!encoded.is_whole() || rows <= rows_max) continue;
    const std::string remedy = encoded.is_causal || !can_widen
                                   ? std::format("set vision.image_tokens_max to {} or less", rows_max)
                                   : std::format("start umad with scheduler.ubatch {}", rows);
    return fail(
        ErrorCode::limit_prompt,
        std::format("an image needs {} rows in one call, but the context computes at most {}: {}", rows, rows_max, remedy));
  }
  if (!encoded.grid.places.empty() && !(has_begin && has_end)) {
    return fail(ErrorCode::runtime_decode, "the session has only a part of an image, which this model cannot compute");
  }
  return Unit{};
}

}  // namespace uma::image
