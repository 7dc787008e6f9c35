#include "engine/router/held_sink.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

// Accepts a limited number of events.
struct PatientClient final : EventSink {
  bool deliver(const Event& event) override {
    if (patience == 0) return false;
    --patience;
    const auto& token = std::get<TokenEvent>(event);
    told += token.text;
    for (const TokenLogprobs& each : token.logprobs) told += "/" + each.chosen.bytes;
    return true;
  }
  int patience = 100;
  std::string told;
};

TEST(HeldSink, TellsNothingBeforeItIsReleasedAndThenEverythingInOrder) {
  const auto client = std::make_shared<PatientClient>();
  HeldSink sink(client);
  {
    // The data that an event refers to ends before the event is forwarded.
    std::string text = "a";
    std::vector<TokenLogprobs> logprobs{{.chosen = {.bytes = "A"}}};
    EXPECT_TRUE(sink.deliver(TokenEvent{text, 1, logprobs}));
    text = "x";
    logprobs.clear();
  }
  EXPECT_TRUE(sink.deliver(TokenEvent{"b", 2, {}}));
  EXPECT_EQ(client->told, "");
  sink.release();
  EXPECT_EQ(client->told, "a/Ab");
  EXPECT_TRUE(sink.deliver(TokenEvent{"c", 3, {}}));
  EXPECT_EQ(client->told, "a/Abc");
  EXPECT_TRUE(sink.keeps_up());
}

TEST(HeldSink, SaysThatAClientHasNotTakenWhatWasHeld) {
  const auto client = std::make_shared<PatientClient>();
  client->patience = 1;
  HeldSink sink(client);
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(sink.deliver(TokenEvent{text, 1, {}}));
  sink.release();
  client->patience = 100;
  EXPECT_FALSE(sink.keeps_up());
  EXPECT_FALSE(sink.deliver(TokenEvent{"d", 1, {}})) << "behind what was lost nothing comes";
  EXPECT_EQ(client->told, "a");
}

TEST(HeldSink, SaysThatAClientHasNotTakenWhatCameLater) {
  const auto client = std::make_shared<PatientClient>();
  client->patience = 1;
  HeldSink sink(client);
  sink.release();
  EXPECT_TRUE(sink.deliver(TokenEvent{"a", 1, {}}));
  EXPECT_FALSE(sink.deliver(TokenEvent{"b", 1, {}}));
  EXPECT_FALSE(sink.keeps_up());
}

}  // namespace
}  // namespace uma::engine
