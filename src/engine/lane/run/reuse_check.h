// Verifies the tokens that a lane's sequences reuse (scheduler.verify, docs/decisions/0037): chooses the reuses to verify,
// limits the time per tick, and handles wrong ones. ReuseVerifier does the computation. Owned by the lane's thread.
#pragma once

#include <cstddef>
#include <span>

#include "engine/lane/lane_parts.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reuse_verifier.h"
#include "kv/state_store.h"

namespace uma::engine {

class ReuseCheck {
 public:
  ReuseCheck(const LaneParts& parts, ContextCalls& calls)
      : parts_(parts), calls_(calls), verifier_(parts.options.verify_every, parts.context) {}

  // The sequence's slot is complete. If its reuse is to be verified, takes the logits of the first token after the reused
  // cells; the sequence is blocked until the comparison has ended. `state`: the stored state that was reused; 0: another slot.
  void begin(Sequence& sequence, kv::StateId state);
  // Computes a part of the verification, within about half of the time that a tick of `tick_ms` leaves. False: there is no
  // verification.
  [[nodiscard]] bool run(double tick_ms);
  // Ends the verification of this sequence's reuse, if it is in progress.
  void end(Sequence& sequence);
  // Ends the verification in progress to free its cells for requests. False: there is no verification.
  [[nodiscard]] bool abandon();
  // Whether the slot's cells are being verified.
  [[nodiscard]] bool is_being_verified(std::size_t index) const;
  // Removes all cached and stored cells of these tokens, because they may be copies of wrong ones.
  void forget_prefix(std::span<const Token> tokens, const kv::PrefixQuery& query);
  void check_invariants() const;

 private:
  [[nodiscard]] bool may_verify(const Sequence& sequence) const;
  [[nodiscard]] Sequence& verified() const;
  void take_outcome(Sequence& sequence, double distance);
  void reject(Sequence& sequence, double distance);
  [[nodiscard]] bool may_use(const Sequence& sequence, std::span<const Token> tokens) const;

  const LaneParts& parts_;
  ContextCalls& calls_;
  ReuseVerifier verifier_;
};

}  // namespace uma::engine
