// The file of a model that draws pictures (general.architecture "uma-picture"; tools/train_image/README.md lists what it has).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "llm/file/gguf_header.h"

namespace uma::llm {

inline constexpr const char* kPictureArchitecture = "uma-picture";

struct PictureShape {
  std::int32_t image_size = 0;  // Pixels of a side.
  std::int32_t patch = 0;       // Pixels of a side of a patch.
  std::int32_t width = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t feed_forward = 0;
  std::int32_t text_length = 0;  // Words of a caption, with its beginning.
  std::int32_t text_layers = 0;
  std::int32_t time_frequencies = 0;

  [[nodiscard]] std::int32_t grid() const { return image_size / patch; }
  [[nodiscard]] std::int32_t patches() const { return grid() * grid(); }
  [[nodiscard]] std::int32_t patch_numbers() const { return patch * patch * 3; }
  [[nodiscard]] std::int32_t head_width() const { return width / heads; }
  // Rows of attn_bias: the offsets of two patches, and text to text, text to image and image to text.
  [[nodiscard]] std::int32_t bias_rows() const { return (2 * grid() - 1) * (2 * grid() - 1) + 3; }
  [[nodiscard]] std::int32_t tokens() const { return text_length + patches(); }
  // The numbers of a picture: image_size * image_size * 3.
  [[nodiscard]] std::int32_t numbers() const { return image_size * image_size * 3; }
  bool operator==(const PictureShape&) const = default;
};

struct PictureFile {
  GgufHeader header;  // With its tensors.
  PictureShape shape;
  std::int32_t steps = 0;  // By default.
  float guidance = 1;      // By default.
  float shift = 1;         // DrawingOptions::shift.
  std::vector<std::string> words;
};

// Reads the head of the file and checks that it has exactly the tensors that the shape needs, of their sizes and types. Errors:
// E_MODEL_002 with the key or the tensor.
[[nodiscard]] Expected<PictureFile> read_picture_file(const std::string& path);
[[nodiscard]] Expected<PictureFile> picture_file_of(GgufHeader header);

}  // namespace uma::llm
