#include "umad/tune/tune.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::umad {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeModel;
using testing::FakeOptions;
using ::testing::HasSubstr;
using testing::SimClock;

const std::function<void(const std::string&)> kSilent = [](const std::string&) {};

TEST(ThreadCounts, ArePowersOfTwoAndAllCores) {
  EXPECT_THAT(thread_counts(1), ElementsAre(1));
  EXPECT_THAT(thread_counts(2), ElementsAre(1, 2));
  EXPECT_THAT(thread_counts(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(thread_counts(8), ElementsAre(1, 2, 4, 8));
}

// A model whose calls take the time that its clock is told. One core: only lanes use a second thread, and the clock is no
// thread's but the test's.
class TuneFake : public ::testing::Test {
 protected:
  Expected<TuneResult> run() {
    std::vector<PlacedModel> models = {{.name = "on the CPU", .model = std::make_shared<FakeModel>(options_)}};
    if (device_cost_ > Duration()) {
      FakeOptions on_device = options_;
      on_device.is_on_devices = true;
      on_device.decode_cost = device_cost_;
      models.insert(models.begin(), {.name = "on Fake0", .model = std::make_shared<FakeModel>(on_device)});
    }
    return tune(models, settings_, clock_, interrupted_, kSilent);
  }
  static const Comparison& find(const TuneResult& result, std::string_view title) {
    return *std::ranges::find(result.comparisons, title, &Comparison::title);
  }

  SimClock clock_;
  FakeOptions options_{.cells = 8192, .sequences = 8, .batch_rows_max = 512, .clock = &clock_};
  TuneSettings settings_{.base = {.cells = 8192, .sequences = 8, .threads = 1}, .cores = 1, .seconds = 60};
  std::atomic<bool> interrupted_{false};
  Duration device_cost_{};  // Time of a call on a device; 0: there is no device.
};

TEST_F(TuneFake, MeasuresWhatItSays) {
  const auto result = run();
  ASSERT_TRUE(result) << result.error().message;
  const Comparison& threads = find(*result, "decode threads");
  // A call costs 1 ms and 0.1 ms a row, whatever the way.
  EXPECT_NEAR(median(threads.trials[0], 0), 1.1, 1e-6);
  EXPECT_NEAR(median(threads.trials[0], 1), 1.4, 1e-6);
  EXPECT_NEAR(median(threads.trials[0], 2), 1.8, 1e-6);
  EXPECT_NEAR(median(threads.trials[0], 3), 0.1 + 1.0 / result->prompt_tokens, 1e-6);
}

TEST_F(TuneFake, ADeviceIsUsedUnlessTheProcessorIsFaster) {
  device_cost_ = std::chrono::microseconds(200);
  options_.cells = 8 * 4096;
  settings_.base.cells = options_.cells;
  auto result = run();
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(result->uses_devices);
  EXPECT_EQ(find(*result, "devices").choice.index, 0u);
  EXPECT_FALSE(std::ranges::contains(result->comparisons, "decode threads", &Comparison::title)) << "the device computes";
  EXPECT_FALSE(result->lanes);
  EXPECT_EQ(result->decode_threads, 1);
  const Comparison& on_device = find(*result, "ubatch");
  EXPECT_EQ(on_device.trials.back().name, "2048");
  EXPECT_EQ(on_device.remark, "prompts of 2048 tokens");

  device_cost_ = std::chrono::milliseconds(3);
  result = run();
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->uses_devices);
  EXPECT_NEAR(median(find(*result, "decode threads").trials[0], 0), 1.1, 1e-6) << "what follows is measured on the CPU";
  EXPECT_EQ(find(*result, "ubatch").trials.back().name, "512");
}

TEST_F(TuneFake, EqualWaysKeepEveryDefault) {
  const auto result = run();
  ASSERT_TRUE(result) << result.error().message;
  for (const Comparison& comparison : result->comparisons) {
    EXPECT_EQ(comparison.choice.index, comparison.default_index) << comparison.title;
    EXPECT_EQ(comparison.choice.gain, 0);
  }
  EXPECT_EQ(result->context.ubatch_rows, 512);
  EXPECT_EQ(result->context.flash_attention, llm::FlashAttention::automatic);
  EXPECT_EQ(result->context.layout, llm::KvLayout::automatic);
  EXPECT_EQ(result->context.kv_types, llm::KvTypes());
  EXPECT_FALSE(result->lanes);
}

TEST_F(TuneFake, QuantizedKeysAndValuesAreChosenOnlyWhereAllowed) {
  EXPECT_THAT(find(*run(), "KV type").choice.reason, HasSubstr("--allow-quantized-kv"));
  settings_.allows_quantized_kv = true;
  EXPECT_EQ(run()->context.kv_types, llm::KvTypes::both(llm::KvType::q8_0));
}

TEST_F(TuneFake, StaysNearItsTimeAndRepeatsMoreInMore) {
  const TimePoint begin = clock_.now();
  const auto lots = run();
  EXPECT_LE(to_ms(clock_.now() - begin), 1.2 * 60'000);
  settings_.seconds = 1;
  const TimePoint second = clock_.now();
  const auto few = run();
  ASSERT_TRUE(lots && few);
  EXPECT_LT(to_ms(clock_.now() - second), 15'000);
  EXPECT_GT(lots->comparisons[0].trials[0].repetitions.size(), few->comparisons[0].trials[0].repetitions.size());
  EXPECT_THAT(few->comparisons, Each(::testing::Field(&Comparison::trials, ::testing::Not(::testing::IsEmpty()))));
}

TEST_F(TuneFake, FewSlotsLeaveOutWhatTheyCannotHold) {
  settings_.base.sequences = 4;
  const auto result = run();
  ASSERT_TRUE(result);
  const Comparison& threads = find(*result, "decode threads");
  EXPECT_THAT(threads.columns, ElementsAre(0, 1));
  EXPECT_EQ(median(threads.trials[0], 2), 0);
}

TEST_F(TuneFake, ShortSessionsAreMeasuredWithShortPromptsOrNotAtAll) {
  options_.cells = 8 * 200;
  EXPECT_EQ(run()->prompt_tokens, 128);
  options_.cells = 8 * 32;
  const auto refused = run();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("larger --n-ctx"));
}

TEST_F(TuneFake, AnInterruptEndsIt) {
  interrupted_.store(true);
  EXPECT_FALSE(run());
}

TEST(TuneReport, ShowsFiguresChoiceAndReason) {
  TuneResult result;
  result.prompt_tokens = 256;
  Comparison comparison{.title = "KV type", .columns = {0, 3}, .kv_bytes = {3u << 20, 0}};
  comparison.trials = {{.name = "f16", .repetitions = {{2, 0, 0, 0.5}, {4, 0, 0, 0.5}, {3, 0, 0, 0.5}}},
                       {.name = "q8_0", .impossible = "does not fit"}};
  comparison.choice.reason = "kept: q8_0 does not work here";
  comparison.remark = "a remark";
  result.comparisons.push_back(comparison);
  const std::string text = tune_report(result);
  EXPECT_THAT(text, HasSubstr("with 256 tokens cached"));
  EXPECT_THAT(text, HasSubstr("* f16 (default)"));
  EXPECT_THAT(text, HasSubstr(" 3.00 ms"));
  EXPECT_THAT(text, HasSubstr("2000 tokens/s"));
  EXPECT_THAT(text, HasSubstr("3.0 MiB"));
  EXPECT_THAT(text, HasSubstr("does not fit"));
  EXPECT_THAT(text, HasSubstr("f16: kept: q8_0 does not work here (3 repetitions; a remark)"));
}

TEST(TuneProfile, KeepsTheChoices) {
  TuneResult result;
  result.decode_threads = 3;
  result.prefill_threads = 4;
  result.context.ubatch_rows = 64;
  result.lanes = true;
  result.uses_devices = false;
  result.decode_threads_beside_prefill = 1;
  result.prefill_threads_beside_decode = 3;
  llm::ModelFacts facts;
  facts.name = "m";
  facts.identity = "abc";
  const Machine machine{.cpu = "c", .cores = 4, .library = "l"};
  const Profile profile = profile_of(result, facts, machine);
  EXPECT_EQ(parse_profile(profile_text(profile), "abc", machine).value(), profile);
  EXPECT_EQ(profile.decode_threads, 3);
  EXPECT_EQ(profile.prefill_threads, 4);
  EXPECT_EQ(profile.ubatch_rows, 64);
  EXPECT_TRUE(profile.lanes);
  EXPECT_FALSE(profile.uses_devices);
  std::string earlier = profile_text(profile);
  earlier.erase(earlier.find("  devices: none\n"), std::string_view("  devices: none\n").size());
  EXPECT_TRUE(parse_profile(earlier, "abc", machine).value().uses_devices);
}

}  // namespace
}  // namespace uma::umad
