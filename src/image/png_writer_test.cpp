#include "image/png_writer.h"

#include <png.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::image {
namespace {

struct Read {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<std::uint8_t> levels;
};

Read read(const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&image, file.data(), file.size()), 0) << image.message;
  image.format = PNG_FORMAT_RGB;
  Read made{.width = image.width, .height = image.height, .levels = std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  EXPECT_NE(png_image_finish_read(&image, nullptr, made.levels.data(), 0, nullptr), 0) << image.message;
  return made;
}

const std::vector<std::uint8_t> kLevels = {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7, 1, 2, 3, 4, 5, 6};

TEST(PngWriter, WritesThePixels) {
  const auto file = write_png({.levels = kLevels, .width = 3, .height = 2});
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const Read made = read(*file);
  EXPECT_EQ(made.width, 3u);
  EXPECT_EQ(made.height, 2u);
  EXPECT_EQ(made.levels, kLevels);
  EXPECT_EQ(*write_png({.levels = kLevels, .width = 3, .height = 2}), *file) << "the same bytes again";
}

TEST(PngWriter, EnlargesEachPixelToASquare) {
  const auto file = write_png({.levels = kLevels, .width = 3, .height = 2, .scale = 4});
  ASSERT_TRUE(file.has_value());
  const Read made = read(*file);
  ASSERT_EQ(made.width, 12u);
  ASSERT_EQ(made.height, 8u);
  for (std::size_t y = 0; y < 8; ++y) {
    for (std::size_t x = 0; x < 12; ++x) {
      for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(made.levels[(y * 12 + x) * 3 + i], kLevels[(y / 4 * 3 + x / 4) * 3 + i]) << x << " " << y;
      }
    }
  }
}

// As a program finds it that looks for the keyword.
std::string text_of(const std::string& file) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string left = file;
  png_set_read_fn(png, &left, [](png_structp from, png_bytep to, std::size_t size) {
    auto& bytes = *static_cast<std::string*>(png_get_io_ptr(from));
    std::copy_n(bytes.begin(), size, to);
    bytes.erase(0, size);
  });
  png_read_info(png, info);
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(png, info, &texts, &count);
  std::string found;
  for (int i = 0; i < count; ++i) found += std::string(texts[i].key) + "=" + texts[i].text;
  png_destroy_read_struct(&png, &info, nullptr);
  return found;
}

TEST(PngWriter, WritesTheParameters) {
  const PngPicture picture{.levels = kLevels, .width = 3, .height = 2};
  EXPECT_EQ(text_of(*write_png(picture)), "");
  EXPECT_EQ(text_of(*write_png(picture, "a cat\nSteps: 8")), "parameters=a cat\nSteps: 8");
  EXPECT_EQ(text_of(*write_png(picture, "eine Höhle 洞")), "parameters=eine Höhle 洞");
}

}  // namespace
}  // namespace uma::image
