#include "make_model/projector_file.h"

#include <array>
#include <cmath>
#include <format>
#include <utility>
#include <vector>

#include <gguf.h>

#include "base/check.h"
#include "base/random.h"
#include "make_model/gguf_writer.h"
#include "make_model/shift_register.h"

namespace uma {

namespace {

constexpr std::int64_t kColours = 3;
constexpr std::int64_t kFirstSign = 1;  // Place of the first sign in a row of the encoder's last layer.

void add_linear(const std::string& name, std::int64_t rows, std::int64_t columns, float gain, std::vector<Matrix>& list) {
  list.push_back({.name = name + ".weight", .rows = rows, .columns = columns, .gain = gain});
  list.push_back(vector_of(name + ".bias", rows, 0));
}

void add_norm(const std::string& name, std::int64_t width, std::vector<Matrix>& list) {
  list.push_back(vector_of(name + ".weight", width, 1));
  list.push_back(vector_of(name + ".bias", width, 0));
}

// Adds the last normalization, which gives 1 at the first place: a word has a 1 at kPlaceOne, so a row needs one too.
void add_norm_with_a_one(const std::string& name, std::int64_t width, std::vector<Matrix>& list) {
  Matrix weight = zeros(name + ".weight", 1, width);
  weight.values.assign(weight.values.size(), 1);
  weight.values[0] = 0;
  Matrix bias = zeros(name + ".bias", 1, width);
  bias.values[0] = 1;
  list.push_back(std::move(weight));
  list.push_back(std::move(bias));
}

// Adds the last feed-forward block, which gives a row its code: each place of the code gets a number that is nearly always +s
// or -s, by the sign of a random sum z over the row. gelu(z + c) - gelu(z - c) - c is c or -c unless z is smaller than c.
void add_signs(const std::string& block, const ProjectorSpec& spec, std::vector<Matrix>& list) {
  constexpr float kSteepness = 200;
  constexpr float kLimit = 4;
  constexpr float kSize = 32;  // The size s: other numbers at these places are small.
  const std::int64_t inner = spec.feed_forward;
  Matrix up = zeros(block + "ffn_up.weight", inner, spec.width);
  Matrix up_bias = zeros(block + "ffn_up.bias", 1, inner);
  Matrix down = zeros(block + "ffn_down.weight", spec.width, inner);
  Matrix down_bias = zeros(block + "ffn_down.bias", 1, spec.width);
  Random random(~spec.seed);
  for (std::int64_t bit = 0; bit < kCodeBits; ++bit) {
    for (std::int64_t column = 0; column < spec.width; ++column) {
      const float weight = kSteepness * (static_cast<float>(random.next_unit()) - 0.5F);
      at(up, 2 * bit, column) = weight;
      at(up, 2 * bit + 1, column) = weight;
    }
    at(up_bias, 0, 2 * bit) = kLimit;
    at(up_bias, 0, 2 * bit + 1) = -kLimit;
    at(down, kFirstSign + bit, 2 * bit) = kSize / kLimit;
    at(down, kFirstSign + bit, 2 * bit + 1) = -kSize / kLimit;
    at(down_bias, 0, kFirstSign + bit) = -kSize;
  }
  for (Matrix* matrix : {&up, &up_bias, &down, &down_bias}) list.push_back(std::move(*matrix));
}

// Returns the approximate size of the code's numbers after the normalization, because they are most of a row.
float size_of_signs(const ProjectorSpec& spec) {
  return std::sqrt(static_cast<float>(spec.width) / static_cast<float>(kCodeBits));
}

Matrix projection(const ProjectorSpec& spec) {
  Matrix matrix = zeros("mm.input_projection.weight", spec.width, spec.row_width);
  at(matrix, 0, kPlaceOne) = 1;
  for (std::int64_t bit = 0; bit < kCodeBits; ++bit) at(matrix, kFirstSign + bit, kPlaceCode + bit) = 1 / size_of_signs(spec);
  return matrix;
}

constexpr float kProjectorQueryKeyGain = 1.7F;

std::vector<Matrix> list_grid_matrices(const ProjectorSpec& spec) {
  constexpr std::int64_t kPatchesPerRow = 4;
  const std::int64_t width = spec.width;
  const std::int64_t patch = spec.patch_size;
  std::vector<Matrix> list;
  for (const char* frame : {"v.patch_embd.weight", "v.patch_embd.weight.1"}) {
    list.push_back({.name = frame,
                    .rows = width,
                    .columns = kColours * patch * patch,
                    .gain = 4,
                    .shape = {patch, patch, kColours, width}});
  }
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string block = std::format("v.blk.{}.", layer);
    list.push_back(vector_of(block + "ln1.weight", width, 1));
    add_linear(block + "attn_q", width, width, kProjectorQueryKeyGain, list);
    add_linear(block + "attn_k", width, width, kProjectorQueryKeyGain, list);
    add_linear(block + "attn_v", width, width, 1, list);
    add_linear(block + "attn_out", width, width, 1, list);
    list.push_back(vector_of(block + "ln2.weight", width, 1));
    add_linear(block + "ffn_gate", spec.feed_forward, width, 1, list);
    add_linear(block + "ffn_up", spec.feed_forward, width, 1, list);
    add_linear(block + "ffn_down", width, spec.feed_forward, 1, list);
  }
  list.push_back(vector_of("v.post_ln.weight", width, 1));
  add_linear("mm.0", kPatchesPerRow * width, kPatchesPerRow * width, 1, list);
  add_linear("mm.2", spec.row_width, kPatchesPerRow * width, 2, list);
  return list;
}

// A convolution over three neighbours in time; the library wants the bias as a column.
void add_convolution(const std::string& name, std::int64_t inputs, std::int64_t outputs, std::vector<Matrix>& list) {
  constexpr std::int64_t kNeighbours = 3;
  list.push_back({.name = name + ".weight",
                  .rows = outputs,
                  .columns = kNeighbours * inputs,
                  .gain = 2,
                  .shape = {kNeighbours, inputs, outputs, 1}});
  Matrix bias = vector_of(name + ".bias", outputs, 0);
  bias.shape = {1, outputs, 1, 1};
  list.push_back(std::move(bias));
}

constexpr std::int64_t kMelBands = 80;

std::vector<Matrix> list_sound_matrices(const ProjectorSpec& spec) {
  constexpr std::int64_t kStates = 1500;
  const std::int64_t width = spec.width;
  const std::int64_t stacked = width * spec.stack;
  std::vector<Matrix> list;
  add_convolution("a.conv1d.1", kMelBands, width, list);
  add_convolution("a.conv1d.2", width, width, list);
  list.push_back({.name = "a.position_embd.weight", .rows = kStates, .columns = width, .gain = 2, .type = GGML_TYPE_F32});
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string block = std::format("a.blk.{}.", layer);
    add_norm(block + "ln1", width, list);
    add_linear(block + "attn_q", width, width, kProjectorQueryKeyGain, list);
    list.push_back({.name = block + "attn_k.weight", .rows = width, .columns = width, .gain = kProjectorQueryKeyGain});
    add_linear(block + "attn_v", width, width, 1, list);
    add_linear(block + "attn_out", width, width, 1, list);
    add_norm(block + "ln2", width, list);
    add_linear(block + "ffn_up", spec.feed_forward, width, 1, list);
    add_linear(block + "ffn_down", width, spec.feed_forward, 1, list);
  }
  add_norm("a.post_ln", width, list);
  list.push_back(vector_of("mm.a.norm_pre.weight", stacked, 1));
  // One half of the first product gates the other one.
  list.push_back({.name = "mm.a.mlp.1.weight", .rows = 2 * spec.feed_forward, .columns = stacked});
  list.push_back(vector_of("mm.a.norm_mid.weight", spec.feed_forward, 1));
  list.push_back({.name = "mm.a.mlp.2.weight", .rows = spec.row_width, .columns = spec.feed_forward, .gain = 2});
  return list;
}

