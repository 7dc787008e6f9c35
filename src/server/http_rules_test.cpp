#include "server/http_rules.h"

#include <gtest/gtest.h>

namespace uma::server {
namespace {

TEST(HttpRules, KnowTheNamesOfThisMachine) {
  for (const char* ours :
       {"localhost", "LocalHost:8642", "127.0.0.1", "127.0.0.1:8642", "127.1.2.3", "[::1]", "[::1]:8642", "localhost:"}) {
    EXPECT_TRUE(is_loopback_authority(ours)) << ours;
  }
  for (const char* other :
       {"", "example.com", "localhost.example.com", "127.0.0.1.example.com", "128.0.0.1", "10.0.0.1", "[::2]", "::1", "[::1",
        "[::1]x", "localhost:80x", "evil@localhost", "127.1", "0.0.0.0", "localhost:80:80"}) {
    EXPECT_FALSE(is_loopback_authority(other)) << other;
  }
}

TEST(HttpRules, TakeAPageOfThisServerOnly) {
  EXPECT_TRUE(is_same_origin("http://localhost:8642", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://localhost:3000", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("https://localhost:8642", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://evil.example", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("null", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://", ""));
}

TEST(HttpRules, ReadPaths) {
  EXPECT_EQ(target_path("/v1/models?x=1"), "/v1/models");
  EXPECT_EQ(target_path("/v1/models/a%20b%2Fc"), "/v1/models/a b/c");
  for (const char* wrong : {"", "*", "http://localhost/v1/models", "/%", "/%2", "/%zz"}) {
    EXPECT_EQ(target_path(wrong), "") << wrong;
  }
}

TEST(HttpRules, GiveEveryErrorItsStatus) {
  EXPECT_EQ(http_status(ErrorCode::proto_field), 400);
  EXPECT_EQ(http_status(ErrorCode::limit_quota), 429);
  EXPECT_EQ(http_status(ErrorCode::limit_wait), 503);
  EXPECT_EQ(http_status(ErrorCode::model_unknown), 404);
  EXPECT_EQ(http_status(ErrorCode::model_capability), 400);
  EXPECT_EQ(http_status(ErrorCode::session_busy), 409);
  EXPECT_EQ(http_status(ErrorCode::auth), 401);
  EXPECT_EQ(http_status(ErrorCode::runtime_decode), 500);
}

}  // namespace
}  // namespace uma::server
