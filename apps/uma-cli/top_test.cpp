// What `top`, `metrics` and `sessions` show.
#include "uma-cli/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/metrics.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

TEST(Top, FitsItsPictureIntoTheWindow) {
  EXPECT_EQ(fit_to_window("first line\nsecond\nthird\n", 2, 5), "first\r\nsecon");
  EXPECT_EQ(fit_to_window("a\n\nb\n", 24, 80), "a\r\n\r\nb");
  EXPECT_EQ(fit_to_window("", 24, 80), "");
}

TEST(Top, ShowsTheRateOnlyWhenThereIsOne) {
  const json::object metrics = {{"model", "m"}, {"sequences_active", 2}};
  EXPECT_THAT(top_text(metrics, {}, 0, 12.5), HasSubstr("12.5 tokens/s"));
  EXPECT_THAT(top_text(metrics, {}, 0, std::nullopt), testing::Not(HasSubstr("tokens/s")));
}

TEST(Sessions, AreListedByLastUse) {
  const json::array sessions = {json::object{{"session_id", "older"}, {"last_used_s", 10}, {"busy", true}},
                                json::object{{"session_id", "newer"}, {"last_used_s", 90}, {"turns", 2}}};
  const std::string text = session_table(sessions, 100);
  EXPECT_LT(text.find("newer"), text.find("older"));
  EXPECT_THAT(text, HasSubstr("10 s"));
  EXPECT_THAT(text, HasSubstr("busy"));
}

TEST(Sessions, ShowWhatWasSaid) {
  const json::object chat = {{"session_id", "x"},
                             {"messages", json::array{json::object{{"role", "user"}, {"content", "Hi"}},
                                                      json::object{{"role", "assistant"}, {"content", "Hello"}}}}};
  EXPECT_THAT(session_text(chat, 0), HasSubstr("\n[user]\nHi\n\n[assistant]\nHello\n"));
  EXPECT_THAT(session_text({{"session_id", "x"}, {"text", "Once"}, {"pending_tokens", 3}}, 0),
              testing::AllOf(HasSubstr("\nOnce\n"), HasSubstr("and 3 pending")));
}

TEST(Metrics, ShowEveryNumberThatTheDaemonSends) {
  const json::object metrics = {{"model", "m"},
                                {"tokens_total", 18446744073709551615u},
                                {"p50_ms", 1.5},
                                {"device_busy_ratio", nullptr},
                                {"workers", json::array{json::object{{"queue_depth", 4}}, json::object{{"queue_depth", 5}}}}};
  EXPECT_EQ(metrics_text(metrics),
            "model                                 m\n"
            "tokens_total       18446744073709551615\n"
            "p50_ms                              1.5\n"
            "device_busy_ratio               unknown\n"
            "\n"
            "WORKER  queue_depth\n"
            "     0            4\n"
            "     1            5\n");
}

}  // namespace
}  // namespace uma::cli
