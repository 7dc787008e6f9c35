#include "engine/lane/plan/model_drafter.h"

#include <algorithm>
#include <format>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/trace.h"

namespace uma::engine {
namespace {

constexpr TraceKind kDraftSpan{.name = "draft", .numbers = {"rows", "sequences"}};

constexpr std::int32_t kBehind = 16;  // Uncached tokens; with more a sequence catches up in calls of its own.
constexpr std::int32_t kFeedRowsMax = 512;
constexpr std::int32_t kPauseMin = 32;  // In ticks.
constexpr std::int32_t kPauseMax = 512;

std::int32_t size_of(std::span<const Token> tokens) {
  return static_cast<std::int32_t>(tokens.size());
}

}  // namespace

Expected<Unit> check_same_vocabulary(const llm::Vocab& model, const llm::Vocab& draft) {
  if (model.size() != draft.size()) {
    return fail(
        ErrorCode::model_load,
        std::format("the draft model's vocabulary has {} tokens, the model's {}: use a draft model with the same vocabulary",
                    draft.size(), model.size()));
  }
  for (Token token = 0; token < model.size(); ++token) {
    if (model.piece(token) == draft.piece(token)) continue;
    return fail(ErrorCode::model_load,
                std::format("token {} is \"{}\" for the model and \"{}\" for the draft model: use a draft model with the same "
                            "vocabulary",
                            token, model.piece(token), draft.piece(token)));
  }
  return Unit{};
}

llm::ContextOptions draft_context_options(llm::ContextOptions options) {
  options.has_spare = false;
  options.kv_types = {};  // A small model's heads may be too small for quantized blocks.
  options.flash_attention = llm::FlashAttention::automatic;
  return options;
}

Expected<std::unique_ptr<llm::Context>> make_draft_context(const llm::Model& draft, const llm::ContextShape& decodes,
                                                           const llm::ContextOptions& options) {
  llm::ContextOptions drafts = draft_context_options(options);
  drafts.sequences = decodes.sequences;
  drafts.cells = decodes.cells;
  drafts.layout = decodes.is_unified ? llm::KvLayout::unified : llm::KvLayout::split;
  return draft.new_context(drafts);
}

ModelDrafter::ModelDrafter(std::unique_ptr<llm::Context> context, const llm::Vocab& vocab, const Clock& clock)
    : vocab_(vocab),
      clock_(clock),
      context_(std::move(context)),
      cached_(static_cast<std::size_t>(context_->shape().sequences)),
      pause_(kPauseMin) {}

void ModelDrafter::draft(std::span<const Candidate> candidates, const Costs& costs, std::int32_t rows_max,
                         std::int32_t threads) {
  for (const Candidate& candidate : candidates) {
    candidate.draft->clear();
    candidate.distributions->clear();
  }
  if (is_off_ || candidates.empty()) return;
  if (threads != threads_) {
    threads_ = threads;
    context_->set_threads(threads);
    step_model_.set_threads(threads);
  }
  choose(candidates, costs, rows_max);
  drafts_.clear();
  const Candidate* behind = nullptr;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    if (wanted_[i] == 0) continue;
    if (!keep_common(candidate)) return;
    if (missing(candidate) >= kBehind) {
      if (behind == nullptr || missing(candidate) < missing(*behind)) behind = &candidate;
      continue;
    }
    // The random numbers depend on the request and the position, and differ from those of the verification.
    const std::uint64_t seed = Random(candidate.seed ^ (candidate.chain.size() * 0xd1342543de82ef95ull)).next_u64();
    drafts_.push_back({&candidate, wanted_[i], candidate.sampler->drafting(seed), Random(seed)});
  }
  if (behind != nullptr) catch_up(*behind, costs.call_ms / 4);
  while (!is_off_ && extend()) {
  }
  if (unwanted_ticks_ >= pause_ && !drafts_.empty()) {
    unwanted_ticks_ = 0;
    pause_ = std::min(pause_ * 3 / 2, kPauseMax);
  }
}

