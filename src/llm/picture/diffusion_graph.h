// The computations of Stable Diffusion as graphs of the library (Rombach et al., "High-resolution image synthesis with latent
// diffusion models", 2022). Internal to llm, because it includes the library's headers.
//
// The sizes of a model follow from its tensors. A tensor that is missing or does not fit to the others is an error, because the
// library would end the process. Pictures are [width, height, channels], with the width's numbers next to each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ggml.h>

#include "core/error.h"
#include "llm/picture/diffusion_drawing.h"
#include "llm/picture/diffusion_file.h"
#include "llm/picture/graph_runner.h"

namespace uma::llm {

inline constexpr const char* kTokenTable = "text.embeddings.token_embedding.weight";
inline constexpr const char* kTextInput = "unet.middle_block.1.transformer_blocks.0.attn2.to_k.weight";

// Tensors by the names of diffusion_file.h, as they are in memory: vectors [n], f32; matrices [in, out]; kernels of
// convolutions as matrices, [kernel width * kernel height * in, out].
struct DiffusionNetwork {
  DiffusionFamily family = DiffusionFamily::sd1;
  std::int32_t text_layers = 0;  // That are computed.
  std::map<std::string, ggml_tensor*> tensors;
  bool is_on_device = false;
  // A convolution that would need more than this for its columns is computed in bands.
  std::size_t column_bytes_max = 64ul << 20;

  [[nodiscard]] bool has(const std::string& name) const { return tensors.contains(name); }
  // Numbers of a token, as the network takes them. Requires: its tensors are there.
  [[nodiscard]] std::int64_t text_width() const { return tensors.at(kTextInput)->ne[0]; }
};

// Describes the tensors of a file in `context`, which has room for them, without memory for their numbers. Errors: E_MODEL_002
// with the tensor.
[[nodiscard]] Expected<DiffusionNetwork> describe_network(const DiffusionFile& file, ggml_context* context);
// The sizes of a file's tensor in memory.
[[nodiscard]] std::vector<std::int64_t> sizes_in_memory(const DiffusionTensor& tensor);
// Whether it is added or multiplied number by number, which needs f32.
[[nodiscard]] bool is_vector_in_memory(const std::string& name, const DiffusionTensor& tensor);

// Gets the names of the tensors that a graph uses, and its intermediate results by the names of the parts that make them.
struct GraphObserver {
  std::set<std::string> used;
  bool keeps_results = false;
  std::vector<std::pair<std::string, ggml_tensor*>> results;
};

inline constexpr std::int32_t kClipLength = 77;  // Tokens of a piece, with the start and the end.

struct TextGraph : ComputeGraph {
  ggml_tensor* tokens = nullptr;  // In: [kClipLength], i32, below kClipTokens.
  ggml_tensor* text = nullptr;    // Out: [text width, kClipLength].
};
struct NoiseGraph : ComputeGraph {
  ggml_tensor* latent = nullptr;     // In: [width, height, kLatentChannels].
  ggml_tensor* waves = nullptr;      // In: time_waves() of the time, [n].
  ggml_tensor* text = nullptr;       // In: [text width, tokens].
  ggml_tensor* predicted = nullptr;  // Out: as latent.
};
struct DecodeGraph : ComputeGraph {
  ggml_tensor* latent = nullptr;   // In: as of the noise.
  ggml_tensor* picture = nullptr;  // Out: [kLatentScale * width, kLatentScale * height, 3], from 0 to 1 or a little beyond.
};
struct EncodeGraph : ComputeGraph {
  ggml_tensor* picture = nullptr;  // In: [width, height, 3], from 0 to 1.
  ggml_tensor* latent = nullptr;   // Out: [width / kLatentScale, height / kLatentScale, kLatentChannels].
};

// Errors: E_MODEL_002 with the tensor. `observer`: may be null. Widths and heights are in places of the latent picture.
[[nodiscard]] Expected<std::unique_ptr<TextGraph>> make_text_graph(const DiffusionNetwork& network,
                                                                   GraphObserver* observer = nullptr);
[[nodiscard]] Expected<std::unique_ptr<NoiseGraph>> make_noise_graph(const DiffusionNetwork& network, std::int32_t width,
                                                                     std::int32_t height, std::int32_t tokens,
                                                                     GraphObserver* observer = nullptr);
// By the small decoder if there is one.
[[nodiscard]] Expected<std::unique_ptr<DecodeGraph>> make_decode_graph(const DiffusionNetwork& network, std::int32_t width,
                                                                       std::int32_t height, GraphObserver* observer = nullptr);
[[nodiscard]] Expected<std::unique_ptr<EncodeGraph>> make_encode_graph(const DiffusionNetwork& network, std::int32_t width,
                                                                       std::int32_t height, GraphObserver* observer = nullptr);

}  // namespace uma::llm
