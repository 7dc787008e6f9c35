#include "image/fetched_images.h"

#include <cstddef>
#include <format>
#include <utility>

#include <gtest/gtest.h>

namespace uma::image {
namespace {

// One image with data and three URLs.
std::vector<InputImage> one_with_data_and_three_addresses() {
  std::vector<InputImage> images(4);
  images[0].source = {.kind = ImageSource::Kind::data, .text = "AA=="};
  for (std::size_t i = 1; i < 4; ++i)
    images[i] = {.source = {.kind = ImageSource::Kind::url, .text = "u"}, .field = std::format("f{}", i)};
  return images;
}

TEST(FetchedImages, AFailureNamesTheFieldOfItsImage) {
  auto images = one_with_data_and_three_addresses();
  EXPECT_EQ(urls_of(images).size(), 3u);
  const auto put =
      put_fetched(images, std::unexpected(FetchFailure{.index = 1, .error = {ErrorCode::proto_field, "the image is gone"}}));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().field, "f2");
  EXPECT_EQ(put.error().message, "field \"f2\": the image is gone");
}

TEST(FetchedImages, FilesTakeThePlaceOfTheirAddresses) {
  auto images = one_with_data_and_three_addresses();
  ASSERT_TRUE(put_fetched(images, Fetched(std::vector<Bytes>{Bytes(1), Bytes(2), Bytes(3)})));
  EXPECT_EQ(images[0].source.text, "AA==");
  EXPECT_EQ(images[3].source.kind, ImageSource::Kind::file);
  EXPECT_EQ(images[3].source.text.size(), 3u);
  EXPECT_TRUE(urls_of(images).empty());
}

}  // namespace
}  // namespace uma::image
