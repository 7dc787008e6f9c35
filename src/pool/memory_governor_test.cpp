#include "pool/memory_governor.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"

namespace uma::pool {
namespace {

using std::chrono::seconds;

MemoryInfo machine(std::uint64_t total, std::uint64_t available, std::uint64_t own = 0) {
  MemoryInfo info;
  info.total = total;
  info.available = available;
  info.own_anonymous = own;
  info.own_resident = own;
  return info;
}

Claim claim(std::string model, MemoryKind kind, std::uint64_t bytes) {
  return {.model = std::move(model), .kind = kind, .bytes = bytes};
}

TEST(UsableBytes, AreAFractionOfTheLeastLimit) {
  const GovernorOptions half{.usable_fraction = 0.5};
  EXPECT_EQ(usable_bytes(machine(1000, 800), half), 400u);
  // What the process holds itself it could give up.
  EXPECT_EQ(usable_bytes(machine(1000, 800, 100), half), 450u);
  EXPECT_EQ(usable_bytes(machine(1000, 800, 900), half), 500u);
  MemoryInfo info = machine(1000, 800, 100);
  info.group_limit = 600;
  EXPECT_EQ(usable_bytes(info, half), 300u);
  info.group_left = 100;  // Others in the group hold the rest.
  EXPECT_EQ(usable_bytes(info, half), 100u);
  EXPECT_EQ(usable_bytes(machine(1000, 800), {.usable_fraction = 0.5, .bytes_max = 50}), 50u);
  EXPECT_EQ(usable_bytes(machine(1000, 800), {.usable_fraction = 0.5, .bytes_max = 5000}), 400u);
}

TEST(UsableBytes, ASystemThatSaysNothingLimitsNothing) {
  EXPECT_GT(usable_bytes({}, {}), std::uint64_t{1} << 62);
  EXPECT_EQ(usable_bytes({}, {.bytes_max = 77}), 77u);
}

class Governor : public ::testing::Test {
 protected:
  Governor() { governor_.update(machine(1000, 1000), {}); }
  [[nodiscard]] std::uint64_t reserved() const { return governor_.use().front().reserved(); }
  MemoryGovernor governor_{{.usable_fraction = 1}};
};

TEST_F(Governor, AReservationHoldsItsBytesUntilItEnds) {
  {
    auto weights = governor_.reserve(claim("a", MemoryKind::weights, 600));
    ASSERT_TRUE(weights.has_value());
    EXPECT_EQ(reserved(), 600u);
    EXPECT_EQ(governor_.held_by("a", kHostMemory)[0], 600u);
    const auto refused = governor_.reserve(claim("b", MemoryKind::weights, 401));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
    EXPECT_EQ(refused.error().message, "memory: b needs 401 bytes (weights), 400 bytes of 1000 bytes are left");
    EXPECT_EQ(governor_.shortage(claim("b", MemoryKind::weights, 401)), 1u);
    Reservation moved = std::move(*weights);
    weights->release();  // Nothing is released.
    EXPECT_EQ(reserved(), 600u);
    moved = Reservation();
    EXPECT_EQ(reserved(), 0u);
  }
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(governor_.held_by("a", kHostMemory)[0], 0u);
}

TEST_F(Governor, AReservationGrowsAsFarAsItFits) {
  auto warm = governor_.reserve(claim("a", MemoryKind::warm_kv, 100));
  ASSERT_TRUE(warm.has_value());
  EXPECT_TRUE(warm->grow(900));
  EXPECT_FALSE(warm->grow(1));
  EXPECT_FALSE(warm->grow(~std::uint64_t{0}));
  EXPECT_EQ(warm->bytes(), 1000u);
  EXPECT_FALSE(Reservation().grow(1));
}

TEST_F(Governor, WhatWasMeasuredIsTrueThoughItIsTooMuch) {
  auto context = governor_.reserve(claim("a", MemoryKind::context, 900));
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(governor_.excess(kHostMemory), 0u);
  context->correct(1200);
  EXPECT_EQ(governor_.excess(kHostMemory), 200u);
  EXPECT_EQ(governor_.use().front().left(), -200);
  EXPECT_FALSE(governor_.reserve(claim("b", MemoryKind::context, 0)).has_value());
  context->correct(300);
  EXPECT_EQ(governor_.use().front().left(), 700);
  context->release();
  EXPECT_EQ(reserved(), 0u);
}

TEST_F(Governor, OtherProgramsMayTakeWhatWasUsable) {
  auto weights = governor_.reserve(claim("a", MemoryKind::weights, 600));
  ASSERT_TRUE(weights.has_value());
  governor_.update(machine(1000, 100, 300), {});
  EXPECT_EQ(governor_.excess(kHostMemory), 200u);
}

TEST_F(Governor, DevicesAreCountedApart) {
  std::vector<llm::DeviceMemory> devices = {{.name = "GPU0", .total = 800, .free = 600}};
  governor_.update(machine(1000, 1000), devices);
  Claim on_device = claim("a", MemoryKind::weights, 400);
  on_device.place = 1;
  auto weights = governor_.reserve(on_device);
  ASSERT_TRUE(weights.has_value());
  EXPECT_FALSE(governor_.reserve(on_device).has_value());
  EXPECT_TRUE(governor_.reserve(claim("a", MemoryKind::weights, 1000)).has_value());
  devices[0].free = 200;  // It is loaded now.
  governor_.update(machine(1000, 1000), devices);
  EXPECT_EQ(governor_.excess(1), 0u);
  EXPECT_EQ(governor_.use()[1].name, "GPU0");
}

TEST_F(Governor, ADeviceHasAMargin) {
  const GovernorOptions options;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(usable_device_bytes(10 * kGiB, 10 * kGiB, options), 9 * kGiB);
  EXPECT_EQ(usable_device_bytes(2 * kGiB, 2 * kGiB, options), 2 * kGiB - kGiB / 4);
  EXPECT_EQ(usable_device_bytes(400, 400, options), 300u);
  EXPECT_EQ(usable_device_bytes(400, 50, options), 0u) << "another program has the margin";
  EXPECT_EQ(usable_device_bytes(400, ~std::uint64_t{0}, options), 300u);
  EXPECT_EQ(usable_device_bytes(10 * kGiB, 10 * kGiB, {.device_bytes_max = 7}), 7u);
}

TEST_F(Governor, MemoryInSeveralPlacesIsReservedAsAWhole) {
  const std::vector<llm::DeviceMemory> devices = {{.name = "GPU0", .total = 400, .free = 400},
                                                  {.name = "GPU1", .total = 400, .free = 400}};
  governor_.update(machine(1000, 1000), devices);
  EXPECT_FALSE(governor_.reserve("a", MemoryKind::weights, 500, {{"GPU0", 300}, {"GPU1", 301}}).has_value());
  EXPECT_FALSE(governor_.reserve("a", MemoryKind::weights, 1001, {{"GPU0", 300}}).has_value());
  EXPECT_FALSE(governor_.reserve("a", MemoryKind::weights, 1, {{"GPU9", 1}}).has_value()) << "there is no such device";
  for (const PlaceUse& place : governor_.use()) EXPECT_EQ(place.reserved(), 0u) << place.name;
  auto held = governor_.reserve("a", MemoryKind::weights, 500, {{"GPU0", 300}});
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->bytes(kHostMemory), 500u);
  EXPECT_EQ(held->bytes(governor_.place_of("GPU0")), 300u);
  governor_.correct(*held, 400, {{"GPU1", 350}});
  EXPECT_EQ(held->bytes(kHostMemory), 400u);
  EXPECT_EQ(held->bytes(governor_.place_of("GPU0")), 0u);
  EXPECT_EQ(governor_.excess(governor_.place_of("GPU1")), 50u);
  governor_.update(machine(1000, 1000), {});
  EXPECT_EQ(governor_.excess(governor_.place_of("GPU1")), 350u) << "the device is gone";
  held->release();
  EXPECT_EQ(reserved(), 0u);
}

TEST_F(Governor, AReservationMayOutliveItsGovernor) {
  std::optional<Reservation> kept;
  {
    MemoryGovernor other({});
    auto reserved = other.reserve(claim("a", MemoryKind::weights, 10));
    ASSERT_TRUE(reserved.has_value());
    kept = std::move(*reserved);
  }
  EXPECT_EQ(kept->bytes(), 10u);
  EXPECT_TRUE(kept->grow(10));
}

TEST_F(Governor, KeepsTheLatestDecisions) {
  ModelView idle{.name = "old"};
  idle.idle = idle.loaded_for = seconds(100);
  idle.weight_bytes = 900;
  const auto held = governor_.reserve(claim("old", MemoryKind::weights, 900));
  EXPECT_EQ(governor_.decide(claim("new", MemoryKind::weights, 50), {}, {}, 1).outcome, Outcome::fits);
  EXPECT_TRUE(governor_.decisions().empty());
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(governor_.decide(claim("new", MemoryKind::weights, 500), std::span(&idle, 1), {}, i).outcome, Outcome::fits);
  }
  const std::vector<Decision> decisions = governor_.decisions();
  ASSERT_EQ(decisions.size(), MemoryGovernor::kDecisionsKept);
  EXPECT_EQ(governor_.decisions_total(), 100u);
  EXPECT_EQ(decisions.front().time_s, 36);
  EXPECT_EQ(decisions.back().text(),
            "memory: new needs 500 bytes (weights), 100 bytes of 1000 bytes are left: unload old (900 bytes)");
  idle.sequences_active = 1;
  (void)governor_.decide(claim("new", MemoryKind::weights, 500), std::span(&idle, 1), {}, 200);
  EXPECT_TRUE(governor_.decisions().back().text().ends_with("it waits, because 900 bytes are in use or were used just now"));
  (void)governor_.decide(claim("new", MemoryKind::weights, 5000), std::span(&idle, 1), {}, 200);
  EXPECT_TRUE(governor_.decisions().back().text().ends_with("refused: it would not fit even if everything else were freed"));
}

