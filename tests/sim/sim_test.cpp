#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "base/log.h"
#include "simulation.h"

namespace uma::sim {
namespace {

// UMA_SIM_SEED=n runs that one seed; UMA_SIM_SEEDS=n as many as that, from 1.
std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// A broken invariant aborts: the seed that repeats it is said on the way out.
volatile std::sig_atomic_t running_seed = 0;
void say_seed(int) {
  std::fprintf(stderr, "repeat with UMA_SIM_SEED=%ld\n", static_cast<long>(running_seed));
}

TEST(Simulation, HoldsItsInvariantsUnderEverySeed) {
  init_log(LogLevel::error);
  std::signal(SIGABRT, say_seed);
  const std::uint64_t only = number_from("UMA_SIM_SEED", 0);
  const std::uint64_t seeds = only != 0 ? only : number_from("UMA_SIM_SEEDS", 300);
  Outcome total;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= seeds; ++seed) {
    running_seed = static_cast<std::sig_atomic_t>(seed);
    const Outcome outcome = Simulation(seed).run(900);
    total.generations += outcome.generations;
    total.finished_turns += outcome.finished_turns;
    total.failures += outcome.failures;
    total.cancelled += outcome.cancelled;
    total.preemptions += outcome.preemptions;
    total.handovers += outcome.handovers;
    total.reused_tokens += outcome.reused_tokens;
  }
  std::printf(
      "generations %llu, finished turns %llu, failures %llu, cancelled %llu, preemptions %llu, handovers %llu, reused tokens "
      "%llu\n",
      static_cast<unsigned long long>(total.generations), static_cast<unsigned long long>(total.finished_turns),
      static_cast<unsigned long long>(total.failures), static_cast<unsigned long long>(total.cancelled),
      static_cast<unsigned long long>(total.preemptions), static_cast<unsigned long long>(total.handovers),
      static_cast<unsigned long long>(total.reused_tokens));
  if (only != 0) return;
  // The simulator is worth something only where all of it happens.
  EXPECT_GT(total.finished_turns, seeds);
  EXPECT_GT(total.failures, seeds);
  EXPECT_GT(total.cancelled, seeds / 2);
  EXPECT_GT(total.preemptions, seeds / 10);
  EXPECT_GT(total.handovers, seeds / 4);
  EXPECT_GT(total.reused_tokens, seeds * 5);
}

}  // namespace
}  // namespace uma::sim
