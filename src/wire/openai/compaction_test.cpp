// Conversations that are made shorter by a summary.
#include "wire/openai/compaction.h"

#include <string>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/openai/responses_decoder_test_support.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Compaction compacted(const std::string& body, const std::vector<Item>& earlier = {}) {
  auto compaction = decode_compaction(body, earlier);
  EXPECT_TRUE(compaction) << body << (compaction ? "" : compaction.error().error.message);
  return compaction ? *std::move(compaction) : Compaction();
}

TEST(Compaction, AsksTheModelForASummaryBehindTheConversation) {
  const Compaction compaction = compacted(
      R"({"model":"m","instructions":"Be brief","tools":[{"type":"function","name":"f"}],"input":[{"role":"user","content":"a"},
          {"type":"message","role":"assistant","content":"b"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
          {"type":"function_call_output","call_id":"1","output":"c"},{"type":"message","role":"user","content":"d"}]})");
  const ResponseCall call = decoded(compaction.body);
  EXPECT_EQ(call.generate.model, "m");
  EXPECT_EQ(call.generate.options.max_tokens, 4096);
  EXPECT_EQ(decoded(compacted(R"({"input":"a","max_output_tokens":9})").body).generate.options.max_tokens, 9);
  EXPECT_FALSE(call.generate.response) << "nothing is stored";
  const std::vector<ChatMessage>& messages = call.generate.input.messages;
  ASSERT_EQ(messages.size(), 6U);
  EXPECT_EQ(messages.front(), (ChatMessage{"system", "Be brief"}));
  EXPECT_EQ(messages[4], (ChatMessage{"user", "d"}));
  EXPECT_EQ(messages.back().role, "user");
  EXPECT_THAT(messages.back().content, HasSubstr("summary"));
  EXPECT_EQ(boost::json::parse("[" + compaction.user_items + "]"),
            boost::json::parse(R"([{"role":"user","content":"a"},{"type":"message","role":"user","content":"d"}])"));
}

TEST(Compaction, AStoredConversationPrecedesTheInput) {
  const std::vector<Item> earlier = {{.kind = Item::Kind::message, .id = "msg_1", .text = "a", .role = "user"},
                                     {.kind = Item::Kind::message, .id = "msg_2", .text = "b", .role = "assistant"}};
  const ResponseCall call = decoded(compacted(R"({"input":"c"})", earlier).body);
  EXPECT_THAT(std::vector(call.generate.input.messages.begin(), call.generate.input.messages.end() - 1),
              ElementsAre(ChatMessage{"user", "a"}, ChatMessage{"assistant", "b"}, ChatMessage{"user", "c"}));
  EXPECT_EQ(compacted("{}", earlier).items.find("msg_2") != std::string::npos, true);
  EXPECT_EQ(decode_compaction("{}", {}).error().field, "input");
  EXPECT_EQ(decode_compaction(R"({"input":7})", {}).error().field, "input");
}

TEST(Compaction, TheAnswerIsInputForTheNextRequest) {
  EosEvent eos{FinishReason::stop, {}, "They talked of a.", std::nullopt};
  eos.usage.prompt_tokens = 9;
  eos.usage.completion_tokens = 4;
  const Compaction compaction = compacted(R"({"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  const boost::json::value answer = boost::json::parse(compaction_json(compaction, "1", 1700, eos));
  EXPECT_EQ(answer.at("object"), "response.compaction");
  EXPECT_EQ(answer.at("created_at"), 1700);
  EXPECT_EQ(answer.at("usage").at("total_tokens"), 13);
  EXPECT_EQ(answer.at("output").at(1).at("type"), "compaction");
  const ResponseCall next = decoded(R"({"input":)" + boost::json::serialize(answer.at("output")) + "}");
  ASSERT_EQ(next.generate.input.messages.size(), 2U);
  EXPECT_EQ(next.generate.input.messages.front(), (ChatMessage{"user", "a"}));
  EXPECT_THAT(next.generate.input.messages.back().content, HasSubstr("They talked of a."));
  EXPECT_THAT(next.warnings, IsEmpty());
  eos.text.clear();
  EXPECT_EQ(boost::json::parse(compaction_json(compaction, "1", 1700, eos)).at("output"),
            boost::json::parse("[" + compaction.items + "]"))
      << "nothing is lost without a summary";
}

TEST(Compaction, ThoseOfOtherServersAreLeftOut) {
  const ResponseCall call =
      decoded(R"({"input":[{"role":"user","content":"a"},{"type":"compaction","encrypted_content":"gAAAA"}]})");
  EXPECT_EQ(call.generate.input.messages.size(), 1U);
  EXPECT_THAT(call.warnings, ElementsAre(HasSubstr("compaction")));
}

TEST(Compaction, NamesTheResponseToMakeShorter) {
  EXPECT_EQ(*decode_compacted_response(R"({"previous_response_id":")" + kResponse + "\"}"), (ResponseId{kSession, kOwn}));
  EXPECT_EQ(*decode_compacted_response(R"({"input":"x"})"), std::nullopt);
  EXPECT_EQ(decode_compacted_response(R"({"previous_response_id":"x"})").error().error.code, ErrorCode::session_unknown);
}

}  // namespace
}  // namespace uma::wire