TEST_F(Governor, ThreadsTogetherTakeNoMoreThanThereIs) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      Random random(static_cast<std::uint64_t>(i));
      std::vector<Reservation> held;
      for (int step = 0; step < 2000; ++step) {
        if (random.next_below(2) == 0 && !held.empty()) {
          held.pop_back();
        } else if (auto taken = governor_.reserve(claim(std::to_string(i), MemoryKind::context, random.next_below(300)))) {
          held.push_back(std::move(*taken));
        }
        EXPECT_LE(reserved(), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reserved(), 0u);
}

// --- A pool of models that follows the plans: adversarial requests under a seed, in simulated time

class Pool {
 public:
  static constexpr std::uint64_t kUsable = 1000;
  static constexpr Duration kMinLoaded = seconds(10);

  Pool(std::uint64_t seed, std::size_t models) : random_(seed) {
    governor_.update(machine(kUsable, kUsable), {});
    for (std::size_t i = 0; i < models; ++i) {
      views_.push_back({.name = std::to_string(i), .is_pinned = random_.next_below(6) == 0});
      sizes_.push_back(100 + random_.next_below(500));
      // Pinned models together leave room for the largest other one.
      if (views_.back().is_pinned) sizes_.back() = 50;
    }
    held_.resize(models);
    loaded_at_.resize(models);
    used_at_.resize(models);
  }

