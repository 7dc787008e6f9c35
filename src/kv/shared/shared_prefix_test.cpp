// Prefixes of prompts in the store that daemons share: their names, and what the StateStore does with their states.
#include "kv/shared/shared_prefix.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kv/state_store_test_support.h"
#include "testing/fake_shared_store.h"

namespace uma::kv {
namespace {

using testing::FakeSharedStore;
using Content = FakeSharedStore::Content;

TEST(PrefixOwner, DependsOnScopeAndTokensAlone) {
  const Tokens tokens = numbers(1, 100);
  const StateOwner owner = prefix_owner(TenantId{"a"}, false, tokens);
  EXPECT_EQ(prefix_owner(TenantId{"a"}, false, numbers(1, 100)), owner);
  EXPECT_EQ(owner.tenant, TenantId{"a"});
  EXPECT_TRUE(is_prefix(owner.session));
  EXPECT_NE(prefix_owner(TenantId{"b"}, false, tokens).session, owner.session);
  EXPECT_NE(prefix_owner(TenantId{"a"}, false, numbers(1, 99)).session, owner.session);
  const StateOwner everybodys = prefix_owner(TenantId{"a"}, true, tokens);
  EXPECT_TRUE(everybodys.is_public);
  EXPECT_EQ(prefix_owner(TenantId{"b"}, true, tokens), everybodys);
  EXPECT_NE(everybodys.session, owner.session);
  EXPECT_NE(prefix_owner(TenantId{""}, false, tokens).session, everybodys.session);
  EXPECT_FALSE(is_prefix(SessionId{"0123456789abcdef0123456789abcdef"}));
}

// A daemon with a store of its own, and the shared one.
struct PrefixNode {
  PrefixNode(const std::shared_ptr<Content>& content, const Clock& clock)
      : shared(std::make_unique<FakeSharedStore>(content), std::make_unique<FakeSharedStore>(content), clock),
        store({.warm_bytes_max = 1'000'000, .cold_bytes_max = 1'000'000, .shared_tokens_min = 16}, open_disk(), clock,
              &shared) {
    store.open({});
    family = store.join("model", true);
  }
  std::unique_ptr<ColdStore> open_disk() {
    auto made = std::make_unique<FakeColdStore>();
    disk = made.get();
    return made;
  }
  void work() {
    bool any = true;
    while (any) {
      any = store.step();
      any = shared.writer.step() || any;
      any = shared.reader.step() || any;
      store.check_invariants();
    }
  }
  void publish(const StateOwner& owner, const Tokens& tokens) {
    store.put(owner, snapshot_of(tokens));
    bool is_done = false;
    store.publish_prefix(owner.session, [&] { is_done = true; });
    work();
    EXPECT_TRUE(is_done);
  }
  void look_up(const StateOwner& owner, const std::string& identity = "model") {
    bool is_done = false;
    store.look_up_prefix(owner, identity, [&] { is_done = true; });
    work();
    EXPECT_TRUE(is_done);
  }
  std::optional<StoredMatch> find(const std::string& tenant, const Tokens& chain, const std::string& session = "") {
    return store.find({.family = family, .tenant = {tenant}, .session = SessionId{session}, .forked_from = {}}, chain);
  }

