#include "server/http/handlers/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

using ::testing::HasSubstr;

const std::string kDigest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // of "abc"

TEST(ApiKeys, AreReadWithTheirLimits) {
  const auto keys =
      parse_api_keys("# keys\n\nci " + kDigest + "  # of the robots\r\n" + "me sha256:" + std::string(64, '0') +
                     " tenant=uid:1000 requests_per_minute=60 tokens_per_minute=10000 deadline_ms=5000 admin=true");
  ASSERT_TRUE(keys.has_value()) << keys.error().message;
  ASSERT_EQ(keys->size(), 2U);
  EXPECT_EQ((*keys)[0].name, "ci");
  EXPECT_EQ((*keys)[0].digest, sha256("abc"));
  EXPECT_EQ((*keys)[0].tenant, TenantId{"key:ci"});
  EXPECT_EQ((*keys)[0].requests_per_minute, 0);
  EXPECT_EQ((*keys)[1].tenant, TenantId{"uid:1000"});
  EXPECT_EQ((*keys)[1].requests_per_minute, 60);
  EXPECT_EQ((*keys)[1].tokens_per_minute, 10'000);
  EXPECT_EQ((*keys)[0].deadline_ms, std::nullopt);
  EXPECT_EQ((*keys)[1].deadline_ms, 5000);
  EXPECT_FALSE((*keys)[0].is_admin);
  EXPECT_TRUE((*keys)[1].is_admin);
}

TEST(ApiKeys, AreRefusedWithTheirLine) {
  for (const std::string& wrong :
       {std::string("ci"), std::string("ci uma-secret"), "ci " + kDigest.substr(0, 70), "c/i " + kDigest,
        "ci " + kDigest + " admin=yes", "ci " + kDigest + " requests_per_minute=-1", "ci " + kDigest + " tokens_per_minute=",
        "ci " + kDigest + " deadline_ms=soon", "ci " + kDigest + " tenant=", "ci " + kDigest + " tenant",
        "ci " + kDigest + "\nci sha256:" + std::string(64, '0'), "ci " + kDigest + "\nme " + kDigest}) {
    const auto keys = parse_api_keys("# first\n" + wrong);
    ASSERT_FALSE(keys.has_value()) << wrong;
    EXPECT_THAT(keys.error().message, HasSubstr(wrong.contains('\n') ? "line 3" : "line 2")) << wrong;
  }
}

TEST(ApiKeys, AreMadeFromChance) {
  const auto made = make_api_key("ci");
  ASSERT_TRUE(made.has_value());
  const auto keys = parse_api_keys(made->line);
  ASSERT_TRUE(keys.has_value());
  EXPECT_EQ(keys->front().digest, sha256(made->key));
  EXPECT_NE(make_api_key("ci")->key, made->key);
  EXPECT_FALSE(make_api_key("two words").has_value());
}

TEST(ApiKeys, AreMadeWithTheirOptions) {
  const ApiKey options{
      .tenant = {"robots"}, .requests_per_minute = 60, .tokens_per_minute = 7, .deadline_ms = 0, .is_admin = true};
  const auto made = make_api_key("ci", options);
  ASSERT_TRUE(made.has_value());
  const auto keys = parse_api_keys(made->line);
  ASSERT_TRUE(keys.has_value()) << keys.error().message;
  ApiKey expected = options;
  expected.name = "ci";
  expected.digest = sha256(made->key);
  EXPECT_EQ(keys->front(), expected);
  for (const char* tenant : {"a b", "a\nb", "a admin=true", "a#", "a\r"}) {
    const auto refused = make_api_key("ci", {.tenant = {tenant}});
    ASSERT_FALSE(refused.has_value()) << tenant;
    EXPECT_EQ(refused.error().field, "tenant");
  }
  EXPECT_EQ(make_api_key("ci\nme").error().field, "name");
}

TEST(ApiKeys, ALineIsTakenOutAndNothingElse) {
  const std::string others = "# ci sha256:1\n\nme sha256:1 # ci\n";
  EXPECT_EQ(without_api_key(others + "  ci sha256:2 admin=true # old\r\n" + "cit sha256:3", "ci"), others + "cit sha256:3");
  EXPECT_EQ(without_api_key("ci sha256:2", "ci"), "");
  EXPECT_EQ(without_api_key(others, "ci"), others);
  EXPECT_EQ(without_api_key("ci# x\nb", "ci"), "b");
}

TEST(ApiKeys, AreNotAnEmptyOrMissingFile) {
  EXPECT_FALSE(read_api_keys("/nowhere/keys").has_value());
  EXPECT_FALSE(read_api_keys("/dev/null").has_value());
}

}  // namespace
}  // namespace uma::server
