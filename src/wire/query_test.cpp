#include "wire/query.h"

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

TEST(Query, ValuesAreDecoded) {
  EXPECT_EQ(query_value("a=1&name=x%20y+z%2&name=2", "name"), "x y z%2");
  EXPECT_EQ(query_value("names=1&name", "name"), "");
  EXPECT_EQ(query_value("&&=&name=", "name"), "");
}

TEST(Query, NumbersHaveLimits) {
  EXPECT_EQ(query_number("a=1", "seconds", 10, 1, 60), 10);
  EXPECT_EQ(query_number("seconds=", "seconds", 10, 1, 60), 10);
  EXPECT_EQ(query_number("seconds=1", "seconds", 10, 1, 60), 1);
  EXPECT_EQ(query_number("seconds=60", "seconds", 10, 1, 60), 60);
  for (const char* wrong : {"seconds=0", "seconds=61", "seconds=-1", "seconds=1e1", "seconds=99999999999999999999"}) {
    const auto number = query_number(wrong, "seconds", 10, 1, 60);
    ASSERT_FALSE(number) << wrong;
    EXPECT_EQ(number.error().message, "seconds must be a number from 1 to 60");
  }
}

}  // namespace
}  // namespace uma::wire