// Chooses the number of draft tokens for each candidate, with all costs included. Drafting sequences share the cost of the
// draft model's calls: when one drops out because of its share, the shares of the others grow.
void ModelDrafter::choose(std::span<const Candidate> candidates, const Costs& costs, std::int32_t rows_max) {
  wanted_.assign(candidates.size(), 0);
  auto sharing = static_cast<std::int32_t>(candidates.size());
  while (sharing > 0) {
    const double draft_ms = draft_token_ms(candidates, sharing);
    const double row_ms = draft_ms > 0 && costs.row_ms > 0 ? draft_ms + costs.row_ms : 0;
    std::int32_t count = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      wanted_[i] = wanted_of(candidates[i], costs.token_ms, row_ms);
      count += wanted_[i] > 0 ? 1 : 0;
    }
    if (count == sharing) break;
    sharing = count;
  }
  if (sharing > 0) {
    unwanted_ticks_ = 0;
    pause_ = kPauseMin;
  } else if (++unwanted_ticks_ >= pause_) {
    try_one(candidates);
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (wanted_[i] == 0) candidates[i].control->observe_untried();
    wanted_[i] = std::min(wanted_[i], rows_max);
    rows_max -= wanted_[i];
  }
}

// Drafts for one candidate regardless of the costs. Otherwise a cost that was measured too high, as beside a busy process,
// would never be measured again.
void ModelDrafter::try_one(std::span<const Candidate> candidates) {
  const auto order = [&](const Candidate& candidate) { return std::pair(fitting(candidate) <= 0, missing(candidate)); };
  const auto chosen = std::ranges::min_element(candidates, {}, order);
  wanted_[static_cast<std::size_t>(chosen - candidates.begin())] = std::clamp(fitting(*chosen), 0, 2);
}

// The number of draft tokens that fit both contexts; the last one is not computed in the draft context.
std::int32_t ModelDrafter::fitting(const Candidate& candidate) const {
  return std::min(context_->shape().sequence_cells_max - size_of(candidate.chain) + 1, candidate.tokens_max);
}

std::int32_t ModelDrafter::wanted_of(const Candidate& candidate, double token_ms, double row_ms) const {
  const std::int32_t most = fitting(candidate);
  return most <= 0 ? 0 : std::min(most, candidate.control->tokens_worthwhile(token_ms, row_ms));
}

// The cost of a draft token if `count` sequences draft together; 0: not known yet.
double ModelDrafter::draft_token_ms(std::span<const Candidate> candidates, std::int32_t count) const {
  std::int64_t tokens = 0;
  for (const Candidate& candidate : candidates) tokens += size_of(candidate.chain);
  sched::StepShape call;
  for (std::int32_t i = 0; i < count; ++i) call.add_decode(tokens / static_cast<std::int64_t>(candidates.size()));
  return step_model_.predict_ms(call) / count;
}

std::int32_t ModelDrafter::missing(const Candidate& candidate) const {
  return size_of(candidate.chain) - size_of(cached_[candidate.slot]);
}

// Drops the slot's tokens that are not the beginning of the sequence, and the last token, whose logits are needed. False: the
// context cannot.
bool ModelDrafter::keep_common(const Candidate& candidate) {
  std::vector<Token>& cached = cached_[candidate.slot];
  const auto [in_cache, in_chain] = std::ranges::mismatch(cached, candidate.chain.first(candidate.chain.size() - 1));
  const auto common = static_cast<std::size_t>(in_cache - cached.begin());
  if (common == cached.size()) return true;
  if (!context_->truncate(static_cast<std::int32_t>(candidate.slot), static_cast<std::int32_t>(common))) {
    turn_off("its context cannot drop the end of a sequence");
    return false;
  }
  cached.resize(common);
  return true;
}

// Computes as many missing tokens as fit into the time, but never the last token.
void ModelDrafter::catch_up(const Candidate& candidate, double budget_ms) {
  const std::int32_t begin = size_of(cached_[candidate.slot]);
  const std::int32_t rows_max = std::min({missing(candidate) - 1, kFeedRowsMax, context_->shape().batch_rows_max});
  const std::int32_t count =
      std::max(step_model_.rows_within(budget_ms, begin, rows_max), std::min(rows_max, sched::kChunkStep));
  rows_.clear();
  for (std::int32_t i = begin; i < begin + count; ++i) {
    rows_.push_back({.token = candidate.chain[static_cast<std::size_t>(i)],
                     .position = i,
                     .sequence = static_cast<std::int32_t>(candidate.slot),
                     .wants_logits = false});
  }
  sched::StepShape call;
  call.add_chunk(count, begin);
  const TimePoint began = clock_.now();
  if (run()) step_model_.observe(call, to_ms(clock_.now() - began));
}

