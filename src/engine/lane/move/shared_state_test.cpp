// Requests whose state is in the store that daemons share.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"
#include "testing/fake_shared_store.h"

namespace uma::engine {
namespace {

using testing::FakeSharedStore;

class SharedStateTest : public LaneTest {
 protected:
  struct Node {
    Node(const std::shared_ptr<FakeSharedStore::Content>& content, const Clock& clock)
        : shared(std::make_unique<FakeSharedStore>(content), std::make_unique<FakeSharedStore>(content), clock),
          store({.warm_bytes_max = 1 << 20, .cold_bytes_max = 1 << 20, .shared_tokens_min = 4}, nullptr, clock, &shared) {}
    void work() {
      bool any = true;
      while (any) {
        any = store.step();
        any = shared.writer.step() || any;
        any = shared.reader.step() || any;
      }
    }
    kv::SharedStates shared;
    kv::StateStore store;
  };

  void make_lane(Node& node) {
    LaneOptions options;
    options.store = &node.store;
    options.stored_tokens_min = 4;
    lane_.reset();
    make({.cells = 4000, .sequences = 2}, std::move(options));
  }
  // A session's first turn on `a_`, whose state is found by `b_`. Returns its chain with the next input.
  std::vector<Token> move_session() {
    make_lane(a_);
    std::vector<Token> chain = run_turn(std::string(500, 'h'));
    lane_->close();
    lane_->cancel_all();
    a_.store.publish(SessionId{"s"}, kv::SharedWriter::Urgency::soon, [] {});
    a_.work();
    make_lane(b_);
    b_.store.look_up(TenantId{}, SessionId{"s"}, [] {});
    (void)b_.shared.reader.step();  // Found, and not read yet.
    chain.push_back('x');
    post(next_turn(2, chain));
    return chain;
  }

  std::shared_ptr<FakeSharedStore::Content> content_ = std::make_shared<FakeSharedStore::Content>();
  Node a_{content_, clock_};
  Node b_{content_, clock_};
};

TEST_F(SharedStateTest, AReplyGoesOnFromIt) {
  const std::vector<Token> chain = move_session();
  for (int i = 0; i < 1000 && !results_.contains(2); ++i) {
    (void)lane_->step();
    b_.work();
  }
  EXPECT_EQ(eos(2).usage.tier, Tier::shared);
  EXPECT_GT(eos(2).usage.reused_tokens, 500);
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
}

TEST_F(SharedStateTest, AReadThatTakesTooLongIsGivenUpAndTheTokensAreComputed) {
  const std::vector<Token> chain = move_session();
  const TimePoint began = clock_.now();
  run();  // The store's threads hang.
  EXPECT_GE(clock_.now(), began + std::chrono::seconds(2));
  EXPECT_LT(clock_.now(), began + std::chrono::seconds(3)) << "with the time to compute the tokens";
  EXPECT_EQ(eos(2).usage.reused_tokens, 0);
  EXPECT_EQ(eos(2).usage.reuse_reason, "refused");
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
  b_.work();  // A state that comes late harms nobody.
  run();
  EXPECT_EQ(results_.size(), 2U);
}

}  // namespace
}  // namespace uma::engine
