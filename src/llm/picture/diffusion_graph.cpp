#include "llm/picture/diffusion_graph.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <format>
#include <functional>
#include <numeric>
#include <utility>

#include "llm/picture/clip_tokens.h"

namespace uma::llm {
namespace {

constexpr float kLatentSpread = 0.18215F;  // Spread of latent pictures of the decoder; the network's are about 1.
constexpr float kEpsilon = 1e-5F;
constexpr float kEpsilonFine = 1e-6F;  // Epsilon of groups around transformers, and in the decoder.
constexpr int kGroups = 32;
constexpr int kKernelSide = 3;  // Kernel side of all convolutions but those of single places.
constexpr std::int64_t kHeadsOfFirst = 8;
constexpr std::int64_t kHeadWidth = 64;  // Head width of the second family's transformers and all text encoders.
// Beyond what a graph of a real model has, below what the library's memory for descriptions holds.
constexpr std::size_t kTensorsMax = ComputeGraph::kNodesMax - 256;

constexpr const char* kPlaceTable = "text.embeddings.position_embedding.weight";

// Ends the making of a graph.
struct Misfit {
  std::string text;
};

std::string text_of(const ggml_tensor* tensor) {
  return std::format("{} × {} × {} × {}", tensor->ne[0], tensor->ne[1], tensor->ne[2], tensor->ne[3]);
}

// How many rows and columns of zeros surround a picture.
struct Margins {
  int left = 1;
  int top = 1;
  int right = 1;
  int bottom = 1;
};

class Builder {
 public:
  Builder(const DiffusionNetwork& network, ComputeGraph& graph, GraphObserver* observer)
      : network_(network), context_(graph.context.get()), graph_(graph.graph), observer_(observer) {}

  [[nodiscard]] ggml_context* get() const { return context_; }
  [[nodiscard]] bool has(const std::string& name) const { return network_.has(name); }

  [[nodiscard]] ggml_tensor* input(ggml_type type, std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) {
    ggml_tensor* const tensor = ggml_new_tensor_3d(context_, type, a, b, c);
    ggml_set_input(tensor);
    return tensor;
  }
  ggml_tensor* output(ggml_tensor* tensor) {
    ggml_set_output(tensor);
    ggml_build_forward_expand(graph_, tensor);
    return tensor;
  }
  // Tells an intermediate result.
  ggml_tensor* note(const std::string& name, ggml_tensor* tensor) {
    if (observer_ == nullptr || !observer_->keeps_results) return tensor;
    output(tensor);
    observer_->results.emplace_back(name, tensor);
    return tensor;
  }

  // --- Weights

  [[nodiscard]] ggml_tensor* weight(const std::string& name) {
    check_room();
    const auto found = network_.tensors.find(name);
    if (found == network_.tensors.end()) throw Misfit{std::format("tensor {} is missing", name)};
    ++weights_;
    if (observer_ != nullptr) observer_->used.insert(name);
    return found->second;
  }
  [[nodiscard]] ggml_tensor* vector(const std::string& name, std::int64_t size) {
    ggml_tensor* const tensor = weight(name);
    if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != size || ggml_nelements(tensor) != size)
      throw Misfit{std::format("tensor {} is {}, not a vector of {}", name, text_of(tensor), size)};
    return tensor;
  }
  // The matrix may have any number of rows.
  [[nodiscard]] ggml_tensor* matrix(const std::string& name, std::int64_t columns) {
    ggml_tensor* const tensor = weight(name);
    if (tensor->ne[0] != columns || ggml_nelements(tensor) != columns * tensor->ne[1])
      throw Misfit{std::format("tensor {} is {}, not a matrix of rows of {}", name, text_of(tensor), columns)};
    return tensor;
  }

  // --- Rows of numbers: [width, rows]

