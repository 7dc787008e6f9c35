// Writes an image projector as a GGUF file: a small vision transformer with random weights, whose last layer makes of each row
// what a model of shift_register.h reads as a word's code. So text depends on an image as sharply as on words.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>

namespace uma {

struct ProjectorSpec {
  std::string name;
  std::uint32_t image_size = 0;  // pixels of a side: images are scaled to it
  std::uint32_t patch_size = 0;  // pixels of a side; every patch becomes one row
  std::uint32_t layers = 0;
  std::uint32_t width = 0;
  std::uint32_t heads = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t row_width = 0;  // of the text model
  std::uint64_t seed = 1;
};

// As write_model() does.
[[nodiscard]] std::expected<void, std::string> write_projector(const ProjectorSpec& spec, const std::filesystem::path& path);

}  // namespace uma
