// Models whose device is lost: their requests end, others go on, and sessions continue after the next load.
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

constexpr FakeOptions kOptions{.cells = 2048, .sequences = 4};

class LostModel : public ::testing::Test, protected EngineBench {
 protected:
  LostModel() : EngineBench(kOptions, {"a", "b", "c"}) {
    store_ = std::make_unique<kv::StateStore>(kv::StoreOptions{.warm_bytes_max = 1 << 20}, nullptr, clock_);
    start_router();
  }

  // Serves the model with one lane, on the device that `lost` belongs to; null: on the CPU.
  void on_loaded(const std::string& name, std::atomic<bool>* lost) {
    FakeOptions options = kOptions;
    options.lost = lost;
    auto model = std::make_shared<const FakeModel>(options);
    auto context = std::make_unique<FakeContext>(options);
    contexts_[name] = context.get();
    LaneOptions lane_options;
    lane_options.store = store_.get();
    lane_options.stored_tokens_min = 4;
    lane_options.on_lost = [this] { router_->post([this] { router_->on_lost(); }); };
    lanes_.push_back(std::make_unique<Lane>(
        std::move(lane_options), std::move(context), nullptr, model->vocab(), clock_, [this](GenerationResult result) {
          router_->post([this, result = std::move(result)]() mutable { router_->generations().on_result(std::move(result)); });
        }));
    lane_of_[name] = lanes_.back().get();
    models_[name] = model;
    router_->on_loaded(name, chat_model(model, {lane_of_[name]}));
  }
  // Frees the model as the source does when it has heard of the loss. False: a request uses it.
  bool free(const std::string& name) {
    if (!router_->retire(name)) return false;
    Lane* const lane = lane_of_.at(name);
    lane->close();
    lane->cancel_all();
    std::erase_if(lanes_, [lane](const auto& each) { return each.get() == lane; });
    router_->on_retired(name);
    return true;
  }
  // Creates the session "s" of model "a", with a first reply.
  void begin_session() {
    CreateSessionRequest asked;
    asked.name = "s";
    asked.mode = SessionMode::text;
    ASSERT_TRUE(create(asked));
    ASSERT_EQ(generate(request("a", 20, "s"))->tokens.size(), 20u);
  }
  static GenerateRequest request(const std::string& model, std::int32_t max_tokens, const std::string& session = "") {
    GenerateRequest made;
    made.model = session.empty() ? model : "";
    made.session = session;
    made.input.text = "hello " + model;
    made.options.max_tokens = max_tokens;
    made.options.sampling.ignore_eos = true;
    return made;
  }
  static std::vector<Token> expected(const std::string& model, std::int32_t max_tokens) {
    std::vector<Token> tokens = testing::fake_tokens("hello " + model);
    tokens.insert(tokens.begin(), testing::kFakeBos);
    return testing::fake_continuation(kOptions, tokens, max_tokens);
  }

  std::atomic<bool> lost_ = false;
  std::map<std::string, Lane*> lane_of_;
  std::map<std::string, FakeContext*> contexts_;
  std::map<std::string, std::shared_ptr<const FakeModel>> models_;
};

TEST_F(LostModel, ItsStreamsEndAndThoseOfOthersGoOn) {
  on_loaded("a", &lost_);
  on_loaded("b", nullptr);
  std::vector<SinkPtr> ending;
  for (int i = 0; i < 6; ++i) ending.push_back(begin(request("a", 200)));
  const auto going_on = begin(request("b", 100));
  step_until_tokens(*ending.front());
  ASSERT_FALSE(going_on->terminal);
  contexts_.at("a")->fault = [](std::span<const llm::BatchRow>) { return testing::FakeFault::lost; };
  settle();
  for (const auto& sink : ending) {
    ASSERT_TRUE(sink->terminal);
    if (sink->tokens.empty()) {
      EXPECT_EQ(sink->error().code, ErrorCode::runtime_decode);
    } else {
      EXPECT_EQ(sink->eos().reason, FinishReason::error);
      EXPECT_EQ(sink->eos().error->code, ErrorCode::runtime_decode);
    }
  }
  EXPECT_EQ(going_on->tokens, expected("b", 100));
  EXPECT_EQ(source_.lost, std::vector<std::string>{"a"});

  const auto next = begin(request("a", 10));
  settle();
  EXPECT_FALSE(next->terminal) << "it waits for the next load";
  EXPECT_TRUE(source_.wanted.empty());
  ASSERT_TRUE(free("a"));
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"});
  on_loaded("a", nullptr);
  settle();
  EXPECT_EQ(next->tokens, expected("a", 10));
}

