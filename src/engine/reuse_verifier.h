// Computes anew, now and then, what a sequence has reused, and compares the logits (scheduler.verify, docs/decisions/0037).
// Works in the spare sequence of the lane's context, one reuse at a time. Owned by the lane's thread.
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
  // Rows that another batch shape has changed only by rounding were at most 0.03 apart, those of another text at least 0.6
  // (decision 0037).
  static constexpr double kDistanceMax = 0.2;

  // What is being verified.
  struct Reuse {
    RequestId request;
    kv::StateId state = 0;      // that it came from; 0: another slot, or memory of its own
    std::vector<Token> tokens;  // those that were reused, and the next one
    std::vector<float> logits;  // of that one, after the reused cells
  };

  // Verifies one reuse in `every`; 0: none. A context without a spare sequence is never used.
  ReuseVerifier(std::int32_t every, llm::Context& context) : every_(every), context_(context) {}

  // Counts a reuse. True: it is the next one to verify.
  [[nodiscard]] bool takes_next();
  // REQUIRES: nothing is being verified, and no token stands for an image.
  void begin(Reuse reuse);
  [[nodiscard]] const std::optional<Reuse>& current() const { return current_; }
  // Rows that are not computed yet.
  [[nodiscard]] std::int32_t rows_left() const;
  // Rows in the spare sequence.
  [[nodiscard]] std::int32_t rows_done() const { return rows_done_; }
  // Computes up to `rows_max` more. With the last of them: how far the logits are apart. Errors: the rows could not be
  // computed.
  [[nodiscard]] Expected<std::optional<double>> step(std::int32_t rows_max);
  // Ends it, verified or not.
  void end();

 private:
  const std::int32_t every_;
  llm::Context& context_;
  std::int32_t reuses_ = 0;  // since the last one that was due
  std::optional<Reuse> current_;
  std::int32_t rows_done_ = 0;
  std::vector<llm::BatchRow> rows_;
};

}  // namespace uma::engine
