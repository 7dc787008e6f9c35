#include "engine/lane/plan/speculation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "llm/media/image_tokens.h"

namespace uma::engine {

void Speculation::add_drafts(std::span<sched::PlanRow> decode) {
  constexpr std::uint32_t kPlainEvery = 32;  // In ticks: one tick without drafts and padding measures their cost.
  const LaneOptions& options = parts_.options;
  const llm::ContextShape& shape = parts_.shape();
  calls_.set_decode_threads();  // The predictions depend on it.
  plain_ = {};
  for (const sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    clear_draft(sequence.draft);
    plain_.add_decode(parts_.cached(sequence), 0, static_cast<std::int64_t>(parts_.slots.cells_top()));
  }
  plain_ms_ = expected_ms(0);
  padding_ = 0;
  drafting_ms_ = 0;
  has_drafted_ = false;
  accepted_ = 0;
  more_rows_ = 0;
  const bool is_measuring = parts_.stats().decode_ticks_total.value() % kPlainEvery == 0;
  if (!shape.is_unified && shape.can_truncate && !options.is_reproducible && !is_measuring) choose_padding(decode);
  // Rejected tokens are dropped. In reproducible mode drafts beside several sequences would leave single rows.
  if (!options.speculates || !shape.can_truncate || (options.is_reproducible && decode.size() > 1)) return;
  if (is_measuring) return;
  std::int64_t rows_left = std::min(shape.batch_rows_max, shape.logits_rows_max) - plain_.decode_rows;
  if (shape.is_unified)
    rows_left = std::min<std::int64_t>(rows_left, shape.cells - parts_.cells_reserved() - plain_.decode_rows);
  const auto rows_max = static_cast<std::int32_t>(std::max<std::int64_t>(rows_left, 0));
  draft_from_text(decode, rows_max);
  if (drafter_ && balance_.may_draft()) {
    (void)allot(decode, rows_max);
    const std::int32_t of_text = drafted(decode);
    draft_from_model(decode, rows_max - of_text);
    has_drafted_ = drafted(decode) > of_text;  // Even if none of them will be verified.
  }
  has_drafted_ = allot(decode, rows_max) || has_drafted_;
  for (sched::PlanRow& row : decode) {
    row.tokens_count = 1 + size_of(parts_.sequences.at(row.index).draft.tokens);
    more_rows_ += row.tokens_count - 1;
  }
  if (more_rows_ > 0) padding_ = 0;
}

// The library computes sequences of a split context together only if their slots are neighbours.
void Speculation::choose_padding(std::span<const sched::PlanRow> decode) {
  constexpr double kGainMin = 0.95;  // A padding row has to save this much, because the widths are measured roughly.
  const std::int32_t last = decode.back().slot;  // Rows are in the order of their slots.
  if (std::cmp_not_equal(last - decode.front().slot + 1, decode.size())) return;
  sched::StepShape padded = plain_;
  auto index = static_cast<std::size_t>(last) + 1;
  while (index < parts_.slots.size() && padded.padding_rows < sched::WidthCosts::kPeriod) {
    const Slot& slot = parts_.slots[index++];
    if (slot.is_running || size_of(slot.tokens) >= parts_.shape().sequence_cells_max) return;
    padded.add_padding(size_of(slot.tokens));
    const double ms = parts_.costs.step_model.predict_ms(padded);
    if (ms >= kGainMin * plain_ms_) continue;
    plain_ms_ = ms;
    padding_ = padded.padding_rows;
  }
}

void Speculation::clear_draft(Draft& draft) {
  draft.tokens.clear();
  draft.distributions.clear();
  draft.is_of_model = false;
  draft.fill = 0;
  draft.untried.reset();
}

// The expected time of the planned decode call with so many more rows.
double Speculation::expected_ms(std::int32_t more_rows) const {
  return parts_.costs.step_model.predict_ms(plain_.with_drafts(more_rows));
}

std::int32_t Speculation::drafted(std::span<const sched::PlanRow> decode) const {
  std::int32_t count = 0;
  for (const sched::PlanRow& row : decode) {
    const Draft& draft = parts_.sequences.at(row.index).draft;
    count += size_of(draft.tokens) - draft.fill;
  }
  return count;
}

// The limit of draft tokens, because a call gives one token more than the accepted ones.
std::int32_t Speculation::tokens_possible(const Sequence& sequence, std::int32_t rows_left) const {
  return std::max(0, std::min({sequence.job.tokens_max - sequence.generated() - 1,
                               parts_.shape().sequence_cells_max - size_of(sequence.chain) - 1, rows_left}));
}

void Speculation::draft_from_text(std::span<const sched::PlanRow> decode, std::int32_t rows_left) {
  for (const sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    find_in_text(sequence, tokens_possible(sequence, std::min(rows_left, sched::kDraftTokensMax)));
    Draft& draft = sequence.draft;
    if (!draft.tokens.empty()) draft.untried = draft.tokens.front();
  }
}

// The first draft tokens show what a row costs. All sequences have as many rows, as a split context needs it.
void Speculation::try_once(std::int32_t rows_max) {
  const bool is_possible = std::ranges::all_of(offers_, [](const sched::DraftOffer& offer) { return offer.room > 0; });
  const bool is_useful = std::ranges::any_of(offers_, [](const sched::DraftOffer& offer) { return offer.available > 0; });
  if (!is_possible || !is_useful || rows_max < static_cast<std::int32_t>(offers_.size())) return;
  for (sched::DraftOffer& offer : offers_) {
    offer.allotted = std::min(offer.available, 1);
    offer.fill = 1 - offer.allotted;
  }
}

// Cuts or fills up the drafts to the rows that are worthwhile. Returns whether any draft token is left.
bool Speculation::allot(std::span<const sched::PlanRow> decode, std::int32_t rows_max) {
  const bool is_split = !parts_.shape().is_unified && decode.size() > 1;
  offers_.clear();
  for (const sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    Draft& draft = sequence.draft;
    draft.remove_fill();
    const std::int32_t room = parts_.options.is_reproducible ? size_of(draft.tokens) : tokens_possible(sequence, rows_max);
    offers_.push_back({.chance = draft.control().chance(), .available = size_of(draft.tokens), .room = room});
  }
  if (!parts_.costs.step_model.knows_draft_rows()) {
    try_once(rows_max);
  } else {
    if (!balance_.may_draft()) {
      for (sched::DraftOffer& offer : offers_) offer.available = 0;
    }
    sched::allot_drafts(offers_, rows_max, is_split,
                        [&](std::int32_t more_rows) { return more_rows == 0 ? plain_ms_ : expected_ms(more_rows); });
  }
  bool any = false;
  for (std::size_t i = 0; i < decode.size(); ++i) {
    Sequence& sequence = parts_.sequences.at(decode[i].index);
    Draft& draft = sequence.draft;
    const auto allotted = static_cast<std::size_t>(offers_[i].allotted);
    draft.tokens.resize(allotted);
    if (draft.distributions.size() > allotted) draft.distributions.resize(allotted);
    if (allotted > 0 && !draft.is_of_model) draft.untried.reset();
    any = any || allotted > 0;
    // These rows are verified like drafts, so they change no text.
    draft.fill = offers_[i].fill;
    draft.tokens.insert(draft.tokens.end(), static_cast<std::size_t>(draft.fill), sequence.chain.back());
  }
  return any;
}

void Speculation::find_in_text(Sequence& sequence, std::int32_t tokens_max) {
  Draft& draft = sequence.draft;
  if (tokens_max <= 0) return;
  if (parts_.options.test_drafter) {
    parts_.options.test_drafter(sequence.chain, tokens_max, draft.tokens);
  } else {
    draft.is_match_long = draft.ngrams.draft(sequence.chain, tokens_max, draft.tokens) == sched::NgramDrafter::kMatchLong;
  }
  draft.tokens.erase(std::ranges::find_if(draft.tokens, llm::is_image_token), draft.tokens.end());
}

// Drafts for the sequences that have no draft from their text.
void Speculation::draft_from_model(std::span<const sched::PlanRow> decode, std::int32_t rows_left) {
  candidates_.clear();
  for (const sched::PlanRow& row : decode) {
    Sequence& sequence = parts_.sequences.at(row.index);
    const std::int32_t possible = tokens_possible(sequence, rows_left);
    Draft& draft = sequence.draft;
    draft.remove_fill();
    // The draft model reads no images.
    if (!draft.tokens.empty() || possible == 0 || !sequence.job.images.empty()) continue;
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
      .call_ms = plain_ms_, .token_ms = plain_ms_ / plain_.decode_rows, .row_ms = parts_.costs.step_model.draft_row_ms()};
  const TimePoint began = parts_.clock.now();
  drafter_->draft(candidates_, costs, rows_left, calls_.threads());
  drafting_ms_ = to_ms(parts_.clock.now() - began);
}

void Speculation::verify(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now) {
  const std::size_t index = sequence.slot;
  const std::int32_t known = parts_.cached(sequence) - rows + 1;  // Cached tokens without the draft.
  const std::int32_t length = size_of(sequence.chain);
  const std::int32_t right = sample_rows(sequence, row, rows, now);
  Draft& draft = sequence.draft;
  if (draft.untried && size_of(sequence.chain) > length) {
    const Token next = sequence.chain[static_cast<std::size_t>(length)];
    draft.ngram_control().observe(1, next == *draft.untried ? 1 : 0);
  }
  if (rows == 1) return;
  const std::int32_t drafted = rows - 1 - draft.fill;
  if (drafted > 0) {
    draft.control().observe(drafted, std::min(right, drafted));
    parts_.stats().drafted_tokens_total.add(static_cast<std::uint64_t>(drafted));
    parts_.stats().drafted_accepted_total.add(static_cast<std::uint64_t>(std::min(right, drafted)));
  }
  accepted_ += right;
  const std::int32_t kept = known + right;
  if (size_of(parts_.slots[index].tokens) <= kept)
    return;  // All were accepted, or the sequence has ended and cleared its slot.
  (void)parts_.slots.cut(index, static_cast<std::size_t>(kept));
}

void Speculation::settle(double ms) {
  if (plain_ms_ <= 0) return;  // Nothing is known yet.
  if (has_drafted_) {
    // The rest of a very long call is another process's, not the drafts'.
    constexpr double kLate = 1.5;
    ms = std::min(ms, kLate * expected_ms(more_rows_));
    balance_.add_drafted(ms + drafting_ms_, plain_ms_, plain_.decode_rows, accepted_);
  } else {
    balance_.add_plain(ms);
  }
}

// Returns the number of accepted draft tokens.
std::int32_t Speculation::sample_rows(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now) {
  const Draft& draft = sequence.draft;
  const std::int32_t drafted = rows - 1;
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t length = size_of(sequence.chain);
    sampler_.sample_row(sequence, row + i, now, i < std::ssize(draft.distributions) ? i : -1);
    if (sequence.is_finished() || sequence.is_unsound || sequence.is_held() || i == drafted) return i;
    UMA_CHECK(size_of(sequence.chain) == length + 1);
    if (sequence.chain.back() != draft.tokens[static_cast<std::size_t>(i)]) return i;
  }
  return drafted;
}

}  // namespace uma::engine
