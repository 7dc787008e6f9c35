#include "chat/calls/parameter_types.h"

#include <format>
#include <string>

#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include "json/field_reader.h"

namespace uma::chat {
namespace {

boost::json::value schema_of(const std::string& text) {
  boost::system::error_code problem;
  boost::json::value schema = json::parse(text, {}, problem);
  EXPECT_FALSE(problem) << problem.message();
  return schema;
}

TEST(ParameterTypes, ALargeParameterLeavesTheLimitToTheOthers) {
  std::string members;
  for (int i = 0; i < 300; ++i)
    members +=
        std::format(R"({}"m{}": {{"type": "object", "properties": {{"x": {{"type": "string"}}}}}})", i > 0 ? ", " : "", i);
  const ParameterTypes types =
      parameter_types_of(schema_of(R"({"properties": {"large": {"properties": {"all": {"properties": {)" + members +
                                   R"(}}}}, "small": {"type": "array", "items": {"type": "integer"}}}})"));
  EXPECT_EQ(types.at("large"), TypeSet{TypeSet::object});
  EXPECT_EQ(types.at(part_of("small", "item")), TypeSet{TypeSet::integer});
  EXPECT_TRUE(types.contains(part_of(part_of("large", "all"), "m0")));
  EXPECT_LT(types.size(), 300u);
}

TEST(ParameterTypes, ALongReferenceIsNotFollowed) {
  const auto types_by = [](const std::string& name) {
    const std::string schema =
        std::format(R"({{"$defs": {{"{0}": {{"type": "integer"}}}}, "properties": {{"a": {{"$ref": "#/$defs/{0}"}}}}}})", name);
    return parameter_types_of(schema_of(schema)).at("a");
  };
  EXPECT_EQ(types_by("short"), TypeSet{TypeSet::integer});
  EXPECT_EQ(types_by(std::string(900, 'x')), TypeSet{TypeSet::integer});
  EXPECT_EQ(types_by(std::string(1100, 'x')), TypeSet{});
}

TEST(ParameterTypes, ManyReferencesToALongOneTakeBoundedTime) {
  std::string properties;
  for (int i = 0; i < 20'000; ++i) properties += std::format(R"({}"p{}": {{"$ref": "#/r"}})", i > 0 ? ", " : "", i);
  const std::string name(1'000'000, 'x');
  const std::string refers = R"(": {"$ref": "#/)" + name + R"("})";
  EXPECT_EQ(parameter_types_of(schema_of("{\"r" + refers + ", \"" + name + refers + ", \"properties\": {" + properties + "}}"))
                .size(),
            20'000u);
}

}  // namespace
}  // namespace uma::chat
