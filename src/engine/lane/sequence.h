// The state of one generation in a lane, from its arrival to its result.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "chat/reply/reply_stream.h"
#include "core/event.h"
#include "core/ids.h"
#include "engine/lane/generation_job.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/move/state_transfer.h"
#include "engine/lane/run/prefill_lane.h"
#include "kv/snapshot.h"
#include "kv/state_store.h"
#include "llm/sampling/distribution.h"
#include "llm/sampling/sampler.h"
#include "sched/draft_control.h"
#include "sched/ngram_drafter.h"

namespace uma::engine {

[[nodiscard]] inline std::int32_t size_of(const std::vector<Token>& tokens) {
  return static_cast<std::int32_t>(tokens.size());
}

// A snapshot that is being loaded into a slot, one piece at a time: a prompt that the prefill lane has computed, or a stored
// state.
struct Restore {
  std::optional<PrefillReport> report;
  kv::SnapshotPtr stored;
  kv::StateId id = 0;              // Its id in the store; 0: it is not stored.
  std::int32_t tokens_wanted = 0;  // The number of its tokens that the sequence uses.
  std::size_t pieces_loaded = 0;   // With those that were in the slot before.
  double ms = 0;                   // Time of reading and loading so far.

  [[nodiscard]] const kv::Snapshot& snapshot() const { return report ? *report->snapshot : *stored; }
  [[nodiscard]] std::size_t pieces_wanted() const;
  [[nodiscard]] bool is_complete() const { return pieces_loaded == pieces_wanted(); }
  [[nodiscard]] std::int32_t tokens_loaded_at_end() const { return snapshot().pieces[pieces_wanted() - 1].end; }
};

// A sequence on its way to the prefill lane: its slot is being saved, one piece at a time.
struct Leaving {
  PrefillLane& prefill;
  PrefillJob job;
  SequenceSave save;
};

// The prefill lane computes the prompt.
struct Offloaded {
  PrefillLane& prefill;
  std::int32_t tokens = 0;  // So many are computed, as far as the prefill lane has reported.
};

// A sequence on its way out of the context beside streams: its slot is being saved, one piece at a time.
struct SwapOut {
  SequenceSave save;
  bool may_stay = false;  // It goes on where its state cannot be saved, rather than be computed again.
};

// The reuse is being verified.
struct Verifying {};

// The one thing that a running sequence does while it is in no plan.
using Detour = std::variant<std::monostate, Leaving, Offloaded, Restore, SwapOut, Verifying>;

// The draft tokens of a sequence, and their acceptance so far.
struct Draft {
  std::vector<Token> tokens;                     // Verified by the next decode call; the last `fill` of them are no draft.
  std::vector<llm::Distribution> distributions;  // The distributions from which they were drawn; empty: the drafts were greedy.
  bool is_of_model = false;                      // The draft comes from the draft model.
  std::int32_t fill = 0;                         // Rows that make the call cheaper, not because they may be right.
  bool is_match_long = false;                    // The draft comes from behind a long match.
  std::optional<Token> untried;                  // A draft token that is only compared with the next token.
  sched::NgramDrafter ngrams;                    // Drafts from the sequence's own text.
  std::array<sched::DraftControl, 2> ngram_controls;  // Acceptance of drafts from the text: behind short, long matches.
  sched::DraftControl model_control{sched::kDraftModelPrior};  // Acceptance of drafts from the draft model.

  void remove_fill() { tokens.resize(tokens.size() - static_cast<std::size_t>(std::exchange(fill, 0))); }
  [[nodiscard]] sched::DraftControl& ngram_control() { return ngram_controls[is_match_long ? 1 : 0]; }
  [[nodiscard]] sched::DraftControl& control() { return is_of_model ? model_control : ngram_control(); }
};

// The state that a sequence resumes from when it gets a slot: its own state while it is swapped out, or a stored one that was
// read for it.
struct ResumePoint {
  kv::SnapshotPtr snapshot;
  kv::StateId id = 0;             // Its id in the store; 0: it is not stored.
  Tier tier = Tier::cold;         // From where it was read.
  bool is_own = false;            // It is the session's own state, not one with a common prefix.
  bool is_refused = false;        // A stored state could not be used, so the tokens are computed.
  double read_ms = 0;             // Time of reading it.
  TimePoint reading_since{};      // Set while it is being read; the sequence is not placed meanwhile.
  TimePoint read_until = kNever;  // When the read is given up.
};

struct SequenceTimes {
  TimePoint arrived{};                   // In the lane.
  TimePoint waits_since{};               // Set while the sequence waits.
  TimePoint lacks_cells_since = kNever;  // When it had no cells for the first time since it was last placed; kNever: it had.
  TimePoint keeps_until{};               // It is not swapped out for a waiting one until then.
  TimePoint placed{};
  TimePoint first_placed{};
  TimePoint first_token{};
  TimePoint last_token{};
  double gap_ms = 0;  // Weighted mean of the time between tokens (1/8).
};

struct Sequence {
  enum class State : std::uint8_t { waiting, running, finished };

