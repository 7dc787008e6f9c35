#include "json/json_writer.h"

#include <limits>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace uma::json {
namespace {

std::string json_string(std::string_view text) {
  std::string out;
  append_string(out, text);
  return out;
}

std::string json_number(double value) {
  std::string out;
  append_number(out, value);
  return out;
}

TEST(JsonWriter, AParserReadsEveryCharacter) {
  std::string all;
  for (int byte = 0; byte < 0x80; ++byte) all.push_back(static_cast<char>(byte));
  all += "\u00e9\u20ac\U0001F600";
  EXPECT_EQ(boost::json::parse(json_string(all)).as_string(), all);
}

TEST(JsonWriter, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(json_string("a\"b\\c\nd\re\tf\x01g"), R"("a\"b\\c\nd\re\tf\u0001g")");
  EXPECT_EQ(json_string(""), R"("")");
}

TEST(JsonWriter, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(json_string("a\xff"), "\"a\ufffd\"");
}

TEST(JsonWriter, WritesShortNumbersAndNullForInvalidOnes) {
  EXPECT_EQ(json_number(0), "0");
  EXPECT_EQ(json_number(12), "12");
  EXPECT_EQ(json_number(100), "100");
  EXPECT_EQ(json_number(1.5), "1.5");
  EXPECT_EQ(json_number(-0.0625), "-0.0625");
  EXPECT_EQ(json_number(0.00001), "0");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_NEAR(boost::json::parse(json_number(1e300)).as_double(), 1e300, 1e291);
}

TEST(JsonWriter, WritesObjectsAndArrays) {
  std::string out;
  ObjectWriter object(out);
  object.field("text", "x");
  object.field("flag", true);
  object.field("low", std::numeric_limits<std::int64_t>::min());
  object.field("high", std::numeric_limits<std::uint64_t>::max());
  object.field("ratio", 0.25);
  object.null_field("nothing");
  append_array(object.begin("items"), std::vector<int>{1, 2}, [&](int item) { out += std::to_string(item); });
  object.close();
  EXPECT_EQ(
      out,
      R"({"text":"x","flag":true,"low":-9223372036854775808,"high":18446744073709551615,"ratio":0.25,"nothing":null,"items":[1,2]})");
}

}  // namespace
}  // namespace uma::json