  [[nodiscard]] ggml_tensor* linear(const std::string& name, ggml_tensor* x, bool has_bias = true) {
    ggml_tensor* const product = ggml_mul_mat(context_, matrix(name + ".weight", x->ne[0]), x);
    return has_bias ? ggml_add(context_, product, vector(name + ".bias", product->ne[0])) : product;
  }
  [[nodiscard]] ggml_tensor* layer_norm(const std::string& name, ggml_tensor* x) {
    ggml_tensor* const scaled = ggml_mul(context_, ggml_norm(context_, x, kEpsilon), vector(name + ".weight", x->ne[0]));
    return ggml_add(context_, scaled, vector(name + ".bias", x->ne[0]));
  }
  [[nodiscard]] ggml_tensor* sum(const std::string& name, ggml_tensor* a, ggml_tensor* b) {
    if (!ggml_are_same_shape(a, b))
      throw Misfit{std::format("what {} computes is {} and not {}", name, text_of(b), text_of(a))};
    return ggml_add(context_, a, b);
  }
  // Each query's mean of the values by its similarity to the keys: [width, queries], of [width, keys].
  [[nodiscard]] ggml_tensor* attention(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, std::int64_t heads) {
    check_room();
    const std::int64_t width = q->ne[0];
    if (k->ne[0] != width || v->ne[0] != width || width % heads != 0)
      throw Misfit{
          std::format("an attention has {} queries, {} keys and {} values for {} heads", width, k->ne[0], v->ne[0], heads)};
    const std::int64_t head_width = width / heads;
    const auto split = [&](ggml_tensor* x) {
      return ggml_permute(context_, ggml_reshape_3d(context_, x, head_width, heads, x->ne[1]), 0, 2, 1, 3);
    };
    // Devices compute with keys and values of half precision; the CPU is as fast with whole ones.
    const auto stored = [&](ggml_tensor* x) { return network_.is_on_device ? ggml_cast(context_, x, GGML_TYPE_F16) : x; };
    ggml_tensor* const mixed = ggml_flash_attn_ext(context_, split(q), stored(split(k)), stored(split(v)), nullptr,
                                                   1 / std::sqrt(static_cast<float>(head_width)), 0, 0);
    return ggml_reshape_2d(context_, mixed, width, q->ne[1]);
  }

  // --- Pictures: [width, height, channels]

  // To [channels, places] and back.
  [[nodiscard]] ggml_tensor* rows_of(ggml_tensor* x) {
    return ggml_cont(context_, ggml_transpose(context_, ggml_reshape_2d(context_, x, x->ne[0] * x->ne[1], x->ne[2])));
  }
  [[nodiscard]] ggml_tensor* picture_of(ggml_tensor* rows, std::int64_t width, std::int64_t height) {
    return ggml_reshape_3d(context_, ggml_cont(context_, ggml_transpose(context_, rows)), width, height, rows->ne[0]);
  }
  // One number for each channel.
  [[nodiscard]] ggml_tensor* for_channels(ggml_tensor* numbers) {
    return ggml_reshape_3d(context_, numbers, 1, 1, ggml_nelements(numbers));
  }
  [[nodiscard]] ggml_tensor* group_norm(const std::string& name, ggml_tensor* x, float epsilon) {
    if (x->ne[2] % kGroups != 0) throw Misfit{std::format("{} has {} channels, no multiple of {}", name, x->ne[2], kGroups)};
    ggml_tensor* const normed = ggml_group_norm(context_, x, kGroups, epsilon);
    ggml_tensor* const scaled = ggml_mul(context_, normed, for_channels(vector(name + ".weight", x->ne[2])));
    return ggml_add(context_, scaled, for_channels(vector(name + ".bias", x->ne[2])));
  }
  [[nodiscard]] ggml_tensor* pointwise(const std::string& name, ggml_tensor* x) {
    return picture_of(linear(name, rows_of(x)), x->ne[0], x->ne[1]);
  }
  [[nodiscard]] ggml_tensor* concat(const std::string& name, ggml_tensor* a, ggml_tensor* b) {
    if (a->ne[0] != b->ne[0] || a->ne[1] != b->ne[1])
      throw Misfit{std::format("what {} joins is {} and {}", name, text_of(a), text_of(b))};
    return ggml_concat(context_, a, b, 2);
  }
  [[nodiscard]] ggml_tensor* doubled(ggml_tensor* x) {
    check_room();
    // The longest side of what a decoder makes; beyond that the library's checks end the process.
    constexpr std::int64_t kSideMax = 8192;
    if (x->ne[0] > kSideMax / 2 || x->ne[1] > kSideMax / 2)
      throw Misfit{"it enlarges pictures more often than a model of its kind"};
    return ggml_upscale(context_, x, 2, GGML_SCALE_MODE_NEAREST);
  }
  [[nodiscard]] ggml_tensor* silu(ggml_tensor* x) { return ggml_silu(context_, x); }

