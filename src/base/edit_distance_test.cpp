#include "base/edit_distance.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "star"), 4u);
  EXPECT_EQ(edit_distance("star", "stars"), 1u);
  EXPECT_EQ(edit_distance("cirlce", "circle"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

TEST(EditDistance, ALargeOneOnlyExceedsTheMaximum) {
  EXPECT_EQ(edit_distance("kitten", "sitting", 3), 3u);
  EXPECT_GT(edit_distance("kitten", "sitting", 2), 2u);
  EXPECT_GT(edit_distance("a", "abcdefgh", 2), 2u);
}

}  // namespace
}  // namespace uma