  // Everyone asks for whatever is not loaded, always: the pattern that thrashes most.
  void step() {
    now_ += std::chrono::milliseconds(100 + random_.next_below(900));
    refresh();
    const std::size_t wanted = random_.next_below(views_.size());
    if (held_[wanted].bytes() == 0) {
      load(wanted);
    } else {
      views_[wanted].sequences_active = static_cast<std::int32_t>(random_.next_below(3));
      used_at_[wanted] = now_;
    }
    for (ModelView& view : views_) {
      if (random_.next_below(3) == 0) view.sequences_active = 0;
    }
    ASSERT_LE(governor_.use().front().reserved(), kUsable);
  }

  void end() {
    for (Reservation& held : held_) held.release();
    EXPECT_EQ(governor_.use().front().reserved(), 0u);
  }

  [[nodiscard]] Duration now() const { return now_; }
  [[nodiscard]] std::uint64_t loads() const { return loads_; }
  [[nodiscard]] std::uint64_t unloads() const { return unloads_; }
  [[nodiscard]] std::uint64_t refusals() const { return refusals_; }

 private:
  void refresh() {
    for (std::size_t i = 0; i < views_.size(); ++i) {
      views_[i].idle = now_ - used_at_[i];
      views_[i].loaded_for = now_ - loaded_at_[i];
      views_[i].weight_bytes = held_[i].bytes();
      views_[i].load_ms = static_cast<double>(sizes_[i]);
    }
  }

