// Writes a model that draws pictures (tools/train_image/README.md) as a GGUF file with random weights.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <vector>

namespace uma {

struct PictureSpec {
  std::string name;
  std::uint32_t image_size = 0;  // Side in pixels.
  std::uint32_t patch = 0;       // Side in pixels.
  std::uint32_t width = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t text_length = 0;
  std::uint32_t text_layers = 1;
  std::uint32_t time_frequencies = 32;
  std::uint32_t steps = 8;
  std::vector<std::string> words;  // Without the pad and the beginning.
  std::uint64_t seed = 1;
};

// Writes the file and reports errors like write_model().
[[nodiscard]] std::expected<void, std::string> write_picture_model(const PictureSpec& spec, const std::filesystem::path& path);

}  // namespace uma