  // `banned`: tokens that are never sampled.
  Sequence(GenerationJob from, const llm::Vocab& vocab, std::span<const Token> banned);

  [[nodiscard]] bool is_waiting() const { return state == State::waiting; }
  [[nodiscard]] bool is_running() const { return state == State::running; }
  [[nodiscard]] bool is_finished() const { return state == State::finished; }
  [[nodiscard]] std::int32_t generated() const { return size_of(chain) - prompt_tokens; }
  // The tokens of the chain that need not be computed if they are cached. The last one is needed for its logits, and so are
  // those before a token of the prompt whose log probability is wanted.
  [[nodiscard]] std::size_t reusable_tokens() const;
  // Before its first token is chosen: lets the sampler count the prompt's tokens, and adds the grammar with which the reply
  // begins, behind the content that the prompt has. Returns the work of counting, in units of TokenConstraint::work(); that of
  // the grammar is the sampler's. Does nothing later.
  std::uint64_t begin_sampling(const llm::Vocab& vocab);
  // Choosing its next token may take long: a grammar limits it, or the sampler has many tokens to count before.
  [[nodiscard]] bool may_choose_slowly() const {
    constexpr std::size_t kManyTokens = 4096;
    if (sampler.constraint() != nullptr) return true;
    return !has_begun_sampling && (begins_with_grammar || std::min(chain.size(), sampler.tokens_counted()) >= kManyTokens);
  }
  // Whether log probabilities of the prompt's tokens are still to be computed.
  [[nodiscard]] bool lacks_prompt_logprobs() const {
    return job.wants_prompt_logprobs && prompt_logprobs.size() < static_cast<std::size_t>(prompt_tokens);
  }
  // They were of logits that are not finite, so all are computed again.
  void drop_prompt_logprobs();
  // The token at a position of the chain, or of the draft behind it.
  [[nodiscard]] Token token_at(std::int32_t position) const;
  [[nodiscard]] bool was_placed() const { return times.placed != TimePoint{}; }
  [[nodiscard]] bool is_fetching() const { return resume.reading_since != TimePoint{}; }
  // It is on a detour, or its next token is still to be chosen: it is in no plan.
  [[nodiscard]] bool is_blocked() const { return !std::holds_alternative<std::monostate>(detour) || is_held(); }
  template <class T>
  [[nodiscard]] bool is_on() const {
    return std::holds_alternative<T>(detour);
  }
  // Null: it is on another detour, or on none.
  [[nodiscard]] Leaving* leaving() { return std::get_if<Leaving>(&detour); }
  [[nodiscard]] Offloaded* offloaded() { return std::get_if<Offloaded>(&detour); }
  [[nodiscard]] SwapOut* swapping_out() { return std::get_if<SwapOut>(&detour); }
  [[nodiscard]] Restore* restoring() { return std::get_if<Restore>(&detour); }
  [[nodiscard]] const Restore* restoring() const { return std::get_if<Restore>(&detour); }
  // Requires: it is on no detour.
  template <class T>
  void begin(T begun) {
    UMA_CHECK(is_on<std::monostate>());
    detour.emplace<T>(std::move(begun));
  }
  // Ends the detour, if it is this one.
  template <class T>
  void end() {
    if (is_on<T>()) detour.emplace<std::monostate>();
  }
  // Offloads the prompt. Requires: it is on no detour.
  void send(PrefillLane& prefill, PrefillJob prompt);
  // Ends its way to the prefill lane, its job there, or its way out of the context.
  void recall();
  [[nodiscard]] bool is_held() const { return !held_logits.empty(); }
  // Its snapshot is the only copy of its state.
  [[nodiscard]] bool is_swapped_out() const { return resume.snapshot != nullptr && resume.id == 0; }
  // The reused tokens count as computed, because they could not be used.
  void count_recomputed();
  // From now on no stored state is used for the sequence.
  void refuse_stored();
  // The first batch with one of its tokens began.
  void enter_batch(TimePoint now, LaneStats& stats);

