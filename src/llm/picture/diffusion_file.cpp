#include "llm/picture/diffusion_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "llm/picture/diffusion_drawing.h"

namespace uma::llm {
namespace {

struct Prefix {
  std::string_view file;
  std::string_view ours;
};
// The first prefix that fits counts, if several fit.
constexpr Prefix kPrefixes[] = {
    {kDiffusionPrefix, "unet."},
    {"cond_stage_model.transformer.text_model.", "text."},
    {"cond_stage_model.transformer.", "text."},
    {"conditioner.embedders.0.transformer.text_model.", "text."},
    {"text_encoders.clip_l.transformer.text_model.", "text."},
    {"text_encoders.clip_h.transformer.text_model.", "text."},
    {"cond_stage_model.model.", "open_clip."},
    {"conditioner.embedders.0.model.", "open_clip."},
    {"first_stage_model.", "vae."},
    {"vae.", "vae."},
    {"tae.decoder.layers.", "tae."},
};

// From OpenCLIP's names behind "open_clip." or "…resblocks.N.".
constexpr Prefix kOpenClip[] = {
    {"token_embedding.", "text.embeddings.token_embedding."},
    {"positional_embedding", "text.embeddings.position_embedding.weight"},
    {"ln_final.", "text.final_layer_norm."},
};
constexpr Prefix kOpenClipLayer[] = {
    {"ln_1.", "layer_norm1."},
    {"ln_2.", "layer_norm2."},
    {"mlp.c_fc.", "mlp.fc1."},
    {"mlp.c_proj.", "mlp.fc2."},
    {"attn.out_proj.", "self_attn.out_proj."},
    {"attn.in_proj_weight", "self_attn.qkv.weight"},
    {"attn.in_proj_bias", "self_attn.qkv.bias"},
};

std::unexpected<Error> refuse(std::string text) {
  return fail(ErrorCode::model_load, std::move(text));
}

std::optional<std::string> replaced(std::span<const Prefix> prefixes, std::string_view name) {
  for (const Prefix& prefix : prefixes) {
    if (name.starts_with(prefix.file)) return std::string(prefix.ours) + std::string(name.substr(prefix.file.size()));
  }
  return std::nullopt;
}

// The number that a text begins with, and what follows it.
struct Numbered {
  std::int32_t number = 0;
  std::string_view rest;  // Begins with a dot.
};
std::optional<Numbered> numbered(std::string_view text) {
  std::int32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end == text.data() + text.size() || *end != '.' || number < 0) return std::nullopt;
  return Numbered{number, text.substr(static_cast<std::size_t>(end - text.data()))};
}

std::optional<std::string> name_of_open_clip(std::string_view name) {
  constexpr std::string_view kLayers = "transformer.resblocks.";
  if (!name.starts_with(kLayers)) return replaced(kOpenClip, name);
  const auto layer = numbered(name.substr(kLayers.size()));
  if (!layer) return std::nullopt;
  const auto rest = replaced(kOpenClipLayer, layer->rest.substr(1));
  return rest ? std::optional(std::format("text.encoder.layers.{}.{}", layer->number, *rest)) : std::nullopt;
}

// Our name for a tensor of a whole model; nullopt: it is not needed.
std::optional<std::string> name_of(std::string_view name) {
  constexpr std::string_view kOpenClipPrefix = "open_clip.";
  auto ours = replaced(kPrefixes, name);
  if (!ours || !ours->starts_with(kOpenClipPrefix)) return ours;
  return name_of_open_clip(std::string_view(*ours).substr(kOpenClipPrefix.size()));
}

// Our name for a tensor of a file that only decodes latent pictures; nullopt: not needed. Its name may lack the prefix.
std::optional<std::string> name_in_decoder(std::string_view name) {
  if (name.starts_with("first_stage_model.") || name.starts_with("vae.") || name.starts_with("tae.")) return name_of(name);
  // TAESD: by the diffusers library, or by its authors, who count the first layer.
  constexpr std::string_view kLayers = "decoder.layers.";
  if (name.starts_with(kLayers)) return "tae." + std::string(name.substr(kLayers.size()));
  if (const auto layer = numbered(name); layer && layer->number > 0)
    return std::format("tae.{}{}", layer->number - 1, layer->rest);
  for (const std::string_view part : {"decoder.", "encoder.", "post_quant_conv.", "quant_conv."}) {
    if (name.starts_with(part)) return "vae." + std::string(name);
  }
  return std::nullopt;
}

// Splits what OpenCLIP has as one tensor.
void add(DiffusionFile& file, std::string name, DiffusionTensor tensor) {
  constexpr std::string_view kAll = ".qkv.";
  const std::size_t at = name.find(kAll);
  if (at == std::string::npos || !name.starts_with("text.") || tensor.sizes.back() % 3 != 0) {
    file.tensors.insert_or_assign(std::move(name), std::move(tensor));
    return;
  }
  tensor.sizes.back() /= 3;
  tensor.bytes /= 3;
  for (const std::string_view part : {".q_proj.", ".k_proj.", ".v_proj."}) {
    file.tensors.insert_or_assign(name.substr(0, at) + std::string(part) + name.substr(at + kAll.size()), tensor);
    tensor.offset += tensor.bytes;
  }
}

// A part of a tensor's name by which another model is known, whose names begin like those of a model that is read.
struct Foreign {
  std::string_view part;
  std::string_view model;
};
constexpr Foreign kForeign[] = {
    {"joint_blocks.", "Stable Diffusion 3"},
    {"double_blocks.", "FLUX or another transformer"},
    {"double_stream_", "a transformer"},
    {"conditioner.embedders.1.", "Stable Diffusion XL"},
    {"cond_stage_model.1.", "Stable Diffusion XL"},
    {"model.diffusion_model.label_emb.", "Stable Diffusion XL"},
    {"input_hint_block.", "a ControlNet"},
    {"time_embed.cond_proj.", "a model that takes the guidance as an input"},
    {"motion_modules.", "a model of videos"},
};
constexpr std::string_view kServed = "only Stable Diffusion 1 and 2, Turbo and LCM are served";

Expected<Unit> check_kind(const DiffusionFile& file, const GgufHeader& head) {
  for (const GgufTensor& tensor : head.tensors) {
    const auto foreign = std::ranges::find_if(kForeign, [&](const Foreign& each) { return tensor.name.contains(each.part); });
    if (foreign != std::end(kForeign))
      return refuse(std::format("it is {}, by its tensor {}: {}", foreign->model, tensor.name, kServed));
  }
  const auto input = file.tensors.find("unet.input_blocks.0.0.weight");
  if (input == file.tensors.end())
    return refuse(std::format("tensor {}input_blocks.0.0.weight is missing: {}", kDiffusionPrefix, kServed));
  const auto& sizes = input->second.sizes;
  if (sizes.size() != 4 || sizes[2] != std::uint64_t{kLatentChannels}) {
    const bool inpaints = sizes.size() == 4 && sizes[2] > std::uint64_t{kLatentChannels};
    return refuse(std::format("tensor {} has not {} channels{}", input->second.name, kLatentChannels,
                              inpaints ? ": models that fill in or edit a picture are not served" : ""));
  }
  if (!file.tensors.contains("unet.middle_block.1.proj_in.weight"))
    return refuse(std::format("tensor {}middle_block.1.proj_in.weight is missing: distilled smaller networks are not served",
                              kDiffusionPrefix));
  return Unit{};
}

// In SD 2 what goes into the transformers is no convolution.
DiffusionFamily family_of(const DiffusionFile& file) {
  const auto& sizes = file.tensors.at("unet.middle_block.1.proj_in.weight").sizes;
  return sizes.size() > 2 ? DiffusionFamily::sd1 : DiffusionFamily::sd2;
}

std::int32_t text_layers_of(const DiffusionFile& file) {
  std::int32_t layers = 0;
  while (file.tensors.contains(std::format("text.encoder.layers.{}.layer_norm1.weight", layers))) ++layers;
  // The second family uses what the last but one of 24 layers says. Some files leave the last one out.
  constexpr std::int32_t kLayersWithoutLast = 23;
  const bool leaves_last = file.family == DiffusionFamily::sd2 && layers != kLayersWithoutLast;
  return leaves_last ? layers - 1 : layers;
}

// The words of a file's name: its letters and its digits, "dreamshaper", "8", "lcm".
std::vector<std::string> name_words(std::string_view path) {
  const std::string name = lower_ascii(path.substr(path.rfind('/') + 1));
  std::vector<std::string> words;
  char before = 0;
  for (const char c : name) {
    const auto kind_of = [](char each) { return each >= 'a' && each <= 'z' ? 1 : each >= '0' && each <= '9' ? 2 : 0; };
    if (kind_of(c) != 0 && kind_of(c) != kind_of(before)) words.emplace_back();
    if (kind_of(c) != 0) words.back() += c;
    before = c;
  }
  return words;
}

// The file's name decides, as people know such files, what neither the file nor the source says.
void set_defaults(DiffusionFile& file, const PictureSource& source) {
  constexpr std::int32_t kNative = 512;
  constexpr std::int32_t kNativeOfVelocity = 768;
  const auto words = name_words(source.path);
  const bool is_turbo = std::ranges::contains(words, "turbo");
  const bool is_lcm = std::ranges::contains(words, "lcm");
  file.by_its_name = is_lcm ? " LCM" : is_turbo ? " Turbo" : "";
  file.predicts_velocity = source.predicts_velocity;
  if (file.family == DiffusionFamily::sd1 && !file.predicts_velocity) file.predicts_velocity = false;
  const bool is_large =
      file.family == DiffusionFamily::sd2 && (std::ranges::contains(words, "768") || source.predicts_velocity.value_or(false));
  const std::int64_t native = is_large ? kNativeOfVelocity : kNative;
  file.sizes = {.native = static_cast<std::int32_t>(native),
                .multiple = 64,
                .pixels_max = native * native * 3 / 2,
                .pixels_per_place = 8};
  DrawingDefaults defaults{.steps = 20, .guidance = 7, .sampler = PictureSampler::euler_ancestral, .schedule = {}};
  if (is_turbo)
    defaults = {.steps = 1, .guidance = 1, .sampler = PictureSampler::euler_ancestral, .schedule = NoiseSchedule::trailing};
  if (is_lcm) defaults = {.steps = 4, .guidance = 1, .sampler = PictureSampler::lcm, .schedule = {}};
  file.defaults = {.steps = source.steps.value_or(defaults.steps),
                   .guidance = source.guidance.value_or(defaults.guidance),
                   .sampler = source.sampler.value_or(defaults.sampler),
                   .schedule = source.schedule ? source.schedule : defaults.schedule};
}

Expected<GgufHeader> read_head(const std::string& path) {
  return is_safetensors_name(path) ? read_safetensors_header(path) : read_gguf_header(path, GgufKind::picture);
}

}  // namespace

