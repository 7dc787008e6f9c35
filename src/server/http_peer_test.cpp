#include "server/http_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HttpPeer, WithoutKeysOnlyTheOwnUserAndRootAreServed) {
  EXPECT_EQ(refusal_without_key(1000, 1000), std::nullopt);
  EXPECT_EQ(refusal_without_key(0, 1000), std::nullopt);
  const auto other = refusal_without_key(1001, 1000);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->code, ErrorCode::auth);
  EXPECT_THAT(other->message,
              AllOf(HasSubstr("uid 1001"), HasSubstr("uid 1000"), HasSubstr("http.local_users"), HasSubstr("umad key new")));
  const auto unknown = refusal_without_key(fail(ErrorCode::auth, "its other end is closed"), 1000);
  ASSERT_TRUE(unknown.has_value());
  EXPECT_THAT(unknown->message, AllOf(HasSubstr("its other end is closed"), HasSubstr("http.local_users")));
}

}  // namespace
}  // namespace uma::server