  // A convolution of 3 × 3, as a product of the kernel with each place's surroundings. In bands, so that the surroundings of
  // all places need not be in memory at the same time, and a computation can be ended between two of them.
  [[nodiscard]] ggml_tensor* convolution(const std::string& name, ggml_tensor* x, int stride = 1, Margins margins = {},
                                         bool has_bias = true) {
    const std::int64_t inputs = kKernelSide * kKernelSide * x->ne[2];
    ggml_tensor* const kernel = matrix(name + ".weight", inputs);
    const std::int64_t width = (x->ne[0] + margins.left + margins.right - kKernelSide) / stride + 1;
    const std::int64_t height = (x->ne[1] + margins.top + margins.bottom - kKernelSide) / stride + 1;
    if (x->ne[0] + margins.left + margins.right < kKernelSide || x->ne[1] + margins.top + margins.bottom < kKernelSide)
      throw Misfit{std::format("{} has too small a picture of {}", name, text_of(x))};
    const auto row_bytes = static_cast<std::size_t>(width * inputs) * sizeof(float);
    const auto rows = static_cast<std::int64_t>(
        std::clamp<std::size_t>(network_.column_bytes_max / row_bytes, 1, static_cast<std::size_t>(height)));
    ggml_tensor* out = nullptr;
    for (std::int64_t row = 0; row < height; row += rows) {
      check_room();
      const std::int64_t count = std::min(rows, height - row);
      ggml_tensor* const columns = surroundings(x, row, count, stride, margins);
      ggml_tensor* const product = ggml_mul_mat(context_, kernel, ggml_reshape_2d(context_, columns, inputs, width * count));
      ggml_tensor* const band = picture_of(product, width, count);
      if (out == nullptr) {
        out = count == height ? band : ggml_pad(context_, band, 0, static_cast<int>(height - count), 0, 0);
      } else {
        out = ggml_set_inplace(context_, out, band, out->nb[1], out->nb[2], out->nb[3],
                               static_cast<std::size_t>(row) * out->nb[1]);
      }
    }
    return has_bias ? ggml_add(context_, out, for_channels(vector(name + ".bias", kernel->ne[1]))) : out;
  }

 private:
  void check_room() const {
    if (weights_ + ggml_used_mem(context_) / ggml_tensor_overhead() > kTensorsMax)
      throw Misfit{"it has more layers than a model of its kind"};
  }

  // The 3 × 3 places around each one of `count` rows from `row` on: [9 * channels, width, count].
  [[nodiscard]] ggml_tensor* surroundings(ggml_tensor* x, std::int64_t row, std::int64_t count, int stride, Margins margins) {
    const std::int64_t first = row * stride - margins.top;
    const std::int64_t end = (row + count - 1) * stride - margins.top + kKernelSide;
    const std::int64_t from = std::max<std::int64_t>(first, 0);
    const std::int64_t to = std::min(end, x->ne[1]);
    ggml_tensor* band = x;
    if (from > 0 || to < x->ne[1]) {
      band = ggml_view_3d(context_, x, x->ne[0], to - from, x->ne[2], x->nb[1], x->nb[2],
                          static_cast<std::size_t>(from) * x->nb[1]);
    }
    // The library surrounds both sides equally.
    const int side = margins.left == margins.right ? margins.left : 0;
    const auto above = static_cast<int>(from - first);
    const auto below = static_cast<int>(end - to);
    const int around = above == below ? above : 0;
    if (side != margins.left || side != margins.right || above != below) {
      band =
          ggml_pad_ext(context_, band, margins.left - side, margins.right - side, above - around, below - around, 0, 0, 0, 0);
    }
    // Only its sizes are used.
    ggml_tensor*& shape = shapes_[x->ne[2]];
    if (shape == nullptr) {
      shape = ggml_new_tensor_4d(context_, GGML_TYPE_F16, kKernelSide, kKernelSide, x->ne[2], 1);
      ggml_set_input(shape);
    }
    return ggml_im2col(context_, shape, band, stride, stride, side, around, 1, 1, true, GGML_TYPE_F32);
  }