Expected<DiffusionFile> diffusion_file_of(const PictureSource& source, const std::vector<GgufHeader>& heads) {
  DiffusionFile file;
  file.paths.push_back(source.path);
  if (!source.vae_path.empty()) file.paths.push_back(source.vae_path);
  for (std::size_t index = 0; index < heads.size(); ++index) {
    for (const GgufTensor& tensor : heads[index].tensors) {
      if (index > 0 && tensor.name.contains("up_blocks."))
        return refuse(std::format("{}: its tensors have the names of the diffusers library: convert it to the original ones",
                                  source.vae_path));
      auto name = index == 0 ? name_of(tensor.name) : name_in_decoder(tensor.name);
      if (!name) continue;
      add(file, *std::move(name),
          {.name = tensor.name,
           .file = index,
           .sizes = tensor.sizes,
           .type = tensor.type,
           .offset = heads[index].data_offset + tensor.offset,
           .bytes = tensor.bytes});
    }
  }
  const auto is_of_decoder = [](const auto& entry) {
    return entry.second.file == 1 && (entry.first.starts_with("vae.decoder.") || entry.first.starts_with("tae."));
  };
  if (heads.size() > 1 && std::ranges::none_of(file.tensors, is_of_decoder))
    return refuse(std::format("{}: it has no decoder whose tensors have known names", source.vae_path));
  if (auto checked = check_kind(file, heads.front()); !checked) return std::unexpected(checked.error());
  file.family = family_of(file);
  file.text_layers = text_layers_of(file);
  set_defaults(file, source);
  return file;
}

Expected<DiffusionFile> read_diffusion_file(const PictureSource& source) {
  std::vector<GgufHeader> heads;
  for (const std::string& path : {source.path, source.vae_path}) {
    if (path.empty()) continue;
    auto head = read_head(path);
    if (!head) return std::unexpected(head.error());
    heads.push_back(*std::move(head));
  }
  auto file = diffusion_file_of(source, heads);
  // A message about one of the two files names it already.
  if (!file && !file.error().message.starts_with(source.vae_path.empty() ? "/" : source.vae_path))
    file.error().message = std::format("{}: {}", source.path, file.error().message);
  return file;
}

}  // namespace uma::llm
