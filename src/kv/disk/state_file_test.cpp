#include "kv/disk/state_file.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>
#include <xxhash.h>

namespace uma::kv {
namespace {

const StateOwner kHeadOwner{.tenant = {"uid:1000"}, .session = {"0123456789abcdef0123456789abcdef"}, .is_public = false};

Snapshot head_snapshot(std::size_t first_bytes = 5'000, std::size_t second_bytes = 9) {
  Snapshot snapshot;
  snapshot.identity = "model|layout";
  snapshot.tokens = {1, 2, 3, -4, 5};
  snapshot.pieces.push_back({0, 3, Bytes(first_bytes, std::byte{7})});
  snapshot.pieces.push_back({3, 5, Bytes(second_bytes, std::byte{8})});
  return snapshot;
}

// A head whose `at`th byte and those behind it are `number`, with a checksum that is right again.
template <class Number>
Bytes changed(std::size_t at, Number number) {
  Bytes bytes = encode_state_head(kHeadOwner, head_snapshot(), checksum_of(head_snapshot()));
  std::memcpy(bytes.data() + at, &number, sizeof number);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size() - 16);
  std::memcpy(bytes.data() + bytes.size() - 16, &hash.low64, 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash.high64, 8);
  return bytes;
}

TEST(StateFile, HeadsAreReadAsTheyWereWritten) {
  for (const bool is_public : {false, true}) {
    const StateOwner owner{.tenant = {"key:a"}, .session = {}, .is_public = is_public};
    const Snapshot snapshot = head_snapshot();
    const Bytes bytes = encode_state_head(owner, snapshot, checksum_of(snapshot));
    EXPECT_EQ(state_head_bytes(bytes).value(), bytes.size());
    const StateHead head = decode_state_head(bytes).value();
    EXPECT_EQ(head.owner, owner);
    EXPECT_EQ(head.identity, snapshot.identity);
    EXPECT_EQ(head.tokens, snapshot.tokens);
    EXPECT_EQ(head.checksum, checksum_of(snapshot));
    ASSERT_EQ(head.pieces.size(), 2u);
    EXPECT_EQ(head.pieces[0].end, 3);
    EXPECT_EQ(head.pieces[0].bytes, 5'000u);
    EXPECT_EQ(head.pieces[1].end, 5);
    EXPECT_EQ(head.pieces[1].bytes, 9u);
    EXPECT_EQ(head.file_bytes, 4'096u + 8'192u + 4'096u);
  }
}

TEST(StateFile, TheFirstBytesAreThoseOfTheDocument) {
  const Bytes bytes = encode_state_head(kHeadOwner, head_snapshot(), checksum_of(head_snapshot()));
  EXPECT_EQ(std::memcmp(bytes.data(), "umastate\x02\0\0\0\0\x10\0\0", 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 56, "uid:10000123456789abcdef0123456789abcdefmodel|layout\x01\0\0\0\x02\0\0\0", 60), 0);
}

TEST(StateFile, RefusesEveryFlippedBitOfAHead) {
  Bytes bytes = encode_state_head(kHeadOwner, head_snapshot(), checksum_of(head_snapshot()));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 7}) {
      bytes[at] ^= std::byte{1} << bit;
      EXPECT_FALSE(decode_state_head(bytes)) << at;
      bytes[at] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(decode_state_head(bytes));
}

TEST(StateFile, RefusesEveryTruncationOfAHead) {
  const Bytes bytes = encode_state_head(kHeadOwner, head_snapshot(), checksum_of(head_snapshot()));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_state_head(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)))) << size;
  }
}

TEST(StateFile, SaysThatAnotherVersionIsNoDamage) {
  const auto refused = decode_state_head(changed<std::uint32_t>(8, 4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "its format is version 4, but this umad uses version 3");
}

TEST(StateFile, OnlyAStateWithPartsIsOfTheNewVersion) {
  Snapshot snapshot = head_snapshot();
  EXPECT_FALSE(decode_state_head(encode_state_head(kHeadOwner, snapshot, Checksum())).value().has_parts());
  EXPECT_FALSE(decode_state_head(changed(8, kPartsFileVersion))) << "it has none";
  snapshot.pieces[1].bytes.clear();
  EXPECT_FALSE(decode_state_head(encode_state_head(kHeadOwner, snapshot, Checksum())).value().has_parts());
  snapshot.pieces[0].bytes.clear();
  const Bytes bytes = encode_state_head(kHeadOwner, snapshot, Checksum());
  EXPECT_EQ(std::to_integer<std::uint32_t>(bytes[8]), kPartsFileVersion) << "an older umad does not use it";
  EXPECT_TRUE(decode_state_head(bytes).value().has_parts());
}

TEST(StateFile, RefusesLengthsThatLie) {
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  for (const std::size_t at : {12u, 32u, 36u, 40u, 44u, 48u, 52u}) {  // Length of the head, flags, five counts.
    for (const std::uint32_t number : {kMost, kMost / 4 + 1, kMost / 12 + 1, 1u << 31, 4'097u}) {
      EXPECT_FALSE(decode_state_head(changed(at, number))) << at << " " << number;
    }
  }
  constexpr std::size_t kPieces = 56 + 8 + 32 + 12 + 5 * 4;
  for (const std::int32_t end :
       {std::numeric_limits<std::int32_t>::min(), -1, 0, 5, 6, std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_FALSE(decode_state_head(changed(kPieces, end))) << end;
  }
  constexpr auto kMostBytes = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t size : {kMostBytes, kMostBytes - 4'095, kMostBytes / 2, std::uint64_t{1} << 48}) {
    EXPECT_FALSE(decode_state_head(changed(kPieces + 4, size))) << size;
  }
  // The largest that is no lie in itself; whether the file is that long is for its reader to see.
  EXPECT_TRUE(decode_state_head(changed(kPieces + 4, (std::uint64_t{1} << 48) - 8'192)));
}

TEST(StateFile, RefusesBytesThatNobodyWrote) {
  EXPECT_FALSE(decode_state_head(changed(2'000, 'x')));
}

TEST(StateFile, NamesDifferWhereAnyPartOfTheKeyDoes) {
  const Snapshot snapshot = head_snapshot();
  const auto name = [&](const StateOwner& owner) { return state_name(owner, snapshot.identity, snapshot.tokens); };
  StateOwner other_tenant = kHeadOwner;
  other_tenant.tenant.value += "0";
  StateOwner other_session = kHeadOwner;
  other_session.session.value.clear();
  StateOwner everybodys = kHeadOwner;
  everybodys.is_public = true;
  std::vector<std::string> names = {name(kHeadOwner),
                                    name(other_tenant),
                                    name(other_session),
                                    name(everybodys),
                                    state_name(kHeadOwner, "model", snapshot.tokens),
                                    state_name(kHeadOwner, snapshot.identity, std::span(snapshot.tokens).first(4))};
  for (const std::string& each : names) {
    EXPECT_EQ(each.size(), 32u);
    EXPECT_EQ(each.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  EXPECT_EQ(name(kHeadOwner), state_name(kHeadOwner, snapshot.identity, snapshot.tokens));
}

}  // namespace
}  // namespace uma::kv
