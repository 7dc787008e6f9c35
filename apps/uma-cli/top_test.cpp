// What `top`, `metrics` and `sessions` show.
#include "uma-cli/top.h"

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/metrics.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

using ::testing::HasSubstr;

TEST(Top, FitsItsPictureIntoTheWindow) {
  const auto fitted = [](const std::string& text, std::size_t rows, std::size_t columns, std::size_t first = 0) {
    return fit_to_window(text, rows, columns, first);
  };
  EXPECT_EQ(fitted("first line\nsecond\nthird\n", 2, 5), "first\r\nsecon");
  EXPECT_EQ(fitted("a\n\nb\n", 24, 80), "a\r\n\r\nb");
  EXPECT_EQ(fitted("", 24, 80), "");
  EXPECT_EQ(fitted("a\nb\nc\nd\n", 2, 5, 1), "b\r\nc");
  EXPECT_EQ(fitted("a\nb\nc\nd\n", 2, 5, 9), "c\r\nd");
}

// A snapshot as docs/protocol/live.md shows it.
boost::json::object snapshot_at(double unix_ms, int tokens) {
  boost::json::value made = boost::json::parse(R"({"status":"ok","uptime_s":61.2,"rss_bytes":1048576,"requests_open":3,
    "contract_ms":30,"totals":{"requests":20,"requests_failed":1,"prompt_tokens":0,"reused_tokens":0,"promises_kept":199,
    "promises_broken":1},"latency":{"p50_ms":8.1,"p95_ms":12,"p99_ms":22,"ttft_p50_ms":40,"ttft_p95_ms":900},
    "workers":[{"worker":0,"model":"tiny","cells_used":4096,"cells_total":16384,"slots":[
      {"slot":0,"state":"decode","request":"4","tenant":"key:ci","agent":{"program":"claude-code","id":"7b1c03f29d"},"tokens":812,"prompt_tokens":800},
      {"slot":1,"state":"prefill","request":"5","tenant":"uid:1000","tokens":1500,"prompt_tokens":3000},
      {"slot":2,"state":"idle","request":null,"tenant":null,"tokens":0,"prompt_tokens":0}]}],
    "queue":[{"position":1,"request":"6","model":"tiny","tenant":"key:ci","agent":{"id":"a1","parent":"7b1c03f29d"},"class":"background","stage":"queued","waited_ms":400},
      {"position":2,"request":null,"model":"tiny","tenant":"other","class":"interactive","stage":"loading","waited_ms":90}],
    "queue_depth":2,"tiers":{"hot":{"states":2,"bytes":2048,"hits_total":7},"warm":{"states":0,"bytes":0,"hits_total":0},
    "cold":{"states":12,"bytes":1048576,"hits_total":3}},
    "moves":{"hot_warm_bytes":4096,"warm_cold_bytes":1024,"cold_warm_bytes":0,"warm_hot_bytes":512},
    "memory":{"usable_bytes":2097152,"reserved_bytes":1048576,"decisions":[]},
    "models":[{"name":"tiny","state":"ready","load_progress":1,"bytes":1048576,"in_use":3},
      {"name":"big","state":"loading","load_progress":0.25,"bytes":2048,"in_use":0},
      {"name":"other","state":"unloaded","load_progress":0,"bytes":1,"in_use":0}],
    "devices":[{"name":"Vulkan0","memory_usable_bytes":2048,"memory_reserved_bytes":1024,"busy_ratio":0.5},
      {"name":"iGPU","memory_usable_bytes":0,"memory_reserved_bytes":0,"busy_ratio":0}],
    "calls":[{"lane":"lane-0","kind":"decode","ms":8,"pause_ms":8.4},{"lane":"lane-0","kind":"decode","ms":8,"pause_ms":22},
      {"lane":"store","kind":"move","ms":3,"pause_ms":null}]})");
  boost::json::object snapshot = made.get_object();
  snapshot["unix_ms"] = unix_ms;
  snapshot["totals"].as_object()["tokens"] = tokens;
  return snapshot;
}

TEST(Top, ShowsWhatTheDaemonDoes) {
  EXPECT_EQ(top_text(snapshot_at(1000, 512), nullptr),
            "ok  up 1 min  rss 1.0 MiB  3 requests open  1 of 20 failed\n"
            "between tokens 8.1 / 12.0 / 22.0 ms (p50 / p95 / p99)  first token 40 / 900 ms\n"
            "30 ms between tokens are promised, longest pause 22 ms, 99.5 % on time\n"
            "worker 0 tiny  #####--------------- 4096 of 16384 cells\n"
            "    0 decode                         812 tokens, 12 of them new  key:ci  claude-code 7b1c03f2\n"
            "    1 prefill  ##########----------  1500 of 3000 tokens  uid:1000\n"
            "  1 slot idle\n"
            "2 requests waiting\n"
            "    1 queued        0.4 s  tiny  key:ci  a1 (sub-agent)  request 6  background\n"
            "    2 loading       0.1 s  tiny  other\n"
            "memory ##########---------- 1.0 MiB of 2.0 MiB\n"
            "model tiny  1.0 MiB  ready  3 requests in use\n"
            "model big  2.0 KiB  loading 25 %  0 requests in use\n"
            "1 model not loaded\n"
            "Vulkan0  ##########---------- 1.0 KiB of 2.0 KiB  50 % busy\n"
            "iGPU  0 % busy\n"
            "KV    STATES     SIZE  HITS  CAME DOWN  CAME UP\n"
            "hot        2  2.0 KiB     7               512 B\n"
            "warm       0      0 B     0    4.0 KiB      0 B\n"
            "cold      12  1.0 MiB     3    1.0 KiB\n");
}

TEST(Top, ShowsRatesBetweenTwoSnapshotsOfOneDaemon) {
  const boost::json::object before = snapshot_at(1000, 512);
  EXPECT_THAT(top_text(snapshot_at(3000, 537), &before), HasSubstr("12.5 tokens/s"));
  EXPECT_THAT(top_text(snapshot_at(3000, 3), &before), ::testing::Not(HasSubstr("tokens/s")));
}

TEST(Top, ShowsLessIfFieldsAreMissing) {
  EXPECT_THAT(top_text({}, nullptr), HasSubstr("nobody waits\n"));
}

TEST(Top, AsksForAWatchAndSaysIfTheDaemonIsTooOld) {
  FakeDaemon daemon({[](FakeConnection& connection) {
                       const boost::json::object request = connection.read();
                       EXPECT_EQ(request.at("type"), "watch");
                       EXPECT_EQ(request.at("interval_ms"), 500);
                       connection.answer(request, "history", {{"history", boost::json::object{}}});
                       connection.answer(request, "snapshot", {{"snapshot", snapshot_at(1000, 512)}});
                     },
                     [](FakeConnection& connection) { connection.fail(connection.read(), "E_PROTO_004"); }});
  Interrupts interrupts;
  Screen screen(/*is_terminal=*/false, interrupts);
  auto client = Client::connect(daemon.path(), interrupts);
  ASSERT_TRUE(client.has_value());
  ASSERT_TRUE(run_top(**client, screen.output(), interrupts, 0.5).has_value());
  EXPECT_THAT(screen.text(), HasSubstr("worker 0 tiny"));
  const auto refused = run_top(**client, screen.output(), interrupts, 0.5);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("older than this uma-cli"));
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
