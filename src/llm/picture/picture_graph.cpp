#include "llm/picture/picture_graph.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <format>

namespace uma::llm {
namespace {

constexpr float kEpsilon = 1e-6F;

// Builds what both graphs have.
class Builder {
 public:
  Builder(const PictureShape& shape, const PictureTensors& tensors, ggml_context* context)
      : shape_(shape), tensors_(tensors), context_(context) {}

  [[nodiscard]] ggml_context* get() const { return context_; }
  [[nodiscard]] ggml_tensor* weight(const std::string& name) const { return tensors_.at(name); }

  [[nodiscard]] ggml_tensor* input(ggml_type type, std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) const {
    ggml_tensor* const tensor = ggml_new_tensor_3d(get(), type, a, b, c);
    ggml_set_input(tensor);
    return tensor;
  }
  [[nodiscard]] static ggml_tensor* output(ggml_tensor* tensor) {
    ggml_set_output(tensor);
    return tensor;
  }

  // x: contiguous. Its rows are multiplied as those of one matrix, which is all that the CPU's own layouts of weights take.
  [[nodiscard]] ggml_tensor* linear(const std::string& name, ggml_tensor* x) const {
    ggml_tensor* const matrix = weight(name + ".weight");
    ggml_tensor* const rows = ggml_reshape_2d(get(), x, x->ne[0], ggml_nrows(x));
    return ggml_reshape_3d(get(), ggml_mul_mat(get(), matrix, rows), matrix->ne[1], x->ne[1], x->ne[2]);
  }
  [[nodiscard]] ggml_tensor* linear_with_bias(const std::string& name, ggml_tensor* x) const {
    return ggml_add(get(), linear(name, x), weight(name + ".bias"));
  }
  [[nodiscard]] ggml_tensor* rms(ggml_tensor* x, const std::string& name) const {
    return ggml_mul(get(), ggml_rms_norm(get(), x, kEpsilon), weight(name));
  }

  // x: [width, tokens, rows]. `scores` are added to those of the queries and keys; null: none.
  [[nodiscard]] ggml_tensor* attention(ggml_tensor* x, const std::string& layer, ggml_tensor* scores) const {
    const std::int64_t heads = shape_.heads;
    const std::int64_t head = shape_.head_width();
    const std::int64_t tokens = x->ne[1];
    const std::int64_t rows = x->ne[2];
    ggml_tensor* const qkv = linear(layer + "attn_qkv", x);
    const auto part = [&](std::size_t index) {  // [head, heads, tokens, rows]
      return ggml_view_4d(get(), qkv, head, heads, tokens, rows, static_cast<std::size_t>(head) * sizeof(float), qkv->nb[1],
                          qkv->nb[2], index * static_cast<std::size_t>(shape_.width) * sizeof(float));
    };
    ggml_tensor* const q = ggml_permute(get(), rms(part(0), layer + "attn_q_norm"), 0, 2, 1, 3);
    ggml_tensor* const k = ggml_permute(get(), rms(part(1), layer + "attn_k_norm"), 0, 2, 1, 3);
    ggml_tensor* const v = ggml_cont(get(), ggml_permute(get(), part(2), 1, 2, 0, 3));  // [tokens, head, heads, rows]
    ggml_tensor* const weights =
        ggml_soft_max_ext(get(), ggml_mul_mat(get(), k, q), scores, 1 / std::sqrt(static_cast<float>(head)), 0);
    ggml_tensor* const mixed = ggml_permute(get(), ggml_mul_mat(get(), v, weights), 0, 2, 1, 3);
    return linear(layer + "attn_output", ggml_cont_3d(get(), mixed, shape_.width, tokens, rows));
  }
  [[nodiscard]] ggml_tensor* feed_forward(ggml_tensor* x, const std::string& layer) const {
    return linear(layer + "ffn_down", ggml_swiglu(get(), linear(layer + "ffn_gate_up", x)));
  }

  // Part `index` of numbers that are `width` each: [width, 1, rows] of [parts * width, rows].
  [[nodiscard]] ggml_tensor* part_of(ggml_tensor* parts, std::size_t index) const {
    return ggml_view_3d(get(), parts, shape_.width, 1, parts->ne[1], parts->nb[1], parts->nb[1],
                        index * static_cast<std::size_t>(shape_.width) * sizeof(float));
  }
  // The norm of x, scaled and shifted by parts of the modulation.
  [[nodiscard]] ggml_tensor* modulated(ggml_tensor* x, ggml_tensor* modulation, std::size_t shift) const {
    ggml_tensor* const normed = ggml_norm(get(), x, kEpsilon);
    ggml_tensor* const scaled = ggml_add(get(), normed, ggml_mul(get(), normed, part_of(modulation, shift + 1)));
    return ggml_add(get(), scaled, part_of(modulation, shift));
  }
  // Row `index` of a table of two rows.
  [[nodiscard]] ggml_tensor* row_of(const std::string& table, std::size_t index) const {
    ggml_tensor* const tensor = weight(table);
    return ggml_view_1d(get(), tensor, tensor->ne[0], index * tensor->nb[1]);
  }