bool ModelDrafter::extend() {
  rows_.clear();
  sched::StepShape call;
  std::vector<std::pair<Draft*, std::int32_t>> draws;  // Drafts and the rows that they draw from.
  const auto rows_max = static_cast<std::size_t>(context_->shape().batch_rows_max);
  const auto draws_max = static_cast<std::size_t>(context_->shape().logits_rows_max);
  for (Draft& draft : drafts_) {
    const Candidate& candidate = *draft.candidate;
    if (size_of(*candidate.draft) >= draft.wanted) continue;
    const std::int32_t begin = size_of(cached_[candidate.slot]);
    const std::int32_t end = size_of(candidate.chain) + size_of(*candidate.draft);
    if (rows_.size() + static_cast<std::size_t>(end - begin) > rows_max || draws.size() == draws_max) {
      draft.wanted = 0;
      continue;
    }
    call.add_decode(begin, end - begin - 1);
    for (std::int32_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      rows_.push_back(
          {.token = at < candidate.chain.size() ? candidate.chain[at] : (*candidate.draft)[at - candidate.chain.size()],
           .position = i,
           .sequence = static_cast<std::int32_t>(candidate.slot),
           .wants_logits = i + 1 == end});
    }
    draws.emplace_back(&draft, static_cast<std::int32_t>(rows_.size()) - 1);
  }
  if (rows_.empty()) return false;
  const TimePoint began = clock_.now();
  if (!run()) return false;
  for (const auto& [draft, row] : draws) draw(*draft, row);
  const TimePoint ended = clock_.now();
  record_span(kDraftSpan, began, ended, {static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(draws.size())});
  const double ms = to_ms(ended - began);
  log_debug("draft call of {} rows for {} sequences took {:.2f} ms, {:.2f} were predicted", rows_.size(), draws.size(), ms,
            step_model_.predict_ms(call));
  step_model_.observe(call, ms);
  return true;
}

void ModelDrafter::draw(Draft& draft, std::int32_t row) {
  const std::span<float> logits = context_->logits(row);
  if (logits.empty()) {
    draft.wanted = 0;
    return;
  }
  const Candidate& candidate = *draft.candidate;
  Token token = 0;
  if (candidate.sampler->is_greedy()) {
    token = draft.sampler.sample(logits);
  } else {
    llm::Distribution& distributions = candidate.distributions->emplace_back();
    draft.sampler.distribution(logits, distributions);
    token = llm::draw(distributions, draft.random);
  }
  draft.sampler.accept(token);
  candidate.draft->push_back(token);
  if (vocab_.is_end_of_generation(token)) draft.wanted = 0;
}

bool ModelDrafter::run() {
  auto status = context_->decode(rows_, nullptr);
  if (status && *status == llm::DecodeStatus::out_of_cells && drop_others()) status = context_->decode(rows_, nullptr);
  if (status && *status == llm::DecodeStatus::done) {
    for (const llm::BatchRow& row : rows_) cached_[static_cast<std::size_t>(row.sequence)].push_back(row.token);
    return true;
  }
  for (const llm::BatchRow& row : rows_) drop(static_cast<std::size_t>(row.sequence));
  if (!status) turn_off(status.error().message);
  return false;
}

// Drops the sequences that are not in rows_. False: there are none.
bool ModelDrafter::drop_others() {
  bool any = false;
  for (std::size_t slot = 0; slot < cached_.size(); ++slot) {
    const auto is_of_slot = [&](const llm::BatchRow& row) { return static_cast<std::size_t>(row.sequence) == slot; };
    if (cached_[slot].empty() || std::ranges::any_of(rows_, is_of_slot)) continue;
    drop(slot);
    any = true;
  }
  return any;
}

void ModelDrafter::drop(std::size_t slot) {
  UMA_CHECK(context_->truncate(static_cast<std::int32_t>(slot), 0));
  cached_[slot].clear();
}

void ModelDrafter::turn_off(std::string_view reason) {
  is_off_ = true;
  log_warning("the draft model is turned off: {}", reason);
}

void ModelDrafter::check_invariants() {
  if (is_off_) return;
  for (std::size_t slot = 0; slot < cached_.size(); ++slot) {
    UMA_CHECK(size_of(cached_[slot]) == context_->sequence_length(static_cast<std::int32_t>(slot)));
  }
}

}  // namespace uma::engine
