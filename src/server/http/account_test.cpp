#include "server/http/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr TimePoint kStart{std::chrono::hours(1000)};

TEST(RateLimit, FillsEvenlyUpToAMinute) {
  RateLimit limit(60);
  EXPECT_EQ(limit.left(kStart), 60);
  limit.take(60, kStart);
  EXPECT_EQ(limit.left(kStart), 0);
  EXPECT_EQ(limit.until_one(kStart), seconds(1));
  EXPECT_EQ(limit.until_full(kStart), seconds(60));
  EXPECT_EQ(limit.left(kStart + milliseconds(2500)), 2);
  EXPECT_EQ(limit.left(kStart + std::chrono::hours(5)), 60);
}

TEST(RateLimit, HasNothingUntilADebtIsPaid) {
  RateLimit limit(60);
  limit.take(120, kStart);
  EXPECT_EQ(limit.left(kStart), 0);
  EXPECT_EQ(limit.until_one(kStart), seconds(61));
  EXPECT_EQ(limit.until_one(kStart + seconds(61)), Duration::zero());
}

TEST(RateLimit, OfZeroIsNone) {
  RateLimit limit(0);
  limit.take(1'000'000, kStart);
  EXPECT_EQ(limit.until_one(kStart), Duration::zero());
}

TEST(BodyPace, SlowsDownAfterABurst) {
  BodyPace pace;
  EXPECT_EQ(pace.take(16 << 20, kStart), Duration::zero());
  EXPECT_EQ(pace.take(8 << 20, kStart), std::chrono::milliseconds(250)) << "32 MiB in a second";
  EXPECT_EQ(pace.take(8 << 20, kStart + std::chrono::milliseconds(500)), Duration::zero());
  EXPECT_EQ(pace.take(16 << 20, kStart + std::chrono::hours(1)), Duration::zero());
  EXPECT_GT(pace.take(16 << 20, kStart + std::chrono::hours(1)), Duration::zero()) << "the burst is not larger after a pause";
}

TEST(Account, CountsRequests) {
  Account account(ApiKey{.name = "ci", .tenant = {"key:ci"}, .requests_per_minute = 2});
  EXPECT_EQ(account.take_request(kStart), std::nullopt);
  EXPECT_EQ(account.take_request(kStart), std::nullopt);
  EXPECT_EQ(account.take_request(kStart), seconds(30));
  EXPECT_EQ(account.take_request(kStart), seconds(30)) << "a refusal takes nothing";
  EXPECT_EQ(account.take_request(kStart + seconds(30)), std::nullopt);
}

TEST(Account, ChargesTokensWhenTheyAreKnown) {
  Account account(ApiKey{.name = "ci", .tenant = {"key:ci"}, .tokens_per_minute = 600});
  EXPECT_EQ(account.take_request(kStart), std::nullopt);
  account.charge_tokens(1200, kStart);
  ASSERT_TRUE(account.take_request(kStart).has_value());
  EXPECT_EQ(account.take_request(kStart + seconds(61)), std::nullopt);
}

TEST(Account, SaysItsStandingInOpenAisHeaders) {
  Account account(ApiKey{.name = "ci", .tenant = {"key:ci"}, .requests_per_minute = 10, .tokens_per_minute = 600});
  EXPECT_EQ(account.take_request(kStart), std::nullopt);
  account.charge_tokens(1200, kStart);
  const std::string header = account.header(kStart);
  EXPECT_THAT(header, HasSubstr("x-ratelimit-limit-requests: 10\r\n"));
  EXPECT_THAT(header, HasSubstr("x-ratelimit-remaining-requests: 9\r\n"));
  EXPECT_THAT(header, HasSubstr("x-ratelimit-reset-requests: 6s\r\n"));
  EXPECT_THAT(header, HasSubstr("x-ratelimit-remaining-tokens: 0\r\n"));
  EXPECT_THAT(header, HasSubstr("x-ratelimit-reset-tokens: 2m0s\r\n"));
  EXPECT_EQ(Account(TenantId{"uid:1"}).header(kStart), "");
}

}  // namespace
}  // namespace uma::server
