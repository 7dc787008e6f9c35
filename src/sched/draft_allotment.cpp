#include "sched/draft_allotment.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <vector>

#include "sched/draft_control.h"

namespace uma::sched {
namespace {

constexpr std::int32_t kFillMax = 3;
constexpr double kGainMin = 0.04;  // Less may be an error of measurement.
// The longest call beside other sequences, whose tokens it delays, in plain calls.
constexpr double kLongestCall = 3;

// Keeps the best of several candidates by the rate of their tokens.
class Best {
 public:
  // `tokens`, one of each sequence, in `ms` without more rows.
  Best(double tokens, double ms)
      : least_(rate(tokens, ms) * (1 + kGainMin)), longest_ms_(tokens > 1 ? kLongestCall * ms : kNoLimit) {}

  // True: the best so far.
  [[nodiscard]] bool offer(double tokens, double ms) {
    if (ms > longest_ms_ || rate(tokens, ms) <= least_) return false;
    least_ = rate(tokens, ms);
    return true;
  }

 private:
  static double rate(double tokens, double ms) { return tokens / std::max(ms, 1e-9); }

  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();

  double least_;
  double longest_ms_;
};

// An offer whose next draft token would be right with this probability.
struct Next {
  double chance = 0;
  DraftOffer* offer = nullptr;
};

void allot_evenly(std::span<DraftOffer> offers, std::int32_t rows_max, const CallTime& call_ms) {
  const auto count = static_cast<std::int32_t>(offers.size());
  const std::int32_t room = std::ranges::min_element(offers, {}, &DraftOffer::room)->room;
  double tokens = count;
  Best best(tokens, call_ms(0));
  std::int32_t rows_best = 0;
  std::vector<double> chances(offers.size(), 1);
  for (std::int32_t rows = 1; rows <= std::min({room, rows_max / count, kDraftTokensMax}); ++rows) {
    for (std::size_t i = 0; i < offers.size(); ++i) {
      chances[i] *= rows <= offers[i].available ? offers[i].chance : 0;
      tokens += chances[i];
    }
    if (best.offer(tokens, call_ms(rows * count))) rows_best = rows;
  }
  for (DraftOffer& offer : offers) {
    offer.allotted = std::min(rows_best, offer.available);
    offer.fill = rows_best - offer.allotted;
  }
}

void allot_freely(std::span<DraftOffer> offers, std::int32_t rows_max, const CallTime& call_ms) {
  std::vector<Next> heap;
  for (DraftOffer& offer : offers) {
    if (offer.available > 0) heap.push_back({offer.chance, &offer});
  }
  std::ranges::make_heap(heap, {}, &Next::chance);
  double tokens = static_cast<double>(offers.size());
  Best best(tokens, call_ms(0));
  std::vector<DraftOffer*> order;  // The offer whose next draft token each further row has.
  std::size_t drafts_best = 0;
  std::int32_t fill_best = 0;
  for (;;) {
    const auto drafts = static_cast<std::int32_t>(order.size());
    const auto room = [](const DraftOffer& offer) { return offer.room - offer.allotted; };
    const std::int32_t fill_max =
        std::min({kFillMax, rows_max - drafts, std::ranges::max(offers | std::views::transform(room))});
    for (std::int32_t fill = 0; fill <= fill_max; ++fill) {
      if (!best.offer(tokens, call_ms(drafts + fill))) continue;
      drafts_best = order.size();
      fill_best = fill;
    }
    if (heap.empty() || drafts == rows_max) break;
    std::ranges::pop_heap(heap, {}, &Next::chance);
    Next& next = heap.back();
    tokens += next.chance;
    order.push_back(next.offer);
    next.chance *= next.offer->chance;
    if (++next.offer->allotted < next.offer->available) {
      std::ranges::push_heap(heap, {}, &Next::chance);
    } else {
      heap.pop_back();
    }
  }
  for (std::size_t i = drafts_best; i < order.size(); ++i) --order[i]->allotted;
  const auto has_room = [&](const DraftOffer& offer) { return offer.room - offer.allotted >= fill_best; };
  const auto filled = std::ranges::find_if(offers, has_room);
  if (filled != offers.end()) filled->fill = fill_best;
}

}  // namespace

void allot_drafts(std::span<DraftOffer> offers, std::int32_t rows_max, bool evenly, const CallTime& call_ms) {
  for (DraftOffer& offer : offers) offer.allotted = offer.fill = 0;
  if (offers.empty()) return;
  evenly ? allot_evenly(offers, rows_max, call_ms) : allot_freely(offers, rows_max, call_ms);
}

}  // namespace uma::sched
