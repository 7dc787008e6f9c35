#include "wire/agent_fields.h"

#include <string>
#include <string_view>

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

std::string agent_in(std::string_view body) {
  const boost::json::value parsed = boost::json::parse(body);
  const Agent agent = agent_of_fields(json::FieldReader(parsed.as_object()));
  EXPECT_EQ(agent.id, agent.run);
  return agent.id;
}

TEST(AgentFields, NameTheConversationBeforeItsUser) {
  EXPECT_EQ(agent_in(R"({"prompt_cache_key":"k","user":"u"})"), "k");
  EXPECT_EQ(agent_in(R"({"metadata":{"sessionId":"s"},"user":"u"})"), "s");
  EXPECT_EQ(agent_in(R"({"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"s\"}"}})"), "s");
  EXPECT_EQ(agent_in(R"({"metadata":{"user_id":"user_1_session_2"}})"), "user_1_session_2");
  EXPECT_EQ(agent_in(R"({"user":"u"})"), "u");
  const boost::json::value of_user = boost::json::parse(R"({"user":"u"})");
  EXPECT_TRUE(agent_of_fields(json::FieldReader(of_user.as_object())).is_shared) << "a user has several conversations";
}

TEST(AgentFields, WhatIsNoNameIsIgnored) {
  for (const char* body :
       {"{}", R"({"user":5})", R"({"metadata":[]})", R"({"metadata":{"user_id":"{"}})", R"({"metadata":{"user_id":{}}})",
        R"({"metadata":{"user_id":"{\"a\":{\"b\":{\"c\":1}}}"}})", R"({"prompt_cache_key":null})"}) {
    EXPECT_EQ(agent_in(body), "") << body;
  }
  EXPECT_EQ(agent_in("{\"user\":\"" + std::string(Agent::kNameBytesMax + 1, 'x') + "\"}"), "");
}

}  // namespace
}  // namespace uma::wire
