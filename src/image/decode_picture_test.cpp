#include "image/decode_picture.h"

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/image_header.h"
#include "testing/picture_files.h"

namespace uma::image {
namespace {

using testing::bmp_file;
using ::testing::ElementsAre;
using testing::exif_with;
using testing::extended_webp;
using testing::gif_file;
using testing::jpeg_file;
using testing::png_file;
using testing::webp_chunk;
using testing::webp_chunks;
using testing::webp_file;
using testing::webp_frame;
using Levels = std::vector<std::uint8_t>;

std::span<const std::byte> file_bytes(const std::string& file) {
  return std::as_bytes(std::span(file));
}

llm::Picture decode(const std::string& file, Turns turns = Turns::yes) {
  const auto header = check_image(file_bytes(file));
  EXPECT_TRUE(header) << header.error().message;
  if (!header) return {};
  auto picture = decode_picture(file_bytes(file), turns);
  EXPECT_TRUE(picture) << picture.error().message;
  if (!picture) return {};
  EXPECT_EQ(picture->levels.size(), static_cast<std::size_t>(picture->width) * static_cast<std::size_t>(picture->height) * 3);
  EXPECT_EQ(picture->width * picture->height, header->width * header->height);
  return *std::move(picture);
}
Levels levels(const std::string& file) {
  return decode(file).levels;
}

// Colours that no format changes.
const Levels kRed{255, 0, 0};
const Levels kGreen{0, 255, 0};
const Levels kBlue{0, 0, 255};
const Levels kWhite{255, 255, 255};
const Levels kBlack{0, 0, 0};

Levels pixels(std::initializer_list<Levels> parts) {
  Levels all;
  for (const Levels& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// 16 by 16 pixels of each colour, two blocks_of of JPEG, so that its loss is small.
Levels blocks_of(std::initializer_list<Levels> colours, std::size_t side = 16) {
  Levels all;
  for (const Levels& colour : colours) {
    for (std::size_t i = 0; i < side * side; ++i) all.insert(all.end(), colour.begin(), colour.end());
  }
  return all;
}

// Whether no level differs by more than a loss.
::testing::AssertionResult are_close(const Levels& left, const Levels& right, int most = 6) {
  if (left.size() != right.size()) return ::testing::AssertionFailure() << left.size() << " and " << right.size() << " levels";
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (std::abs(left[i] - right[i]) > most) {
      return ::testing::AssertionFailure() << "level " << i << " is " << int{left[i]} << " and " << int{right[i]};
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(DecodePng, OfEveryDepthAndKindOfColour) {
  EXPECT_EQ(levels(png_file(1, 2, {0x80, 0x00}, {.depth = 1, .colour_type = PNG_COLOR_TYPE_GRAY})), pixels({kWhite, kBlack}));
  EXPECT_THAT(levels(png_file(2, 1, {0x60}, {.depth = 2, .colour_type = PNG_COLOR_TYPE_GRAY})),
              ElementsAre(85, 85, 85, 170, 170, 170));
  EXPECT_THAT(levels(png_file(1, 1, {0x50}, {.depth = 4, .colour_type = PNG_COLOR_TYPE_GRAY})), ElementsAre(85, 85, 85));
  EXPECT_THAT(levels(png_file(1, 1, {7}, {.depth = 8, .colour_type = PNG_COLOR_TYPE_GRAY})), ElementsAre(7, 7, 7));
  EXPECT_THAT(levels(png_file(1, 1, {128, 128}, {.depth = 16, .colour_type = PNG_COLOR_TYPE_GRAY})),
              ElementsAre(128, 128, 128));
  EXPECT_THAT(levels(png_file(1, 1, {1, 2, 3})), ElementsAre(1, 2, 3));
  EXPECT_THAT(levels(png_file(1, 1, {255, 255, 128, 128, 0, 0}, {.depth = 16})), ElementsAre(255, 128, 0));
  const std::vector<png_color> palette{{255, 0, 0}, {0, 255, 0}, {0, 0, 255}};
  for (const auto& [depth, row] : std::map<int, Levels>{{2, {0x18}}, {4, {0x01, 0x20}}, {8, {0, 1, 2}}}) {
    EXPECT_EQ(levels(png_file(3, 1, row, {.depth = depth, .colour_type = PNG_COLOR_TYPE_PALETTE, .palette = palette})),
              pixels({kRed, kGreen, kBlue}))
        << depth;
  }
}

TEST(DecodePng, TransparencyLiesOverWhite) {
  const std::vector<png_color> palette{{255, 0, 0}, {0, 0, 0}};
  EXPECT_THAT(
      levels(png_file(2, 1, {0, 1}, {.colour_type = PNG_COLOR_TYPE_PALETTE, .palette = palette, .palette_alpha = {0, 51}})),
      ElementsAre(255, 255, 255, 204, 204, 204));
  EXPECT_THAT(levels(png_file(1, 1, {0, 100, 200, 0}, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA})), ElementsAre(255, 255, 255));
  EXPECT_THAT(levels(png_file(1, 1, {0, 100, 200, 128}, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA})),
              ElementsAre(127, 177, 227));
  EXPECT_THAT(levels(png_file(1, 1, {0, 51}, {.colour_type = PNG_COLOR_TYPE_GRAY_ALPHA})), ElementsAre(204, 204, 204));
  EXPECT_THAT(levels(png_file(1, 1, {0, 0, 128, 128}, {.depth = 16, .colour_type = PNG_COLOR_TYPE_GRAY_ALPHA})),
              ElementsAre(127, 127, 127));
  EXPECT_THAT(levels(png_file(2, 1, {9, 8}, {.colour_type = PNG_COLOR_TYPE_GRAY, .transparent = {9}})),
              ElementsAre(255, 255, 255, 8, 8, 8));
  EXPECT_THAT(levels(png_file(2, 1, {1, 2, 3, 1, 2, 4}, {.transparent = {1, 2, 3}})), ElementsAre(255, 255, 255, 1, 2, 4));
}

TEST(DecodePng, InterlacedIsThePlainOne) {
  Levels rows;
  for (int i = 0; i < 9 * 7 * 4; ++i) rows.push_back(static_cast<std::uint8_t>(i));
  const std::string plain = png_file(9, 7, rows, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA});
  EXPECT_EQ(levels(plain), levels(png_file(9, 7, rows, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA, .is_interlaced = true})));
}

TEST(DecodePng, AnAnimationIsItsDefaultPicture) {
  const std::string still = png_file(1, 1, {255, 0, 0});
  std::string animated = testing::with_png_chunk(still, "acTL", testing::big_end(2, 4) + testing::big_end(0, 4));
  animated = testing::with_png_chunk(animated, "fcTL", std::string(26, '\0'));
  EXPECT_EQ(levels(animated), kRed);
}

TEST(DecodeJpeg, GrayColourAndProgressive) {
  const Levels two = blocks_of({{255, 40, 40}, {40, 40, 200}});
  EXPECT_TRUE(are_close(levels(jpeg_file(16, 32, two)), two));
  EXPECT_TRUE(are_close(levels(jpeg_file(16, 32, two, {.is_progressive = true})), two));
  EXPECT_EQ(levels(jpeg_file(16, 32, two, {.is_progressive = true})), levels(jpeg_file(16, 32, two)));
  EXPECT_TRUE(are_close(levels(jpeg_file(8, 8, Levels(64, 77), {.space = JCS_GRAYSCALE})), Levels(192, 77), 1));
}

TEST(DecodeJpeg, CmykIsShownInRgb) {
  // As Adobe's programs store it: 255 is no ink.
  Levels cmyk;
  for (int i = 0; i < 64; ++i) cmyk.insert(cmyk.end(), {255, 0, 0, 255});
  EXPECT_TRUE(are_close(levels(jpeg_file(8, 8, cmyk, {.space = JCS_CMYK})), blocks_of({kRed}, 8)));
  std::string plain = jpeg_file(8, 8, cmyk, {.space = JCS_CMYK});
  const std::size_t adobe = plain.find("Adobe");
  ASSERT_NE(adobe, std::string::npos);
  plain[adobe] = 'B';  // 255 is all ink.
  EXPECT_TRUE(are_close(levels(plain), blocks_of({kBlack}, 8)));
  EXPECT_TRUE(
      are_close(levels(jpeg_file(8, 8, Levels(256, 128), {.space = JCS_CMYK, .is_progressive = true})), Levels(192, 64)));
}

TEST(DecodePicture, IsTurnedAsExifSays) {
  // Two columns, three rows: what a person sees is
  //   red    green
  //   blue   white
  //   black  red
  const Levels upright = pixels({kRed, kGreen, kBlue, kWhite, kBlack, kRed});
  struct Stored {
    std::uint32_t width;
    std::uint32_t height;
    Levels levels;
  };
  const std::map<int, Stored> stored{
      {1, {2, 3, upright}},
      {2, {2, 3, pixels({kGreen, kRed, kWhite, kBlue, kRed, kBlack})}},
      {3, {2, 3, pixels({kRed, kBlack, kWhite, kBlue, kGreen, kRed})}},
      {4, {2, 3, pixels({kBlack, kRed, kBlue, kWhite, kRed, kGreen})}},
      {5, {3, 2, pixels({kRed, kBlue, kBlack, kGreen, kWhite, kRed})}},
      {6, {3, 2, pixels({kGreen, kWhite, kRed, kRed, kBlue, kBlack})}},
      {7, {3, 2, pixels({kRed, kWhite, kGreen, kBlack, kBlue, kRed})}},
      {8, {3, 2, pixels({kBlack, kBlue, kRed, kRed, kWhite, kGreen})}},
  };
  for (const auto& [orientation, as] : stored) {
    for (const bool is_big : {false, true}) {
      const std::string exif = exif_with(orientation, is_big);
      const std::string file = testing::with_png_chunk(png_file(as.width, as.height, as.levels), "eXIf", exif);
      const llm::Picture picture = decode(file);
      EXPECT_EQ(picture.width, 2) << orientation;
      EXPECT_EQ(picture.height, 3) << orientation;
      EXPECT_EQ(picture.levels, upright) << orientation;
      EXPECT_EQ(decode(file, Turns::no).levels, as.levels) << orientation;
    }
  }
  const std::string photo = jpeg_file(32, 16, blocks_of({kRed, kGreen}), {.exif = exif_with(6)});
  EXPECT_EQ(decode(photo).width, 16);
  EXPECT_EQ(decode(photo).height, 32);
  EXPECT_EQ(decode(photo, Turns::no).width, 32);
}

TEST(DecodePicture, ABrokenOrientationTurnsNothing) {
  const Levels row = pixels({kRed, kGreen});
  for (const std::string& exif :
       {exif_with(0), exif_with(9), exif_with(6).substr(0, 12), exif_with(6).substr(0, 7), std::string("II"), std::string(),
        "XX" + exif_with(6).substr(2), exif_with(6).replace(4, 4, "\xFF\xFF\xFF\xFF")}) {
    EXPECT_EQ(levels(testing::with_png_chunk(png_file(2, 1, row), "eXIf", exif)), row);
  }
}

TEST(DecodeWebp, LosslessIsThePng) {
  Levels rgba;
  for (int i = 0; i < 11 * 5 * 4; ++i) rgba.push_back(static_cast<std::uint8_t>(i * 37));
  const llm::Picture webp = decode(webp_file(11, 5, rgba));
  const llm::Picture png = decode(png_file(11, 5, rgba, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA}));
  EXPECT_EQ(webp, png);
  EXPECT_EQ(llm::pixels_hash(webp), llm::pixels_hash(png));
  EXPECT_NE(llm::pixels_hash(webp), llm::pixels_hash(decode(webp_file(5, 11, rgba))));
}

TEST(DecodeWebp, LossyWithAndWithoutTransparency) {
  const Levels red = blocks_of({{200, 30, 40, 255}});
  EXPECT_TRUE(are_close(levels(webp_file(16, 16, red, false)), blocks_of({{200, 30, 40}}), 8));
  const Levels thin = blocks_of({{200, 30, 40, 0}});
  EXPECT_EQ(levels(webp_file(16, 16, thin, false)), blocks_of({kWhite}));
}

TEST(DecodeWebp, AnAnimationIsItsFirstFrameOnItsCanvas) {
  const std::string red = webp_file(1, 1, {255, 0, 0, 255});
  const std::string green = webp_file(3, 1, {0, 255, 0, 255, 0, 255, 0, 255, 0, 255, 0, 255});
  constexpr int kAnimation = 2;
  const std::string file = extended_webp(
      3, 1, kAnimation, webp_chunk("ANIM", std::string(6, '\0')) + webp_frame(2, 0, 1, 1, red) + webp_frame(0, 0, 3, 1, green));
  EXPECT_EQ(levels(file), pixels({kWhite, kWhite, kRed}));
}

TEST(DecodeWebp, IsTurnedAsExifSays) {
  constexpr int kExif = 8;
  const std::string two = webp_file(2, 1, {255, 0, 0, 255, 0, 255, 0, 255});
  const llm::Picture picture = decode(extended_webp(2, 1, kExif, webp_chunks(two) + webp_chunk("EXIF", exif_with(6))));
  EXPECT_EQ(picture.width, 1);
  EXPECT_EQ(picture.levels, pixels({kRed, kGreen}));
}

TEST(DecodeGif, TheFirstPictureLiesOverWhite) {
  const std::vector<GifColorType> palette{{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {0, 0, 0}};
  const std::string file = gif_file(
      3, 1, palette,
      {{.left = 1, .width = 2, .height = 1, .codes = {1, 3}, .transparent = 3}, {.width = 3, .height = 1, .codes = {2, 2, 2}}});
  EXPECT_EQ(levels(file), pixels({kWhite, kGreen, kWhite}));
}

TEST(DecodeGif, InterlacedIsThePlainOne) {
  const std::vector<GifColorType> palette{{255, 0, 0}, {0, 255, 0}};
  testing::GifFrame frame{.width = 1, .height = 9, .codes = {0, 1, 0, 0, 1, 1, 0, 1, 1}};
  const Levels plain = levels(gif_file(1, 9, palette, {frame}));
  EXPECT_EQ(plain, pixels({kRed, kGreen, kRed, kRed, kGreen, kGreen, kRed, kGreen, kGreen}));
  frame.is_interlaced = true;
  EXPECT_EQ(levels(gif_file(1, 9, palette, {frame})), plain);
}

TEST(DecodeGif, WhatIsOutsideTheCanvasIsNotShown) {
  const std::vector<GifColorType> palette{{255, 0, 0}, {0, 255, 0}};
  EXPECT_EQ(levels(gif_file(1, 1, palette, {{.width = 2, .height = 2, .codes = {1, 0, 0, 0}}})), kGreen);
  EXPECT_EQ(levels(gif_file(1, 1, palette, {{.left = 5, .top = 7, .width = 2, .height = 2, .codes = {1, 0, 0, 0}}})), kWhite);
}

TEST(DecodeBmp, OfEveryDepth) {
  const std::vector<std::uint32_t> palette{0xFF0000, 0x00FF00, 0x0000FF};
  const Levels two = pixels({kRed, kGreen});
  EXPECT_EQ(levels(bmp_file(2, 1, {0x40, 0, 0, 0}, {.depth = 1, .palette = palette})), two);
  EXPECT_EQ(levels(bmp_file(2, 1, {0x01, 0, 0, 0}, {.depth = 4, .palette = palette})), two);
  EXPECT_EQ(levels(bmp_file(2, 1, {0, 1, 0, 0}, {.depth = 8, .palette = palette})), two);
  EXPECT_EQ(levels(bmp_file(1, 1, {9, 0, 0, 0}, {.depth = 8, .palette = palette})), kBlack) << "no such colour";
  EXPECT_EQ(levels(bmp_file(2, 1, {0x00, 0x7C, 0xE0, 0x03}, {.depth = 16})), two);
  EXPECT_EQ(levels(bmp_file(2, 1, {0x00, 0xF8, 0xE0, 0x07}, {.depth = 16, .masks = {0xF800, 0x7E0, 0x1F}})), two);
  EXPECT_EQ(levels(bmp_file(2, 1, {0, 0, 255, 0, 255, 0, 0, 0})), two);
  EXPECT_EQ(levels(bmp_file(2, 1, {0, 0, 255, 7, 0, 255, 0, 0}, {.depth = 32})), two);
  EXPECT_EQ(levels(bmp_file(1, 2, {0, 255, 0, 0, 0, 0, 255, 0}, {})), two) << "from the bottom";
  EXPECT_EQ(levels(bmp_file(1, -2, {0, 0, 255, 0, 0, 255, 0, 0}, {})), two) << "from the top";
}

TEST(DecodeBmp, AlphaLiesOverWhiteUnlessItIsZeroEverywhere) {
  const std::vector<std::uint32_t> masks{0xFF, 0xFF00, 0xFF0000, 0xFF000000};
  EXPECT_THAT(levels(bmp_file(2, 1, {0, 0, 0, 51, 1, 2, 3, 255}, {.depth = 32, .masks = masks})),
              ElementsAre(204, 204, 204, 1, 2, 3));
  EXPECT_THAT(levels(bmp_file(2, 1, {0, 0, 0, 0, 1, 2, 3, 0}, {.depth = 32, .masks = masks})), ElementsAre(0, 0, 0, 1, 2, 3));
}

// Every damaged file is refused in words, or has a picture of the size that its header claims.
TEST(DecodePicture, DamagedFilesAreRefusedOrShown) {
  const Levels rgba = blocks_of({{1, 2, 3, 255}, {200, 100, 50, 128}});
  const Levels rgb = blocks_of({{1, 2, 3}, {200, 100, 50}});
  constexpr int kAnimation = 2;
  const std::vector<std::string> files{
      png_file(16, 32, rgba, {.colour_type = PNG_COLOR_TYPE_RGB_ALPHA, .is_interlaced = true}),
      jpeg_file(16, 32, rgb, {.is_progressive = true, .exif = exif_with(6)}),
      webp_file(16, 32, rgba),
      webp_file(16, 32, rgba, false),
      extended_webp(16, 32, kAnimation,
                    webp_chunk("ANIM", std::string(6, '\0')) + webp_frame(0, 0, 16, 32, webp_file(16, 32, rgba))),
      gif_file(16, 32, {{255, 0, 0}, {0, 255, 0}},
               {{.width = 16, .height = 32, .codes = Levels(512, 1), .is_interlaced = true}}),
      bmp_file(16, 32, rgba, {.depth = 32, .masks = {0xFF, 0xFF00, 0xFF0000, 0xFF000000}})};
  std::mt19937 chance(7);
  for (const std::string& file : files) {
    ASSERT_FALSE(file.empty());
    for (int i = 0; i < 300; ++i) {
      std::string damaged = file;
      for (int flips = 1 + i % 3; flips > 0; --flips)
        damaged[chance() % damaged.size()] ^= static_cast<char>(1 << chance() % 8);
      if (i % 5 == 0) damaged.resize(chance() % damaged.size());
      const auto header = check_image(file_bytes(damaged));
      if (!header || header->width * header->height > 1'000'000) continue;
      const auto picture = decode_picture(file_bytes(damaged));
      if (!picture) {
        EXPECT_EQ(picture.error().code, ErrorCode::proto_field);
        continue;
      }
      EXPECT_EQ(picture->width * picture->height, header->width * header->height);
    }
  }
}

}  // namespace
}  // namespace uma::image
