#include "kv/shared/redis_address.h"

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

TEST(RedisAddress, ReadsAllParts) {
  EXPECT_EQ(parse_redis_address("redis://box"), (RedisAddress{.host = "box"}));
  EXPECT_EQ(parse_redis_address("redis://uma@box.example:7000/3"),
            (RedisAddress{.user = "uma", .host = "box.example", .port = 7000, .database = 3}));
  EXPECT_EQ(parse_redis_address("rediss://[::1]:7000/"), (RedisAddress{.is_encrypted = true, .host = "::1", .port = 7000}));
}

TEST(RedisAddress, RefusesOtherTexts) {
  for (const char* text :
       {"", "redis://", "redis://:7000", "redis://box:", "redis://box:x", "redis://box:70000", "redis://box:0", "redis://box/x",
        "redis://box/-1", "redis://[::1", "redis://[::1]x", "redis://b ox", "http://box", "redis://box?db=1"}) {
    EXPECT_FALSE(parse_redis_address(text)) << text;
  }
}

TEST(RedisAddress, RefusesPasswords) {
  for (const char* text : {"redis://uma:secret@box", "rediss://:secret@box:7000/1", "redis://uma:se@cret@box"}) {
    EXPECT_TRUE(has_redis_password(text)) << text;
    const auto refused = parse_redis_address(text);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().find("secret"), std::string::npos);
  }
  for (const char* text : {"redis://uma@box:7000", "redis://[::1]:7000", "redis://box/1", "/mnt/a:b@c"}) {
    EXPECT_FALSE(has_redis_password(text)) << text;
  }
}

TEST(RedisAddress, IsShownWithoutItsUser) {
  EXPECT_EQ(parse_redis_address("redis://uma@box")->text(), "redis://box:6379/0");
  EXPECT_EQ(parse_redis_address("rediss://[::1]:7000/2")->text(), "rediss://[::1]:7000/2");
}

}  // namespace
}  // namespace uma::kv