  const DiffusionNetwork& network_;
  ggml_context* const context_;
  ggml_cgraph* const graph_;
  GraphObserver* const observer_;
  std::map<std::int64_t, ggml_tensor*> shapes_;  // Shapes of kernels, by their inputs.
  std::size_t weights_ = 0;                      // Used; they count as the graph's, too.
};

// Makes a graph by build(builder, graph).
template <class Graph, class Build>
Expected<std::unique_ptr<Graph>> make(const DiffusionNetwork& network, GraphObserver* observer, const Build& build) {
  auto graph = std::make_unique<Graph>();
  Builder builder(network, *graph, observer);
  try {
    build(builder, *graph);
  } catch (const Misfit& misfit) {
    return fail(ErrorCode::model_load, misfit.text);
  }
  return graph;
}

// --- The text encoder

// A token sees those before it.
ggml_tensor* text_attention(Builder& build, const std::string& name, ggml_tensor* x) {
  ggml_context* const context = build.get();
  const std::int64_t width = x->ne[0];
  if (width % kHeadWidth != 0) throw Misfit{std::format("{} is {} wide, no multiple of {}", name, width, kHeadWidth)};
  const auto part = [&](const char* which) {
    ggml_tensor* const projected = build.linear(name + which, x);
    if (projected->ne[0] != width) throw Misfit{std::format("{}{} has {} rows, not {}", name, which, projected->ne[0], width)};
    return ggml_reshape_3d(context, projected, kHeadWidth, width / kHeadWidth, x->ne[1]);
  };
  ggml_tensor* const q = ggml_permute(context, part("q_proj"), 0, 2, 1, 3);
  ggml_tensor* const k = ggml_permute(context, part("k_proj"), 0, 2, 1, 3);
  ggml_tensor* const v = ggml_cont(context, ggml_permute(context, part("v_proj"), 1, 2, 0, 3));
  ggml_tensor* const scores = ggml_scale(context, ggml_mul_mat(context, k, q), 1 / std::sqrt(static_cast<float>(kHeadWidth)));
  ggml_tensor* const shares = ggml_soft_max(context, ggml_diag_mask_inf(context, scores, 0));
  ggml_tensor* const mixed = ggml_permute(context, ggml_mul_mat(context, v, shares), 0, 2, 1, 3);
  return build.linear(name + "out_proj", ggml_cont_2d(context, mixed, width, x->ne[1]));
}

void build_text(Builder& build, const DiffusionNetwork& network, TextGraph& graph) {
  ggml_context* const context = build.get();
  graph.tokens = build.input(GGML_TYPE_I32, kClipLength);
  ggml_tensor* const table = build.weight(kTokenTable);
  if (table->ne[1] != kClipTokens || ggml_nelements(table) != table->ne[0] * kClipTokens)
    throw Misfit{std::format("tensor {} is {}, not of {} tokens", kTokenTable, text_of(table), kClipTokens)};
  ggml_tensor* const places = build.matrix(kPlaceTable, table->ne[0]);
  if (places->ne[1] != kClipLength || places->type != GGML_TYPE_F32)
    throw Misfit{std::format("tensor {} is {}, not of {} tokens", kPlaceTable, text_of(places), kClipLength)};
  ggml_tensor* x = ggml_add(context, ggml_get_rows(context, table, graph.tokens), places);
  for (std::int32_t i = 0; i == 0 || i < network.text_layers; ++i) {
    const std::string layer = std::format("text.encoder.layers.{}.", i);
    x = build.sum(layer, x, text_attention(build, layer + "self_attn.", build.layer_norm(layer + "layer_norm1", x)));
    ggml_tensor* inner = build.linear(layer + "mlp.fc1", build.layer_norm(layer + "layer_norm2", x));
    constexpr float kQuick = 1.702F;  // An approximation of GELU that the first family was trained with.
    inner = network.family == DiffusionFamily::sd1
                ? ggml_mul(context, inner, ggml_sigmoid(context, ggml_scale(context, inner, kQuick)))
                : ggml_gelu_erf(context, inner);
    x = build.note(layer, build.sum(layer, x, build.linear(layer + "mlp.fc2", inner)));
  }
  graph.text = build.output(build.layer_norm("text.final_layer_norm", x));
}

// --- The network that predicts noise

class NoiseNetwork {
 public:
  NoiseNetwork(Builder& build, const DiffusionNetwork& network) : build_(build), family_(network.family) {}

