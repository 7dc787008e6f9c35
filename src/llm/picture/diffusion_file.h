// The files of Stable Diffusion 1 and 2: GGUF without metadata, or safetensors. Programs name the tensors differently; here
// each has one name:
//   unet.*   the network that predicts noise, as in the original files behind "model.diffusion_model."
//   text.*   the text encoder, as the transformers library names it behind "text_model."
//   vae.*    the decoder and encoder of latent pictures, as in the original files behind "first_stage_model."
//   tae.*    a small decoder instead (TAESD): the layers by their numbers without the first, which has no weights
// Lists of models read the heads, too: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "llm/file/gguf_header.h"
#include "llm/file/safetensors_header.h"
#include "llm/picture/picture_model.h"

namespace uma::llm {

// 1: the text encoder of CLIP. 2: that of OpenCLIP.
enum class DiffusionFamily : std::uint8_t { sd1, sd2 };

struct DiffusionTensor {
  std::string name;      // In its file.
  std::size_t file = 0;  // Index in DiffusionFile::paths.
  std::vector<std::uint64_t> sizes;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;  // From the beginning of the file.
  std::uint64_t bytes = 0;
};

struct DiffusionFile {
  std::vector<std::string> paths;
  std::map<std::string, DiffusionTensor> tensors;
  DiffusionFamily family = DiffusionFamily::sd1;
  std::int32_t text_layers = 0;  // Layers of the text encoder, as far as they are used.
  PictureSizes sizes;
  DrawingDefaults defaults;
  std::string by_its_name;  // The variant by its name, for people: " Turbo", " LCM"; empty: none.
  // Whether it predicts velocities; nullopt: nothing says so.
  std::optional<bool> predicts_velocity;
};

// Reads the heads of the source's files. What a file does not say follows from its name and is replaced by what the source
// says. Errors: E_MODEL_002 with the tensor, or with what kind of model it is instead.
[[nodiscard]] Expected<DiffusionFile> read_diffusion_file(const PictureSource& source);
// The description from heads that were read already; `heads` has one for each path of the source. Errors: as above.
[[nodiscard]] Expected<DiffusionFile> diffusion_file_of(const PictureSource& source, const std::vector<GgufHeader>& heads);

}  // namespace uma::llm
