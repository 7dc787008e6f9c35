// Writes a projector for images or for sound as a GGUF file: a small transformer with random weights.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>

namespace uma {

enum class ProjectorKind : std::uint8_t {
  // Images of one size. The last layer turns each row into the code of a word for a model of shift_register.h, so text depends
  // on
  // an image as sharply as on words.
  gemma3,
  // Images of any size: four patches become one row, and rows have positions of several dimensions. Every second layer attends
  // to
  // a window of patches only.
  qwen25vl,
  // Sound: Whisper's encoder, which reads half minutes; `stack` of its 1,500 states become one row.
  ultravox,
};

struct ProjectorSpec {
  std::string name;
  ProjectorKind kind = ProjectorKind::gemma3;
  std::uint32_t image_size = 0;  // Side in pixels, to which images are scaled.
  std::uint32_t patch_size = 0;  // Side in pixels.
  std::uint32_t layers = 0;
  std::uint32_t width = 0;
  std::uint32_t heads = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t row_width = 0;  // Width of the text model.
  std::uint32_t stack = 0;      // For sound; image and patch size are not used.
  std::uint64_t seed = 1;
};

// Writes the file and reports errors like write_model().
[[nodiscard]] std::expected<void, std::string> write_projector(const ProjectorSpec& spec, const std::filesystem::path& path);

}  // namespace uma
