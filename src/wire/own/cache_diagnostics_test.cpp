#include "wire/own/cache_diagnostics.h"

#include <string>
#include <string_view>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

Comparison read(std::string_view body, Comparison (*read)(json::FieldReader&), bool is_valid = true) {
  const boost::json::value value = boost::json::parse(body);
  json::FieldReader fields(value.get_object());
  Comparison comparison = read(fields);
  EXPECT_EQ(fields.ok(), is_valid) << body;
  return comparison;
}

std::string written(const CacheMiss& miss, void (*write)(json::ObjectWriter&, const CacheMiss&)) {
  std::string out;
  json::ObjectWriter object(out);
  write(object, miss);
  object.close();
  return out;
}

TEST(CacheDiagnostics, ReadTheNameOfAReplyOfAnyApi) {
  EXPECT_EQ(read(R"({"diagnostics":{"previous_message_id":"msg_0123456789abcdef"}})", message_comparison).with,
            "0123456789abcdef");
  EXPECT_EQ(
      read(R"({"prompt_cache_options":{"mode":"implicit","comparison_response_id":"chatcmpl-ab"}})", openai_comparison).with,
      "ab");
  const std::string response = "resp_" + std::string(32, '1') + "0123456789abcdef";
  EXPECT_EQ(reply_name(response), "0123456789abcdef");
  EXPECT_EQ(reply_name("msg_" + response.substr(5)), "0123456789abcdef") << "in a thread";
  EXPECT_EQ(reply_name("cmpl-ab"), "ab");
  EXPECT_EQ(reply_name("something"), "something");
  EXPECT_EQ(reply_name("msg_"), "msg_") << "no id";
  const Comparison first = read(R"({"diagnostics":{"previous_message_id":null}})", message_comparison);
  EXPECT_TRUE(first.is_wanted && first.with.empty());
  EXPECT_FALSE(read("{}", message_comparison).is_wanted);
  EXPECT_FALSE(read(R"({"prompt_cache_options":{"mode":"implicit"}})", openai_comparison).is_wanted);
  for (const std::string_view bad : {R"({"diagnostics":7})", R"({"diagnostics":{"previous_message_id":7}})",
                                     R"({"diagnostics":{"previous_message_id":""}})"}) {
    (void)read(bad, message_comparison, /*is_valid=*/false);
  }
}

TEST(CacheDiagnostics, HaveEveryKind) {
  struct Case {
    CacheMissKind kind;
    std::string_view message;
    std::string_view openai;
  };
  const Case cases[] = {
      {CacheMissKind::none, "null", R"({"type":"cache_hit"})"},
      {CacheMissKind::tokens, "null", R"({"type":"cache_hit"})"},
      {CacheMissKind::not_held, "null", R"({"type":"unavailable"})"},
      {CacheMissKind::not_found, R"({"cache_miss_reason":{"type":"previous_message_not_found"}})",
       R"({"type":"comparison_response_not_found"})"},
      {CacheMissKind::model, R"({"cache_miss_reason":{"type":"model_changed","cache_missed_input_tokens":30}})",
       R"({"type":"cache_miss","reason":"model_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
      {CacheMissKind::system, R"({"cache_miss_reason":{"type":"system_changed","cache_missed_input_tokens":30}})",
       R"({"type":"cache_miss","reason":"input_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
      {CacheMissKind::tools, R"({"cache_miss_reason":{"type":"tools_changed","cache_missed_input_tokens":30}})",
       R"({"type":"cache_miss","reason":"tools_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
      {CacheMissKind::image, R"({"cache_miss_reason":{"type":"messages_changed","cache_missed_input_tokens":30}})",
       R"({"type":"cache_miss","reason":"input_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
      {CacheMissKind::settings, R"({"cache_miss_reason":{"type":"unavailable"}})",
       R"({"type":"cache_miss","reason":"reasoning_effort_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
      {CacheMissKind::template_text, R"({"cache_miss_reason":{"type":"unavailable"}})",
       R"({"type":"cache_miss","reason":"input_changed","cache_missed_tokens":30,"comparison_reusable_tokens":40})"},
  };
  for (const Case& each : cases) {
    const CacheMiss miss{.kind = each.kind, .token = 10, .known_tokens = 40};
    EXPECT_EQ(written(miss, write_message_diagnostics), "{\"diagnostics\":" + std::string(each.message) + "}");
    EXPECT_EQ(written(miss, write_openai_diagnostics), "{\"prompt_cache_diagnostics\":" + std::string(each.openai) + "}");
  }
}

}  // namespace
}  // namespace uma::wire
