// Whose turn it is: chooses the sequences that compute in the next tick. The planner then sizes what they get, so every policy
// runs in the same executor. Pure but for what a policy remembers from tick to tick; owned by one lane.
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
  continuous,    // everyone, always: what the others are compared with
  static_batch,  // collects a batch, computes it until its last member ends, then collects the next
  iterative,     // one sequence a tick, in turn
  time_slice,    // one sequence owns the machine for a slice, then the one that has waited longest
  sequential,    // one after the other, in order of arrival, each to its end
};

[[nodiscard]] std::string_view policy_name(Policy policy);
// Nothing for a name that no policy has.
[[nodiscard]] std::optional<Policy> parse_policy(std::string_view name);

struct PolicyOptions {
  Policy policy = Policy::continuous;
  double static_batch_wait_ms = 20;  // how long a batch waits for company
  double slice_ms = 0;               // 0: until the sequence ends
};

class TurnTaker {
 public:
  // `slots`: how many sequences there can be, the size of a full static batch.
  TurnTaker(PolicyOptions options, std::int32_t slots) : options_(options), slots_(slots) {}

  // Leaves in `sequences`, which are in order of arrival, those whose turn it is. `now_ms` never goes back. Returns when to ask
  // again, in ms from now, where nobody's turn has come yet: only a static batch that waits for company does that.
  // Ensures: where sequences was not empty, something is left of it, or a time is returned.
  std::optional<double> select(std::vector<SequenceView>& sequences, double now_ms);

 private:
  std::optional<double> select_batch(std::vector<SequenceView>& sequences);
  void select_one(std::vector<SequenceView>& sequences, double now_ms);
  void forget_gone(const std::vector<SequenceView>& sequences);

  const PolicyOptions options_;
  const std::int32_t slots_;
  std::unordered_set<std::uint64_t> members_;            // static_batch: ids of the batch that runs
  std::unordered_map<std::uint64_t, double> served_ms_;  // iterative, time_slice: when a sequence last had its turn
  std::optional<std::uint64_t> owner_;                   // time_slice, sequential
  double owner_since_ms_ = 0;
};

}  // namespace uma::sched