 private:
  const PictureShape& shape_;
  const PictureTensors& tensors_;
  ggml_context* const context_;
};

}  // namespace

std::unique_ptr<CaptionGraph> make_caption_graph(const PictureShape& shape, const PictureTensors& tensors) {
  auto graph = std::make_unique<CaptionGraph>();
  CaptionGraph& made = *graph;
  ggml_context* const context = made.context.get();
  const Builder build(shape, tensors, context);
  made.words = build.input(GGML_TYPE_I32, shape.text_length);
  ggml_tensor* x = ggml_add(context, ggml_get_rows(context, build.weight("text_embd"), made.words), build.weight("text_pos"));
  for (std::int32_t i = 0; i < shape.text_layers; ++i) {
    const std::string layer = std::format("text.{}.", i);
    x = ggml_add(context, x, build.attention(build.rms(x, layer + "attn_norm"), layer, nullptr));
    x = ggml_add(context, x, build.feed_forward(build.rms(x, layer + "ffn_norm"), layer));
  }
  made.text = Builder::output(build.rms(x, "text_norm"));
  ggml_tensor* const columns = ggml_cont(context, ggml_transpose(context, made.text));
  made.pooled = Builder::output(ggml_mean(context, columns));
  ggml_build_forward_expand(made.graph, made.text);
  ggml_build_forward_expand(made.graph, made.pooled);
  return graph;
}

std::unique_ptr<DenoiseGraph> make_denoise_graph(const PictureShape& shape, const PictureTensors& tensors, std::int32_t rows) {
  auto graph = std::make_unique<DenoiseGraph>();
  DenoiseGraph& made = *graph;
  ggml_context* const context = made.context.get();
  const Builder build(shape, tensors, context);
  made.patches = build.input(GGML_TYPE_F32, shape.patch_numbers(), shape.patches(), rows);
  made.waves = build.input(GGML_TYPE_F32, shape.time_frequencies, rows);
  made.text = build.input(GGML_TYPE_F32, shape.width, shape.text_length, rows);
  made.pooled = build.input(GGML_TYPE_F32, shape.width, rows);

  ggml_tensor* const time = build.linear("time_out", ggml_silu(context, build.linear("time_in", made.waves)));
  ggml_tensor* const condition = ggml_silu(context, ggml_add(context, time, build.linear("pool", made.pooled)));
  ggml_tensor* const modulation = build.linear_with_bias("mod", condition);

  // The tokens of the text and of the image, whose modulations differ.
  std::array<ggml_tensor*, 2> x{ggml_add(context, made.text, build.row_of("type_embd", 0)),
                                ggml_add(context, build.linear("patch_embd", made.patches), build.weight("places"))};
  for (std::int32_t i = 0; i < shape.layers; ++i) {
    const std::string layer = std::format("blk.{}.", i);
    std::array<ggml_tensor*, 2> of_layer{};
    for (std::size_t part = 0; part < 2; ++part)
      of_layer[part] = ggml_add(context, modulation, build.row_of(layer + "mod_table", part));
    for (const std::size_t shift : {0U, 3U}) {
      ggml_tensor* const all =
          ggml_concat(context, build.modulated(x[0], of_layer[0], shift), build.modulated(x[1], of_layer[1], shift), 1);
      ggml_tensor* const computed =
          shift == 0 ? build.attention(all, layer, build.weight(layer + "scores")) : build.feed_forward(all, layer);
      std::size_t begin = 0;
      for (std::size_t part = 0; part < 2; ++part) {
        ggml_tensor* const own = ggml_view_3d(context, computed, shape.width, x[part]->ne[1], rows, computed->nb[1],
                                              computed->nb[2], begin * computed->nb[1]);
        begin += static_cast<std::size_t>(x[part]->ne[1]);
        x[part] = ggml_add(context, x[part], ggml_mul(context, own, build.part_of(of_layer[part], shift + 2)));
      }
    }
  }
  ggml_tensor* const last = build.modulated(x[1], build.linear_with_bias("final_mod", condition), 0);
  made.clean = Builder::output(build.linear_with_bias("output", last));
  ggml_build_forward_expand(made.graph, made.clean);
  return graph;
}

}  // namespace uma::llm
