// System prompts whose KV daemons exchange.
#include "engine/router/prefix_exchange.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "kv/shared/shared_limits.h"
#include "kv/shared/shared_prefix.h"
#include "testing/fake_shared_store.h"

namespace uma::engine {
namespace {

using testing::FakeSharedStore;
using Content = FakeSharedStore::Content;

constexpr FakeOptions kNodeOptions{.cells = 2048, .sequences = 4, .unified = true, .has_chat_template = true};
const std::string kSystem = "You are a helpful assistant that answers in one short sentence.";

// A daemon with the shared store.
class PrefixNode : public EngineBench {
 public:
  explicit PrefixNode(const std::shared_ptr<Content>& content, bool is_reproducible = false)
      : EngineBench(kNodeOptions),
        shared_(std::make_unique<FakeSharedStore>(content), std::make_unique<FakeSharedStore>(content), clock_) {
    store_ = std::make_unique<kv::StateStore>(
        kv::StoreOptions{.warm_bytes_max = 1 << 20, .cold_bytes_max = 1 << 20, .shared_tokens_min = 40}, nullptr, clock_,
        &shared_);
    store_->open({});
    start_router({.limits = {}, .shares_prefixes = !is_reproducible});
    LaneOptions options;
    options.store = store_.get();
    options.stored_tokens_min = 4;
    options.is_reproducible = is_reproducible;
    add_lane(std::move(options));
    serve_lanes();
  }
  ~PrefixNode() {
    router_.reset();
    lanes_.clear();
    store_.reset();
  }

  bool step_all() {
    bool any = step();
    if (!reads_) return any;
    any = shared_.writer.step() || any;
    return shared_.reader.step() || any;
  }
  void settle_all() {
    for (int quiet = 0; quiet < 3;) quiet = step_all() ? 0 : quiet + 1;
  }
  static GenerateRequest chat(const std::string& text, const std::string& system = kSystem) {
    GenerateRequest request;
    request.input.messages = {{"system", system}, {"user", text}};
    request.options.max_tokens = 4;
    return request;
  }
  SinkPtr ask(GenerateRequest request, const TenantId& tenant = kTenant) {
    const SinkPtr sink = begin(std::move(request), tenant);
    settle_all();
    EXPECT_TRUE(sink->has_eos());
    return sink;
  }
  SinkPtr ask(const std::string& text, const TenantId& tenant = kTenant) { return ask(chat(text), tenant); }
  // A session's first reply.
  SinkPtr ask_in_session(CreateSessionRequest request, const std::string& text, const TenantId& tenant = kTenant) {
    request.system = kSystem;
    const auto created = create(request, tenant);
    GenerateRequest first;
    first.session = created.value().id.value;
    first.input.text = text;
    first.options.max_tokens = 4;
    return ask(std::move(first), tenant);
  }
  using EngineBench::begin;
  void unload() {
    ASSERT_TRUE(router_->retire("fake"));
    close_lanes();
    lanes_.clear();
    router_->on_retired("fake");
  }

  [[nodiscard]] const kv::StoreStats& stats() const { return store_->stats(); }
  [[nodiscard]] testing::SimClock& clock() { return clock_; }
  [[nodiscard]] std::uint64_t lookups() const { return stats().prefix_lookups_total.value(); }

  bool reads_ = true;  // False: the shared store's threads hang.

 private:
  kv::SharedStates shared_;
};

class PrefixExchangeTest : public ::testing::Test {
 protected:
  // What `text` is answered with where nothing is shared.
  static std::vector<Token> expected(const std::string& text) {
    PrefixNode alone(std::make_shared<Content>());
    return alone.ask(text)->tokens;
  }
  static void expect_shared(const SinkPtr& sink, bool is_shared = true) {
    const Usage& usage = sink->eos().usage;
    EXPECT_EQ(usage.tier, is_shared ? Tier::shared : Tier::none);
    EXPECT_EQ(usage.reuse_reason == "prefix", is_shared) << usage.reuse_reason;
    EXPECT_EQ(usage.reused_tokens > static_cast<std::int32_t>(kSystem.size()), is_shared) << usage.reused_tokens;
  }

