// The router with several models: loads, requests that wait for them, and retirement.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

constexpr FakeOptions kSmallOptions{.cells = 1024, .sequences = 2};

class RouterModels : public ::testing::Test, protected EngineBench {
 protected:
  RouterModels() : EngineBench(kSmallOptions, {"a", "b"}) {
    store_ = std::make_unique<kv::StateStore>(kv::StoreOptions{.warm_bytes_max = 1 << 20}, nullptr, clock_);
    start_router();
  }

  void on_loaded(const std::string& name) {
    LaneOptions options;
    options.store = store_.get();
    lane_of_[name] = &add_lane(std::move(options));
    router_->on_loaded(name, chat_model(model_, {lane_of_[name]}));
  }
  // Frees the model as the engine does after the router has retired it.
  void free(const std::string& name) {
    Lane* const lane = lane_of_.at(name);
    lane->close();
    lane->cancel_all();
    std::erase_if(lanes_, [lane](const auto& each) { return each.get() == lane; });
    router_->on_retired(name);
  }
  using EngineBench::generate;
  SinkPtr generate(const std::string& model, const std::string& session = "", bool is_background = false) {
    GenerateRequest request;
    if (is_background) request.options.request_class = RequestClass::background;
    request.model = model;
    request.session = session;
    request.input.text = "hello";
    request.options.max_tokens = 5;
    request.options.progress = true;
    return generate(std::move(request));
  }
  bool has_created(const std::string& model, const std::string& name) {
    CreateSessionRequest request;
    request.model = model;
    request.name = name;
    request.mode = SessionMode::text;
    return create(request).has_value();
  }
  // A response of `model` in a conversation, or one that continues `previous`.
  SinkPtr respond(const std::string& id, const std::string& model, const std::string& session = "",
                  const std::string& previous = "") {
    GenerateRequest request;
    request.model = model;
    request.session = session;
    request.input.messages = {{"user", "Hello"}};
    request.options.max_tokens = 5;
    request.response.emplace();
    request.response->id = id;
    request.response->previous = previous;
    return generate(std::move(request));
  }
  void cancel_last() { (void)router_->cancel(last_id_); }

  std::map<std::string, Lane*> lane_of_;
};

TEST_F(RouterModels, AModelIsAskedForOnceAndWhoWaitsIsServed) {
  const auto first = generate("");
  const auto second = generate("a");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"}) << "the default one is a";
  const auto other = generate("b");
  router_->on_load_progress("b", 0.5);
  on_loaded("a");
  settle();
  EXPECT_TRUE(first->has_eos() && second->has_eos());
  EXPECT_FALSE(other->terminal) << "one load does not wait for another";
  EXPECT_TRUE(std::ranges::contains(other->stages, ProgressStage::loading));
  EXPECT_FALSE(std::ranges::contains(first->stages, ProgressStage::loading)) << "it is not its model";
  on_loaded("b");
  settle();
  EXPECT_TRUE(other->has_eos());
  EXPECT_TRUE(generate("b")->has_eos());
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "b"}));
}

TEST_F(RouterModels, BackgroundRequestsForAHeldModelWaitAndOthersDoNot) {
  generate("a");
  on_loaded("a");
  settle();
  router_->hold_background("a", true);
  const auto held = generate("a", "", true);
  EXPECT_FALSE(held->terminal);
  EXPECT_TRUE(generate("a")->has_eos());
  router_->hold_background("a", false);
  settle();
  EXPECT_TRUE(held->has_eos());

  router_->hold_background("a", true);
  const auto cancelled = generate("a", "", true);
  cancel_last();
  settle();
  EXPECT_EQ(cancelled->eos().reason, FinishReason::cancelled);
  const auto next = generate("a", "", true);
  const auto usage = router_->usage().front();
  EXPECT_EQ(usage.uses, 0) << "who waits does not use it";
  EXPECT_EQ(usage.background_waiting, 1);
  ASSERT_TRUE(router_->retire("a"));
  free("a");
  settle();
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "a"})) << "it is wanted still";
  on_loaded("a");
  router_->hold_background("a", false);
  settle();
  EXPECT_TRUE(next->has_eos());
}

TEST_F(RouterModels, AnUnknownModelIsRefusedAtOnce) {
  EXPECT_EQ(generate("c")->error().code, ErrorCode::model_unknown);
  EXPECT_TRUE(source_.wanted.empty());
}

TEST_F(RouterModels, ASessionIsOfOneModel) {
  on_loaded("a");
  on_loaded("b");
  ASSERT_TRUE(has_created("b", "s"));
  EXPECT_TRUE(generate("", "s")->has_eos()) << "no model is named: its own";
  EXPECT_TRUE(generate("b", "s")->has_eos());
  EXPECT_EQ(generate("a", "s")->error().code, ErrorCode::proto_field);
  EXPECT_EQ(lane_of_.at("b")->stats().tokens_total.value(), 10u);
  EXPECT_EQ(lane_of_.at("a")->stats().tokens_total.value(), 0u);
}

