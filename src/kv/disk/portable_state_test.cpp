#include "kv/disk/portable_state.h"

#include <cstring>
#include <string_view>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/disk/state_file.h"

namespace uma::kv {
namespace {

const std::string kIdentity = "model|split";
const std::vector<Token> kTokens = {1, 2, 3, 4, 5};

Snapshot snapshot_of() {
  Snapshot snapshot{.identity = kIdentity, .tokens = kTokens, .room = {}, .pieces = {}};
  snapshot.pieces.push_back({0, 3, Bytes(5'000, std::byte{7})});
  snapshot.pieces.push_back({3, 5, Bytes(4'096, std::byte{8})});
  return snapshot;
}

Bytes joined(const Snapshot& snapshot, const Bytes& head) {
  Bytes bytes;
  for (const auto part : state_parts(head, snapshot)) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}
Bytes file_of_snapshot() {
  return joined(snapshot_of(), portable_head(snapshot_of()));
}

Expected<Snapshot> read(std::span<const std::byte> bytes, const std::string& identity = kIdentity,
                        const std::vector<Token>& chain = kTokens) {
  // In two parts, as a file comes.
  const PortableFile file{.parts = {bytes.first(bytes.size() / 3), bytes.subspan(bytes.size() / 3)}, .owner = nullptr};
  PortableReader in(file);
  BytePool pool(0);
  return read_state(in, identity, true, chain, pool, [&](std::uint64_t wanted) { return pool.reserve(wanted); });
}

// With a right checksum of the head again.
void seal_state(Bytes& bytes) {
  const std::size_t head_bytes = state_head_bytes(bytes).value();
  const Checksum hash = hash_of(std::span(bytes).first(head_bytes - 16));
  std::memcpy(bytes.data() + head_bytes - 16, &hash, 16);
}

TEST(PortableState, GivesBackWhatWasWritten) {
  const auto snapshot = read(file_of_snapshot(), kIdentity, {1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(snapshot) << snapshot.error().message;
  EXPECT_EQ(snapshot->tokens, kTokens);
  EXPECT_EQ(checksum_of(*snapshot), checksum_of(snapshot_of()));
}

TEST(PortableState, SaysNothingOfWhoseItWas) {
  const StateOwner owner{.tenant = {"uid:1000"}, .session = {"abc"}, .is_public = false};
  EXPECT_EQ(decode_state_head(portable_head(snapshot_of()))->owner, StateOwner());
  const auto snapshot = read(joined(snapshot_of(), encode_state_head(owner, snapshot_of(), checksum_of(snapshot_of()))));
  ASSERT_FALSE(snapshot);
  EXPECT_EQ(snapshot.error().code, ErrorCode::proto_field);
}

TEST(PortableState, IsLeftOutWhereItIsOfNoUse) {
  for (const auto& [identity, chain] : std::initializer_list<std::pair<std::string, std::vector<Token>>>{
           {"model|unified", kTokens}, {kIdentity, {1, 2, 3, 4}}, {kIdentity, {1, 2, 9, 4, 5, 6}}, {kIdentity, {}}}) {
    const auto snapshot = read(file_of_snapshot(), identity, chain);
    ASSERT_FALSE(snapshot);
    EXPECT_EQ(snapshot.error().code, ErrorCode::runtime_decode) << snapshot.error().message;
  }
}

// The conversation is imported all the same.
TEST(PortableState, IsLeftOutWhereAnOlderUmadHasStoredIt) {
  Bytes bytes = file_of_snapshot();
  bytes[8] = std::byte{1};
  const auto snapshot = read(bytes);
  ASSERT_FALSE(snapshot);
  EXPECT_EQ(snapshot.error().code, ErrorCode::runtime_decode) << snapshot.error().message;
}

TEST(PortableState, EveryChangedOrMissingByteIsNoticed) {
  const Bytes whole = file_of_snapshot();
  for (std::size_t at = 0; at < whole.size(); at += at < 300 ? 1 : 97) {
    const auto cut = read(std::span(whole).first(at));
    ASSERT_FALSE(cut) << at;
    EXPECT_EQ(cut.error().code, ErrorCode::proto_field);
    Bytes changed = whole;
    changed[at] ^= std::byte{4};
    EXPECT_FALSE(read(changed)) << at;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(read(longer).error().code, ErrorCode::proto_field);
}

// A checksum keeps out no one who means harm.
TEST(PortableState, LengthsThatAreLiesTakeNoMemoryAndReadNothingBeyond) {
  const Bytes whole = file_of_snapshot();
  Random random(1);
  for (std::size_t at = 12; at < 120; ++at) {
    for (int round = 0; round < 20; ++round) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(random.next_below(256));
      if (!state_head_bytes(changed) || *state_head_bytes(changed) > changed.size()) continue;
      seal_state(changed);
      EXPECT_TRUE(changed == whole || !read(changed)) << at;
    }
  }
}

}  // namespace
}  // namespace uma::kv
