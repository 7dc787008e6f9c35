#include "uma-bench/chat_client.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

boost::json::object body_of(const ChatConversation& conversation, std::string_view model = "") {
  return boost::json::parse(conversation.make_body(model, 7)).as_object();
}

TEST(ChatConversation, SendsEachMessageInTheShapeOfOpenAisApi) {
  ChatConversation conversation(R"([{"type":"function"}])");
  conversation.add_message("system", "be \"brief\"");
  const ToolCall call{.id = "call_1", .name = "read_file", .arguments = R"({"path":"a"})"};
  conversation.add_reply(" I read", &call);
  conversation.add_tool_result("call_1", "content");
  conversation.add_reply("done", nullptr);
  const boost::json::object body = body_of(conversation, "m");
  EXPECT_EQ(body.at("messages"), boost::json::parse(R"([
    {"role":"system","content":"be \"brief\""},
    {"role":"assistant","content":" I read","tool_calls":[
      {"id":"call_1","type":"function","function":{"name":"read_file","arguments":"{\"path\":\"a\"}"}}]},
    {"role":"tool","tool_call_id":"call_1","content":"content"},
    {"role":"assistant","content":"done"}])"));
  EXPECT_EQ(body.at("tools"), boost::json::parse(R"([{"type":"function"}])"));
  EXPECT_EQ(body.at("model"), "m");
  EXPECT_EQ(body.at("max_tokens"), 7);
}

TEST(ChatConversation, LeavesOutWhatIsEmpty) {
  ChatConversation conversation;
  conversation.add_message("user", "hello");
  const boost::json::object body = body_of(conversation);
  EXPECT_FALSE(body.contains("tools"));
  EXPECT_FALSE(body.contains("model"));
}

TEST(ChatConversation, PutsBackTheSpaceOfAReplyOnlyIfAsked) {
  ChatConversation plain;
  plain.add_reply("hello", nullptr);
  EXPECT_EQ(body_of(plain).at("messages").at(0).at("content"), "hello");
  ChatConversation restoring({}, /*restore_space=*/true);
  restoring.add_reply("hello", nullptr);
  restoring.add_reply(" hello", nullptr);
  EXPECT_EQ(body_of(restoring).at("messages").at(0).at("content"), " hello");
  EXPECT_EQ(body_of(restoring).at("messages").at(1).at("content"), " hello");
}

TEST(ChatConversation, CountsAsNewWhatIsNeitherInTheLastPromptNorInItsReply) {
  ChatConversation conversation;
  EXPECT_EQ(conversation.take_new_tokens({.prompt_tokens = 100, .completion_tokens = 20}), 100);
  EXPECT_EQ(conversation.take_new_tokens({.prompt_tokens = 150, .completion_tokens = 10}), 30);
  EXPECT_EQ(conversation.take_new_tokens({.prompt_tokens = 161, .completion_tokens = 10}), 1);
}

}  // namespace
}  // namespace uma::bench
