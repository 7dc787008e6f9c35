// Computes some of the reused tokens again and compares the logits (scheduler.verify, docs/decisions/0037). Works in the spare
// sequence of the lane's context, on one reuse at a time. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

class ReuseVerifier {
 public:
  // The largest distance that counts as equal. Logits that differ only by rounding, from another batch shape, were at most 0.03
  // apart, with a trained model in Q4_1 (SmolLM2 135M) 0.24; those of another text at least 0.6 (decision 0037).
  static constexpr double kDistanceMax = 0.4;

  // A reuse to verify.
  struct Reuse {
    kv::StateId state = 0;      // The stored state that was reused; 0: another slot, or a snapshot outside of the store.
    std::vector<Token> tokens;  // The reused tokens and the next one.
    std::vector<float> logits;  // The logits of that next token, computed after the reused cells.
  };

  // Verifies one reuse in `every`; 0: none. A context without a spare sequence is never used.
  ReuseVerifier(std::int32_t every, llm::Context& context) : every_(every), context_(context) {}

  // Counts a reuse. True: this reuse is to be verified.
  [[nodiscard]] bool takes_next();
  // Requires: nothing is being verified, and no token stands for an image.
  void begin(Reuse reuse);
  [[nodiscard]] const std::optional<Reuse>& current() const { return current_; }
  // The number of rows to compute.
  [[nodiscard]] std::int32_t rows_left() const;
  // The number of rows in the spare sequence.
  [[nodiscard]] std::int32_t rows_done() const { return rows_done_; }
  // Computes up to `rows_max` more rows. After the last row it returns the distance of the logits. Errors: the rows could not
  // be computed.
  [[nodiscard]] Expected<std::optional<double>> step(std::int32_t rows_max);
  // Ends the verification, finished or not.
  void end();

 private:
  const std::int32_t every_;
  llm::Context& context_;
  std::int32_t reuses_ = 0;  // Since the last verified reuse.
  std::optional<Reuse> current_;
  std::int32_t rows_done_ = 0;
  std::vector<llm::BatchRow> rows_;
};

}  // namespace uma::engine
