#include "wire/query.h"

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

TEST(Query, ValuesAreDecoded) {
  EXPECT_EQ(query_value("a=1&name=x%20y+z%2&name=2", "name"), "x y z%2");
  EXPECT_EQ(query_value("names=1&name", "name"), "");
  EXPECT_EQ(query_value("&&=&name=", "name"), "");
}

}  // namespace
}  // namespace uma::wire