  void build(NoiseGraph& graph, std::int32_t width, std::int32_t height, std::int32_t tokens) {
    graph.latent = build_.input(GGML_TYPE_F32, width, height, kLatentChannels);
    graph.waves = build_.input(GGML_TYPE_F32, build_.weight("unet.time_embed.0.weight")->ne[0]);
    text_ = graph.text = build_.input(GGML_TYPE_F32, build_.weight(kTextInput)->ne[0], tokens);
    if (graph.waves->ne[0] % 2 != 0) throw Misfit{"unet.time_embed.0.weight has an odd number of inputs"};
    time_ = build_.silu(build_.linear("unet.time_embed.2", build_.silu(build_.linear("unet.time_embed.0", graph.waves))));
    build_.note("unet.time", time_);

    ggml_tensor* x = graph.latent;
    std::vector<ggml_tensor*> skipped;
    for (std::int32_t i = 0; has_block(std::format("unet.input_blocks.{}.", i)); ++i)
      skipped.push_back(x = block(std::format("unet.input_blocks.{}.", i), x));
    x = block("unet.middle_block.", x);
    for (std::int32_t i = 0; has_block(std::format("unet.output_blocks.{}.", i)); ++i) {
      const std::string name = std::format("unet.output_blocks.{}.", i);
      if (skipped.empty()) throw Misfit{std::format("{} has no input block", name)};
      x = block(name, build_.concat(name, x, skipped.back()));
      skipped.pop_back();
    }
    if (!skipped.empty()) throw Misfit{std::format("{} input blocks have no output block", skipped.size())};
    x = build_.convolution("unet.out.2", build_.silu(build_.group_norm("unet.out.0", x, kEpsilon)));
    if (!ggml_are_same_shape(x, graph.latent))
      throw Misfit{std::format("what unet.out.2 computes is {} and not {}", text_of(x), text_of(graph.latent))};
    graph.predicted = build_.output(x);
  }

 private:
  [[nodiscard]] bool has_block(const std::string& name) const { return has_part(name + "0."); }
  [[nodiscard]] bool has_part(const std::string& part) const {
    for (const char* first : {"weight", "in_layers.0.weight", "op.weight", "proj_in.weight", "conv.weight"}) {
      if (build_.has(part + first)) return true;
    }
    return false;
  }

  // Parts one behind the other. What each of them is follows from its tensors.
  ggml_tensor* block(const std::string& name, ggml_tensor* x) {
    for (std::int32_t i = 0; has_part(std::format("{}{}.", name, i)); ++i) {
      const std::string part = std::format("{}{}.", name, i);
      if (build_.has(part + "in_layers.0.weight")) {
        x = residual(part, x);
      } else if (build_.has(part + "proj_in.weight")) {
        x = transformer(part, x);
      } else if (build_.has(part + "op.weight")) {
        x = build_.convolution(part + "op", x, 2);
      } else if (build_.has(part + "conv.weight")) {
        x = build_.convolution(part + "conv", build_.doubled(x));
      } else {
        x = build_.convolution(name + std::format("{}", i), x);
      }
    }
    return build_.note(name, x);
  }