  SharedStates shared;
  FakeColdStore* disk = nullptr;
  StateStore store;
  FamilyId family = 0;
};

class SharedPrefixes : public ::testing::Test {
 protected:
  testing::SimClock clock_;
  std::shared_ptr<Content> content_ = std::make_shared<Content>();
  PrefixNode a_{content_, clock_};
  PrefixNode b_{content_, clock_};
  const Tokens head_ = numbers(1, 100);
  const StateOwner owner_ = prefix_owner(TenantId{"a"}, false, head_);
};

TEST_F(SharedPrefixes, AnyConversationOfTheTenantGoesOnFromIt) {
  a_.publish(owner_, head_);
  EXPECT_TRUE(a_.store.is_shared(owner_.session));
  EXPECT_EQ(a_.store.stats().prefixes_written_total.value(), 1U);
  b_.look_up(owner_);
  EXPECT_EQ(b_.store.stats().prefixes_found_total.value(), 1U);
  for (const std::string session : {"", "some"}) {
    const auto match = b_.find("a", numbers(1, 150), session);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->tokens_count, 100);
    EXPECT_EQ(match->tier, Tier::shared);
    EXPECT_FALSE(match->is_own);
  }
  EXPECT_FALSE(b_.find("b", numbers(1, 150))) << "another tenant";
}

TEST_F(SharedPrefixes, APublicOneIsForAllTenants) {
  const StateOwner everybodys = prefix_owner(TenantId{"a"}, true, head_);
  a_.publish(everybodys, head_);
  b_.look_up(everybodys);
  EXPECT_TRUE(b_.find("a", numbers(1, 150)));
  EXPECT_TRUE(b_.find("b", numbers(1, 150)));
}

TEST_F(SharedPrefixes, OneThatIsThereIsNotWrittenAgain) {
  a_.publish(owner_, head_);
  a_.publish(owner_, head_);
  b_.look_up(owner_);
  b_.publish(owner_, head_);
  EXPECT_EQ(a_.shared.stats.writes_total.value() + b_.shared.stats.writes_total.value(), 1U);
}

TEST_F(SharedPrefixes, AShortOneIsNotWritten) {
  a_.publish(prefix_owner(TenantId{"a"}, false, numbers(1, 15)), numbers(1, 15));
  EXPECT_TRUE(content_->states.empty());
  EXPECT_EQ(a_.store.stats().prefixes_written_total.value(), 0U);
}

TEST_F(SharedPrefixes, OfAnotherModelItIsNotTaken) {
  a_.publish(owner_, head_);
  b_.look_up(owner_, "another model");
  EXPECT_FALSE(b_.find("a", numbers(1, 150)));
}

TEST_F(SharedPrefixes, AStateThatIsNotWhatItsNameSaysIsNotTaken) {
  for (const bool has_other_owner : {false, true}) {
    PrefixNode writer(content_, clock_);
    writer.publish(owner_, head_);
    ASSERT_EQ(content_->states.size(), 1U);
    FakeSharedStore::State state = std::move(content_->states.begin()->second);
    content_->states.clear();
    if (has_other_owner) state.head.owner.is_public = true;
    if (!has_other_owner) state.head.tokens = state.snapshot.tokens = numbers(1, 120);
    content_->states.emplace(state.head.name, std::move(state));
    b_.look_up(owner_);
    EXPECT_FALSE(b_.find("a", numbers(1, 150)));
    content_->states.clear();
  }
}

TEST_F(SharedPrefixes, AfterAStartItIsStillOnTheDisk) {
  a_.store.put(owner_, snapshot_of(head_));
  a_.store.save_all(clock_.now() + std::chrono::seconds(1));
  ASSERT_EQ(a_.disk->files.size(), 1U);
  auto disk = std::make_unique<FakeColdStore>();
  disk->files = std::move(a_.disk->files);
  StateStore again({.warm_bytes_max = 1'000'000, .cold_bytes_max = 1'000'000, .shared_tokens_min = 16}, std::move(disk),
                   clock_);
  again.open({});
  (void)again.join("model", true);
  EXPECT_EQ(again.states_of(owner_.session).tier, Tier::cold);
}

TEST_F(SharedPrefixes, AStoreThatIsDownAnswersAndHasNone) {
  content_->fails = [] { return true; };
  a_.publish(owner_, head_);
  b_.look_up(owner_);
  EXPECT_FALSE(a_.store.is_shared(owner_.session));
  EXPECT_FALSE(b_.find("a", numbers(1, 150)));
}

}  // namespace
}  // namespace uma::kv
