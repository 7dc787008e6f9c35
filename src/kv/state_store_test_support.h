// A store on a disk in memory, whose tiers have room for the states of so many tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/state_store.h"
#include "testing/fake_cold_store.h"
#include "testing/sim_clock.h"

namespace uma::kv {

using testing::FakeColdStore;
using Tokens = std::vector<Token>;
inline constexpr std::size_t kTokenBytes = 100;

inline Tokens numbers(Token first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<Token>(i);
  return tokens;
}

inline Snapshot snapshot_of(const Tokens& tokens, const std::string& identity = "model") {
  Snapshot snapshot;
  snapshot.identity = identity;
  snapshot.tokens = tokens;
  snapshot.pieces.push_back(
      {0, static_cast<std::int32_t>(tokens.size()), Bytes(tokens.size() * (kTokenBytes - sizeof(Token)))});
  return snapshot;
}

// Pieces of so many tokens, and a last one.
inline Snapshot in_pieces(const Tokens& tokens, std::size_t step) {
  Snapshot snapshot;
  snapshot.identity = "model";
  snapshot.tokens = tokens;
  for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
    const std::size_t end = std::min(tokens.size(), begin + step);
    snapshot.pieces.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                               Bytes((end - begin) * (kTokenBytes - sizeof(Token)), static_cast<std::byte>(begin))});
  }
  return snapshot;
}

class StateStoreTest : public ::testing::Test {
 protected:
  // Room for so many tokens' states in each tier.
  void make(std::size_t warm_tokens, std::size_t cold_tokens, bool can_cut = true, Duration ttl = Duration(0)) {
    auto cold = std::make_unique<FakeColdStore>();
    if (cold_ != nullptr) {
      cold->files = std::move(cold_->files);
      cold->pieces = std::move(cold_->pieces);
    }
    cold_ = cold.get();
    store_ = std::make_unique<StateStore>(StoreOptions{.warm_bytes_max = warm_tokens * kTokenBytes,
                                                       .cold_bytes_max = cold_tokens * kTokenBytes,
                                                       .tenant_bytes_max = tenant_tokens_ * kTokenBytes,
                                                       .ttl = ttl,
                                                       .write_within = write_within_,
                                                       .day_bytes_max = day_tokens_ * kTokenBytes},
                                          std::move(cold), clock_);
    store_->open(sessions_);
    family_ = store_->join("model", can_cut);
  }

  void put(const std::string& session, const Tokens& tokens, bool is_public = false) {
    store_->put({TenantId{tenant_}, SessionId{session}, is_public}, snapshot_of(tokens));
    store_->check_invariants();
  }

  void work() {
    while (store_->step()) store_->check_invariants();
    store_->check_invariants();
  }

  // The tokens found for a chain, and where; 0 for none.
  std::int32_t found(const Tokens& chain, const std::string& session = "") {
    const auto match =
        store_->find({.family = family_, .tenant = TenantId{tenant_}, .session = SessionId{session}, .forked_from = {}}, chain);
    return match ? match->tokens_count : 0;
  }
  std::optional<StoredMatch> match(const Tokens& chain) {
    return store_->find({.family = family_, .tenant = TenantId{tenant_}, .session = {}, .forked_from = {}}, chain);
  }
  Tier tier(const std::string& session) { return store_->states_of(SessionId{session}).tier; }

  testing::SimClock clock_;
  FakeColdStore* cold_ = nullptr;  // The store's own.
  std::unique_ptr<StateStore> store_;
  FamilyId family_ = 0;
  std::string tenant_ = "a";
  Duration write_within_{0};
  std::size_t day_tokens_ = 0;
  std::size_t tenant_tokens_ = 0;                               // Tokens whose states a tenant may have; 0: no quota.
  std::unordered_set<SessionId> sessions_{{"s"}, {"foreign"}};  // At the start.
};

}  // namespace uma::kv
