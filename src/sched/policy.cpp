#include "sched/policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace uma::sched {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 5> kNames = {{
    {Policy::continuous, "continuous"},
    {Policy::static_batch, "static_batch"},
    {Policy::iterative, "iterative"},
    {Policy::time_slice, "time_slice"},
    {Policy::sequential, "sequential"},
}};

}  // namespace

std::string_view policy_name(Policy policy) {
  return std::ranges::find(kNames, policy, &std::pair<Policy, std::string_view>::first)->second;
}

std::optional<Policy> parse_policy(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &std::pair<Policy, std::string_view>::second);
  if (found == kNames.end()) return std::nullopt;
  return found->first;
}

std::optional<double> TurnTaker::select(std::vector<SequenceView>& sequences, double now_ms) {
  if (options_.policy == Policy::continuous || sequences.empty()) return std::nullopt;
  if (options_.policy == Policy::static_batch) return select_batch(sequences);
  select_one(sequences, now_ms);
  return std::nullopt;
}

std::optional<double> TurnTaker::select_batch(std::vector<SequenceView>& sequences) {
  const auto is_member = [this](const SequenceView& view) { return members_.contains(view.id); };
  if (std::ranges::none_of(sequences, is_member)) {
    double waited_ms = 0;
    for (const SequenceView& view : sequences) waited_ms = std::max(waited_ms, view.waited_ms);
    const bool is_full = std::cmp_greater_equal(sequences.size(), slots_);
    if (!is_full && waited_ms < options_.static_batch_wait_ms) {
      sequences.clear();
      return options_.static_batch_wait_ms - waited_ms;
    }
    members_.clear();
    for (const SequenceView& view : sequences) members_.insert(view.id);
  }
  std::erase_if(sequences, [&](const SequenceView& view) { return !is_member(view); });
  return std::nullopt;
}

void TurnTaker::forget_gone(const std::vector<SequenceView>& sequences) {
  if (served_ms_.size() <= 2 * sequences.size()) return;
  std::erase_if(served_ms_, [&](const auto& served) {
    return std::ranges::find(sequences, served.first, &SequenceView::id) == sequences.end();
  });
}

void TurnTaker::select_one(std::vector<SequenceView>& sequences, double now_ms) {
  forget_gone(sequences);
  // The start of its waiting time; of two equal times, a sequence that never had its turn goes first.
  const auto waits_since = [&](const SequenceView& view) {
    const auto served = served_ms_.find(view.id);
    return served == served_ms_.end() ? std::pair(now_ms - view.waited_ms, 0) : std::pair(served->second, 1);
  };
  const bool keeps_owner =
      options_.policy == Policy::sequential ||
      (options_.policy == Policy::time_slice && (options_.slice_ms == 0 || now_ms - owner_since_ms_ < options_.slice_ms));
  auto chosen = sequences.end();
  if (owner_ && keeps_owner) chosen = std::ranges::find(sequences, *owner_, &SequenceView::id);
  if (chosen == sequences.end()) {
    chosen = options_.policy == Policy::sequential ? sequences.begin() : std::ranges::min_element(sequences, {}, waits_since);
    owner_ = chosen->id;
    owner_since_ms_ = now_ms;
  }
  served_ms_[chosen->id] = now_ms;
  const SequenceView view = *chosen;
  sequences.assign(1, view);
}

}  // namespace uma::sched
