#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <format>

#include <gtest/gtest.h>

#include "agents_sim.h"
#include "base/log.h"
#include "cluster_sim.h"
#include "scheduling_sim.h"
#include "simulation.h"

namespace uma::sim {
namespace {

// UMA_SIM_SEED=n runs the single seed n; UMA_SIM_SEEDS=n runs the seeds 1 to n.
std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// A violated invariant aborts; the handler prints the seed that repeats it.
volatile std::sig_atomic_t running_seed = 0;
void say_seed(int) {
  ClusterSim::print_story();
  std::fprintf(stderr, "repeat with UMA_SIM_SEED=%ld\n", static_cast<long>(running_seed));
}

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t last = 0;
  bool is_one = false;  // A single seed was requested.
};

// The default: seeds 1 to `usual`.
Seeds choose_seeds(std::uint64_t usual) {
  init_log(LogLevel::error);
  std::signal(SIGABRT, say_seed);
  if (const std::uint64_t only = number_from("UMA_SIM_SEED", 0); only != 0) return {only, only, true};
  return {1, number_from("UMA_SIM_SEEDS", usual), false};
}

TEST(Simulation, HoldsItsInvariantsUnderEverySeed) {
  const Seeds seeds_to_run = choose_seeds(1500);
  const std::uint64_t seeds = seeds_to_run.last;
  Outcome total;
  for (std::uint64_t seed = seeds_to_run.first; seed <= seeds; ++seed) {
    running_seed = static_cast<std::sig_atomic_t>(seed);
    const Outcome outcome = Simulation(seed).run(1100);
    total.generations += outcome.generations;
    total.finished_turns += outcome.finished_turns;
    total.failures += outcome.failures;
    total.cancelled += outcome.cancelled;
    total.crashes += outcome.crashes;
    total.retirements += outcome.retirements;
    total.preemptions += outcome.preemptions;
    total.handovers += outcome.handovers;
    total.widened += outcome.widened;
    total.cells_moved += outcome.cells_moved;
    total.idle_stored += outcome.idle_stored;
    total.reused_tokens += outcome.reused_tokens;
    total.warm_hits += outcome.warm_hits;
    total.cold_hits += outcome.cold_hits;
    total.shared += outcome.shared;
    total.constrained += outcome.constrained;
    total.shifts += outcome.shifts;
    total.moves += outcome.moves;
    total.readings += outcome.readings;
    total.imports += outcome.imports;
    total.imports_with_kv += outcome.imports_with_kv;
    total.responses += outcome.responses;
    total.forks += outcome.forks;
    total.verified += outcome.verified;
    total.not_finite += outcome.not_finite;
  }
  std::printf(
      "%s\n",
      std::format(
          "generations {}, finished turns {}, failures {}, cancelled {}, crashes {}, models unloaded {}, preemptions {}, "
          "handovers {}, contexts widened {}, cells moved {}, idle slots stored {}, reused tokens {}, restored from memory {}, "
          "from disk {}, shared {}, "
          "context shifts {}, of them in place {}, records read {}, sessions imported {}, {} with KV, "
          "responses {}, of them in forks {}, reuses verified {}, not finite {}",
          total.generations, total.finished_turns, total.failures, total.cancelled, total.crashes, total.retirements,
          total.preemptions, total.handovers, total.widened, total.cells_moved, total.idle_stored, total.reused_tokens,
          total.warm_hits, total.cold_hits, total.shared, total.shifts, total.moves, total.readings, total.imports,
          total.imports_with_kv, total.responses, total.forks, total.verified, total.not_finite)
          .c_str());
  if (seeds_to_run.is_one) return;
  // Checks that every kind of event occurs, so that the simulation is meaningful.
  EXPECT_GT(total.finished_turns, seeds);
  EXPECT_GT(total.warm_hits, seeds / 10);
  EXPECT_GT(total.cold_hits, seeds / 10);
  EXPECT_GT(total.shared, seeds / 10);
  EXPECT_GT(total.constrained, seeds);
  EXPECT_GT(total.shifts, seeds / 8);
  EXPECT_GT(total.moves, seeds / 25);
  EXPECT_GT(total.readings, seeds);
  EXPECT_GT(total.imports, seeds / 4);
  EXPECT_GT(total.imports_with_kv, 0u);
  EXPECT_GT(total.responses, seeds);
  EXPECT_GT(total.forks, seeds / 10);
  EXPECT_GT(total.verified, seeds / 2);
  EXPECT_GT(total.not_finite, seeds / 2);
  EXPECT_GT(total.failures, seeds);
  EXPECT_GT(total.cancelled, seeds / 2);
  EXPECT_GT(total.crashes, seeds);
  EXPECT_GT(total.retirements, seeds / 4);
  EXPECT_GT(total.preemptions, seeds / 10);
  EXPECT_GT(total.handovers, seeds / 4);
  EXPECT_GT(total.widened, seeds / 20);
  EXPECT_GT(total.cells_moved, seeds);
  EXPECT_GT(total.idle_stored, seeds / 20);
  EXPECT_GT(total.reused_tokens, seeds * 5);
}

TEST(Scheduling, KeepsItsPromisesUnderEverySeed) {
  const Seeds seeds_to_run = choose_seeds(1000);
  const std::uint64_t seeds = seeds_to_run.last;
  SchedulingOutcome total;
  for (std::uint64_t seed = seeds_to_run.first; seed <= seeds; ++seed) {
    running_seed = static_cast<std::sig_atomic_t>(seed);
    const SchedulingOutcome outcome = SchedulingSim(seed).run();
    for (const std::string& broken : outcome.broken) ADD_FAILURE() << "UMA_SIM_SEED=" << seed << ": " << broken;
    total.requests += outcome.requests;
    total.starts_background += outcome.starts_background;
    total.gaps += outcome.gaps;
    total.ticks_in_time += outcome.ticks_in_time;
    total.ticks_late += outcome.ticks_late;
    total.gaps_in_time += outcome.gaps_in_time;
    total.gaps_late += outcome.gaps_late;
    total.contests += outcome.contests;
    total.preemptions_checked += outcome.preemptions_checked;
    total.preemptions += outcome.preemptions;
    total.handovers += outcome.handovers;
    total.worst_start = std::max(total.worst_start, outcome.worst_start);
    total.worst_gap = std::max(total.worst_gap, outcome.worst_gap);
  }
  std::puts(
      std::format("requests {}, late ticks {} of {}, late gaps {} of {} ({} in all), contests {}, preemptions {} ({} checked), "
                  "handovers {}, background starts after 10 s {}, worst start {:.2f}, worst gap {:.2f} of their bounds",
                  total.requests, total.ticks_late, total.ticks_late + total.ticks_in_time, total.gaps_late,
                  total.gaps_late + total.gaps_in_time, total.gaps, total.contests, total.preemptions,
                  total.preemptions_checked, total.handovers, total.starts_background, total.worst_start, total.worst_gap)
          .c_str());
  if (seeds_to_run.is_one) return;
  // Over all seeds, the guard of the step model holds.
  EXPECT_LE(total.ticks_late * 20, total.ticks_late + total.ticks_in_time);
  EXPECT_LE(total.gaps_late * 20, total.gaps_late + total.gaps_in_time);
  // Checks that the tested situations occur, so that the properties are meaningful.
  EXPECT_GT(total.ticks_in_time, seeds * 10);
  EXPECT_GT(total.gaps_in_time, seeds * 5);
  EXPECT_GT(total.starts_background, seeds / 8);
  EXPECT_GT(total.contests, seeds / 4);
  EXPECT_GT(total.preemptions_checked, seeds / 8);
  EXPECT_GT(total.handovers, seeds / 4);
}

TEST(Cluster, MachinesThatShareSessionsLoseNothingUnderEverySeed) {
  const Seeds seeds_to_run = choose_seeds(400);
  const std::uint64_t seeds = seeds_to_run.last;
  ClusterOutcome total;
  for (std::uint64_t seed = seeds_to_run.first; seed <= seeds; ++seed) {
    running_seed = static_cast<std::sig_atomic_t>(seed);
    const ClusterOutcome outcome = ClusterSim({.seed = seed}).run();
    for (const std::string& broken : outcome.broken) ADD_FAILURE() << "UMA_SIM_SEED=" << seed << ": " << broken;
    std::fputs(outcome.story.c_str(), stderr);
    if (!outcome.broken.empty()) break;
    total.requests += outcome.requests;
    total.inputs += outcome.inputs;
    total.turns += outcome.turns;
    total.reads += outcome.reads;
    total.moves += outcome.moves;
    total.refused += outcome.refused;
    total.unknown += outcome.unknown;
    total.fenced += outcome.fenced;
    total.commits_asked_for += outcome.commits_asked_for;
    total.kills += outcome.kills;
    total.former_runs_ended += outcome.former_runs_ended;
    total.stops += outcome.stops;
    total.sleeps += outcome.sleeps;
    total.partitions += outcome.partitions;
    total.crashes += outcome.crashes;
    total.takeovers += outcome.takeovers;
    total.commits_lost += outcome.commits_lost;
    total.ends += outcome.ends;
    total.forks += outcome.forks;
    total.renames += outcome.renames;
    total.seconds += outcome.seconds;
  }
  std::puts(
      std::format("{:.0f} s, requests {}, inputs {}, turns {}, reads {}, moves of sessions {}, refused {}, unknown {}, commits "
                  "fenced off {}, asked for {}, kills {}, leases ended by the next run {}, stops {}, sleeps {}, partitions {}, "
                  "database crashes {}, takeovers {}, "
                  "commits lost in them {}, ends {}, forks {}, renames {}",
                  total.seconds, total.requests, total.inputs, total.turns, total.reads, total.moves, total.refused,
                  total.unknown, total.fenced, total.commits_asked_for, total.kills, total.former_runs_ended, total.stops,
                  total.sleeps, total.partitions, total.crashes, total.takeovers, total.commits_lost, total.ends, total.forks,
                  total.renames)
          .c_str());
  if (seeds_to_run.is_one || HasFailure()) return;
  // Checks that every kind of event occurs, so that the simulation is meaningful.
  EXPECT_GT(total.inputs, seeds * 10);
  EXPECT_GT(total.turns, seeds * 7);
  EXPECT_GT(total.reads, seeds * 7);
  EXPECT_GT(total.moves, seeds * 8);
  EXPECT_GT(total.unknown, seeds);
  EXPECT_GT(total.fenced, seeds / 100);
  EXPECT_GT(total.commits_asked_for, seeds / 5);
  EXPECT_GT(total.kills, seeds / 2);
  EXPECT_GT(total.former_runs_ended, seeds / 4);
  EXPECT_GT(total.stops, seeds / 4);
  EXPECT_GT(total.sleeps, seeds / 2);
  EXPECT_GT(total.partitions, seeds / 2);
  EXPECT_GT(total.crashes, seeds / 4);
  EXPECT_GT(total.takeovers, seeds / 4);
  EXPECT_GT(total.commits_lost, seeds / 10);
  EXPECT_GT(total.ends, seeds / 2);
  EXPECT_GT(total.forks, seeds / 2);
  EXPECT_GT(total.renames, seeds / 2);
}

// A server that crashed gives the number of a transaction that it has lost to another one.
TEST(Cluster, NoticesAnAcknowledgedChangeThatIsNotStored) {
  init_log(LogLevel::error);
  bool was_noticed = false;
  for (std::uint64_t seed = 1; seed <= 200 && !was_noticed; ++seed) {
    was_noticed = !ClusterSim({.seed = seed, .trusts_transaction_numbers = true}).run().broken.empty();
  }
  EXPECT_TRUE(was_noticed);
}

TEST(Agents, LongConversationsDoNotStallAStreamAndAreComputedOnce) {
  init_log(LogLevel::error);
  for (const std::int32_t cells : {60'000, 36'000}) {
    for (const bool takes_turns : {false, true}) {
      for (const double state_token_ms : {0.004, 0.02}) {
        const AgentsOutcome outcome =
            AgentsSim({.cells = cells, .takes_turns = takes_turns, .state_token_ms = state_token_ms}).run();
        const std::string line = std::format(
            "{} cells, {}, {} ms a token of state: {} turns, pauses of the stream {:.0f} ms at most ({:.0f} at 99 %, {} "
            "tokens), first "
            "token of a turn after {:.0f} ms at most, {} tokens computed of {} needed, handovers {}, preemptions {}, {:.0f} s",
            cells, takes_turns ? "turns" : "split", state_token_ms, outcome.turns, outcome.pause_ms_max, outcome.pause_ms_99,
            outcome.stream_tokens, outcome.first_token_ms_max, outcome.tokens_computed, outcome.tokens_needed,
            outcome.handovers, outcome.preemptions, outcome.ms / 1000);
        std::puts(line.c_str());
        EXPECT_EQ(outcome.wrong, 0u) << line;
        EXPECT_EQ(outcome.tokens_computed, outcome.tokens_needed) << line;
        // Two ticks, and once in a while one more. With fewer cells than all need, the stream also gives its cells away for a
        // turn of the others.
        if (cells == 60'000) {
          EXPECT_LE(outcome.pause_ms_99, 60) << line;
          EXPECT_LE(outcome.pause_ms_max, 90) << line;
        }
      }
    }
  }
}

}  // namespace
}  // namespace uma::sim