  ggml_tensor* residual(const std::string& name, ggml_tensor* x) {
    ggml_context* const context = build_.get();
    ggml_tensor* inner = build_.silu(build_.group_norm(name + "in_layers.0", x, kEpsilon));
    inner = build_.convolution(name + "in_layers.2", inner);
    ggml_tensor* const time = build_.linear(name + "emb_layers.1", time_);
    if (time->ne[0] != inner->ne[2])
      throw Misfit{std::format("{}emb_layers.1 has {} rows, not {}", name, time->ne[0], inner->ne[2])};
    inner = ggml_add(context, inner, build_.for_channels(time));
    inner = build_.silu(build_.group_norm(name + "out_layers.0", inner, kEpsilon));
    inner = build_.convolution(name + "out_layers.3", inner);
    if (build_.has(name + "skip_connection.weight")) x = build_.pointwise(name + "skip_connection", x);
    return build_.sum(name, x, inner);
  }

  ggml_tensor* transformer(const std::string& name, ggml_tensor* x) {
    ggml_context* const context = build_.get();
    ggml_tensor* rows = build_.rows_of(build_.group_norm(name + "norm", x, kEpsilonFine));
    rows = build_.linear(name + "proj_in", rows);
    const std::int64_t heads =
        family_ == DiffusionFamily::sd1 ? kHeadsOfFirst : std::max<std::int64_t>(1, rows->ne[0] / kHeadWidth);
    for (std::int32_t i = 0; i == 0 || build_.has(std::format("{}transformer_blocks.{}.norm1.weight", name, i)); ++i) {
      const std::string layer = std::format("{}transformer_blocks.{}.", name, i);
      const auto attend = [&](const std::string& attention, const std::string& norm, ggml_tensor* keys) {
        ggml_tensor* const normed = build_.layer_norm(layer + norm, rows);
        if (keys == nullptr) keys = normed;
        const std::string prefix = layer + attention;
        ggml_tensor* const mixed =
            build_.attention(build_.linear(prefix + ".to_q", normed, false), build_.linear(prefix + ".to_k", keys, false),
                             build_.linear(prefix + ".to_v", keys, false), heads);
        rows = build_.sum(prefix, rows, build_.linear(prefix + ".to_out.0", mixed));
      };
      attend("attn1", "norm1", nullptr);
      attend("attn2", "norm2", text_);
      ggml_tensor* const wide = build_.linear(layer + "ff.net.0.proj", build_.layer_norm(layer + "norm3", rows));
      if (wide->ne[0] % 2 != 0) throw Misfit{std::format("{}ff.net.0.proj has an odd number of rows", layer)};
      rows = build_.sum(layer, rows, build_.linear(layer + "ff.net.2", ggml_geglu_erf_swapped(context, wide)));
    }
    return build_.sum(name, x, build_.picture_of(build_.linear(name + "proj_out", rows), x->ne[0], x->ne[1]));
  }

