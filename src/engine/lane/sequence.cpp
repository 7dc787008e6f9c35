#include "engine/lane/sequence.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "llm/sampling/token_constraint.h"

namespace uma::engine {
namespace {

// The constraint of the job's grammar, behind the content that the prompt has, if the grammar's text can begin so: a client may
// mean the whole reply, as with "{" before JSON, or the rest, as with "Here it is: ".
std::unique_ptr<llm::TokenConstraint> constraint_of(const GenerationJob& job, const llm::Vocab& vocab,
                                                    const chat::ReplyStream& reply) {
  const auto make = [&] { return std::make_unique<llm::TokenConstraint>(job.grammar, vocab, reply.marks(), reply.ends()); };
  auto constraint = make();
  return job.begun.empty() || constraint->accept_text(job.begun) ? std::move(constraint) : make();
}

}  // namespace

std::size_t Restore::pieces_wanted() const {
  const auto& pieces = snapshot().pieces;
  const auto last = std::ranges::find_if(pieces, [&](const kv::SnapshotPiece& piece) { return piece.end >= tokens_wanted; });
  return static_cast<std::size_t>(last - pieces.begin() + 1);
}

Sequence::Sequence(GenerationJob from, const llm::Vocab& vocab, std::span<const Token> banned)
    : job(std::move(from)),
      prompt_tokens(size_of(job.tokens)),
      chain(std::move(job.tokens)),
      sampler(job.sampling, job.seed, banned, &vocab),
      reply(std::move(job.reply), vocab, job.keeps_reply) {
  chain.reserve(chain.size() + static_cast<std::size_t>(job.tokens_max));
  const std::size_t counted = std::min(chain.size(), sampler.tokens_counted());
  for (const Token token : std::span(chain).last(counted)) sampler.accept(token);
  if (job.grammar) sampler.constrain(constraint_of(job, vocab, reply));
  reply.constrain_begin(job.begun, sampler);
  usage.seed = job.seed;
  if (!job.wants_prompt_logprobs) return;
  offload_disabled = true;  // The prefill lane returns no logits.
  prompt_logprobs.push_back({.chosen = {.token = chain.front(), .bytes = std::string(vocab.piece(chain.front()))}});
}

std::size_t Sequence::reusable_tokens() const {
  return (lacks_prompt_logprobs() ? prompt_logprobs.size() : chain.size()) - 1;
}

Token Sequence::token_at(std::int32_t position) const {
  const auto at = static_cast<std::size_t>(position);
  return at < chain.size() ? chain[at] : draft.tokens[at - chain.size()];
}

void Sequence::drop_prompt_logprobs() {
  prompt_logprobs.resize(std::min<std::size_t>(prompt_logprobs.size(), 1));
  prompt_logprobs_bytes = 0;
}

void Sequence::send(PrefillLane& prefill, PrefillJob prompt) {
  begin(Offloaded{prefill});
  prefill.post(std::move(prompt));
}

void Sequence::recall() {
  if (const Offloaded* at = offloaded()) at->prefill.cancel(job.id);
  end<Offloaded>();
  end<Leaving>();
  end<SwapOut>();
}

void Sequence::count_recomputed() {
  usage.recomputed_tokens += std::exchange(usage.reused_tokens, 0);
  usage.tier = Tier::none;
  usage.restore_ms = 0;
  usage.reuse_reason = "refused";
}

void Sequence::refuse_stored() {
  resume.is_refused = true;
  if (!in_batch) count_recomputed();
}

void Sequence::enter_batch(TimePoint now, LaneStats& stats) {
  if (std::exchange(in_batch, true)) return;
  usage.queue_ms = to_ms(now - job.received);
  stats.queue_wait.record_ms(usage.queue_ms);
}

Sequence* SequenceList::find(RequestId id) const {
  const auto found = std::ranges::find_if(all_, [&](const SequencePtr& sequence) { return sequence->job.id == id; });
  return found == all_.end() ? nullptr : found->get();
}

std::int32_t SequenceList::index_of(const Sequence& sequence) const {
  const auto found = std::ranges::find(all_, &sequence, &SequencePtr::get);
  UMA_CHECK(found != all_.end());
  return static_cast<std::int32_t>(found - all_.begin());
}

bool SequenceList::someone_streams(const Sequence* except) const {
  return std::ranges::any_of(all_, [&](const SequencePtr& each) {
    return each.get() != except && each->is_running() && each->generated() > 0 && !each->job.is_background &&
           !each->is_on<SwapOut>();
  });
}

}  // namespace uma::engine