  GenerationJob job;
  std::int32_t prompt_tokens;
  std::vector<Token> chain;        // The prompt and the generated tokens; the slot's tokens are its beginning.
  const bool begins_with_grammar;  // The reply does, unless it begins with thoughts.
  bool has_begun_sampling = false;
  llm::Sampler sampler;
  chat::ReplyStream reply;
  std::vector<TokenLogprobs> prompt_logprobs;  // The prompt's first tokens; one more than are computed, as far as wanted.
  std::size_t prompt_logprobs_bytes = 0;       // Size by chat::logprobs_bytes.
  std::optional<TokenLogprobs> end_logprobs;   // Values of the token that ended the reply, if those of the prompt are wanted.
  bool has_end_token = false;                  // The model has ended the reply with a token, which is not in the chain.
  Draft draft;
  std::vector<float> held_logits;  // Logits of its next token, chosen by a later step: grammars used up the time of this one.
  std::uint64_t held_since = 0;    // Order of being held: the first goes on first.
  State state = State::waiting;    // Set by SequenceList.
  std::size_t slot = 0;            // Valid while it runs.
  std::uint64_t arrival = 0;       // Order of arrival in the lane. Set by SequenceList, like its place there.
  std::size_t index = 0;
  ResumePoint resume;
  Usage usage;
  RequestShare logprobs_share;    // Memory of the reply's log probabilities; null: there are none, or they are not counted.
  bool in_batch = false;          // A batch with one of its tokens has begun, or its slot is on the way to one.
  bool has_rows = true;           // The next rows can be computed: no image among them waits to be encoded.
  bool offload_disabled = false;  // Its prompt must not be offloaded (again).
  bool is_read_ahead = false;     // Its state was asked for while it waited for a slot.
  bool has_result = false;        // Its result was reported.
  bool is_unsound = false;        // Its logits were not finite, so it leaves the context.
  bool is_recomputing = false;    // It is being computed again for that reason, and has no new token yet.
  Detour detour;
  RequestId waits_for{};  // The request that computes a common prefix for it.
  // The tokens of its prompt that had to be computed when that was last looked at.
  std::int32_t tokens_to_compute = 0;
  std::int64_t position_reported = -1;
  SequenceTimes times;
};

using SequencePtr = std::unique_ptr<Sequence>;

// The unfinished sequences of a lane, in order of arrival. Thousands may wait, for few slots: what is done in every tick looks
// at the running ones only, or at an index. Invariant: a sequence is in running() or waiting() as its state says, until it has
// finished; only this class changes the state of one that was added.
class SequenceList {
 public:
  // A new sequence has a larger arrival() than all others.
  void add(SequencePtr sequence);
  // O(1) if no sequence has finished since the last call.
  void remove_finished();

  void set_running(Sequence& sequence, std::size_t slot);
  void set_waiting(Sequence& sequence);
  // Does nothing if it has finished already.
  void set_finished(Sequence& sequence);

  // Null: there is no such sequence.
  [[nodiscard]] Sequence* find(RequestId id) const;
  // The unfinished sequences of a session.
  [[nodiscard]] std::vector<Sequence*> find_of(const SessionId& session) const;
  // The index for at(), valid until finished sequences are removed. Requires: the sequence is in the list.
  [[nodiscard]] std::int32_t index_of(const Sequence& sequence) const;
  // Finds a sequence by the index of a view or of a planned row.
  [[nodiscard]] Sequence& at(std::int32_t index) const { return *all_[static_cast<std::size_t>(index)]; }
  // The sequences in slots, and the waiting ones, in order of arrival. A caller that changes states meanwhile takes a copy.
  [[nodiscard]] std::span<Sequence* const> running() const { return running_; }
  [[nodiscard]] std::span<Sequence* const> waiting() const { return waiting_; }
  // Whether a running interactive sequence other than `except` generates tokens or is about to. One that is being swapped out
  // waits for its turn.
  [[nodiscard]] bool someone_streams(const Sequence* except = nullptr) const;
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] bool is_empty() const { return all_.empty(); }

  // The positions of waiting sequences have changed.
  void set_reordered() { is_reordered_ = true; }
  [[nodiscard]] bool is_reordered() const { return is_reordered_; }
  [[nodiscard]] bool take_reordered() { return std::exchange(is_reordered_, false); }
  void check_invariants() const;

 private:
  void leave_list(Sequence& sequence);

  std::vector<SequencePtr> all_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> waiting_;
  std::unordered_map<RequestId, Sequence*> by_id_;
  std::unordered_multimap<SessionId, Sequence*> by_session_;  // Sequences without a session are left out.
  std::size_t finished_ = 0;                                  // So many of them have finished.
  std::uint64_t arrivals_ = 0;
  bool is_reordered_ = false;
};

}  // namespace uma::engine