  void load(std::size_t wanted) {
    const Claim wants = claim(views_[wanted].name, MemoryKind::weights, sizes_[wanted]);
    std::vector<ModelView> others;
    for (std::size_t i = 0; i < views_.size(); ++i) {
      if (held_[i].bytes() > 0) others.push_back(views_[i]);
    }
    const EvictionPlan plan = governor_.decide(wants, others, {.min_loaded = kMinLoaded}, 0);
    if (plan.outcome == Outcome::refuse) ++refusals_;
    if (plan.outcome != Outcome::fits) return;
    for (const EvictionStep& step : plan.steps) unload(step);
    auto taken = governor_.reserve(wants);
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    held_[wanted] = std::move(*taken);
    loaded_at_[wanted] = used_at_[wanted] = now_;
    ++loads_;
  }

  void unload(const EvictionStep& step) {
    ASSERT_EQ(step.kind, StepKind::unload);
    const auto index = static_cast<std::size_t>(std::stoul(step.model));
    ASSERT_FALSE(views_[index].is_pinned);
    ASSERT_EQ(views_[index].sequences_active, 0);
    ASSERT_GE(now_ - loaded_at_[index], kMinLoaded);
    ASSERT_GE(now_ - used_at_[index], kMinLoaded);
    EXPECT_EQ(step.bytes, held_[index].bytes());
    held_[index].release();
    ++unloads_;
  }

  Random random_;
  MemoryGovernor governor_{{.usable_fraction = 1}};
  Duration now_ = seconds(1000);
  std::vector<ModelView> views_;
  std::vector<std::uint64_t> sizes_;
  std::vector<Reservation> held_;
  std::vector<Duration> loaded_at_;
  std::vector<Duration> used_at_;
  std::uint64_t loads_ = 0;
  std::uint64_t unloads_ = 0;
  std::uint64_t refusals_ = 0;
};

TEST(GovernedPool, NeverOverrunsNeverHurtsWhoIsUsedAndNeverThrashes) {
  init_log(LogLevel::warning);  // Thousands of decisions.
  std::uint64_t unloads = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Pool pool(seed, 3 + seed % 8);
    const Duration begin = pool.now();
    for (int i = 0; i < 500 && !::testing::Test::HasFatalFailure(); ++i) pool.step();
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << seed;
    // A model that is loaded stays for kMinLoaded at least, and at most this many are loaded together.
    const double minutes = to_ms(pool.now() - begin) / 60'000;
    const double together = static_cast<double>(Pool::kUsable) / 50;
    EXPECT_LE(static_cast<double>(pool.loads()), together * (1 + minutes * 60 / 10)) << seed;
    EXPECT_EQ(pool.refusals(), 0u) << seed;
    unloads += pool.unloads();
    pool.end();
  }
  init_log(LogLevel::info);
  EXPECT_GT(unloads, 1000u);
}

}  // namespace
}  // namespace uma::pool
