// One context and everything that runs in it: the executor of continuous batching. Only the lane touches its context;
// everything else sends it commands. The logic is step(): commands, deadlines, admission, plan, decode, sample. A thread is a
// loop around it.
//
// Invariants, checked by check_invariants() and by the simulator after every step:
// (1) A slot's tokens are exactly what the context has cached for its sequence.
// (2) A slot belongs to at most one running sequence, or to one idle session, or is empty.
// (3) In a unified context the cells used, shared ones once, never exceed the context's.
// (4) Every job that was posted gets exactly one result.
// (5) A sequence whose prompt is computed in the prefill lane keeps its slot, and is not in any plan.
// (6) Cells that were moved up stay in the slot of their session: they are neither saved nor shared (docs/decisions/0018).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "capability/reply_stream.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/sampling_params.h"
#include "engine/cell_ledger.h"
#include "engine/context_shift.h"
#include "engine/core_share.h"
#include "engine/image_runs.h"
#include "engine/interrupt.h"
#include "engine/lane_stats.h"
#include "engine/model_drafter.h"
#include "engine/prefill_lane.h"
#include "engine/reuse_verifier.h"
#include "kv/state_image.h"
#include "kv/state_owner.h"
#include "kv/state_store.h"
#include "kv/tier_policy.h"
#include "llm/grammar.h"
#include "llm/model.h"
#include "llm/sampler.h"
#include "sched/bytes_moved.h"
#include "sched/draft_control.h"
#include "sched/fair_share.h"
#include "sched/ngram_drafter.h"
#include "sched/plan_batch.h"
#include "sched/policy.h"
#include "sched/step_model.h"
#include "sched/thread_control.h"

