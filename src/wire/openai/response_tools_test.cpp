#include "wire/openai/response_tools.h"

#include <string>
#include <string_view>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ResponseTools tools_of(std::string_view json) {
  const boost::json::value request = boost::json::parse(json);
  json::FieldReader fields(request.get_object());
  ResponseTools tools(fields);
  EXPECT_TRUE(fields.ok()) << fields.failed_field();
  return tools;
}

std::string refused_field(std::string_view json) {
  const boost::json::value request = boost::json::parse(json);
  json::FieldReader fields(request.get_object());
  const ResponseTools tools(fields);
  return fields.failed_field();
}

TEST(ResponseTools, FunctionsAreUnchanged) {
  const ResponseTools tools = tools_of(R"({"tools":[{"type":"function","name":"read","parameters":{"type":"object"}}]})");
  EXPECT_EQ(boost::json::serialize(tools.functions()), R"([{"type":"function","name":"read","parameters":{"type":"object"}}])");
  EXPECT_EQ(tools.find("read").name, "read");
  EXPECT_EQ(tools.find("read").space, "");
  EXPECT_EQ(tools.find("invented").name, "invented");
}

TEST(ResponseTools, ToolsOfANamespaceAreFunctionsWithItsName) {
  const ResponseTools tools = tools_of(R"({"tools":[{"type":"namespace","name":"mcp__x","description":"d","tools":[
      {"type":"function","name":"wait","parameters":{}},{"type":"custom","name":"patch"}]}]})");
  ASSERT_EQ(tools.functions().size(), 2u);
  EXPECT_EQ(tools.functions()[0].at("name"), "mcp__x__wait");
  EXPECT_EQ(tools.find("mcp__x__wait").space, "mcp__x");
  EXPECT_EQ(tools.find("mcp__x__wait").name, "wait");
  EXPECT_FALSE(tools.find("mcp__x__wait").is_custom);
  EXPECT_TRUE(tools.find("mcp__x__patch").is_custom);
  EXPECT_EQ(tools.given().size(), 1u);
}

TEST(ResponseTools, ACustomToolIsAFunctionWithOneText) {
  const ResponseTools tools = tools_of(R"({"tools":[
      {"type":"custom","name":"apply_patch","description":"Edits files.","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
      {"type":"custom","name":"digits","format":{"type":"grammar","syntax":"regex","definition":"[0-9]+"}}]})");
  const boost::json::value& patch = tools.functions()[0];
  EXPECT_EQ(patch.at("parameters").at("required"), boost::json::parse(R"(["input"])"));
  EXPECT_THAT(std::string(patch.at("description").as_string()), HasSubstr("lark grammar:\nstart: x"));
  EXPECT_EQ(tools.functions()[1].at("parameters").at("properties").at("input").at("pattern"), "^(?:[0-9]+)$");
  EXPECT_TRUE(tools.find("apply_patch").is_custom);
}

TEST(ResponseTools, InputsComeBackAsTheyWere) {
  for (const char* input : {"", "*** Begin Patch\n\"a\"\n", "{}"}) {
    EXPECT_EQ(input_of_arguments(arguments_of_input(input)), input);
  }
  EXPECT_EQ(input_of_arguments("no JSON"), "no JSON");
  EXPECT_EQ(input_of_arguments(R"({"other":1})"), R"({"other":1})");
}

TEST(ResponseTools, ToolsOfOtherServersAreLeftOut) {
  const ResponseTools tools =
      tools_of(R"({"tools":[{"type":"web_search","external_web_access":false},{"type":"image_generation"}]})");
  EXPECT_TRUE(tools.functions().empty());
  EXPECT_THAT(tools.left_out(), ElementsAre("web_search", "image_generation"));
}

TEST(ResponseTools, WhatIsStoredGivesTheSameNames) {
  const ResponseTools tools = ResponseTools::of_stored(
      R"({"store":true,"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}])");
  EXPECT_EQ(tools.find("n__f").space, "n");
  EXPECT_EQ(ResponseTools::of_stored("{\"tools\":[").find("n__f").space, "") << "damaged";
}

TEST(ResponseTools, ErrorsNameTheField) {
  EXPECT_EQ(refused_field(R"({"tools":{}})"), "tools");
  EXPECT_EQ(refused_field(R"({"tools":[1]})"), "tools[0]");
  EXPECT_EQ(refused_field(R"({"tools":[{"type":"function"}]})"), "tools[0].name");
  EXPECT_EQ(refused_field(R"({"tools":[{"type":"teleport","name":"x"}]})"), "tools[0].type");
  EXPECT_EQ(refused_field(
                R"({"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"function"}]}]})"),
            "tools[0].tools[1].name");
  EXPECT_EQ(refused_field(R"({"tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"m"}]}]})"),
            "tools[0].tools[0].type")
      << "a namespace in a namespace";
  const auto second_in_namespace = [](std::string_view tool) {
    return refused_field(std::string(R"({"tools":[{"type":"web_search"},{"type":"namespace","name":"n","tools":[
        {"type":"function","name":"f"},)") +
                         std::string(tool) + "]}]}");
  };
  EXPECT_EQ(second_in_namespace(R"({"type":"function","name":"a<b"})"), "tools[1].tools[1].name");
  EXPECT_EQ(second_in_namespace(R"({"type":"function","name":"f"})"), "tools[1].tools[1].name") << "twice";
  EXPECT_EQ(second_in_namespace(R"({"type":"custom","name":"f"})"), "tools[1].tools[1].name") << "twice";
  EXPECT_EQ(second_in_namespace(R"({"type":"function","name":"g","parameters":[]})"), "tools[1].tools[1].parameters");
  EXPECT_EQ(second_in_namespace(R"({"type":"function","name":")" + std::string(126, 'x') + "\"}"), "tools[1].tools[1].name")
      << "too long with its namespace";
}

}  // namespace
}  // namespace uma::wire