TEST_F(LostModel, AllModelsOfTheDeviceLeaveService) {
  for (const char* name : {"a", "b"}) on_loaded(name, &lost_);
  on_loaded("c", nullptr);
  lost_ = true;
  const auto waits = begin(request("b", 10));
  EXPECT_EQ(source_.lost, std::vector<std::string>{"b"}) << "the request does not get it, although its lane does not know yet";
  router_->on_lost();
  EXPECT_EQ(source_.lost, (std::vector<std::string>{"b", "a"}));
  settle();
  EXPECT_FALSE(waits->terminal);
  EXPECT_EQ(generate(request("c", 10))->tokens, expected("c", 10));
  ASSERT_TRUE(free("b"));
  on_loaded("b", nullptr);
  settle();
  EXPECT_EQ(waits->tokens, expected("b", 10));
  EXPECT_EQ(source_.lost.size(), 2u) << "each is reported once";
}

TEST_F(LostModel, ItIsFreedWhenTheLastOfItsRequestsHasEnded) {
  on_loaded("a", &lost_);
  const auto ending = begin(request("a", 200));
  step_until_tokens(*ending);
  lost_ = true;
  router_->on_lost();
  EXPECT_FALSE(free("a"));
  settle();
  EXPECT_EQ(ending->eos().reason, FinishReason::error);
  EXPECT_TRUE(free("a"));
}

TEST_F(LostModel, ASessionContinuesAfterTheNextLoad) {
  on_loaded("a", &lost_);
  ASSERT_NO_FATAL_FAILURE(begin_session());
  const auto ending = begin(request("a", 200, "s"));
  step_until_tokens(*ending);
  contexts_.at("a")->fault = [](std::span<const llm::BatchRow>) { return testing::FakeFault::lost; };
  settle();
  ASSERT_EQ(ending->eos().reason, FinishReason::error);

  ASSERT_TRUE(free("a"));
  on_loaded("a", nullptr);
  const std::string before = wait_for(sessions().get(kTenant, "s")).value().text;
  const auto next = generate(request("a", 30, "s"));
  std::vector<Token> chain = testing::fake_tokens(before + "hello a");
  chain.insert(chain.begin(), testing::kFakeBos);
  EXPECT_EQ(next->tokens, testing::fake_continuation(kOptions, chain, 30));
  EXPECT_EQ(next->eos().usage.tier, Tier::none);
  EXPECT_EQ(next->eos().usage.reused_tokens, 0) << "what only the context held is computed again";
  EXPECT_EQ(next->eos().usage.reuse_reason, "not_cached");
}

TEST_F(LostModel, StoredStatesStay) {
  on_loaded("a", &lost_);
  ASSERT_NO_FATAL_FAILURE(begin_session());
  bool was_saved = false;
  const SessionId id = wait_for(sessions().get(kTenant, "s")).value().info.id;
  lane_of_.at("a")->post(CopyCommand{id, kv::GiveWay::at_once, [&] { was_saved = true; }});
  settle();
  ASSERT_TRUE(was_saved);
  lost_ = true;
  const auto next = begin(request("a", 10, "s"));
  settle();
  ASSERT_TRUE(free("a"));
  on_loaded("a", nullptr);
  settle();
  EXPECT_EQ(next->eos().usage.tier, Tier::warm);
  EXPECT_GT(next->eos().usage.reused_tokens, 20);
}

}  // namespace
}  // namespace uma::engine
