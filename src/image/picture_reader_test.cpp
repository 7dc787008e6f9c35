#include "image/picture_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/base64.h"
#include "image/png_writer.h"

namespace uma::image {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A gray level for each pixel.
llm::Picture gray(std::int32_t width, std::int32_t height, const std::vector<std::uint8_t>& grays) {
  llm::Picture picture{.width = width, .height = height, .levels = {}};
  for (const std::uint8_t level : grays) picture.levels.insert(picture.levels.end(), 3, level);
  return picture;
}
std::vector<std::uint8_t> grays_of(const std::vector<std::uint8_t>& levels) {
  std::vector<std::uint8_t> grays;
  for (std::size_t i = 0; i < levels.size(); i += 3) grays.push_back(levels[i]);
  return grays;
}

TEST(PictureReaderTest, FitsTheMiddle) {
  EXPECT_THAT(grays_of(fitted(gray(2, 2, {1, 2, 3, 4}), 2, 2)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(grays_of(fitted(gray(2, 2, {10, 20, 30, 40}), 1, 1)), ElementsAre(25)) << "a mean";
  EXPECT_THAT(grays_of(fitted(gray(1, 1, {7}), 2, 3)), ElementsAre(7, 7, 7, 7, 7, 7)) << "the nearest";
  EXPECT_THAT(grays_of(fitted(gray(4, 2, {1, 2, 3, 4, 5, 6, 7, 8}), 2, 2)), ElementsAre(2, 3, 6, 7))
      << "both sides are cut off";
  EXPECT_THAT(grays_of(fitted(gray(1, 3, {1, 2, 3}), 1, 1)), ElementsAre(2)) << "above and below";
  EXPECT_THAT(fitted(gray(1000, 1, std::vector<std::uint8_t>(1000, 9)), 64, 64), SizeIs(64 * 64 * 3));
}

TEST(PictureReaderTest, ReadsAFileAndRefusesOthers) {
  const std::vector<std::uint8_t> levels(8 * 4 * 3, 200);
  const auto png = write_png({.levels = levels, .width = 8, .height = 4});
  ASSERT_TRUE(png.has_value());
  const auto read = read_fitted({.kind = ImageSource::Kind::data, .text = base64_of(*png)}, 16, 16);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_THAT(*read, ::testing::AllOf(SizeIs(16 * 16 * 3), Each(200)));
  for (const std::string& text : {std::string("!"), base64_of("no picture"), base64_of(png->substr(0, 40))}) {
    const auto refused = read_fitted({.kind = ImageSource::Kind::data, .text = text}, 16, 16);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  }
}

}  // namespace
}  // namespace uma::image
