#include "engine/lane/sequence.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "llm/sampling/token_constraint.h"

namespace uma::engine {
namespace {

// Constrains the reply to the job's grammar, behind the content that the prompt has, if the grammar's text can begin so: a
// client may mean the whole reply, as with "{" before JSON, or the rest, as with "Here it is: ".
void constrain(const GenerationJob& job, const llm::Vocab& vocab, const chat::ReplyStream& reply, llm::Sampler& sampler) {
  const auto make = [&] { return std::make_unique<llm::TokenConstraint>(job.grammar, vocab, reply.marks(), reply.ends()); };
  auto constraint = make();
  const bool begins_so = job.begun.empty() || constraint->accept_text(job.begun);
  sampler.constrain(std::move(constraint));  // It counts the work, also that of a constraint that another one replaces.
  if (!begins_so) sampler.constrain(make());
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
      begins_with_grammar(job.grammar != nullptr || job.reply.answer_grammar != nullptr),
      sampler(job.sampling, job.seed, banned, &vocab),
      reply(std::move(job.reply), vocab, job.keeps_reply) {
  chain.reserve(chain.size() + static_cast<std::size_t>(job.tokens_max));
  usage.seed = job.seed;
  if (!job.wants_prompt_logprobs) return;
  offload_disabled = true;  // The prefill lane returns no logits.
  prompt_logprobs.push_back({.chosen = {.token = chain.front(), .bytes = std::string(vocab.piece(chain.front()))}});
}

std::uint64_t Sequence::begin_sampling(const llm::Vocab& vocab) {
  if (std::exchange(has_begun_sampling, true)) return 0;
  constexpr std::uint64_t kTokensPerUnit = 2;
  const std::size_t counted = std::min(chain.size(), sampler.tokens_counted());
  for (const Token token : std::span(chain).last(counted)) sampler.accept(token);
  if (job.grammar) constrain(job, vocab, reply, sampler);
  reply.constrain_begin(job.begun, sampler);
  return counted / kTokensPerUnit;
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

void SequenceList::add(SequencePtr sequence) {
  sequence->arrival = ++arrivals_;
  sequence->index = all_.size();
  by_id_[sequence->job.id] = sequence.get();
  if (!sequence->job.session.empty()) by_session_.emplace(sequence->job.session, sequence.get());
  (sequence->is_running() ? running_ : waiting_).push_back(sequence.get());
  all_.push_back(std::move(sequence));
}

void SequenceList::remove_finished() {
  if (std::exchange(finished_, 0) == 0) return;
  for (const SequencePtr& each : all_) {
    if (!each->is_finished()) continue;
    if (const auto found = by_id_.find(each->job.id); found != by_id_.end() && found->second == each.get()) by_id_.erase(found);
    const auto [begin, end] = by_session_.equal_range(each->job.session);
    const auto of_session = std::find_if(begin, end, [&](const auto& entry) { return entry.second == each.get(); });
    if (of_session != end) by_session_.erase(of_session);
  }
  std::erase_if(all_, [](const SequencePtr& sequence) { return sequence->is_finished(); });
  for (std::size_t i = 0; i < all_.size(); ++i) all_[i]->index = i;
}

void SequenceList::leave_list(Sequence& sequence) {
  std::vector<Sequence*>& list = sequence.is_running() ? running_ : waiting_;
  const auto found = std::ranges::lower_bound(list, sequence.arrival, {}, &Sequence::arrival);
  UMA_CHECK(found != list.end() && *found == &sequence);
  list.erase(found);
}

void SequenceList::set_running(Sequence& sequence, std::size_t slot) {
  UMA_CHECK(sequence.is_waiting());
  leave_list(sequence);
  sequence.state = Sequence::State::running;
  sequence.slot = slot;
  running_.insert(std::ranges::upper_bound(running_, sequence.arrival, {}, &Sequence::arrival), &sequence);
}

void SequenceList::set_waiting(Sequence& sequence) {
  UMA_CHECK(sequence.is_running());
  leave_list(sequence);
  sequence.state = Sequence::State::waiting;
  waiting_.insert(std::ranges::upper_bound(waiting_, sequence.arrival, {}, &Sequence::arrival), &sequence);
}

void SequenceList::set_finished(Sequence& sequence) {
  if (sequence.is_finished()) return;
  leave_list(sequence);
  sequence.state = Sequence::State::finished;
  ++finished_;
}

Sequence* SequenceList::find(RequestId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<Sequence*> SequenceList::find_of(const SessionId& session) const {
  std::vector<Sequence*> sequences;
  const auto [begin, end] = by_session_.equal_range(session);
  for (auto each = begin; each != end; ++each) {
    if (!each->second->is_finished()) sequences.push_back(each->second);
  }
  return sequences;
}

std::int32_t SequenceList::index_of(const Sequence& sequence) const {
  UMA_CHECK(sequence.index < all_.size() && all_[sequence.index].get() == &sequence);
  return static_cast<std::int32_t>(sequence.index);
}

bool SequenceList::someone_streams(const Sequence* except) const {
  return std::ranges::any_of(running_, [&](const Sequence* each) {
    return each != except && each->generated() > 0 && !each->job.is_background && !each->is_on<SwapOut>();
  });
}

void SequenceList::check_invariants() const {
  UMA_CHECK(std::ranges::is_sorted(running_, {}, &Sequence::arrival) &&
            std::ranges::is_sorted(waiting_, {}, &Sequence::arrival));
  UMA_CHECK(std::ranges::all_of(running_, &Sequence::is_running) && std::ranges::all_of(waiting_, &Sequence::is_waiting));
  UMA_CHECK(running_.size() + waiting_.size() + finished_ == all_.size());
}

}  // namespace uma::engine