std::expected<void, std::string> write_sound_projector(const ProjectorSpec& spec, const std::filesystem::path& path) {
  UMA_CHECK(spec.width % spec.heads == 0 && spec.stack > 0);
  GgufPtr gguf(gguf_init_empty());
  const auto set_u32 = [&](const char* key, std::uint32_t value) {
    gguf_set_val_u32(gguf.get(), std::format("clip.audio.{}", key).c_str(), value);
  };
  gguf_set_val_str(gguf.get(), "general.architecture", "clip");
  gguf_set_val_str(gguf.get(), "general.type", "mmproj");
  gguf_set_val_str(gguf.get(), "general.name", spec.name.c_str());
  gguf_set_val_u32(gguf.get(), "general.file_type", 1);
  gguf_set_val_bool(gguf.get(), "clip.has_audio_encoder", true);
  gguf_set_val_bool(gguf.get(), "clip.has_vision_encoder", false);
  gguf_set_val_str(gguf.get(), "clip.projector_type", "ultravox");
  gguf_set_val_bool(gguf.get(), "clip.use_gelu", true);
  set_u32("projection_dim", spec.row_width);
  set_u32("num_mel_bins", kMelBands);
  set_u32("embedding_length", spec.width);
  set_u32("feed_forward_length", spec.feed_forward);
  set_u32("block_count", spec.layers);
  set_u32("attention.head_count", spec.heads);
  set_u32("projector.stack_factor", spec.stack);
  gguf_set_val_f32(gguf.get(), "clip.audio.attention.layer_norm_epsilon", 1e-5F);
  // The library convolves with 16-bit numbers only.
  return write_gguf(std::move(gguf), list_sound_matrices(spec), GGML_TYPE_F16, spec.seed, path);
}

