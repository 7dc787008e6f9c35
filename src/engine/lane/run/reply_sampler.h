// Samples tokens from logits and sends their text to the client. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/context_shifter.h"
#include "engine/lane/plan/latency_targets.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/sampling_team.h"
#include "engine/lane/sequence_ends.h"
#include "llm/model.h"

namespace uma::engine {

class ReplySampler {
 public:
  static constexpr std::uint64_t kGrammarWorkPerStep = 1u << 17;  // Units of TokenConstraint::work(): about 5 ms.

  ReplySampler(const LaneParts& parts, ContextCalls& calls, SequenceEnds& ends, ContextShifter& shifter,
               const LatencyTargets& targets, const llm::Vocab& vocab)
      : parts_(parts),
        calls_(calls),
        ends_(ends),
        shifter_(shifter),
        targets_(targets),
        vocab_(vocab),
        team_(parts.options.sampling_threads) {}

  // Chooses the token of row i of the last call for sequences[i], with several threads, where that is worth it. No sequence is
  // there twice. sample_row()
  // then takes these tokens. They are forgotten by forget_chosen(). Null: the row is left out.
  void choose_ahead(std::span<Sequence* const> sequences);
  void forget_chosen() { chosen_.clear(); }

  // Samples the sequence's next token from a row of the last call. `drawn`: the draft token of this row that the draft model
  // has drawn at random; negative: there is none.
  void sample_row(Sequence& sequence, std::int32_t row, TimePoint now, std::int32_t drawn = -1);
  // Adds the log probabilities of the prompt's tokens behind those that the rows [begin, begin + count) of the last call have
  // computed. False: the sequence has ended.
  [[nodiscard]] bool add_prompt_logprobs(Sequence& sequence, std::int32_t begin, std::int32_t count);
  // Samples the first token from the logits of a prompt that the prefill lane has computed and checked.
  void sample_first(Sequence& sequence, std::span<float> logits);

  // Grammars may be expensive, and all streams of the lane wait for them, also for the text with which a reply begins. A step
  // has one budget for all of them: whoever finds it used up keeps its logits for the next step. Begins a step with what the
  // last one has left. Returns whether there was any.
  [[nodiscard]] bool begin_step();
  // Samples at once what a step has left.
  void sample_held(Sequence& sequence);

 private:
  // The choice from a row before its turn.
  struct Chosen {
    Sequence* sequence = nullptr;  // Null: there is none.
    std::span<float> logits;
    bool is_sound = false;
    Token token = kNoToken;
    std::exception_ptr thrown;
  };

  [[nodiscard]] Error no_logits() const;
  // Whether the choice depends on nothing but the sequence's sampler and the logits.
  [[nodiscard]] bool can_choose_ahead(const Sequence& sequence) const;
  // The choice ahead from this row; null: there is none.
  [[nodiscard]] const Chosen* chosen(const Sequence& sequence, std::int32_t row) const;
  [[nodiscard]] Token choose_token(Sequence& sequence, std::span<float> logits, std::int32_t drawn);
  void push_counted(Sequence& sequence, Token token, TimePoint now);
  // Counts and charges the work of the sequence's grammars since there were `before` units of it.
  void count_grammar(Sequence& sequence, std::uint64_t before);
  void choose_and_push(Sequence& sequence, std::span<float> logits, std::int32_t drawn, TimePoint now);
  // Whether the sequence keeps the logits for a later step.
  [[nodiscard]] bool hold(Sequence& sequence, std::span<const float> logits);
  // Whether the sequence ends with its prompt, which is computed now.
  [[nodiscard]] bool end_without_tokens(Sequence& sequence);
  void push_token(Sequence& sequence, Token token, TimePoint now);
  void end_by_token(Sequence& sequence, Token token);
  // Charges the log probabilities, which may be a hundred times as large as the text.
  [[nodiscard]] static Expected<Unit> charge_logprobs(Sequence& sequence);
  void record_latency(Sequence& sequence, TimePoint now);
  void count_slo(bool is_met);

  const LaneParts& parts_;
  ContextCalls& calls_;
  SequenceEnds& ends_;
  ContextShifter& shifter_;
  const LatencyTargets& targets_;
  const llm::Vocab& vocab_;
  SamplingTeam team_;
  std::vector<Chosen> chosen_;      // By row.
  std::vector<float> raw_logits_;   // A copy of the row before sampling, for log probabilities.
  std::uint64_t grammar_work_ = 0;  // Work of this step, in units of TokenConstraint::work().
  std::uint64_t held_total_ = 0;
  std::vector<Sequence*> held_;  // In the order in which they were held.
};

}  // namespace uma::engine
