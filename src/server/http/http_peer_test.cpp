#include "server/http/http_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

using boost::asio::ip::make_address;
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

TEST(HttpPeer, AMachineHasOneShareHoweverManyAddresses) {
  EXPECT_EQ(share_of_address(make_address("192.0.2.1")), "192.0.2.1");
  EXPECT_EQ(share_of_address(make_address("::ffff:192.0.2.1")), "192.0.2.1");
  EXPECT_NE(share_of_address(make_address("192.0.2.2")), "192.0.2.1");
  EXPECT_EQ(share_of_address(make_address("2001:db8:0:1::7")), "2001:db8:0:1::/64");
  EXPECT_EQ(share_of_address(make_address("2001:db8:0:1:ffff::7")), "2001:db8:0:1::/64");
  EXPECT_NE(share_of_address(make_address("2001:db8:0:2::7")), "2001:db8:0:1::/64");
}

}  // namespace
}  // namespace uma::server
