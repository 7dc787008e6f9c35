// States that are saved and loaded beside streams: the streams wait for one of them at a time.
#include "engine/lane/move/state_transfers.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"
#include "kv/shared/shared_prefix.h"

namespace uma::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class StateTransfersTest : public LaneTest {
 protected:
  StateTransfersTest() {
    store_.open({});
    make_lane();
  }
  // A piece of 128 tokens takes 2.6 ms, so a slice has two.
  void make_lane() {
    LaneOptions options;
    options.store = &store_;
    options.stored_tokens_min = 4;
    make({.cells = 8192, .sequences = 6, .unified = true, .state_cost = microseconds(20)}, std::move(options));
  }
  static std::vector<Token> chain_of(char first) { return fake_tokens(first + std::string(1500, 'x') + "?"); }
  void ask(std::uint64_t id, const std::string& session, std::int32_t tokens_max = 8) {
    GenerationJob asked = of_session(session, job(id, "", tokens_max));
    asked.tokens = chain_of(session.front());
    post(std::move(asked));
  }
  // Steps until request `id` has generated for as long as `goes_on` says; returns the longest time between two of its tokens.
  Duration longest_gap(std::uint64_t id, const std::function<bool()>& goes_on) {
    Duration longest{};
    std::size_t tokens = sinks_[id]->tokens.size();
    int steps = 0;
    for (TimePoint last = clock_.now(); goes_on() && ++steps < 10'000;) {
      step();
      while (store_.step()) {
      }
      if (std::exchange(tokens, sinks_[id]->tokens.size()) == sinks_[id]->tokens.size()) continue;
      longest = std::max(longest, clock_.now() - last);
      last = clock_.now();
    }
    EXPECT_LT(steps, 10'000);
    return longest;
  }

  kv::StateStore store_{{.warm_bytes_max = 1 << 26, .cold_bytes_max = 1 << 26, .write_within = seconds(5)},
                        std::make_unique<FakeColdStore>(),
                        clock_};
};

TEST_F(StateTransfersTest, AStreamWaitsForOneSliceHoweverManyAreSavedAndLoaded) {
  ask(1, "c");
  run();
  lane_->post(CopyCommand{SessionId{"c"}, kv::GiveWay::at_once, [] {}});
  run();
  make_lane();  // Without c, which is in the store.
  ask(2, "a");
  ask(3, "b");
  run();
  clock_.advance(seconds(3));  // Both are to be written to disk.
  ask(4, "stream", 400);
  for (int i = 0; i < 1000 && sinks_[4]->tokens.empty(); ++i) step();
  int copied = 0;
  lane_->post(CopyCommand{SessionId{"a"}, kv::GiveWay::by_disk, [&] { ++copied; }});
  std::vector<Token> prefix = chain_of('b');
  prefix.resize(1000);
  lane_->post(CopyPrefixCommand{
      .owner = kv::prefix_owner(TenantId{}, false, prefix), .tokens = prefix, .adapters = {}, .then = [&] { ++copied; }});
  ask(5, "c");
  const Duration longest = longest_gap(4, [&] { return !results_.contains(5) || copied < 2; });
  EXPECT_FALSE(results_.contains(4));
  EXPECT_EQ(eos(5).usage.tier, Tier::warm);
  EXPECT_GT(longest, milliseconds(5)) << "something was moved";
  EXPECT_LT(longest, milliseconds(10));
  EXPECT_LT(longest_gap(4, [&] { return !results_.contains(4); }), milliseconds(10));
  EXPECT_GT(store_.stats().written_bytes_total.value(), 0u) << "what stays in the context is on disk, too";
}

}  // namespace
}  // namespace uma::engine
