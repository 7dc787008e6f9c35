#include "server/connection_shares.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

TEST(ConnectionShares, GivesEachPeerHalfOfAll) {
  ConnectionShares shares(5);
  std::vector<ConnectionShares::Place> places;
  for (const char* peer : {"a", "b"}) {
    for (int taken = 0; taken < 2; ++taken) {
      auto place = shares.take(peer);
      ASSERT_TRUE(place.has_value()) << peer;
      places.push_back(*std::move(place));
    }
    EXPECT_FALSE(shares.take(peer).has_value()) << peer;
  }
}

TEST(ConnectionShares, TakesPlacesBackAndForgetsWhoHasNone) {
  ConnectionShares shares(2);
  std::vector<ConnectionShares::Place> places;
  {
    auto place = shares.take("a");
    ASSERT_TRUE(place.has_value());
    places.push_back(*std::move(place));
  }
  EXPECT_FALSE(shares.take("a").has_value()) << "it has been moved, not given back";
  places.clear();
  EXPECT_EQ(shares.peers_count(), 0U);
  EXPECT_TRUE(shares.take("a").has_value());
}

TEST(ConnectionShares, SeveralPeersLeaveSomeForTheNext) {
  constexpr std::size_t kAll = 16;
  ConnectionShares shares(kAll);
  std::vector<ConnectionShares::Place> places;
  const auto take_most = [&](const char* peer) {
    const std::size_t before = places.size();
    while (places.size() < kAll) {
      auto place = shares.take(peer, kAll - places.size() - 1);
      if (!place) break;
      places.push_back(*std::move(place));
    }
    return places.size() - before;
  };
  EXPECT_EQ(take_most("a"), 8U);
  EXPECT_EQ(take_most("b"), 4U);
  EXPECT_EQ(take_most("c"), 2U);
  EXPECT_GE(take_most("d"), 1U);
}

TEST(ConnectionShares, LeavesOneWhereThereIsOnlyOne) {
  EXPECT_TRUE(ConnectionShares(1).take("a", 0).has_value());
}

}  // namespace
}  // namespace uma::server
