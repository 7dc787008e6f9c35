#include "llm/media/position_map.h"

#include <cstring>
#include <string>

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

// Four tokens, an image of 12 rows that takes 4 positions, two tokens, and an image of one row.
PositionMap two_images() {
  PositionMap map;
  map.add({.begin = 4, .rows = 12, .advance = 4});
  map.add({.begin = 18, .rows = 1, .advance = 1});
  return map;
}

TEST(PositionMap, WithoutImagesPositionsAreTokens) {
  const PositionMap map;
  for (const std::int32_t token : {0, 1, 700}) {
    EXPECT_EQ(map.position_of(token), token);
    EXPECT_EQ(map.tokens_before(token), token);
    EXPECT_FALSE(map.divides_image(token));
  }
}

TEST(PositionMap, AnImageTakesFewerPositionsThanRows) {
  const PositionMap map = two_images();
  EXPECT_EQ(map.position_of(3), 3);
  EXPECT_EQ(map.position_of(4), 4);
  EXPECT_EQ(map.position_of(16), 8);
  EXPECT_EQ(map.position_of(18), 10);
  EXPECT_EQ(map.position_of(19), 11);
}

// The library reports the largest position of the cache, at which all rows of an image lie.
TEST(PositionMap, CountsTheTokensOfACacheThatEndsWithAnImage) {
  const PositionMap map = two_images();
  EXPECT_EQ(map.tokens_before(4), 4);
  for (const std::int32_t position : {5, 6, 7, 8}) EXPECT_EQ(map.tokens_before(position), 16) << position;
  EXPECT_EQ(map.tokens_before(9), 17);
  EXPECT_EQ(map.tokens_before(10), 18);
  EXPECT_EQ(map.tokens_before(11), 19);
  EXPECT_EQ(map.tokens_before(12), 20);
}

TEST(PositionMap, CanBeCutBeforeAndBehindAnImageOnly) {
  PositionMap map = two_images();
  EXPECT_FALSE(map.divides_image(4));
  EXPECT_TRUE(map.divides_image(5));
  EXPECT_TRUE(map.divides_image(15));
  EXPECT_FALSE(map.divides_image(16));
  map.cut(16);
  EXPECT_EQ(map.images().size(), 1u);
  map.cut(4);
  EXPECT_TRUE(map.images().empty());
}

TEST(PositionMap, StatesCarryTheirImages) {
  const std::string library = "bytes of the library";
  Bytes state;
  for (const char c : library) state.push_back(static_cast<std::byte>(c));
  append_images(two_images().images(), state);
  const auto parts = split_images(state, 2, 20);
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->library.size(), library.size());
  EXPECT_TRUE(std::ranges::equal(parts->images, two_images().images()));
  // Outside of the tokens that the state should have.
  EXPECT_FALSE(split_images(state, 5, 20));
  EXPECT_FALSE(split_images(state, 2, 18));
}

TEST(PositionMap, TablesThatAreNoneAreRefused) {
  const auto table = [](std::vector<ImageSpan> images) {
    Bytes state;
    append_images(images, state);
    return state;
  };
  EXPECT_TRUE(split_images(table({}), 0, 8));
  EXPECT_TRUE(split_images(table({{0, 4, 2}, {4, 4, 2}}), 0, 8));
  for (const auto& images : {std::vector<ImageSpan>{{0, 0, 0}},
                             {{0, 4, 0}},
                             {{0, 4, 5}},
                             {{-1, 4, 2}},
                             {{4, 5, 2}},
                             {{8, 1, 1}},
                             {{0, 4, 2}, {3, 2, 1}},
                             {{4, 2, 2}, {0, 2, 2}},
                             {{0, 0x7fffffff, 1}}}) {
    EXPECT_FALSE(split_images(table(images), 0, 8)) << images.front().begin << " " << images.front().rows;
  }
  Bytes none = table({});
  for (const std::uint32_t count : {1u, 0xffffffffu}) {
    std::memcpy(none.data(), &count, sizeof count);
    EXPECT_FALSE(split_images(none, 0, 8)) << count;
  }
  EXPECT_FALSE(split_images(std::span(none).first(3), 0, 8));
}

}  // namespace
}  // namespace uma::llm