namespace uma::engine {

// One generation, ready to run.
struct GenerationJob {
  RequestId id;
  SessionId session;               // empty: one-shot
  SessionId forked_from;           // the session that this one began as a copy of; empty: none
  std::vector<Token> tokens;       // everything before the first new token; at least one
  std::vector<ImageRun> images{};  // among them
  Droppable droppable;             // of them; without it they are fewer than the context's sequence_cells_max
  std::int32_t tokens_max = 0;     // new ones, >= 1
  SamplingParams sampling;
  std::uint64_t seed = 0;
  std::shared_ptr<const llm::Grammar> grammar;  // constrains the whole reply; null: nothing does
  capability::ReplyOptions reply;
  sched::Flow flow;           // whose it is
  double target_ttft_ms = 0;  // wanted until the first token; 0: the lane's
  double target_tbt_ms = 0;   // wanted between two tokens; 0: the lane's
  bool is_background = false;
  bool is_public = false;     // what is computed may be found by other tenants
  bool is_private = false;    // only the session and those that began as a copy of it may use what is computed
  bool is_ephemeral = false;  // what is computed is not kept
  bool wants_progress = false;
  TimePoint received{};
  TimePoint deadline = kNever;      // of waiting
  TimePoint timeout = kNever;       // of the whole
  std::shared_ptr<EventSink> sink;  // shared with the door
  RequestShare share{};             // what its request holds in memory
};

// How a job ended. The router commits it and then delivers `terminal`.
struct GenerationResult {
  RequestId id;
  std::vector<Token> generated;    // end-of-generation excluded
  std::int32_t dropped_turns = 0;  // of the session, before and while it was generated
  std::string reply;               // the content that was shown, whole
  std::string reply_extra;         // what its message has beside (ChatMessage)
  Event terminal;
};

struct StartCommand {
  GenerationJob job;
};
struct CancelCommand {
  RequestId id;
};
// The session ended: its cells are free.
struct ForgetCommand {
  SessionId session;
};
// The store gets a copy of what a slot holds of the session, if nobody runs in it; then `then` is called.
struct SaveCommand {
  SessionId session;
  std::move_only_function<void()> then;
};
// A stored state that a waiting request goes on from has been read, or could not be.
struct FetchReport {
  RequestId id;
  kv::StateId state = 0;
  Expected<kv::ImagePtr> image;
};
// An image that a request waits for has been encoded, or could not be.
struct EncodedReport {
  std::string image;
  Expected<EncodedPtr> encoded;
};
using LaneCommand =
    std::variant<StartCommand, CancelCommand, ForgetCommand, SaveCommand, PrefillReport, FetchReport, EncodedReport>;

struct LaneOptions {
  std::int32_t index = 0;                   // of the worker
  std::int32_t threads = 1;                 // compute threads of the worker
  std::int32_t threads_beside_prefill = 0;  // of them for decoding while prompts are computed beside; 0: the lanes take turns
  double tick_ms = 30;                      // the least that a tick is given
  double target_ttft_ms = 0;                // until the first token of a request that asks for nothing else; 0: none
  double target_tbt_ms = 0;                 // time between tokens that is promised; 0: max(tick_ms, 3 * a decode call)
  sched::WeightBytes weights;
  double bmt_budget_gbps = 0;  // 10^9 bytes a second that may be moved; 0: no limit
  sched::PolicyOptions policy;
  // Calls are made so that a request's logits are the same bits whoever shares the context (docs/decisions/0014).
  bool is_reproducible = false;
  bool speculates = true;                          // where guesses pay; the text is the same
  std::int32_t verify_every = 0;                   // of what is reused one in so many is computed anew and compared; 0: none
  std::shared_ptr<BusyWorkers> workers = nullptr;  // of the daemon, with which it shares the threads; null: there are no others
  std::shared_ptr<LaneStats> stats = nullptr;      // of a worker that was here before; null: they begin at zero
  // Where states go that leave the context; it outlives the lane. Null: they are dropped, and requests share nothing.
  kv::StateStore* store = nullptr;
  std::int32_t stored_tokens_min = 64;                    // shorter states are not worth storing
  kv::EvictionOrder eviction = kv::EvictionOrder::value;  // of idle slots
  // Waits until something is done that waits for the disk, or for long enough; at the lane's end. Null: nobody waits.
  std::function<void(const std::function<bool()>& is_done)> wait_for_disk = nullptr;
  // Cores that other processes keep busy, of late (CpuLoad); asked while there is work. Null: the lane keeps its threads.
  std::function<std::optional<double>()> others_busy = nullptr;
  // Encodes an image on another thread and calls `then` from there. Null: no job has images.
  std::function<void(const TenantId& tenant, const std::string& image,
                     std::move_only_function<void(Expected<EncodedPtr>)> then)>
      encode = nullptr;
  // Writes up to `count` guesses of what continues `chain`, in place of the sequence's own text; for tests.
  std::function<void(std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft)> guess = nullptr;
  // Sees the logits that each token of a request is sampled from; for tests.
  std::function<void(RequestId id, std::span<const float> logits)> on_logits = nullptr;
};

class Lane {
 public:
  using OnResult = std::function<void(GenerationResult)>;

  // `vocab` and `clock` outlive the lane. `on_result` is called from step(). With a `prefill_context` (one sequence, the same
  // state identity) long prompts are computed in a lane of their own; null: in chunks between the others' tokens.
  Lane(LaneOptions options, std::unique_ptr<llm::Context> context, std::unique_ptr<llm::Context> prefill_context,
       const llm::Vocab& vocab, const Clock& clock, OnResult on_result);
  ~Lane();

  // Before the first step. Guesses come from a draft model too, where a sequence's own text has none. Needs `speculates`.
  void draft_with(std::unique_ptr<ModelDrafter> drafter) { model_drafter_ = std::move(drafter); }

  // Any thread. Queues a command; a cancel of a prompt that is being computed also interrupts that computation.
  void post(LaneCommand command);
  // Owner thread. Runs one tick.
  StepOutcome step();
  // Owner thread. Waits until a command comes or `until`. False once close() was called and nothing is left to take.
  bool wait(TimePoint until);
  // Any thread. Ends the loop around step().
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  // Owner thread, after close(): every job that is left ends as cancelled, and what is cached goes to the store.
  void cancel_all();

