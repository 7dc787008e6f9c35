#include "make_model/picture_model_file.h"

#include <format>
#include <utility>

#include <gguf.h>

#include "make_model/gguf_writer.h"

namespace uma {
namespace {

constexpr float kGuidance = 2.5F;
constexpr float kShift = 3;
constexpr float kModulationGain = 0.3F;  // Shifts, scales and gates are small beside what they change.

Matrix table_of(std::string name, std::int64_t rows, std::int64_t columns, float gain = 1) {
  return {.name = std::move(name), .rows = rows, .columns = columns, .gain = gain, .type = GGML_TYPE_F32};
}

void add_layer(const std::string& prefix, const PictureSpec& spec, std::vector<Matrix>& list) {
  const std::int64_t width = spec.width;
  const std::int64_t inner = spec.feed_forward;
  list.push_back({.name = prefix + "attn_qkv.weight", .rows = 3 * width, .columns = width});
  list.push_back(vector_of(prefix + "attn_q_norm", width / spec.heads, 1));
  list.push_back(vector_of(prefix + "attn_k_norm", width / spec.heads, 1));
  list.push_back({.name = prefix + "attn_output.weight", .rows = width, .columns = width});
  list.push_back({.name = prefix + "ffn_gate_up.weight", .rows = 2 * inner, .columns = width});
  list.push_back({.name = prefix + "ffn_down.weight", .rows = width, .columns = inner});
}

std::vector<Matrix> matrices_of(const PictureSpec& spec) {
  const std::int64_t width = spec.width;
  const std::int64_t grid = spec.image_size / spec.patch;
  const std::int64_t numbers = std::int64_t{3} * spec.patch * spec.patch;
  const std::int64_t offsets = (2 * grid - 1) * (2 * grid - 1) + 3;
  std::vector<Matrix> list;
  list.push_back(table_of("text_embd", std::ssize(spec.words) + 2, width));
  list.push_back(table_of("text_pos", spec.text_length, width));
  for (std::uint32_t i = 0; i < spec.text_layers; ++i) {
    const std::string prefix = std::format("text.{}.", i);
    add_layer(prefix, spec, list);
    list.push_back(vector_of(prefix + "attn_norm", width, 1));
    list.push_back(vector_of(prefix + "ffn_norm", width, 1));
  }
  list.push_back(vector_of("text_norm", width, 1));
  list.push_back({.name = "patch_embd.weight", .rows = width, .columns = numbers});
  list.push_back(table_of("pos_row", grid, width));
  list.push_back(table_of("pos_col", grid, width));
  list.push_back(table_of("type_embd", 2, width));
  list.push_back({.name = "time_in.weight", .rows = width, .columns = spec.time_frequencies});
  list.push_back({.name = "time_out.weight", .rows = width, .columns = width});
  list.push_back({.name = "pool.weight", .rows = width, .columns = width});
  list.push_back({.name = "mod.weight", .rows = 6 * width, .columns = width, .gain = kModulationGain});
  list.push_back(vector_of("mod.bias", 6 * width, kModulationGain));
  for (std::uint32_t i = 0; i < spec.layers; ++i) {
    const std::string prefix = std::format("blk.{}.", i);
    add_layer(prefix, spec, list);
    list.push_back(table_of(prefix + "mod_table", 2, 6 * width));
    list.push_back(table_of(prefix + "attn_bias", offsets, spec.heads));
  }
  list.push_back({.name = "final_mod.weight", .rows = 2 * width, .columns = width, .gain = kModulationGain});
  list.push_back(vector_of("final_mod.bias", 2 * width, 0));
  list.push_back({.name = "output.weight", .rows = numbers, .columns = width});
  list.push_back(vector_of("output.bias", numbers, 0));
  return list;
}

GgufPtr metadata_of(const PictureSpec& spec) {
  GgufPtr gguf(gguf_init_empty());
  gguf_set_val_str(gguf.get(), "general.architecture", "uma-picture");
  gguf_set_val_str(gguf.get(), "general.name", spec.name.c_str());
  const auto set = [&](const char* key, std::uint32_t value) {
    gguf_set_val_u32(gguf.get(), std::format("uma-picture.{}", key).c_str(), value);
  };
  set("image_size", spec.image_size);
  set("patch", spec.patch);
  set("width", spec.width);
  set("layers", spec.layers);
  set("heads", spec.heads);
  set("feed_forward", spec.feed_forward);
  set("text_length", spec.text_length);
  set("text_layers", spec.text_layers);
  set("time_frequencies", spec.time_frequencies);
  set("steps", spec.steps);
  gguf_set_val_f32(gguf.get(), "uma-picture.guidance", kGuidance);
  gguf_set_val_f32(gguf.get(), "uma-picture.shift", kShift);
  gguf_set_val_str(gguf.get(), "uma-picture.prediction", "x");
  std::vector<const char*> words = {"<pad>", "<begin>"};
  for (const std::string& word : spec.words) words.push_back(word.c_str());
  gguf_set_arr_str(gguf.get(), "uma-picture.words", words.data(), words.size());
  return gguf;
}

}  // namespace

std::expected<void, std::string> write_picture_model(const PictureSpec& spec, const std::filesystem::path& path) {
  return write_gguf(metadata_of(spec), matrices_of(spec), GGML_TYPE_Q8_0, spec.seed, path);
}

}  // namespace uma
