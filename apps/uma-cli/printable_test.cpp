#include "uma-cli/printable.h"

#include <clocale>

#include <gtest/gtest.h>

namespace uma::cli {
namespace {

TEST(Printable, MeasuresAndClipsByColumnsNotBytes) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  EXPECT_EQ(display_width("caf\u00e9"), 4u);
  EXPECT_EQ(display_width("\u4f60\u597d"), 4u);
  EXPECT_EQ(clip("\u4f60\u597d", 3), "\u4f60");
  EXPECT_EQ(clip("abc", 10), "abc");
  EXPECT_EQ(clip("abc", 0), "");
}

}  // namespace
}  // namespace uma::cli