  // Any thread. Whether the session runs here or its tokens are cached, as of the last step.
  [[nodiscard]] bool holds(const SessionId& session) const;
  // Bytes of the session's cached tokens, as of the beginning or end of its last request here.
  [[nodiscard]] std::uint64_t bytes_of(const SessionId& session) const;
  // The lane beside this one, which runs on a thread of its own; null: none.
  [[nodiscard]] PrefillLane* prefill_lane() const { return prefill_.get(); }
  [[nodiscard]] const LaneStats& stats() const { return stats_; }
  [[nodiscard]] LaneStats& stats() { return stats_; }
  [[nodiscard]] const llm::ContextShape& shape() const { return context_->shape(); }
  [[nodiscard]] const std::string& state_identity() const { return context_->state_identity(); }
  // Of its states in the store; 0: there is no store.
  [[nodiscard]] kv::FamilyId family() const { return family_; }

  // Owner thread; for tests.
  void check_invariants();
  [[nodiscard]] llm::Context& context() { return *context_; }
  [[nodiscard]] CoreShare& cores() { return cores_; }
  [[nodiscard]] bool is_idle() const { return sequences_.empty() && inbox_taken_.empty(); }

 private:
  struct Slot {
    std::vector<Token> tokens;  // cached in the context
    kv::StateOwner owner;       // whose they are; without a session: left behind by a one-shot request
    bool is_running = false;
    bool is_ephemeral = false;
    static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
    std::size_t moved_from = kNowhere;  // tokens from here on were moved up
    std::uint32_t uses = 0;
    TimePoint last_used{};

    [[nodiscard]] bool was_moved() const { return moved_from < tokens.size(); }
    // What is as if it had been computed for these tokens.
    [[nodiscard]] std::span<const Token> unmoved() const {
      return std::span(tokens).first(std::min(moved_from, tokens.size()));
    }
  };
  // A state on its way into a slot, a piece at a time: of a prompt that was computed in the prefill lane, or one that was
  // stored.
  struct Arrival {
    std::optional<PrefillReport> report;
    kv::ImagePtr stored;
    kv::StateId id = 0;              // in the store; 0: it is not there
    std::int32_t tokens_wanted = 0;  // of it
    std::size_t pieces_loaded = 0;
    double ms = 0;  // that reading and loading took so far

    [[nodiscard]] const kv::StateImage& image() const { return report ? *report->image : *stored; }
    [[nodiscard]] std::size_t pieces_wanted() const;
    [[nodiscard]] bool is_complete() const { return pieces_loaded == pieces_wanted(); }
    [[nodiscard]] std::int32_t tokens_loaded_at_end() const { return image().pieces[pieces_wanted() - 1].end; }
  };
  // Where the beginning of a sequence's chain is.
  struct Source {
    enum class Kind : std::uint8_t { none, slot, image, store } kind = Kind::none;
    std::int32_t tokens_count = 0;  // of the chain
    std::size_t slot = 0;           // slot
    kv::StoredMatch stored{};       // store; of an image its length and whose it is
    kv::ImagePtr image{};           // store; null: it is on disk

    [[nodiscard]] bool is_on_disk() const { return kind == Kind::store && image == nullptr; }
  };
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;

  [[nodiscard]] StepOutcome tick();
  void take_commands();
  void run(LaneCommand& command);
  void start(GenerationJob job);
  void add_sequence(GenerationJob job);
  // `waits`: for what is being read or computed; `holds_back`: and so do those behind it; `ended`: its work has thrown.
  enum class Admission : std::uint8_t { placed, waits, holds_back, no_room, ended };
  [[nodiscard]] Admission try_to_admit(Sequence& next, TimePoint now);
  [[nodiscard]] Sequence* find(RequestId id);  // null: it is not there
  void cancel(RequestId id);
  void forget(const SessionId& session);
  void save(const SessionId& session);
  void take_report(PrefillReport report);
  void take_fetched(FetchReport report);
  void take_encoded(const EncodedReport& report);
  void take_encoded(Sequence& sequence, const EncodedReport& report);
  void come_home(Sequence& sequence);
  [[nodiscard]] std::optional<TurnDrop> droppable_turns(const Sequence& sequence) const;
  void make_room_in_chains();
  void drop_turns(Sequence& sequence, const TurnDrop& drop);

