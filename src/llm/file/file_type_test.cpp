#include "llm/file/file_type.h"

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

TEST(FileType, HasTheNameThatPeopleKnow) {
  EXPECT_EQ(file_type_name(0), "F32");
  EXPECT_EQ(file_type_name(1), "F16");
  EXPECT_EQ(file_type_name(7), "Q8_0");
  EXPECT_EQ(file_type_name(15), "Q4_K_M");
  EXPECT_EQ(file_type_name(18), "Q6_K");
  EXPECT_EQ(file_type_name(30), "IQ4_XS");
  EXPECT_EQ(file_type_name(32), "BF16");
  EXPECT_EQ(file_type_name(38), "MXFP4");
}

TEST(FileType, OfAnUnknownNumberHasNone) {
  for (const std::int64_t number : {-1, 4, 33, 41, 1024}) EXPECT_EQ(file_type_name(number), "") << number;
}

}  // namespace
}  // namespace uma::llm