std::vector<Matrix> list_projector_matrices(const ProjectorSpec& spec) {
  if (spec.kind == ProjectorKind::qwen25vl) return list_grid_matrices(spec);
  const std::int64_t width = spec.width;
  const std::int64_t patch = spec.patch_size;
  const std::int64_t side = spec.image_size / spec.patch_size;
  std::vector<Matrix> list;
  list.push_back({.name = "v.patch_embd.weight",
                  .rows = width,
                  .columns = kColours * patch * patch,
                  .gain = 2,
                  .shape = {patch, patch, kColours, width}});
  list.push_back(vector_of("v.patch_embd.bias", width, 0));
  list.push_back({.name = "v.position_embd.weight", .rows = side * side, .columns = width, .gain = 4});
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string block = std::format("v.blk.{}.", layer);
    add_norm(block + "ln1", width, list);
    add_linear(block + "attn_q", width, width, kProjectorQueryKeyGain, list);
    add_linear(block + "attn_k", width, width, kProjectorQueryKeyGain, list);
    add_linear(block + "attn_v", width, width, 1, list);
    add_linear(block + "attn_out", width, width, 1, list);
    add_norm(block + "ln2", width, list);
    if (layer + 1 == spec.layers) {
      add_signs(block, spec, list);
    } else {
      add_linear(block + "ffn_up", spec.feed_forward, width, 1, list);
      add_linear(block + "ffn_down", width, spec.feed_forward, 1, list);
    }
  }
  add_norm_with_a_one("v.post_ln", width, list);
  list.push_back(vector_of("mm.soft_emb_norm.weight", width, 1));
  list.push_back(projection(spec));
  return list;
}

}  // namespace

std::expected<void, std::string> write_projector(const ProjectorSpec& spec, const std::filesystem::path& path) {
  if (spec.kind == ProjectorKind::ultravox) return write_sound_projector(spec, path);
  const bool has_grid = spec.kind == ProjectorKind::qwen25vl;
  UMA_CHECK(spec.image_size % spec.patch_size == 0 && spec.width % spec.heads == 0);
  UMA_CHECK(has_grid || (spec.row_width >= kPlaceCode + kCodeBits && spec.width > kCodeBits));
  UMA_CHECK(has_grid || spec.feed_forward >= 2 * kCodeBits);
  GgufPtr gguf(gguf_init_empty());
  const auto set_u32 = [&](const char* key, std::uint32_t value) {
    gguf_set_val_u32(gguf.get(), std::format("clip.vision.{}", key).c_str(), value);
  };
  gguf_set_val_str(gguf.get(), "general.architecture", "clip");
  gguf_set_val_str(gguf.get(), "general.type", "clip-vision");
  gguf_set_val_str(gguf.get(), "general.name", spec.name.c_str());
  gguf_set_val_u32(gguf.get(), "general.file_type", 0);
  gguf_set_val_bool(gguf.get(), "clip.has_vision_encoder", true);
  gguf_set_val_str(gguf.get(), "clip.projector_type", has_grid ? "qwen2.5vl_merger" : "gemma3");
  gguf_set_val_bool(gguf.get(), has_grid ? "clip.use_silu" : "clip.use_gelu", true);
  if (has_grid) set_u32("n_wa_pattern", 2);
  set_u32("projection_dim", spec.row_width);
  set_u32("image_size", spec.image_size);
  set_u32("patch_size", spec.patch_size);
  set_u32("embedding_length", spec.width);
  set_u32("feed_forward_length", spec.feed_forward);
  set_u32("block_count", spec.layers);
  set_u32("attention.head_count", spec.heads);
  if (!has_grid) set_u32("projector.scale_factor", 1);
  gguf_set_val_f32(gguf.get(), "clip.vision.attention.layer_norm_epsilon", 1e-6F);
  const std::array<float, kColours> half{0.5F, 0.5F, 0.5F};
  gguf_set_arr_data(gguf.get(), "clip.vision.image_mean", GGUF_TYPE_FLOAT32, half.data(), half.size());
  gguf_set_arr_data(gguf.get(), "clip.vision.image_std", GGUF_TYPE_FLOAT32, half.data(), half.size());
  return write_gguf(std::move(gguf), list_projector_matrices(spec), GGML_TYPE_F32, spec.seed, path);
}

}  // namespace uma
