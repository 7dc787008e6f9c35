#include "wire/own/live_json.h"

#include <chrono>
#include <cstdint>
#include <format>
#include <string>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

constexpr TraceKind kDecodeCall{.name = "decode", .numbers = {"rows", "sequences", "predicted_us", "pause_us"}};
constexpr TraceKind kSave{.name = "save", .numbers = {"bytes"}};
constexpr TraceKind kTick{.name = "tick", .numbers = {"sequences"}};

TimePoint at_ms(std::int64_t ms) {
  return TimePoint(std::chrono::milliseconds(ms));
}

LiveState state() {
  LiveState state{.moment = {.at = at_ms(10'000), .unix_ms = 1'795'655'700'250.5}, .metrics = {}, .activity = {}, .models = {}};
  state.metrics.uptime_s = 61.25;
  state.metrics.tokens_total = 512;
  state.metrics.queue_depth = 2;
  state.metrics.saved_bytes_total = 90'112;
  // The model "gone" was unloaded.
  state.metrics.workers = {{.model = "gone"},
                           {.model = "tiny", .sequences_active = 2, .queue_depth = 2, .cells_total = 16'384}};
  state.metrics.memory_decisions.assign(10, "unload a");
  state.metrics.memory_decisions.back() = "unload b";
  state.models = {{.name = "big", .state = ModelState::unloaded, .bytes = 7},
                  {.name = "tiny", .state = ModelState::ready, .bytes = 9}};
  state.activity.contract_ms = 30;
  state.activity.workers = {
      {.model = "tiny",
       .slots =
           {{.slot = 0, .state = SlotState::decode, .request = {4}, .tenant = "key:a", .tokens = 812, .prompt_tokens = 800},
            {.slot = 1, .state = SlotState::prefill, .request = {5}, .tenant = "key:b", .tokens = 10, .prompt_tokens = 30},
            {.slot = 2, .tokens = 3}},
       .waiting = {{.request = {6}, .model = "tiny", .tenant = "key:b", .is_background = true, .since = at_ms(9'600)},
                   {.request = {7}, .model = "tiny", .tenant = "key:a", .stage = WaitStage::swapped, .since = at_ms(9'000)}},
       .contract_ms = 30}};
  state.activity.waiting = {
      {.request = {8}, .model = "tiny", .tenant = "key:a", .stage = WaitStage::preparing, .since = at_ms(9'990)}};
  state.activity.waiting_count = 1;
  state.activity.tenants = {{"key:a", {.work = 300, .sequences_active = 1, .queue_depth = 2}},
                            {"key:b", {.work = 100, .sequences_active = 1, .queue_depth = 1}},
                            {"key:c", {.work = 0.5}}};
  state.activity.model_uses = {{"tiny", 5}};
  return state;
}

boost::json::object snapshot_for(const LiveState& state, const LiveAudience& audience, std::vector<LiveCall> calls = {}) {
  std::string out;
  std::size_t left_out = 0;
  append_snapshot(out, live_text(state, audience), live_calls_text(calls, left_out, state.moment));
  return boost::json::parse(out).as_object();
}

boost::json::value parsed(const char* text) {
  return boost::json::parse(text);
}

TEST(LiveJson, ShowsTheAdministratorEverything) {
  const auto snapshot = snapshot_for(state(), {.is_administrator = true, .tenant = "uid:0"});
  EXPECT_EQ(snapshot.at("unix_ms"), 1'795'655'700'250.5);
  EXPECT_EQ(snapshot.at("status"), "ok");
  EXPECT_EQ(snapshot.at("contract_ms"), 30);
  EXPECT_EQ(snapshot.at("totals").at("tokens"), 512);
  EXPECT_EQ(snapshot.at("moves").at("hot_warm_bytes"), 90'112);
  EXPECT_EQ(snapshot.at("memory").at("decisions").as_array().size(), 8u);
  EXPECT_EQ(snapshot.at("memory").at("decisions").as_array().back(), "unload b");
  EXPECT_EQ(snapshot.at("workers"), parsed(R"([{"worker":1,"model":"tiny","sequences_active":2,"queue_depth":2,"cells_used":0,
    "cells_total":16384,"slots":[
      {"slot":0,"state":"decode","request":"4","tenant":"key:a","tokens":812,"prompt_tokens":800},
      {"slot":1,"state":"prefill","request":"5","tenant":"key:b","tokens":10,"prompt_tokens":30},
      {"slot":2,"state":"idle","request":null,"tenant":null,"tokens":3,"prompt_tokens":0}]}])"));
  EXPECT_EQ(snapshot.at("queue"), parsed(R"([
    {"position":1,"request":"6","tenant":"key:b","model":"tiny","class":"background","stage":"queued","waited_ms":400},
    {"position":2,"request":"7","tenant":"key:a","model":"tiny","class":"interactive","stage":"swapped","waited_ms":1000},
    {"position":3,"request":"8","tenant":"key:a","model":"tiny","class":"interactive","stage":"preparing","waited_ms":10}])"));
  EXPECT_EQ(snapshot.at("queue_depth"), 3);
  EXPECT_EQ(snapshot.at("models"), parsed(R"([{"name":"tiny","state":"ready","load_progress":0,"bytes":9,"in_use":5},
    {"name":"big","state":"unloaded","load_progress":0,"bytes":7,"in_use":0}])"))
      << "those in memory come first";
  EXPECT_EQ(snapshot.at("tenants"), parsed(R"([
    {"tenant":"key:a","share":0.75,"sequences_active":1,"queue_depth":2},
    {"tenant":"key:b","share":0.25,"sequences_active":1,"queue_depth":1}])"));
}

TEST(LiveJson, HidesTheRequestsOfOtherTenants) {
  const auto snapshot = snapshot_for(state(), {.is_administrator = false, .tenant = "key:a"});
  const auto& slots = snapshot.at("workers").as_array().at(0).at("slots").as_array();
  EXPECT_EQ(slots.at(0).at("request"), "4");
  EXPECT_TRUE(slots.at(1).at("request").is_null());
  EXPECT_EQ(slots.at(1).at("tenant"), "other");
  const auto& queue = snapshot.at("queue").as_array();
  EXPECT_TRUE(queue.at(0).at("request").is_null());
  EXPECT_EQ(queue.at(0).at("tenant"), "other");
  EXPECT_EQ(queue.at(1).at("tenant"), "key:a");
  EXPECT_EQ(snapshot.at("tenants"), parsed(R"([{"tenant":"key:a","share":0.75,"sequences_active":1,"queue_depth":2},
    {"tenant":"other","share":0.25,"sequences_active":1,"queue_depth":1}])"));
  EXPECT_EQ(boost::json::serialize(snapshot).find("key:b"), std::string::npos);
}

TEST(LiveJson, ShowsTheOwnTenantAndThoseThatUseTheMost) {
  LiveState many = state();
  many.activity.tenants.clear();
  for (int i = 0; i < 100; ++i) many.activity.tenants[std::format("key:{:02}", i)] = {.work = 10, .queue_depth = 1};
  many.activity.tenants["key:zz"] = {.work = 1, .queue_depth = 3};
  many.activity.tenants["key:zy"] = {.work = 5000};
  const auto own = snapshot_for(many, {.is_administrator = false, .tenant = "key:zz"}).at("tenants");
  EXPECT_EQ(own.as_array().size(), 2u);
  EXPECT_EQ(own.at(0).at("tenant"), "key:zz");
  EXPECT_EQ(own.at(0).at("queue_depth"), 3);
  const auto all = snapshot_for(many, {.is_administrator = true, .tenant = "key:zz"}).at("tenants").as_array();
  EXPECT_EQ(all.size(), kTenantsShownMax + 1) << "and the rest together";
  std::int64_t waiting = 0;
  for (const auto& tenant : all) waiting += tenant.at("queue_depth").to_number<std::int64_t>();
  EXPECT_EQ(waiting, 103);
  EXPECT_EQ(all.back().at("tenant"), "other");
  EXPECT_EQ(all.at(all.size() - 2).at("tenant"), "key:zz");
  EXPECT_EQ(all.at(all.size() - 3).at("tenant"), "key:zy");
}

TEST(LiveJson, OnlyTheHeadChangesWithTime) {
  LiveState idle;
  LiveState later;
  later.moment.unix_ms = 1000;
  later.metrics.uptime_s = 1;
  later.metrics.rss_bytes = 4096;
  later.metrics.progress.oldest_waiting_s = 2;
  EXPECT_EQ(live_text(idle, {}).body, live_text(later, {}).body);
  EXPECT_NE(live_text(idle, {}).head, live_text(later, {}).head);
  later.metrics.tokens_total = 1;
  EXPECT_NE(live_text(idle, {}).body, live_text(later, {}).body);
}

TEST(LiveJson, BoundsWhatItShows) {
  LiveState many;
  many.activity.waiting.assign(kWaitingShownMax, {.tenant = "a"});
  many.activity.workers = {{.model = "m", .slots = {}, .waiting = many.activity.waiting}};
  many.models.assign(1000, {.name = "m"});
  const auto snapshot = snapshot_for(many, {});
  EXPECT_EQ(snapshot.at("queue").as_array().size(), kWaitingShownMax);
  EXPECT_EQ(snapshot.at("models").as_array().size(), 256u);
}

TEST(LiveJson, CallsHaveUnixTimesAndTheLongestPause) {
  const LiveMoment now{.at = at_ms(10'000), .unix_ms = 1'000'000};
  std::vector<LiveCall> calls{{"store", "", {&kSave, at_ms(9'900), at_ms(9'903), {65'536}}},
                              {"lane-0", "tiny", {&kDecodeCall, at_ms(9'800), at_ms(9'808), {2, 2, 0, 8'400}}},
                              {"lane-0", "", {&kDecodeCall, at_ms(9'950), at_ms(9'951), {1, 1, 0, 0}}}};
  std::size_t left_out = 0;
  EXPECT_EQ(boost::json::parse("{" + live_calls_text(calls, left_out, now).substr(1) + "}"), parsed(R"({"calls":[
    {"lane":"lane-0","model":"tiny","kind":"decode","began_ms":999800,"ms":8,"rows":2,"pause_ms":8.4},
    {"lane":"store","kind":"move","began_ms":999900,"ms":3,"rows":0,"pause_ms":null,"bytes":65536,"moved":"hot_warm_bytes"},
    {"lane":"lane-0","kind":"decode","began_ms":999950,"ms":1,"rows":1,"pause_ms":null}],"calls_left_out":0})"));
  EXPECT_TRUE(is_live_call(kSave));
  EXPECT_FALSE(is_live_call(kTick));
}

TEST(LiveJson, KeepsTheLongestCalls) {
  std::vector<LiveCall> calls;
  for (std::int64_t i = 1; i <= 300; ++i)
    calls.push_back({"lane-0", "", {&kDecodeCall, at_ms(1000 * i), at_ms(1000 * i + i), {1}}});
  std::size_t left_out = 2;
  (void)live_calls_text(calls, left_out, {});
  EXPECT_EQ(left_out, 2u + 300 - kLiveCallsMax);
  ASSERT_EQ(calls.size(), kLiveCallsMax);
  EXPECT_EQ(calls.front().span.began, at_ms(45'000)) << "in the order of their beginnings";
}

TEST(LiveJson, AHistoryHasNullForWhatIsNotKnown) {
  const std::vector<LivePoint> points{{.unix_ms = 1'795'655'700'000, .streams = 1, .queue = 2, .reserved_bytes = 3},
                                      {.unix_ms = 1'795'655'710'000,
                                       .tokens_per_s = 41.5,
                                       .prompt_per_s = 0,
                                       .reused_per_s = 0,
                                       .pause_ms = 22.4,
                                       .reserved_bytes = 307'946'969}};
  const auto history = boost::json::parse(history_json(points));
  EXPECT_EQ(history.at("names").as_array().size(), 10u);
  EXPECT_EQ(history.at("points"), parsed(R"([[1795655700000,null,null,null,1,2,null,3,0,0,0],
    [1795655710000,41.5,0,0,0,0,22.4,307946969,0,0,0]])"));
}

}  // namespace
}  // namespace uma::wire
