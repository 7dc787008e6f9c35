#include "engine/lane/speculation.h"

#include <algorithm>

#include "base/check.h"
#include "llm/image_tokens.h"

namespace uma::engine {

void Speculation::add_drafts(std::vector<sched::PlanRow>& decode) {
  constexpr std::uint32_t kPlainEvery = 32;  // In calls: one call without drafts measures their cost.
  const LaneOptions& options = parts_.options;
  // In reproducible mode drafts beside several sequences would leave single rows.
  if (options.is_reproducible && decode.size() > 1) return;
  if (!options.speculates || !can_truncate_ || ++calls_count_ % kPlainEvery == 0) return;
  const llm::ContextShape& shape = parts_.shape();
  const auto sequences = static_cast<std::int32_t>(decode.size());
  const double token_ms = parts_.step_model.decode_ms() / sequences;
  std::int64_t rows_left = std::min(shape.batch_rows_max, shape.logits_rows_max) - sequences;
  if (shape.is_unified) rows_left = std::min(rows_left, shape.cells - parts_.cells_reserved() - sequences);
  for (sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    draft_from_text(sequence, tokens_possible(sequence, static_cast<std::int32_t>(rows_left)), token_ms);
    row.tokens_count += size_of(sequence.draft.tokens);
    rows_left -= size_of(sequence.draft.tokens);
  }
  if (drafter_) draft_from_model(decode, token_ms, static_cast<std::int32_t>(rows_left));
}

// The limit of draft tokens, because a call gives one token more than the accepted ones.
std::int32_t Speculation::tokens_possible(const Sequence& sequence, std::int32_t rows_left) const {
  return std::min({sequence.job.tokens_max - sequence.generated() - 1,
                   parts_.shape().sequence_cells_max - size_of(sequence.chain) - 1, rows_left});
}

void Speculation::draft_from_text(Sequence& sequence, std::int32_t tokens_max, double token_ms) {
  Draft& draft = sequence.draft;
  draft.tokens.clear();
  draft.distributions.clear();
  draft.is_of_model = false;
  if (tokens_max <= 0) return;
  const std::int32_t wanted = draft.ngram_control.tokens_worthwhile(token_ms, parts_.step_model.draft_row_ms());
  const std::int32_t count = std::min(tokens_max, std::max(wanted, 1));
  if (parts_.options.test_drafter) {
    parts_.options.test_drafter(sequence.chain, count, draft.tokens);
  } else {
    draft.ngrams.draft(sequence.chain, count, draft.tokens);
  }
  draft.tokens.erase(std::ranges::find_if(draft.tokens, llm::is_image_token), draft.tokens.end());
  if (wanted > 0 || draft.tokens.empty()) return;
  draft.tokens.clear();
  draft.ngram_control.observe_untried();
}

// Drafts for the sequences that have no draft from their text.
void Speculation::draft_from_model(std::vector<sched::PlanRow>& decode, double token_ms, std::int32_t rows_left) {
  candidates_.clear();
  for (const sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    const std::int32_t possible = tokens_possible(sequence, rows_left);
    Draft& draft = sequence.draft;
    // The draft model reads no images.
    if (!draft.tokens.empty() || possible <= 0 || !sequence.job.images.empty()) continue;
    draft.is_of_model = true;
    candidates_.push_back({.slot = sequence.slot,
                           .chain = sequence.chain,
                           .tokens_max = possible,
                           .sampler = &sequence.sampler,
                           .seed = sequence.job.seed,
                           .control = &draft.model_control,
                           .draft = &draft.tokens,
                           .distributions = &draft.distributions});
  }
  const ModelDrafter::Costs costs{
      .call_ms = parts_.step_model.decode_ms(), .token_ms = token_ms, .row_ms = parts_.step_model.draft_row_ms()};
  calls_.set_decode_threads();
  drafter_->draft(candidates_, costs, rows_left, calls_.threads());
  for (sched::PlanRow& row : decode) row.tokens_count = 1 + size_of(parts_.sequences.at(row.index).draft.tokens);
}

void Speculation::verify(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now) {
  const std::size_t index = sequence.slot;
  const std::int32_t known = parts_.cached(sequence) - rows + 1;  // Cached tokens without the draft.
  const std::int32_t drafted = rows - 1;
  const std::int32_t right = sample_rows(sequence, row, rows, now);
  if (drafted == 0) return;
  sequence.draft.control().observe(drafted, right);
  parts_.stats.drafted_tokens_total.add(static_cast<std::uint64_t>(drafted));
  parts_.stats.drafted_accepted_total.add(static_cast<std::uint64_t>(right));
  const std::int32_t kept = known + right;
  if (size_of(parts_.slots[index].tokens) <= kept)
    return;  // All were accepted, or the sequence has ended and cleared its slot.
  if (!parts_.slots.cut(index, static_cast<std::size_t>(kept))) can_truncate_ = false;
}

// Returns the number of accepted draft tokens.
std::int32_t Speculation::sample_rows(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now) {
  const Draft& draft = sequence.draft;
  const std::int32_t drafted = rows - 1;
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t length = size_of(sequence.chain);
    sampler_.sample_row(sequence, row + i, now, i < drafted && !draft.distributions.empty() ? i : -1);
    if (sequence.is_finished() || sequence.is_unsound || i == drafted) return i;
    UMA_CHECK(size_of(sequence.chain) == length + 1);
    if (sequence.chain.back() != draft.tokens[static_cast<std::size_t>(i)]) return i;
  }
  return drafted;
}

}  // namespace uma::engine
