// Measured times of the lane's own calls and moves. Owned by the lane's thread.
#pragma once

#include <cstdint>

#include "engine/lane/move/transfer_cost.h"
#include "sched/step_model.h"

namespace uma::engine {

struct LaneCosts {
  sched::StepModel step_model;
  TransferCost transfer;

  // The estimated time of computing `tokens` tokens behind `cached` ones.
  [[nodiscard]] double compute_ms(std::int32_t tokens, std::int32_t cached) const {
    constexpr double kUnknownMsPerToken = 0.5;  // Until the first prompt was measured.
    const double known_ms = step_model.prefill_ms(tokens, cached);
    return known_ms > 0 ? known_ms : kUnknownMsPerToken * tokens;
  }
};

}  // namespace uma::engine
