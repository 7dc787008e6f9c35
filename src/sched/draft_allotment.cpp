#include "sched/draft_allotment.h"

#include <algorithm>
#include <vector>

namespace uma::sched {
namespace {

constexpr double kFillGainMin = 0.05;   // Less may be an error of measurement.
constexpr double kDraftGainMin = 0.03;  // The same.

// An offer whose next draft token would be right with this probability.
struct Next {
  double chance = 0;
  DraftOffer* offer = nullptr;
};

}  // namespace

std::int32_t fill_rows(std::int32_t more_rows, std::int32_t rows_max, const CallTime& call_ms) {
  std::int32_t best = 0;
  double best_ms = call_ms(more_rows) * (1 - kFillGainMin);
  for (std::int32_t fill = 1; fill <= std::min(kFillRowsMax, rows_max); ++fill) {
    const double ms = call_ms(more_rows + fill);
    if (ms >= best_ms) continue;
    best = fill;
    best_ms = ms;
  }
  return best;
}

void allot_drafts(std::span<DraftOffer> offers, std::int32_t rows_max, const CallTime& call_ms) {
  const auto filled_ms = [&](std::int32_t more_rows) {
    return call_ms(more_rows + fill_rows(more_rows, rows_max - more_rows, call_ms));
  };
  std::vector<Next> heap;
  for (DraftOffer& offer : offers) {
    offer.allotted = 0;
    if (offer.available > 0) heap.push_back({offer.chance, &offer});
  }
  std::ranges::make_heap(heap, {}, &Next::chance);
  double tokens = static_cast<double>(offers.size());
  double best_rate = tokens / std::max(filled_ms(0), 1e-9) * (1 + kDraftGainMin);
  std::vector<DraftOffer*> order;  // Whose next draft token each further row has.
  std::size_t best = 0;
  while (!heap.empty() && static_cast<std::int32_t>(order.size()) < rows_max) {
    std::ranges::pop_heap(heap, {}, &Next::chance);
    Next& next = heap.back();
    tokens += next.chance;
    order.push_back(next.offer);
    const double rate = tokens / std::max(filled_ms(static_cast<std::int32_t>(order.size())), 1e-9);
    if (rate > best_rate) {
      best_rate = rate;
      best = order.size();
    }
    next.chance *= next.offer->chance;
    ++next.offer->allotted;
    if (next.offer->allotted == next.offer->available) {
      heap.pop_back();
    } else {
      std::ranges::push_heap(heap, {}, &Next::chance);
    }
  }
  for (std::size_t i = best; i < order.size(); ++i) --order[i]->allotted;
}

}  // namespace uma::sched
