#include "llm/picture/picture_file.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace uma::llm {
namespace {

// Numbers of the library's types.
constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kF16 = 1;
constexpr std::uint32_t kQ8_0 = 8;

struct Key {
  std::string_view name;
  std::int32_t PictureShape::* member;
  std::int64_t max;
};
constexpr Key kKeys[] = {
    {"image_size", &PictureShape::image_size, 1024},
    {"patch", &PictureShape::patch, 64},
    {"width", &PictureShape::width, 4096},
    {"layers", &PictureShape::layers, 128},
    {"heads", &PictureShape::heads, 128},
    {"feed_forward", &PictureShape::feed_forward, 16'384},
    {"text_length", &PictureShape::text_length, 1024},
    {"text_layers", &PictureShape::text_layers, 128},
    {"time_frequencies", &PictureShape::time_frequencies, 4096},
};
constexpr double kStepsMax = 1000;
constexpr std::int64_t kPatchesMax = 4096;
constexpr double kGuidanceMax = 20;
constexpr double kShiftMax = 100;

Error invalid(std::string text) {
  return {ErrorCode::model_load, std::move(text)};
}

using Sizes = std::vector<std::uint64_t>;

// Every tensor by its name.
std::map<std::string, Sizes> tensors_of(const PictureShape& shape, std::size_t words) {
  const auto size = [](std::int32_t number) { return static_cast<std::uint64_t>(number); };
  const std::uint64_t width = size(shape.width);
  const std::uint64_t numbers = size(shape.patch_numbers());
  std::map<std::string, Sizes> tensors{
      {"text_embd", {width, words}},
      {"text_pos", {width, size(shape.text_length)}},
      {"text_norm", {width}},
      {"patch_embd.weight", {numbers, width}},
      {"pos_row", {width, size(shape.grid())}},
      {"pos_col", {width, size(shape.grid())}},
      {"type_embd", {width, 2}},
      {"time_in.weight", {size(shape.time_frequencies), width}},
      {"time_out.weight", {width, width}},
      {"pool.weight", {width, width}},
      {"mod.weight", {width, 6 * width}},
      {"mod.bias", {6 * width}},
      {"final_mod.weight", {width, 2 * width}},
      {"final_mod.bias", {2 * width}},
      {"output.weight", {width, numbers}},
      {"output.bias", {numbers}},
  };
  const auto add_layer = [&](const std::string& prefix) {
    tensors[prefix + "attn_qkv.weight"] = {width, 3 * width};
    tensors[prefix + "attn_q_norm"] = tensors[prefix + "attn_k_norm"] = {size(shape.head_width())};
    tensors[prefix + "attn_output.weight"] = {width, width};
    tensors[prefix + "ffn_gate_up.weight"] = {width, 2 * size(shape.feed_forward)};
    tensors[prefix + "ffn_down.weight"] = {size(shape.feed_forward), width};
  };
  for (std::int32_t i = 0; i < shape.text_layers; ++i) {
    const std::string prefix = std::format("text.{}.", i);
    add_layer(prefix);
    tensors[prefix + "attn_norm"] = tensors[prefix + "ffn_norm"] = {width};
  }
  for (std::int32_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = std::format("blk.{}.", i);
    add_layer(prefix);
    tensors[prefix + "mod_table"] = {6 * width, 2};
    tensors[prefix + "attn_bias"] = {size(shape.heads), size(shape.bias_rows())};
  }
  return tensors;
}

Expected<PictureShape> shape_of(const GgufHeader& header) {
  PictureShape shape;
  for (const Key& key : kKeys) {
    const auto number = header.picture_numbers.find(std::string(key.name));
    const double value = number == header.picture_numbers.end() ? 0 : number->second;
    if (!(value >= 1 && value <= static_cast<double>(key.max)) || value != std::floor(value)) {
      return std::unexpected(
          invalid(std::format("{}.{} is {}, not a whole number from 1 to {}", kPictureArchitecture, key.name, value, key.max)));
    }
    shape.*key.member = static_cast<std::int32_t>(value);
  }
  if (shape.image_size % shape.patch != 0 || shape.patches() > kPatchesMax) {
    return std::unexpected(
        invalid(std::format("{} pixels are not up to {} whole patches of {}", shape.image_size, kPatchesMax, shape.patch)));
  }
  if (shape.width % shape.heads != 0 || shape.time_frequencies % 2 != 0) {
    return std::unexpected(invalid(std::format("a width of {} is not a multiple of {} heads, or {} time_frequencies are odd",
                                               shape.width, shape.heads, shape.time_frequencies)));
  }
  return shape;
}

Expected<Unit> check_tensors(const GgufHeader& header, const PictureShape& shape, std::size_t words) {
  std::map<std::string, Sizes> missing = tensors_of(shape, words);
  for (const GgufTensor& tensor : header.tensors) {
    const auto wanted = missing.find(tensor.name);
    if (wanted == missing.end())
      return std::unexpected(invalid(std::format("the model has no place for a tensor {}", tensor.name)));
    Sizes sizes = tensor.sizes;
    while (sizes.size() > wanted->second.size() && sizes.back() == 1) sizes.pop_back();
    if (sizes != wanted->second) {
      std::string text;
      for (const std::uint64_t size : wanted->second) text += std::format("{}{}", text.empty() ? "" : " × ", size);
      return std::unexpected(invalid(std::format("tensor {} is not {}", tensor.name, text)));
    }
    const bool is_matrix = tensor.name.ends_with(".weight");
    if (tensor.type != kF32 && !(is_matrix && (tensor.type == kF16 || tensor.type == kQ8_0))) {
      return std::unexpected(invalid(
          std::format("tensor {} has the type {}, not {}", tensor.name, tensor.type, is_matrix ? "f32, f16 or q8_0" : "f32")));
    }
    missing.erase(wanted);
  }
  if (!missing.empty()) return std::unexpected(invalid(std::format("tensor {} is missing", missing.begin()->first)));
  return Unit{};
}

}  // namespace

Expected<PictureFile> picture_file_of(GgufHeader header) {
  if (header.architecture != kPictureArchitecture) {
    return std::unexpected(invalid(std::format("the architecture is {}, not {}", header.architecture, kPictureArchitecture)));
  }
  const auto shape = shape_of(header);
  if (!shape) return std::unexpected(shape.error());
  const auto number = [&](const char* key, double otherwise) {
    const auto found = header.picture_numbers.find(key);
    return found == header.picture_numbers.end() ? otherwise : found->second;
  };
  const double steps = number("steps", 0);
  const double guidance = number("guidance", 1);
  const double shift = number("shift", 1);
  const std::tuple<const char*, double, double> numbers[] = {
      {"steps", steps, kStepsMax}, {"guidance", guidance, kGuidanceMax}, {"shift", shift, kShiftMax}};
  for (const auto& [key, value, max] : numbers) {
    if (value >= 1 && value <= max) continue;
    return std::unexpected(invalid(std::format("{}.{} is {}, not from 1 to {}", kPictureArchitecture, key, value, max)));
  }
  if (header.picture_words.size() < 3) {
    return std::unexpected(invalid(std::format("{}.words is missing or too short", kPictureArchitecture)));
  }
  if (auto checked = check_tensors(header, *shape, header.picture_words.size()); !checked)
    return std::unexpected(checked.error());
  PictureFile file{.header = std::move(header),
                   .shape = *shape,
                   .steps = static_cast<std::int32_t>(steps),
                   .guidance = static_cast<float>(guidance),
                   .shift = static_cast<float>(shift),
                   .words = {}};
  file.words = std::exchange(file.header.picture_words, {});
  return file;
}

Expected<PictureFile> read_picture_file(const std::string& path) {
  auto header = read_gguf_header(path, GgufKind::picture);
  if (!header) return std::unexpected(header.error());
  auto file = picture_file_of(*std::move(header));
  if (!file) return fail(file.error().code, std::format("{}: {}", path, file.error().message));
  return file;
}

}  // namespace uma::llm