  void expire(TimePoint now);
  void fail_waiting(Sequence& sequence, std::size_t position);
  void admit(TimePoint now);
  [[nodiscard]] Sequence* next_waiting(TimePoint now);
  [[nodiscard]] bool is_urgent(const Sequence& sequence, TimePoint now) const;
  [[nodiscard]] Sequence* choose_less_important(TimePoint now);
  // What goes first; smaller is earlier.
  using AdmissionOrder = std::tuple<bool, bool, sched::FairShare::Rank>;
  [[nodiscard]] AdmissionOrder admission_order(const Sequence& sequence, TimePoint now) const;
  void report_positions(TimePoint now);
  void report_queued(Sequence& sequence, std::int64_t position);
  [[nodiscard]] bool place(Sequence& sequence, Source source, TimePoint now);
  [[nodiscard]] bool begin_fetch(Sequence& sequence, const Source& source);
  [[nodiscard]] bool begin_to_wait(Sequence& sequence, const Source& source);
  [[nodiscard]] bool waits_for_another(Sequence& sequence) const;
  // Estimates: for tokens of a prompt after `cached` others; for state bytes that go into or out of the context.
  [[nodiscard]] double compute_ms(std::int32_t tokens, std::int32_t cached) const;
  [[nodiscard]] double load_ms(std::size_t bytes) const;
  [[nodiscard]] double copy_ms(std::size_t tokens) const;
  [[nodiscard]] Source choose_source(const Sequence& sequence) const;
  [[nodiscard]] kv::Asker asker_of(const Sequence& sequence) const;
  [[nodiscard]] bool may_share(const Sequence& sequence, const Slot& slot) const;
  [[nodiscard]] static bool can_take_over(const Slot& slot, std::int32_t count);
  [[nodiscard]] std::optional<std::size_t> choose_slot(const Sequence& sequence, const Source& source);
  [[nodiscard]] bool make_room_for(const Sequence& sequence, std::size_t index, Source& source);
  void fill_slot(Sequence& sequence, std::size_t index, const Source& source);
  void copy_slot(std::size_t from, std::size_t to, std::size_t count, bool is_one_shot);
  void write_receipt(Sequence& sequence, const Source& source, bool had_tokens);
  void add_cached(std::size_t index, std::span<const Token> tokens);
  void keep_cached(std::size_t index, std::size_t count);
  [[nodiscard]] bool cut_slot(std::size_t index, std::size_t count);
  [[nodiscard]] bool shift_slot(std::size_t index, const TurnDrop& drop);
  void drop_tokens(std::size_t index);  // the slot keeps its owner
  void clear_context();
  void begin_anew(Sequence& sequence);
  void clear_slot(std::size_t index);  // and here it does not
  void leave_slot(const Sequence& sequence);
  [[nodiscard]] bool is_worth_storing(const Slot& slot) const;
  [[nodiscard]] std::optional<ByteBudget::Share> room_to_store(std::size_t index, kv::GiveWay how);
  void note_not_stored(std::size_t index);
  [[nodiscard]] std::optional<ByteBudget::Share> make_room_at_once(std::uint64_t bytes);
  void store_state(std::size_t index);
  void store_state(std::size_t index, ByteBudget::Share room);
  [[nodiscard]] bool store_by_disk(std::size_t index);
  [[nodiscard]] bool make_slot_ahead(const Sequence& sequence);
  [[nodiscard]] bool evict_idle(kv::GiveWay how, std::span<const std::size_t> except = {});
  [[nodiscard]] bool free_unused_cells();
  [[nodiscard]] std::int64_t cells_used() const;
  [[nodiscard]] std::int64_t cells_promised() const;
  [[nodiscard]] std::int64_t cells_arriving() const;
  [[nodiscard]] bool make_room(std::int64_t rows);
  void find_room(Sequence& sequence);
  void swap_out(Sequence& sequence);
  void set_aside(Sequence& sequence, kv::ImagePtr image);
  [[nodiscard]] Sequence* choose_victim();