  Builder& build_;
  const DiffusionFamily family_;
  ggml_tensor* time_ = nullptr;
  ggml_tensor* text_ = nullptr;
};

// --- The decoder and encoder of latent pictures

ggml_tensor* vae_residual(Builder& build, const std::string& name, ggml_tensor* x) {
  ggml_tensor* inner = build.convolution(name + ".conv1", build.silu(build.group_norm(name + ".norm1", x, kEpsilonFine)));
  inner = build.convolution(name + ".conv2", build.silu(build.group_norm(name + ".norm2", inner, kEpsilonFine)));
  if (build.has(name + ".nin_shortcut.weight")) x = build.pointwise(name + ".nin_shortcut", x);
  return build.note(name, build.sum(name, x, inner));
}

ggml_tensor* vae_middle(Builder& build, const std::string& name, ggml_tensor* x) {
  x = vae_residual(build, name + "block_1", x);
  const std::string attention = name + "attn_1.";
  ggml_tensor* const rows = build.rows_of(build.group_norm(attention + "norm", x, kEpsilonFine));
  ggml_tensor* const mixed = build.attention(build.linear(attention + "q", rows), build.linear(attention + "k", rows),
                                             build.linear(attention + "v", rows), 1);
  x = build.sum(attention, x, build.picture_of(build.linear(attention + "proj_out", mixed), x->ne[0], x->ne[1]));
  return vae_residual(build, name + "block_2", build.note(attention, x));
}

// The levels of a decoder ("up") or an encoder ("down").
std::int32_t vae_levels(const Builder& build, const std::string& prefix) {
  std::int32_t levels = 0;
  while (build.has(std::format("{}.{}.block.0.norm1.weight", prefix, levels))) ++levels;
  if (levels == 0) throw Misfit{std::format("tensor {}.0.block.0.norm1.weight is missing", prefix)};
  return levels;
}

ggml_tensor* vae_blocks(Builder& build, const std::string& level, ggml_tensor* x) {
  for (std::int32_t i = 0; i == 0 || build.has(std::format("{}.block.{}.norm1.weight", level, i)); ++i)
    x = vae_residual(build, std::format("{}.block.{}", level, i), x);
  return x;
}

ggml_tensor* vae_decoded(Builder& build, ggml_tensor* latent) {
  ggml_context* const context = build.get();
  ggml_tensor* x = build.pointwise("vae.post_quant_conv", ggml_scale(context, latent, 1 / kLatentSpread));
  x = build.note("vae.decoder.conv_in", build.convolution("vae.decoder.conv_in", x));
  x = vae_middle(build, "vae.decoder.mid.", x);
  for (std::int32_t level = vae_levels(build, "vae.decoder.up"); level-- > 0;) {
    const std::string name = std::format("vae.decoder.up.{}", level);
    x = vae_blocks(build, name, x);
    if (level > 0) x = build.note(name, build.convolution(name + ".upsample.conv", build.doubled(x)));
  }
  x = build.convolution("vae.decoder.conv_out", build.silu(build.group_norm("vae.decoder.norm_out", x, kEpsilonFine)));
  return ggml_scale_bias(context, x, 0.5F, 0.5F);
}

// TAESD, by O. Bohan: convolutions, blocks of three of them, and enlargements between the blocks.
ggml_tensor* tae_decoded(Builder& build, ggml_tensor* latent) {
  ggml_context* const context = build.get();
  constexpr float kBound = 3;
  constexpr std::int32_t kLayersMax = 64;
  ggml_tensor* x = ggml_scale(context, ggml_tanh(context, ggml_scale(context, latent, 1 / kBound)), kBound);
  x = ggml_relu(context, build.convolution("tae.0", x));
  std::int32_t last = 1;
  for (std::int32_t i = 2; i < kLayersMax; ++i) {
    if (build.has(std::format("tae.{}.weight", i)) || build.has(std::format("tae.{}.conv.0.weight", i))) last = i;
  }
  for (std::int32_t i = 2; i <= last; ++i) {
    const std::string name = std::format("tae.{}", i);
    if (build.has(name + ".weight")) {
      x = build.convolution(name, x, 1, {}, build.has(name + ".bias"));
    } else if (build.has(name + ".conv.0.weight")) {
      ggml_tensor* inner = ggml_relu(context, build.convolution(name + ".conv.0", x));
      inner = ggml_relu(context, build.convolution(name + ".conv.2", inner));
      x = ggml_relu(context, build.sum(name, x, build.convolution(name + ".conv.4", inner)));
    } else {
      x = build.doubled(x);
    }
    build.note(name, x);
  }
  return x;
}

ggml_tensor* vae_encoded(Builder& build, ggml_tensor* picture) {
  ggml_context* const context = build.get();
  ggml_tensor* x = build.convolution("vae.encoder.conv_in", ggml_scale_bias(context, picture, 2, -1));
  const std::int32_t levels = vae_levels(build, "vae.encoder.down");
  for (std::int32_t level = 0; level < levels; ++level) {
    const std::string name = std::format("vae.encoder.down.{}", level);
    x = vae_blocks(build, name, x);
    if (level + 1 < levels)
      x = build.note(name, build.convolution(name + ".downsample.conv", x, 2, {.left = 0, .top = 0, .right = 1, .bottom = 1}));
  }
  x = vae_middle(build, "vae.encoder.mid.", x);
  x = build.convolution("vae.encoder.conv_out", build.silu(build.group_norm("vae.encoder.norm_out", x, kEpsilonFine)));
  x = build.pointwise("vae.quant_conv", x);
  // The means come first, then the logarithms of the variances, which are not used: the same picture gives the same numbers.
  if (x->ne[2] != 2 * kLatentChannels)
    throw Misfit{std::format("vae.quant_conv computes {} channels, not {}", x->ne[2], 2 * kLatentChannels)};
  ggml_tensor* const means = ggml_view_3d(context, x, x->ne[0], x->ne[1], kLatentChannels, x->nb[1], x->nb[2], 0);
  return ggml_scale(context, ggml_cont(context, means), kLatentSpread);
}

void check_size(const char* what, const ggml_tensor* tensor, std::int64_t width, std::int64_t height, std::int64_t channels) {
  if (tensor->ne[0] == width && tensor->ne[1] == height && tensor->ne[2] == channels) return;
  throw Misfit{std::format("what {} computes is {}, not {} × {} × {}", what, text_of(tensor), width, height, channels)};
}

}  // namespace

