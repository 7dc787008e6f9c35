#include "wire/json_body.h"

#include <string>

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

// The text of field "a", or the error.
std::string read_a(std::string_view body) {
  const auto read = decode_body<std::string>(body, [](json::FieldReader& fields) { return fields.required_text("a"); });
  return read ? *read : read.error().error.message;
}

TEST(JsonBody, HasNoByteOrderMark) {
  EXPECT_EQ(read_a("\xef\xbb\xbf{\"a\":\"b\"}"), "b");
  EXPECT_TRUE(read_a("\xef\xbb{\"a\":\"b\"}").starts_with("the body is not JSON"));
}

// A tool's output that was cut in the middle of a pair would else end a conversation for good.
TEST(JsonBody, ReadsEscapesThatAreNoCharactersAsAReplacement) {
  EXPECT_EQ(read_a(R"({"a":"x\ud83d"})"), "x\ufffd");
  EXPECT_EQ(read_a(R"({"a":"\uDE00x\ude00"})"), "\ufffdx\ufffd");
  EXPECT_EQ(read_a(R"({"a":"\ud83d\ud83d\ude00"})"), "\ufffd\U0001F600");
  EXPECT_EQ(read_a(R"({"a":"\ud83d\n"})"), "\ufffd\n");
  EXPECT_EQ(read_a(R"({"a":"b\u0000c"})"), "b\ufffdc");
  EXPECT_EQ(read_a(R"({"a":"\\u0000 \\\u0000 \\ud83d"})"), "\\u0000 \\\ufffd \\ud83d") << "an escaped backslash";
  EXPECT_EQ(read_a(R"({"a":"\u00e9\u0041"})"), "\u00e9A");
  for (const char* broken : {R"({"a":"\)", R"({"a":"\u)", R"({"a":"\ud83d)", R"({"a":"\ud83d\)", R"({"a":"\u00zz"})"}) {
    EXPECT_TRUE(read_a(broken).starts_with("the body is not JSON")) << broken;
  }
}

TEST(JsonBody, HasNoMoreValuesThanMemoryIsFor) {
  std::string numbers = R"({"a":"[,\",{",)";
  std::string text = numbers + R"("b":")" + std::string(2 * json::kValuesMax, ',') + "\"}";
  EXPECT_TRUE(parse_body(text, {})) << "signs in a string are none";
  numbers += "\"b\":[0";
  for (std::size_t i = 0; i < json::kValuesMax; ++i) numbers += ",0";
  const auto refused = parse_body(numbers + "]}", {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code, ErrorCode::proto_json);
}

TEST(JsonBody, MayBeAsDeepAsSchemasOfToolsAre) {
  const auto nested = [](std::size_t depth) {
    return R"({"a":"b","x":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(read_a(nested(json::kDepthMax - 1)), "b");
  EXPECT_NE(read_a(nested(json::kDepthMax + 1)), "b");
}

}  // namespace
}  // namespace uma::wire