TEST_F(RouterModels, AConversationWithoutATurnIsOfTheModelThatAnswersFirst) {
  on_loaded("a");
  on_loaded("b");
  CreateSessionRequest begun;
  begun.model = "a";
  begun.mode = SessionMode::chat;
  begun.messages = {{"user", "first"}};
  const std::string id = create(begun).value().id.value;
  EXPECT_EQ(kept(id)->model, "a");
  EXPECT_TRUE(respond("one", "b", id)->has_eos());
  EXPECT_EQ(kept(id)->model, "b");
  EXPECT_EQ(kept(id)->messages.size(), 3u) << "what waited was answered";
  EXPECT_EQ(lane_of_.at("a")->stats().tokens_total.value(), 0u);
  const auto other = respond("two", "a", id);
  EXPECT_EQ(other->error().field, "model") << "it has a turn";
  const auto next = respond("three", "", id);
  EXPECT_GT(next->eos().usage.reused_tokens, 0);
  EXPECT_EQ(next->begun->model, "b") << "the request has named none";
}

TEST_F(RouterModels, AResponseIsContinuedByAnotherModelInASessionOfItsOwn) {
  on_loaded("a");
  on_loaded("b");
  const SessionId first = respond("one", "a")->begun.value().session;
  const auto second = respond("two", "b", first.value, "one");
  ASSERT_TRUE(second->has_eos());
  const SessionId fork = second->begun.value().session;
  EXPECT_NE(fork, first);
  EXPECT_EQ(kept(fork.value)->model, "b");
  EXPECT_EQ(kept(fork.value)->messages.size(), 4u);
  EXPECT_EQ(kept(first.value)->model, "a");
  EXPECT_EQ(kept(first.value)->messages.size(), 2u) << "it stays as it was";
  EXPECT_TRUE(respond("three", "b", fork.value, "two")->has_eos());
  EXPECT_EQ(kept(fork.value)->messages.size(), 6u) << "the same model goes on in it";
}

TEST_F(RouterModels, ModelsDoNotShareWhatTheyHaveComputed) {
  on_loaded("a");
  ASSERT_TRUE(has_created("a", "s"));
  EXPECT_EQ(generate("", "s")->eos().usage.reused_tokens, 0);
  EXPECT_GT(generate("", "s")->eos().usage.reused_tokens, 0);
}

TEST_F(RouterModels, OnlyWhatNobodyUsesIsRetired) {
  EXPECT_FALSE(router_->retire("a")) << "it was never loaded";
  on_loaded("a");
  GenerateRequest request;
  request.input.text = "hello";
  const auto running = begin(std::move(request));
  EXPECT_FALSE(router_->retire("a")) << "a request is under way";
  settle();
  ASSERT_TRUE(running->has_eos());
  EXPECT_TRUE(router_->retire("a"));
  EXPECT_FALSE(router_->retire("a")) << "it is leaving";

  const auto waits = generate("a");
  EXPECT_TRUE(source_.wanted.empty()) << "it is loaded again when the old one is gone";
  free("a");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"});
  on_loaded("a");
  settle();
  EXPECT_TRUE(waits->has_eos());
}

TEST_F(RouterModels, ASessionOutlivesItsModel) {
  on_loaded("a");
  ASSERT_TRUE(has_created("", "s"));
  const std::string long_text(200, 'x');
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(append("s", long_text));
    ASSERT_TRUE(generate("", "s")->has_eos());
  }
  ASSERT_TRUE(router_->retire("a"));
  free("a");
  const auto again = generate("", "s");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"});
  on_loaded("a");
  settle();
  EXPECT_EQ(again->eos().usage.tier, Tier::warm) << "what the model's lanes had computed went to the store";
  EXPECT_GT(again->eos().usage.reused_tokens, 400);
}

TEST_F(RouterModels, ALoadThatNobodyWaitsForIsEnded) {
  const auto first = generate("a");
  const RequestId first_id = last_id_;
  const auto second = generate("a");
  cancel_last();
  EXPECT_TRUE(source_.cancelled.empty()) << "another waits";
  EXPECT_TRUE(router_->cancel(first_id));
  EXPECT_EQ(source_.cancelled, std::vector<std::string>{"a"});
  EXPECT_EQ(first->eos().reason, FinishReason::cancelled);

  // A request for the model comes before the cancelled load has ended.
  const auto third = generate("a");
  router_->on_load_failed("a", {ErrorCode::model_load, "cancelled"});
  EXPECT_FALSE(third->has_failed());
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "a"}));
  on_loaded("a");
  settle();
  EXPECT_TRUE(third->has_eos());
}

TEST_F(RouterModels, ALoadThatFailedIsTriedAgainAfterAWhile) {
  const auto first = generate("a");
  router_->on_load_failed("a", {ErrorCode::model_load, "no memory"});
  settle();
  EXPECT_EQ(first->error().code, ErrorCode::model_load);
  EXPECT_EQ(generate("a")->error().message, "no memory");
  EXPECT_EQ(source_.wanted.size(), 1u) << "not at once";
  clock_.advance(std::chrono::minutes(1));
  const auto later = generate("a");
  EXPECT_EQ(source_.wanted.size(), 2u);
  on_loaded("a");
  settle();
  EXPECT_TRUE(later->has_eos());
}

TEST_F(RouterModels, TellsWhoUsesWhat) {
  on_loaded("a");
  clock_.advance(std::chrono::seconds(7));
  (void)generate("b");
  std::map<std::string, ModelUsage> usages;
  for (ModelUsage& usage : router_->usage()) usages[usage.name] = usage;
  EXPECT_TRUE(usages.at("a").is_loaded);
  EXPECT_EQ(usages.at("a").uses, 0);
  EXPECT_DOUBLE_EQ(usages.at("a").idle_s, 7);
  EXPECT_FALSE(usages.at("b").is_loaded);
  EXPECT_EQ(usages.at("b").waiting, 1);
}

}  // namespace
}  // namespace uma::engine
