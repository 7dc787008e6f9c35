// What lane.cpp and lane_state.cpp share: what a lane knows of one request, and its turns beside the prefill lane.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane.h"
#include "llm/token_constraint.h"

namespace uma::engine {

[[nodiscard]] inline std::int32_t size_of(const std::vector<Token>& tokens) {
  return static_cast<std::int32_t>(tokens.size());
}

struct Lane::Sequence {
  enum class State : std::uint8_t { waiting, running, finished };

  Sequence(GenerationJob from, const llm::Vocab& vocab, std::span<const Token> banned)
      : job(std::move(from)),
        prompt_tokens(size_of(job.tokens)),
        chain(std::move(job.tokens)),
        sampler(job.sampling, job.seed, banned),
        reply(std::move(job.reply), vocab, !job.session.empty()) {
    const std::size_t known = chain.size() > 64 ? chain.size() - 64 : 0;
    for (std::size_t i = known; i < chain.size(); ++i) sampler.accept(chain[i]);
    if (job.grammar) sampler.constrain(std::make_unique<llm::TokenConstraint>(job.grammar, vocab, reply.marks()));
    usage.seed = job.seed;
  }

  [[nodiscard]] std::int32_t generated() const { return size_of(chain) - prompt_tokens; }
  // The token at a position of the chain, or beyond it of the draft.
  [[nodiscard]] Token token_at(std::int32_t position) const {
    const auto at = static_cast<std::size_t>(position);
    return at < chain.size() ? chain[at] : draft[at - chain.size()];
  }
  [[nodiscard]] bool was_placed() const { return placed_at != TimePoint{}; }
  [[nodiscard]] bool is_fetching() const { return fetching_since != TimePoint{}; }
  // Its slot is not complete, or in doubt: it is in no plan.
  [[nodiscard]] bool is_elsewhere() const { return is_away || arriving || is_verified; }
  // Its own state, which nobody else keeps.
  [[nodiscard]] bool is_swapped_out() const { return image != nullptr && image_id == 0; }

  GenerationJob job;
  std::int32_t prompt_tokens;
  std::vector<Token> chain;  // prompt and what was generated; the slot's tokens are its beginning
  llm::Sampler sampler;
  capability::ReplyStream reply;
  sched::NgramDrafter drafter;
  sched::DraftControl draft_control;
  sched::DraftControl model_control{sched::kDraftModelPrior};  // of the draft model's guesses
  std::vector<Token> draft;                                    // guesses that the next decode call verifies
  std::vector<llm::Distribution> draft_chances;                // that they were drawn from; empty: each was certain
  bool is_models_draft = false;                                // they are the draft model's
  State state = State::waiting;
  std::size_t slot = 0;  // while running
  // What it goes on from when it has its slot: its own state, while it is swapped out, or one that was read for it.
  kv::ImagePtr image;
  kv::StateId image_id = 0;    // in the store; 0: it is not there
  bool image_is_own = false;   // it is the session's own
  double image_ms = 0;         // that reading it took
  TimePoint fetching_since{};  // a state is being read for it: until then it is not placed
  bool is_refused = false;     // what was stored could not be used: it is computed
  Usage usage;
  bool in_batch = false;     // a token of it has been in a batch
  bool has_rows = true;      // all images of its that are to be computed are encoded
  bool is_away = false;      // its prompt is being computed in the prefill lane
  bool stays = false;        // it has been there in vain
  bool is_verified = false;  // what it reused is being computed anew
  bool has_result = false;   // that was reported
  bool is_unsound = false;   // its logits were not finite: it leaves the context
  bool is_anew = false;      // for that reason all of it has been computed from its tokens, and no token came since
  std::optional<Arrival> arriving;
  RequestId waits_for{};  // that one's prompt, still being computed, begins as its own does
  std::int64_t position_reported = -1;
  TimePoint waits_since{};  // while waiting
  TimePoint keeps_until{};  // a background sequence that has waited long is not sent away again at once
  double gap_ms = 0;        // between its tokens, weighted mean (1/8)
  TimePoint placed_at{};
  TimePoint first_token_at{};
  TimePoint last_token_at{};
};

// While it lives the prefill lane stands still, where the two take turns.
class Lane::Turn {
 public:
  Turn(Lane& lane, bool is_taken) : lane_(lane), is_taken_(is_taken) {
    if (!is_taken_) return;
    const TimePoint began = lane_.clock_.now();
    lane_.cores_.gate().close();
    const double ms = to_ms(lane_.clock_.now() - began);
    log_debug("lane {}: waited {:.2f} ms for its turn", lane_.options_.index, ms);
    lane_.turn_wait_ms_ = std::max(0.9 * lane_.turn_wait_ms_, ms);
  }
  ~Turn() {
    if (is_taken_) lane_.cores_.gate().open();
  }
  Turn(const Turn&) = delete;

 private:
  Lane& lane_;
  const bool is_taken_;
};

}  // namespace uma::engine