  std::shared_ptr<Content> content_ = std::make_shared<Content>();
  PrefixNode a_{content_};
  PrefixNode b_{content_};
};

TEST_F(PrefixExchangeTest, ASystemPromptOfTwoConversationsIsOnOtherNodesToo) {
  a_.ask("What is a fox?");
  EXPECT_TRUE(content_->states.empty()) << "it may be one conversation's alone";
  a_.ask("Who wrote Faust?");
  ASSERT_EQ(content_->states.size(), 1U);
  EXPECT_EQ(a_.stats().prefixes_written_total.value(), 1U);
  const SinkPtr sink = b_.ask("Where is Rome?");
  expect_shared(sink);
  EXPECT_EQ(sink->tokens, expected("Where is Rome?"));
  EXPECT_EQ(b_.stats().prefixes_found_total.value(), 1U);
}

TEST_F(PrefixExchangeTest, WhatIsStoredHasNoWordOfTheConversations) {
  a_.ask("What is a fox?");
  a_.ask("Where is the fox?");
  ASSERT_EQ(content_->states.size(), 1U);
  std::string text;
  for (const Token token : content_->states.begin()->second.head.tokens) {
    if (token >= ' ' && token < 127) text += static_cast<char>(token);
  }
  EXPECT_TRUE(text.contains(kSystem)) << text;
  EXPECT_TRUE(text.ends_with("user")) << text;
  EXPECT_FALSE(text.contains('?')) << text;
}

TEST_F(PrefixExchangeTest, SessionsAndOneShotRequestsShareIt) {
  a_.ask_in_session({}, "What is a fox?");
  a_.ask_in_session({}, "Who wrote Faust?");
  ASSERT_EQ(content_->states.size(), 1U);
  expect_shared(b_.ask("Where is Rome?"));
  PrefixNode c(content_);
  expect_shared(c.ask_in_session({}, "Where is Rome?"));
}

TEST_F(PrefixExchangeTest, TurnsOfOneConversationAreOne) {
  GenerateRequest request = PrefixNode::chat("What is a fox?");
  a_.ask(request);
  a_.ask(request);
  request.input.messages.push_back({"assistant", "An animal."});
  request.input.messages.push_back({"user", "Which one?"});
  a_.ask(request);
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(PrefixExchangeTest, OtherTenantsDoNotFindIt) {
  a_.ask("What is a fox?");
  a_.ask("Who wrote Faust?");
  const TenantId other{"other"};
  expect_shared(b_.ask("Where is Rome?", other), false);
  a_.ask("a question of another tenant", other);
  EXPECT_EQ(content_->states.size(), 1U) << "conversations of two tenants are not two of one";
}

TEST_F(PrefixExchangeTest, OfAPublicSessionAllTenantsFindItAtOnce) {
  CreateSessionRequest request;
  request.is_public = true;
  a_.ask_in_session(request, "What is a fox?");
  ASSERT_EQ(content_->states.size(), 1U);
  EXPECT_TRUE(content_->states.begin()->second.head.owner.is_public);
  expect_shared(b_.ask("Where is Rome?", TenantId{"other"}));
}

TEST_F(PrefixExchangeTest, AnEphemeralSessionStoresNothing) {
  CreateSessionRequest request;
  request.is_ephemeral = true;
  a_.ask_in_session(request, "What is a fox?");
  a_.ask_in_session(request, "Who wrote Faust?");
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(PrefixExchangeTest, AHeadIsLookedForOnceInAWhile) {
  for (const char* text : {"What is a fox?", "Who wrote Faust?", "Where is Rome?"}) b_.ask(text);
  EXPECT_EQ(b_.lookups(), 3U) << "its tenant's and the public one, and once more before it is stored";
  b_.ask(PrefixNode::chat("And what is this?", "Another assistant, which is not as helpful as the first."));
  EXPECT_EQ(b_.lookups(), 5U);
  b_.ask(PrefixNode::chat("Hello", "short"));
  EXPECT_EQ(b_.lookups(), 5U);
}

TEST_F(PrefixExchangeTest, AfterAMissItIsFoundLater) {
  expect_shared(b_.ask("What is a fox?"), false);
  const std::uint64_t before = b_.lookups();
  b_.clock().advance(std::chrono::seconds(61));
  b_.ask(PrefixNode::chat("Who wrote Faust?"));
  EXPECT_GT(b_.lookups(), before) << "it was long ago";
}

TEST_F(PrefixExchangeTest, TwoRequestsWaitForOneLookup) {
  a_.ask("What is a fox?");
  a_.ask("Who wrote Faust?");
  const SinkPtr first = b_.begin(PrefixNode::chat("Where is Rome?"));
  const SinkPtr second = b_.begin(PrefixNode::chat("Where is Paris?"));
  b_.settle_all();
  ASSERT_TRUE(first->has_eos() && second->has_eos());
  EXPECT_EQ(b_.lookups(), 1U);
}

TEST_F(PrefixExchangeTest, AStoreThatHangsCostsOneRequestHalfASecond) {
  b_.reads_ = false;
  const TimePoint began = b_.clock().now();
  const SinkPtr first = b_.begin(PrefixNode::chat("Where is Rome?"));
  b_.settle_all();
  EXPECT_FALSE(first->has_eos());
  b_.clock().advance(kv::kPrefixLookUpMax);
  b_.settle_all();
  EXPECT_TRUE(first->has_eos());
  const SinkPtr other = b_.begin(PrefixNode::chat("Hello", "Another assistant, which is not as helpful as the first."));
  b_.settle_all();
  EXPECT_TRUE(other->has_eos());
  EXPECT_LE(b_.clock().now() - began, kv::kPrefixLookUpMax + std::chrono::milliseconds(10));
  b_.reads_ = true;
  b_.settle_all();
  const std::uint64_t before = b_.lookups();
  b_.ask(PrefixNode::chat("Hello", "A third assistant, which is not as helpful as the first."));
  EXPECT_EQ(b_.lookups(), before + 2) << "it answers again";
}

TEST_F(PrefixExchangeTest, AStoreThatFailsCostsNothing) {
  content_->fails = [] { return true; };
  a_.ask("What is a fox?");
  const SinkPtr sink = a_.ask("Who wrote Faust?");
  EXPECT_EQ(sink->tokens, expected("Who wrote Faust?"));
  EXPECT_EQ(a_.stats().prefixes_written_total.value(), 0U);
}

TEST_F(PrefixExchangeTest, WhatAnotherNodeHasStoredMeanwhileIsNotWritten) {
  b_.ask("What is a fox?");
  a_.ask("What is a fox?");
  a_.ask("Who wrote Faust?");
  b_.ask("Where is Rome?");
  EXPECT_EQ(b_.stats().prefixes_written_total.value(), 0U);
  EXPECT_EQ(content_->states.size(), 1U);
}

TEST_F(PrefixExchangeTest, InReproducibleModeNothingIsExchanged) {
  a_.ask("What is a fox?");
  a_.ask("Who wrote Faust?");
  PrefixNode strict(content_, true);
  strict.ask("Where is Rome?");
  strict.ask("Where is Paris?");
  EXPECT_EQ(strict.lookups(), 0U);
}

TEST_F(PrefixExchangeTest, AModelThatIsUnloadedMeanwhileLeavesNothingBehind) {
  a_.ask("What is a fox?");
  a_.reads_ = false;
  const SinkPtr sink = a_.begin(PrefixNode::chat("Who wrote Faust?"));
  a_.settle_all();
  ASSERT_TRUE(sink->has_eos());
  a_.unload();
  a_.reads_ = true;
  a_.settle_all();
  EXPECT_TRUE(content_->states.empty());
}

}  // namespace
}  // namespace uma::engine
