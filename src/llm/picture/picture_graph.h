// The computations of a picture model as graphs of the library. Internal to llm, because it includes the library's headers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <ggml.h>

#include "llm/picture/graph_runner.h"
#include "llm/picture/picture_file.h"

namespace uma::llm {

// A model's tensors by their names, without attn_bias; "places", the sums of pos_row, pos_col and type_embd[1] of each patch;
// and for each layer of the trunk "blk.N.scores", [tokens, tokens, heads], what attn_bias adds for each key and query.
using PictureTensors = std::map<std::string, ggml_tensor*>;

// Sizes are the library's: the first is the one whose numbers lie next to each other.
struct CaptionGraph : ComputeGraph {
  ggml_tensor* words = nullptr;   // In: [text_length], i32.
  ggml_tensor* text = nullptr;    // Out: [width, text_length].
  ggml_tensor* pooled = nullptr;  // Out: [width].
};
[[nodiscard]] std::unique_ptr<CaptionGraph> make_caption_graph(const PictureShape& shape, const PictureTensors& tensors);

struct DenoiseGraph : ComputeGraph {
  ggml_tensor* patches = nullptr;  // In: [patch_numbers, patches, rows].
  ggml_tensor* waves = nullptr;    // In: [time_frequencies, rows], cosines and sines of the time.
  ggml_tensor* text = nullptr;     // In: [width, text_length, rows].
  ggml_tensor* pooled = nullptr;   // In: [width, rows].
  ggml_tensor* clean = nullptr;    // Out: [patch_numbers, patches, rows].
};
[[nodiscard]] std::unique_ptr<DenoiseGraph> make_denoise_graph(const PictureShape& shape, const PictureTensors& tensors,
                                                               std::int32_t rows);

}  // namespace uma::llm