  void build_views(TimePoint now);
  void prepare_images(Sequence& sequence);
  [[nodiscard]] Sequence* stop_at_images();
  void run_image(Sequence& sequence);
  void send_prompts_away();
  [[nodiscard]] bool send_away(Sequence& sequence);
  void take_prompt_back(Sequence& sequence, PrefillReport report);
  void load_arriving(Sequence& sequence, TimePoint until);
  void refuse_arrival(Sequence& sequence, const Error& error);
  void note_refused(Sequence& sequence);
  void begin_verification(Sequence& sequence, kv::StateId state);
  [[nodiscard]] double verify_some();
  void end_verification(Sequence& sequence);
  [[nodiscard]] bool give_up_verification();
  [[nodiscard]] bool is_in_doubt(std::size_t index) const;
  void reject_reuse(Sequence& sequence, double distance);
  void forget_beginning(std::span<const Token> tokens, const kv::Asker& asker);
  void end_arrival(Sequence& sequence);
  [[nodiscard]] bool load_arrivals(TimePoint now);
  [[nodiscard]] bool should_gather(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> waits_until(TimePoint now, bool takes_turn);
  void add_drafts();
  void add_model_drafts(double token_ms, std::int32_t rows_left);
  void run_decode();
  void verify(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now);
  void run_prefill();
  // Runs the rows in call_rows_, which belong to `plan`. False: they were not computed and nothing was sampled.
  [[nodiscard]] bool run_call(std::span<const sched::PlanRow> plan, bool is_prefill);
  void run_one_by_one(std::span<const sched::PlanRow> plan, const Error& first_error);
  void append_rows(const sched::PlanRow& row);
  void resync_slot(std::size_t index);
  void sample_row(Sequence& sequence, std::int32_t row, TimePoint now, std::int32_t drawn_guess = -1);
  void choose_first_token(Sequence& sequence, std::span<float> logits);
  void note_promise(bool is_kept);
  [[nodiscard]] Token choose_token(Sequence& sequence, std::span<float> logits, std::int32_t drawn_guess);
  void push_token(Sequence& sequence, Token token, TimePoint now);
  void note_in_batch(Sequence& sequence, TimePoint now);
  void note_tokens_computed(std::span<const sched::PlanRow> plan, TimePoint now);
  void report_progress(Sequence& sequence, std::int32_t done);
  void note_bytes_moved(std::span<const sched::PlanRow> plan, bool is_prefill, TimePoint began, TimePoint ended);
  void watch_load(TimePoint now);
  void set_threads(std::int32_t threads);
  [[nodiscard]] bool needs_one_thread(std::span<const sched::PlanRow> plan) const;
  [[nodiscard]] std::size_t put_lone_rows_last();
  [[nodiscard]] bool run_decode_call(std::span<const sched::PlanRow> plan);
  class Turn;
  [[nodiscard]] double prefill_turn_ms() const;
  void finish(Sequence& sequence, FinishReason reason, std::optional<Error> error = std::nullopt);
  void fail_thrown(Sequence& sequence, const Error& error);
  void fail_thrown(RequestId id, const Error& error);
  void give_failed(RequestId id, Event terminal);
  // Runs work for a sequence, or for the one of a request, if it is still there; what it throws ends that one and nothing
  // else.
  template <class Whose, class Work>
  void contain_in(Whose&& whose, Work&& work, const std::source_location& at = std::source_location::current()) {
    try {
      std::forward<Work>(work)();
    } catch (...) {
      fail_thrown(whose, thrown_error(at));
    }
  }
  void remove_finished();
  void update_gauges();
  void publish_residents();
  [[nodiscard]] TimePoint next_wake() const;
  [[nodiscard]] double default_tbt_ms() const;
  [[nodiscard]] double target_tbt_ms(const Sequence& sequence) const;
  [[nodiscard]] TimePoint prompt_due(const Sequence& sequence) const;
  [[nodiscard]] double tick_target_ms() const;
  [[nodiscard]] TimePoint first_token_due(const Sequence& sequence) const;
  [[nodiscard]] double time_left_ms(const Sequence& sequence, TimePoint now) const;

  // Constant after construction.
  const LaneOptions options_;
  const llm::Vocab& vocab_;
  const Clock& clock_;
  const OnResult on_result_;

  // Owned by the lane's thread.
  std::unique_ptr<llm::Context> context_;
  const kv::FamilyId family_;
  std::vector<Slot> slots_;
  CellLedger cells_;  // of a unified context; the last entry is the spare sequence's
  ReuseVerifier verifier_;
  kv::BytePool own_pool_{0};
  kv::BytePool& pool_;                  // of states: the store's, where there is one
  std::vector<SequencePtr> sequences_;  // all unfinished ones, in order of arrival
  std::vector<LaneCommand> inbox_taken_;
  sched::StepModel step_model_;
  sched::TurnTaker turns_;
  sched::ThreadControl thread_control_;
  TimePoint load_asked_{};
  sched::FairShare shares_;
  sched::ChunkSize chunk_size_;
  sched::BatchPlan plan_;
  std::vector<sched::SequenceView> views_;
  double least_work_of_prompts_ = 0;  // done for a tenant that has a prompt among them
  std::vector<llm::BatchRow> call_rows_;
  std::vector<float> raw_logits_;  // a copy of the row that the sampler writes into, where the client wants log probabilities
  std::unique_ptr<ModelDrafter> model_drafter_;  // null: there is no draft model
  std::vector<ModelDrafter::Candidate> candidates_;
  std::unordered_set<std::string> encoding_;  // images that were asked for
  std::uint32_t decode_calls_ = 0;
  bool can_take_back_ = true;    // the context can forget the end of a sequence, which a wrong guess needs
  std::int32_t threads_ = 0;     // the context computes with
  TimePoint turn_at_{};          // while the prefill lane computes: when the streams' next turn is
  double turn_wait_ms_ = 0;      // how long the gate takes to close, the worst of late
  double load_ms_per_mb_ = 0.2;  // of state bytes into the context, weighted mean
  bool queue_changed_ = false;   // since positions were reported
  double service_ms_ = 0;        // weighted mean time of a request in the context
  bool has_unsound_ = false;     // some logits were not finite in this step
  bool residents_changed_ = false;
  bool waits_for_room_ = false;  // the next request, for a state that has to leave its slot
  TimePoint room_wanted_since_ = kNever;
  // The pause before the first tick after idleness.
  struct Gather {
    std::size_t sequences = 0;  // that have come; 0: not begun
    TimePoint began{};
    TimePoint until{};
  };
  Gather gather_;

  // Shared.
  // Shared with reads from the store that are under way, which may outlive the lane.
  const std::shared_ptr<Mailbox<LaneCommand>> inbox_ = std::make_shared<Mailbox<LaneCommand>>();
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<LaneStats> shared_stats_;
  LaneStats& stats_ = *shared_stats_;
  CoreShare cores_;
  sched::BandwidthBudget bandwidth_;
  std::unique_ptr<PrefillLane> prefill_;
  mutable Mutex residents_mutex_;
  std::unordered_map<SessionId, std::size_t> residents_ GUARDED_BY(residents_mutex_);  // their cached tokens
  Mutex prefilled_mutex_;
  std::vector<RequestId> prefilled_ GUARDED_BY(prefilled_mutex_);  // whose prompts the running call computes
};

}  // namespace uma::engine
