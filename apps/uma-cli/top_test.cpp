// What `top`, `metrics` and `sessions` show.
#include "uma-cli/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/metrics.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

using ::testing::HasSubstr;

TEST(Top, FitsItsPictureIntoTheWindow) {
  EXPECT_EQ(fit_to_window("first line\nsecond\nthird\n", 2, 5), "first\r\nsecon");
  EXPECT_EQ(fit_to_window("a\n\nb\n", 24, 80), "a\r\n\r\nb");
  EXPECT_EQ(fit_to_window("", 24, 80), "");
}

TEST(Top, ShowsTheRateOnlyWhenThereIsOne) {
  const boost::json::object metrics = {{"model", "m"}, {"sequences_active", 2}};
  EXPECT_THAT(top_text(metrics, {}, 0, 12.5), HasSubstr("12.5 tokens/s"));
  EXPECT_THAT(top_text(metrics, {}, 0, std::nullopt), ::testing::Not(HasSubstr("tokens/s")));
}

TEST(Top, ShowsTheTiers) {
  const boost::json::object metrics = {{"hot_sessions", 2},          {"hot_bytes", 2048},       {"hot_hits_total", 7},
                                       {"cold_sessions", 12},        {"cold_bytes", 1'048'576}, {"cold_hits_total", 3},
                                       {"cold_restore_ms_avg", 4.25}};
  EXPECT_THAT(top_text(metrics, {}, 0, std::nullopt), HasSubstr("KV    STATES     SIZE  HITS  RESTORE\n"
                                                                "hot        2  2.0 KiB     7\n"
                                                                "warm       0      0 B     0   0.0 ms\n"
                                                                "cold      12  1.0 MiB     3   4.2 ms\n"));
}

TEST(Top, ShowsWhatModelsTakeAndTheLastDecision) {
  const boost::json::object metrics = {{"models_loaded", 2},
                                       {"models_registered", 500},
                                       {"memory_reserved_bytes", 1'048'576},
                                       {"memory_usable_bytes", 2'097'152},
                                       {"memory_decisions", boost::json::array{"memory: unload a", "memory: unload b"}}};
  const std::string text = top_text(metrics, {}, 0, std::nullopt);
  EXPECT_THAT(text, HasSubstr("models 2 of 500 loaded  memory 1.0 MiB of 2.0 MiB reserved\nmemory: unload b\n\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("memory: unload a")));
}

TEST(Sessions, AreListedByLastUse) {
  const boost::json::array sessions = {
      boost::json::object{
          {"session_id", "0123456789abcdef0123456789abcdef"}, {"last_used_s", 10}, {"busy", true}, {"mode", "chat"}},
      boost::json::object{{"session_id", "ffff"},
                          {"name", "tale"},
                          {"mode", "text"},
                          {"last_used_s", 90'000},
                          {"turns", 2},
                          {"tokens", 1234},
                          {"hot_bytes", 1'468'006},
                          {"cold_bytes", 20'480}}};
  EXPECT_EQ(session_table(sessions, 90'200),
            "SESSION                            HOT  COLD  TOKENS  TURNS  MODE  LAST USED\n"
            "tale                              1.4M   20K    1234      2  text  3 min ago\n"
            "0123456789abcdef0123456789abcdef     -     -       0      0  chat  now\n");
  EXPECT_EQ(session_table({}, 0), "SESSION  TOKENS  TURNS  MODE  LAST USED\n");
}

TEST(Sessions, ShowTheTitlesOfThoseWithoutANameAndWhereAForkComesFrom) {
  const boost::json::object metadata = {{"title", "A walk\nin the park " + std::string(40, 'x')}};
  const boost::json::object titled = {{"session_id", "a"}, {"metadata", metadata}};
  const boost::json::object named = {{"session_id", "b"}, {"name", "tale"}, {"metadata", metadata}, {"busy", true}};
  const std::string text = session_table({titled, named}, 60);
  EXPECT_THAT(text, HasSubstr("SESSION  TITLE                                     TOKENS"));
  EXPECT_THAT(text, HasSubstr("\na        A walk^Jin the park " + std::string(20, 'x') + "       0"));
  EXPECT_THAT(text, HasSubstr("\ntale                                              "));
  EXPECT_THAT(session_text({{"session_id", "b"}, {"metadata", {{"title", "T"}}}, {"parent_id", "a"}, {"fork_turn", 2}}, 0),
              ::testing::AllOf(HasSubstr("title      T\n"), HasSubstr("fork of    a, from turn 2\n")));
}

TEST(Sessions, ShowWhatWasSaid) {
  const boost::json::object chat = {
      {"session_id", "x"},
      {"messages", boost::json::array{boost::json::object{{"role", "user"}, {"content", "Hi"}},
                                      boost::json::object{{"role", "assistant"}, {"content", "Hello"}}}}};
  EXPECT_THAT(session_text({{"hot_bytes", 2048}, {"warm_bytes", 512}}, 0), HasSubstr("hot 2.0 KiB, warm 512 B\n"));
  EXPECT_THAT(session_text(chat, 0), HasSubstr("\n[user]\nHi\n\n[assistant]\nHello\n"));
  EXPECT_THAT(session_text({{"session_id", "x"}, {"text", "Once"}, {"pending_tokens", 3}}, 0),
              ::testing::AllOf(HasSubstr("\nOnce\n"), HasSubstr("and 3 pending")));
}

TEST(Top, ShowsTheDevices) {
  boost::json::object metrics = {
      {"devices",
       boost::json::array{
           boost::json::object{
               {"name", "Vulkan0"}, {"memory_reserved_bytes", 1024}, {"memory_usable_bytes", 2048}, {"busy_ratio", 0.5}},
           boost::json::object{{"name", "iGPU"}, {"memory_usable_bytes", 0}, {"busy_ratio", 0}}}}};
  EXPECT_THAT(top_text(metrics, {}, 0, std::nullopt),
              HasSubstr("\nVulkan0  memory 1.0 KiB of 2.0 KiB reserved  50 % busy\niGPU  0 % busy\n"));
}

TEST(Metrics, ShowEveryNumberThatTheDaemonSends) {
  const boost::json::object metrics = {
      {"model", "m"},
      {"tokens_total", 18446744073709551615u},
      {"p50_ms", 1.5},
      {"device_busy_ratio", nullptr},
      {"workers", boost::json::array{boost::json::object{{"queue_depth", 4}}, boost::json::object{{"queue_depth", 5}}}},
      {"devices", boost::json::array{boost::json::object{{"name", "Vulkan0"}, {"weights_bytes", 7}}}}};
  EXPECT_EQ(metrics_text(metrics),
            "model                                 m\n"
            "tokens_total       18446744073709551615\n"
            "p50_ms                              1.5\n"
            "device_busy_ratio               unknown\n"
            "\n"
            "WORKER  queue_depth\n"
            "     0            4\n"
            "     1            5\n"
            "\n"
            "DEVICE     name  weights_bytes\n"
            "     0  Vulkan0              7\n");
}

}  // namespace
}  // namespace uma::cli
