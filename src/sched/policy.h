// Chooses the sequences that compute in the next tick. The planner then sizes their rows, so all policies run in the same
// executor. Pure, except for the state of a policy; owned by one lane.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sched/plan_batch.h"

namespace uma::sched {

enum class Policy : std::uint8_t {
  continuous,    // Every sequence in every tick; the reference for the others.
  static_batch,  // Collects a batch, computes it until its last sequence ends, then collects the next.
  iterative,     // One sequence per tick, in turn.
  time_slice,    // One sequence at a time for a slice, then the one that has waited longest.
  sequential,    // One sequence after another, in order of arrival, each to its end.
};

[[nodiscard]] std::string_view policy_name(Policy policy);
// Returns nullopt for an unknown name.
[[nodiscard]] std::optional<Policy> parse_policy(std::string_view name);

struct PolicyOptions {
  Policy policy = Policy::continuous;
  double static_batch_wait_ms = 20;  // How long a batch waits to fill.
  double slice_ms = 0;               // 0: until the sequence ends.
};

class TurnTaker {
 public:
  // `slots` is the largest number of sequences, and the size of a full static batch.
  TurnTaker(PolicyOptions options, std::int32_t slots) : options_(options), slots_(slots) {}

  // Removes the sequences whose turn it is not from `sequences`, which is in order of arrival. `now_ms` never decreases.
  // Returns the time in ms until the next call if no sequence may run yet, which only happens while a static batch fills.
  // Ensures: a non-empty `sequences` is not empty afterwards, or a time is returned.
  std::optional<double> select(std::vector<SequenceView>& sequences, double now_ms);

 private:
  std::optional<double> select_batch(std::vector<SequenceView>& sequences);
  void select_one(std::vector<SequenceView>& sequences, double now_ms);
  void forget_gone(const std::vector<SequenceView>& sequences);

  const PolicyOptions options_;
  const std::int32_t slots_;
  std::unordered_set<std::uint64_t> members_;            // For static_batch: ids of the running batch.
  std::unordered_map<std::uint64_t, double> served_ms_;  // For iterative and time_slice: when a sequence last had its turn.
  std::optional<std::uint64_t> owner_;                   // For time_slice and sequential.
  double owner_since_ms_ = 0;
};

}  // namespace uma::sched
