// States for tests of shared stores.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/shared/shared_store.h"
#include "kv/snapshot.h"

namespace uma::kv {

inline StateOwner shared_owner(const std::string& session, const std::string& tenant = "uid:1000") {
  return {.tenant = {tenant}, .session = {session}};
}

// A state of some tokens whose pieces have so many bytes.
inline Snapshot shared_snapshot(Token first, const std::vector<std::size_t>& pieces, const std::string& identity = "model|a") {
  Snapshot snapshot;
  snapshot.identity = identity;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Bytes bytes(pieces[i]);
    for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 7 + i + (at >> 12) + 1);
    snapshot.tokens.push_back(first + static_cast<Token>(i));
    snapshot.pieces.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i) + 1, std::move(bytes)});
  }
  return snapshot;
}

inline void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.identity, b.identity);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(checksum_of(a), checksum_of(b));
}

// A daemon that uses a shared store.
class SharedStoreUser {
 public:
  explicit SharedStoreUser(SharedStore& store) : store_(store) {}

  [[nodiscard]] ColdHead write(const std::string& session, const Snapshot& snapshot) {
    auto written = store_.write(shared_owner(session), snapshot);
    EXPECT_TRUE(written) << written.error().message;
    return written.value_or(ColdHead());
  }
  [[nodiscard]] std::vector<ColdHead> find(const std::string& session, std::vector<std::string> identities = {"model|a"}) {
    auto found = store_.find(TenantId{"uid:1000"}, SessionId{session}, identities);
    EXPECT_TRUE(found) << found.error().message;
    return found.value_or(std::vector<ColdHead>());
  }
  [[nodiscard]] Expected<std::optional<Snapshot>> read(const ColdHead& head) {
    return store_.read(head.name, head.owner, head.bytes, pool_);
  }
  // The only state of the session.
  [[nodiscard]] std::optional<Snapshot> read_only(const std::string& session) {
    const auto heads = find(session);
    EXPECT_EQ(heads.size(), 1U);
    if (heads.size() != 1) return std::nullopt;
    auto snapshot = read(heads[0]);
    EXPECT_TRUE(snapshot) << snapshot.error().message;
    return snapshot ? std::move(*snapshot) : std::nullopt;
  }

 private:
  SharedStore& store_;
  BytePool pool_{0};
};

// Four daemons, each with a store of its own (`make`), write, read and clean one session. Returns how often something failed,
// or a state was not that of its head.
[[nodiscard]] inline int failures_of_daemons_at_once(const auto& make) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      auto mine = make();
      BytePool pool(0);
      const std::vector<std::string> identities = {"model|a"};
      for (int round = 0; round < 40; ++round) {
        const Snapshot state = shared_snapshot(number * 1000 + round, {100, 20'000});
        if (number < 2 && !mine.write(shared_owner("s"), state)) ++wrong;
        auto heads = mine.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
        if (!heads) ++wrong;
        for (const ColdHead& head : heads ? *heads : std::vector<ColdHead>()) {
          const auto read = mine.read(head.name, head.owner, head.bytes, pool);
          if (!read || (*read && (*read)->tokens != head.tokens)) ++wrong;
        }
        if (number == 3 && !mine.clean()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

}  // namespace uma::kv