std::vector<std::int64_t> sizes_in_memory(const DiffusionTensor& tensor) {
  std::vector<std::int64_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
  if (sizes.size() < 3) return sizes;
  // A kernel, whose numbers for an output lie one behind the other.
  const std::int64_t outputs = sizes.back();
  sizes.pop_back();
  return {std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()), outputs};
}

bool is_vector_in_memory(const std::string& name, const DiffusionTensor& tensor) {
  return tensor.sizes.size() == 1 || name == kPlaceTable;
}

Expected<DiffusionNetwork> describe_network(const DiffusionFile& file, ggml_context* context) {
  DiffusionNetwork network{.family = file.family, .text_layers = file.text_layers, .tensors = {}};
  for (const auto& [name, tensor] : file.tensors) {
    const auto sizes = sizes_in_memory(tensor);
    const bool is_f32 = tensor.type >= GGML_TYPE_COUNT || is_vector_in_memory(name, tensor);
    const auto type = is_f32 ? GGML_TYPE_F32 : static_cast<ggml_type>(tensor.type);
    if (sizes.front() % ggml_blck_size(type) != 0)
      return fail(ErrorCode::model_load, std::format("tensor {} has rows of {} numbers", tensor.name, sizes.front()));
    network.tensors[name] = ggml_new_tensor(context, type, static_cast<int>(sizes.size()), sizes.data());
  }
  return network;
}

Expected<std::unique_ptr<TextGraph>> make_text_graph(const DiffusionNetwork& network, GraphObserver* observer) {
  return make<TextGraph>(network, observer, [&](Builder& build, TextGraph& graph) { build_text(build, network, graph); });
}

Expected<std::unique_ptr<NoiseGraph>> make_noise_graph(const DiffusionNetwork& network, std::int32_t width, std::int32_t height,
                                                       std::int32_t tokens, GraphObserver* observer) {
  return make<NoiseGraph>(network, observer, [&](Builder& build, NoiseGraph& graph) {
    NoiseNetwork(build, network).build(graph, width, height, tokens);
  });
}

Expected<std::unique_ptr<DecodeGraph>> make_decode_graph(const DiffusionNetwork& network, std::int32_t width,
                                                         std::int32_t height, GraphObserver* observer) {
  return make<DecodeGraph>(network, observer, [&](Builder& build, DecodeGraph& graph) {
    graph.latent = build.input(GGML_TYPE_F32, width, height, kLatentChannels);
    const bool is_small = network.has("tae.0.weight");
    graph.picture = is_small ? tae_decoded(build, graph.latent) : vae_decoded(build, graph.latent);
    check_size("the decoder", graph.picture, std::int64_t{kLatentScale} * width, std::int64_t{kLatentScale} * height, 3);
    build.output(graph.picture);
  });
}

Expected<std::unique_ptr<EncodeGraph>> make_encode_graph(const DiffusionNetwork& network, std::int32_t width,
                                                         std::int32_t height, GraphObserver* observer) {
  return make<EncodeGraph>(network, observer, [&](Builder& build, EncodeGraph& graph) {
    graph.picture = build.input(GGML_TYPE_F32, std::int64_t{kLatentScale} * width, std::int64_t{kLatentScale} * height, 3);
    graph.latent = vae_encoded(build, graph.picture);
    check_size("the encoder", graph.latent, width, height, kLatentChannels);
    build.output(graph.latent);
  });
}

}  // namespace uma::llm
