#include "umad/tune/compute.h"

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

constexpr std::uintmax_t kLarge = 1u << 30;
constexpr std::int32_t kCores = 8;

Config given(const std::string& yaml) {
  Config config;
  EXPECT_TRUE(apply_yaml(config, yaml, "c").empty());
  return config;
}

std::optional<Profile> compute_profile() {
  Profile profile;
  profile.decode_threads = 4;
  profile.prefill_threads = 6;
  profile.ubatch_rows = 128;
  profile.flash_attention = llm::FlashAttention::off;
  profile.kv_layout = llm::KvLayout::unified;
  return profile;
}

llm::ContextOptions context_of(const Config& config, const std::optional<Profile>& profile, std::uintmax_t model_bytes,
                               std::int32_t cores) {
  return choose_compute(config, profile, model_bytes, cores).context;
}

TEST(Compute, WithoutAProfileItIsTheSettingsAndTheirDefaults) {
  const auto plain = context_of(Config(), std::nullopt, kLarge, kCores);
  EXPECT_EQ(plain.threads, kCores);
  EXPECT_EQ(plain.threads_batch, 0);
  EXPECT_EQ(plain.ubatch_rows, 512);
  EXPECT_EQ(plain.sequences, 8);
  const auto set =
      context_of(given("{n_ctx: 2048, slots: 3, threads: 6, workers: 2, scheduler: {ubatch: 64, prefill_threads: 5}, "
                       "kv: {cells: 4096, layout: split, type: q8_0, flash_attention: on}}"),
                 std::nullopt, kLarge, kCores);
  EXPECT_EQ(set.sequence_cells, 2048);
  EXPECT_EQ(set.cells, 4096);
  EXPECT_EQ(set.sequences, 3);
  EXPECT_EQ(set.threads, 3);
  EXPECT_EQ(set.threads_batch, 5);
  EXPECT_EQ(set.ubatch_rows, 64);
  EXPECT_EQ(set.layout, llm::KvLayout::split);
  EXPECT_EQ(set.kv_types, llm::KvTypes::both(llm::KvType::q8_0));
  EXPECT_EQ(set.flash_attention, llm::FlashAttention::on);
}

TEST(Compute, ThreadsAreNoMoreThanCanComputeAtOnce) {
  Config config = given("{threads: 8, scheduler: {prefill_threads: 5}}");
  limit_threads(config, 0);
  EXPECT_EQ(config.threads, 8) << "how many can is not known";
  limit_threads(config, 6);
  EXPECT_EQ(config.threads, 6);
  EXPECT_EQ(config.prefill_threads, 5);
  Config automatic;
  limit_threads(automatic, 1);
  EXPECT_EQ(automatic.threads, 0);
}

TEST(Compute, ASmallModelGetsOneThreadPerWorker) {
  EXPECT_EQ(context_of(Config(), std::nullopt, 1 << 20, kCores).threads, 1);
  EXPECT_EQ(context_of(given("workers: 4"), std::nullopt, 1 << 20, kCores).threads, 1);
  EXPECT_EQ(context_of(given("threads: 0"), std::nullopt, 1 << 20, kCores).threads, 1);
}

TEST(Compute, TheProfileDecidesWhatWasNotGiven) {
  const auto all = context_of(Config(), compute_profile(), kLarge, kCores);
  EXPECT_EQ(all.threads, 4);
  EXPECT_EQ(all.threads_batch, 6);
  EXPECT_EQ(all.ubatch_rows, 128);
  EXPECT_EQ(all.flash_attention, llm::FlashAttention::off);
  EXPECT_EQ(all.layout, llm::KvLayout::unified);

  const Config config = given("{threads: 2, scheduler: {ubatch: 512}, kv: {layout: auto, flash_attention: auto}}");
  const auto none = context_of(config, compute_profile(), kLarge, kCores);
  EXPECT_EQ(none.threads, 2);
  EXPECT_EQ(none.threads_batch, 0) << "who sets the threads sets them for prompts too";
  EXPECT_EQ(none.ubatch_rows, 512) << "the value of the default was given";
  EXPECT_EQ(none.flash_attention, llm::FlashAttention::automatic);
  EXPECT_EQ(none.layout, llm::KvLayout::automatic);
  EXPECT_EQ(given_over_profile(config), "threads, scheduler.ubatch, kv.layout, kv.flash_attention");
  EXPECT_EQ(given_over_profile(Config()), "");
}

TEST(Compute, LanesAreTheProfilesWhereNothingElseIsGiven) {
  const auto of = [](const std::string& yaml, bool with_profile, bool lanes = true) {
    std::optional<Profile> profile = compute_profile();
    profile->lanes = lanes;
    profile->decode_threads_beside_prefill = 2;
    if (!with_profile) profile.reset();
    return choose_compute(given(yaml), profile, kLarge, kCores);
  };
  EXPECT_TRUE(of("", false).lanes);
  EXPECT_EQ(of("", false).decode_threads_beside_prefill, kCores / 2);
  EXPECT_EQ(of("scheduler: {lanes: turns}", false).decode_threads_beside_prefill, 0);
  EXPECT_FALSE(of("scheduler: {lanes: off}", false).lanes);

  EXPECT_FALSE(of("", true, false).lanes);
  EXPECT_EQ(of("", true).threads, 6) << "as many as prompts use";
  EXPECT_EQ(of("", true).decode_threads_beside_prefill, 2);
  EXPECT_TRUE(of("scheduler: {lanes: split}", true, false).lanes);
  EXPECT_EQ(of("scheduler: {lanes: turns}", true).decode_threads_beside_prefill, 0);
  EXPECT_EQ(of("workers: 2", true).decode_threads_beside_prefill, 2) << "half of the 4 threads of each";
  EXPECT_EQ(of("threads: 8", true).decode_threads_beside_prefill, 4) << "measured with other threads";
}

TEST(Compute, SeveralWorkersShareTheCoresAProfileWasMeasuredOn) {
  const auto options = context_of(given("workers: 4"), compute_profile(), kLarge, kCores);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.threads_batch, 2);
}

TEST(Compute, EveryContextHasTheRopeOptionsThatWereGiven) {
  EXPECT_EQ(context_of(given("rope: {scaling: linear, scale: 2}"), compute_profile(), kLarge, kCores).rope,
            (llm::RopeOptions{.scaling = llm::RopeScaling::linear, .scale = 2}));
  EXPECT_FALSE(context_of(Config(), compute_profile(), kLarge, kCores).rope.is_given());
}

TEST(Compute, NeverQuantizedValuesWithoutFlashAttention) {
  EXPECT_EQ(context_of(given("kv: {type: q8_0}"), compute_profile(), kLarge, kCores).flash_attention,
            llm::FlashAttention::automatic);
  std::optional<Profile> quantized = compute_profile();
  quantized->flash_attention = llm::FlashAttention::automatic;
  quantized->kv_types = llm::KvTypes::both(llm::KvType::q8_0);
  EXPECT_EQ(context_of(Config(), quantized, kLarge, kCores).kv_types, llm::KvTypes::both(llm::KvType::q8_0));
  EXPECT_EQ(context_of(given("kv: {flash_attention: off}"), quantized, kLarge, kCores).kv_types, llm::KvTypes());
}

}  // namespace
}  // namespace uma::umad
