#include "umad/process/restart_backoff.h"

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RestartBackoff, DoublesUpToItsLimit) {
  RestartBackoff backoff;
  for (const int ms : {100, 200, 400, 800, 1600, 3200, 6400, 12'800, 25'600, 30'000, 30'000}) {
    EXPECT_EQ(backoff.next(seconds(0)), Duration(milliseconds(ms)));
  }
}

TEST(RestartBackoff, BeginsAnewAfterALongLife) {
  RestartBackoff backoff;
  for (int i = 0; i < 20; ++i) (void)backoff.next(seconds(59));
  EXPECT_EQ(backoff.next(seconds(59)), RestartBackoff::kLongest);
  EXPECT_EQ(backoff.next(seconds(60)), RestartBackoff::kFirst);
  EXPECT_EQ(backoff.next(seconds(1)), 2 * RestartBackoff::kFirst);
}

}  // namespace
}  // namespace uma::umad
