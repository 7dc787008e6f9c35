#include "kv/snapshot.h"

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

Snapshot snapshot_of_two_pieces() {
  Snapshot snapshot;
  snapshot.identity = "model|layout";
  snapshot.tokens = {1, 2, 3, 4, 5};
  snapshot.pieces.push_back({0, 3, Bytes(16, std::byte{7})});
  snapshot.pieces.push_back({3, 5, Bytes(9, std::byte{8})});
  return snapshot;
}

TEST(Snapshot, FitsAContextOfItsIdentity) {
  const Snapshot snapshot = snapshot_of_two_pieces();
  EXPECT_TRUE(check_fits(snapshot, "model|layout"));
  EXPECT_EQ(snapshot.bytes(), 5 * sizeof(Token) + 25);
  const auto verdict = check_fits(snapshot, "another model|layout");
  ASSERT_FALSE(verdict);
  EXPECT_NE(verdict.error().message.find("another model"), std::string::npos);
}

TEST(Snapshot, EveryFlippedBitChangesTheChecksum) {
  const Checksum checksum = checksum_of(snapshot_of_two_pieces());
  for (std::size_t piece = 0; piece < 2; ++piece) {
    for (std::size_t at = 0; at < snapshot_of_two_pieces().pieces[piece].bytes.size(); ++at) {
      Snapshot snapshot = snapshot_of_two_pieces();
      snapshot.pieces[piece].bytes[at] ^= std::byte{1};
      EXPECT_FALSE(checksum_of(snapshot) == checksum) << piece << " " << at;
    }
  }
  for (std::size_t at = 0; at < 5; ++at) {
    Snapshot snapshot = snapshot_of_two_pieces();
    snapshot.tokens[at] ^= 1;
    EXPECT_FALSE(checksum_of(snapshot) == checksum) << at;
  }
}

TEST(Snapshot, SoDoBytesThatMoveBetweenPieces) {
  Snapshot snapshot = snapshot_of_two_pieces();
  snapshot.pieces[0].bytes.push_back(snapshot.pieces[1].bytes.front());
  snapshot.pieces[1].bytes.erase(snapshot.pieces[1].bytes.begin());
  EXPECT_FALSE(checksum_of(snapshot) == checksum_of(snapshot_of_two_pieces()));
}

TEST(Snapshot, RefusesGapsAndMissingTokens) {
  Snapshot gap = snapshot_of_two_pieces();
  gap.pieces[1].begin = 4;
  EXPECT_FALSE(check_fits(gap, "model|layout"));
  Snapshot short_snapshot = snapshot_of_two_pieces();
  short_snapshot.pieces.pop_back();
  EXPECT_FALSE(check_fits(short_snapshot, "model|layout"));
}

}  // namespace
}  // namespace uma::kv
