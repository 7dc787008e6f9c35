#include "engine/lane.h"

#include <algorithm>
#include <format>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "engine/lane_internal.h"
#include "engine/state_transfer.h"
#include "llm/image_tokens.h"
#include "llm/logits.h"
#include "llm/logprobs.h"

namespace uma::engine {
namespace {

constexpr std::uint64_t kBackgroundEvery = 4;  // ticks: then background streams are served even where time is short
constexpr double kGatherMaxMs = 5;
constexpr double kGatherQuietMs = 1;

std::unordered_set<std::int32_t> occupied_slots(std::span<const sched::PlanRow> rows) {
  std::unordered_set<std::int32_t> slots;
  for (const sched::PlanRow& row : rows) slots.insert(row.slot);
  return slots;
}

}  // namespace

Lane::Lane(LaneOptions options, std::unique_ptr<llm::Context> context, std::unique_ptr<llm::Context> prefill_context,
           const llm::Vocab& vocab, const Clock& clock, OnResult on_result)
    : options_(std::move(options)),
      vocab_(vocab),
      clock_(clock),
      on_result_(std::move(on_result)),
      context_(std::move(context)),
      family_(options_.store != nullptr ? options_.store->join(context_->state_identity(), context_->shape().can_truncate) : 0),
      slots_(static_cast<std::size_t>(context_->shape().sequences)),
      cells_(slots_.size() + 1),
      verifier_(options_.verify_every, *context_),
      pool_(options_.store != nullptr ? options_.store->pool() : own_pool_),
      turns_(options_.policy, context_->shape().sequences),
      thread_control_(options_.threads),
      shared_stats_(options_.stats != nullptr ? options_.stats : std::make_shared<LaneStats>()),
      cores_(options_.threads, options_.threads_beside_prefill, options_.workers),
      bandwidth_(options_.bmt_budget_gbps * 1e9) {
  stats_.threads.set(options_.threads);
  if (prefill_context == nullptr) return;
  UMA_CHECK(prefill_context->state_identity() == context_->state_identity());
  prefill_ = std::make_unique<PrefillLane>(
      std::move(prefill_context), PrefillOptions{options_.weights, options_.is_reproducible}, pool_, cores_, bandwidth_, stats_,
      clock_, [this](PrefillReport report) { inbox_->push(std::move(report)); });
}

Lane::~Lane() = default;

void Lane::post(LaneCommand command) {
  if (const auto* cancel_command = std::get_if<CancelCommand>(&command)) {
    const MutexLock lock(prefilled_mutex_);
    if (std::ranges::contains(prefilled_, cancel_command->id)) interrupt_.set(true);
  }
  inbox_->push(std::move(command));
}

bool Lane::wait(TimePoint until) {
  return inbox_->wait_drain(inbox_taken_, until);
}

void Lane::close() {
  closed_.store(true);
  interrupt_.set(true);
  inbox_->close();
  if (prefill_) prefill_->close();
}

void Lane::cancel_all() {
  take_commands();
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::finished) finish(*sequence, FinishReason::cancelled);
  }
  remove_finished();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].tokens.empty()) continue;
    if (is_worth_storing(slots_[i])) {
      auto room = room_to_store(i, kv::GiveWay::by_disk);
      const auto has_room = [&] { return room || (room = room_to_store(i, kv::GiveWay::by_disk)); };
      if (!room && options_.wait_for_disk) options_.wait_for_disk(has_room);
      if (room) {
        store_state(i, std::move(*room));
      } else {
        note_not_stored(i);
      }
    }
    clear_slot(i);
  }
  update_gauges();
}

StepOutcome Lane::step() {
  try {
    return tick();
  } catch (...) {
    // Nobody knows whose work it was.
    const Error error = thrown_error();
    for (const SequencePtr& sequence : sequences_) fail_thrown(*sequence, error);
    remove_finished();
    return {.did_work = true, .wake = kNever};
  }
}

StepOutcome Lane::tick() {
  interrupt_.set(is_closed());
  take_commands();
  make_room_in_chains();
  expire(clock_.now());
  admit(clock_.now());
  const TimePoint now = clock_.now();
  build_views(now);
  const bool has_loaded = load_arrivals(now);
  if (has_loaded) {
    make_room_in_chains();
    build_views(now);
  }
  send_prompts_away();
  Sequence* image = stop_at_images();
  cores_.set_decode_busy(!views_.empty() || image != nullptr);
  if (!views_.empty()) watch_load(now);
  const bool takes_turn = cores_.takes_turns();
  const auto until = waits_until(now, takes_turn);
  if (until && image == nullptr) {
    update_gauges();
    return {.did_work = has_loaded, .wake = std::min(*until, next_wake())};
  }
  sched::BatchLimits limits;
  limits.rows_max = shape().batch_rows_max;
  limits.ubatch_rows = shape().ubatch_rows_max;
  const double verified_ms = verify_some();
  limits.tick_ms = tick_target_ms() - verified_ms;
  limits.fixed_grid = options_.is_reproducible;
  limits.serves_background = stats_.ticks_total.value() % kBackgroundEvery == 0;
  if (until) views_.clear();
  sched::plan_batch(views_, step_model_, limits, chunk_size_, plan_);
  std::int64_t rows = 0;
  for (const sched::PlanRow& row : plan_.decode) rows += row.tokens_count;
  for (const sched::PlanRow& row : plan_.prefill) rows += row.tokens_count;
  if (!plan_.is_empty() && make_room(rows)) {
    const Turn turn(*this, takes_turn);
    stats_.ticks_total.add();
    if (!plan_.decode.empty()) run_decode();
    if (!plan_.prefill.empty()) run_prefill();
    turn_at_ = clock_.now() + from_ms(prefill_turn_ms());
  }
  if (image != nullptr && image->state == Sequence::State::running) {
    const Turn turn(*this, takes_turn);
    run_image(*image);
  }
  if (std::exchange(has_unsound_, false)) clear_context();
  remove_finished();
  update_gauges();
  return {.did_work = has_loaded || verified_ms > 0 || !plan_.is_empty() || image != nullptr, .wake = next_wake()};
}

// Reasons to leave what could be computed for a little later. Takes out of views_ whose turn it is not.
std::optional<TimePoint> Lane::waits_until(TimePoint now, bool takes_turn) {
  if (should_gather(now)) return gather_.until;
  if (takes_turn && now < turn_at_ && std::ranges::any_of(views_, &sched::SequenceView::decodes)) return turn_at_;
  const TimePoint free_at = TimePoint() + from_ms(bandwidth_.free_at_ms());
  if (now < free_at && !views_.empty()) return free_at;
  const auto wait_ms = turns_.select(views_, to_ms(now.time_since_epoch()));
  return wait_ms ? std::optional(now + from_ms(*wait_ms)) : std::nullopt;
}

// How long the prefill lane may compute until the streams' next tick: what their target leaves, but at least a quarter of a
// tick, and no more than a tick where that is longer than the least target.
double Lane::prefill_turn_ms() const {
  const double tick_ms = step_model_.decode_ms();
  return std::max(tick_ms / 4, std::min(tick_target_ms(), std::max(options_.tick_ms, 1.5 * tick_ms)) - tick_ms - turn_wait_ms_);
}

// --- Commands
// -------------------------------------------------------------------------------------------------------------------

void Lane::take_commands() {
  inbox_->drain(inbox_taken_);
  // Taken out first: none is run again where another one throws.
  for (LaneCommand& command : std::exchange(inbox_taken_, {})) run_noting([&] { run(command); });
  remove_finished();
}

void Lane::run(LaneCommand& command) {
  if (auto* started = std::get_if<StartCommand>(&command)) {
    start(std::move(started->job));
  } else if (const auto* cancelled = std::get_if<CancelCommand>(&command)) {
    contain_in(cancelled->id, [&] { cancel(cancelled->id); });
  } else if (const auto* forgotten = std::get_if<ForgetCommand>(&command)) {
    forget(forgotten->session);
  } else if (auto* saved = std::get_if<SaveCommand>(&command)) {
    run_noting([&] { save(saved->session); });
    run_noting(saved->then);
  } else if (auto* prefilled = std::get_if<PrefillReport>(&command)) {
    const RequestId id = prefilled->id;
    contain_in(id, [&] { take_report(std::move(*prefilled)); });
  } else if (const auto* encoded = std::get_if<EncodedReport>(&command)) {
    take_encoded(*encoded);
  } else {
    auto& fetched = std::get<FetchReport>(command);
    const RequestId id = fetched.id;
    contain_in(id, [&] { take_fetched(std::move(fetched)); });
  }
}

void Lane::start(GenerationJob job) {
  const RequestId id = job.id;
  try {
    add_sequence(std::move(job));
  } catch (...) {
    stats_.queue_depth.add(-1);
    give_failed(id, FailureEvent{thrown_error()});
  }
}

void Lane::add_sequence(GenerationJob job) {
  UMA_CHECK(!job.tokens.empty() && job.tokens_max >= 1);
  UMA_CHECK(shortest_length(job.droppable, size_of(job.tokens)) < shape().sequence_cells_max);
  const std::span<const Token> banned = job.sampling.ignore_eos ? vocab_.end_of_generation() : std::span<const Token>();
  auto sequence = std::make_unique<Sequence>(std::move(job), vocab_, banned);
  sequence->chain.reserve(sequence->chain.size() + static_cast<std::size_t>(sequence->job.tokens_max));
  stats_.requests_total.add();
  sequence->waits_since = clock_.now();
  shares_.enter(sequence->job.flow);
  queue_changed_ = true;
  sequences_.push_back(std::move(sequence));
}

Lane::Sequence* Lane::find(RequestId id) {
  const auto found = std::ranges::find_if(sequences_, [&](const SequencePtr& sequence) { return sequence->job.id == id; });
  return found == sequences_.end() ? nullptr : found->get();
}

void Lane::cancel(RequestId id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->state == Sequence::State::finished) return;
  stats_.requests_cancelled_total.add();
  finish(*sequence, FinishReason::cancelled);
}

void Lane::save(const SessionId& session) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.owner.session == session && !slot.is_running && !slot.tokens.empty()) store_state(i);
  }
}

void Lane::forget(const SessionId& session) {
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->job.session == session && sequence->state != Sequence::State::finished)
      contain_in(*sequence, [&] { finish(*sequence, FinishReason::cancelled); });
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].owner.session == session) clear_slot(i);
  }
}

// Gives up what is being computed of its prompt elsewhere.
void Lane::come_home(Sequence& sequence) {
  prefill_->cancel(sequence.job.id);
  sequence.is_away = false;
}

void Lane::take_report(PrefillReport report) {
  if (report.is_final()) cores_.handover_taken();
  Sequence* found = find(report.id);
  // A report may be of an earlier stay there, of a chain that has grown meanwhile.
  const bool is_stale = found != nullptr && report.image && report.image->tokens != found->chain;
  if (found == nullptr || !found->is_away || is_stale) {
    if (report.image) kv::recycle(std::move(*report.image), pool_);  // cancelled meanwhile
    return;
  }
  Sequence& sequence = *found;
  if (report.began != TimePoint{}) note_in_batch(sequence, report.began);
  if (!report.is_final()) {
    if (sequence.job.wants_progress) report_progress(sequence, report.tokens_done);
    return;
  }
  if (report.image) {
    take_prompt_back(sequence, std::move(report));
  } else {
    sequence.is_away = false;
    log_warning("request {}: its prompt failed in the prefill lane ({}) and is computed in the context itself",
                sequence.job.id.value, report.error->message);
    sequence.stays = true;
  }
}

// --- Chains that are full
// -------------------------------------------------------------------------------------------------------

// What a sequence without a free cell drops: enough for the input and what it may still say, a quarter of the cells at most.
std::optional<TurnDrop> Lane::droppable_turns(const Sequence& sequence) const {
  const std::int32_t cells = shape().sequence_cells_max;
  const std::int32_t room = std::clamp(sequence.job.tokens_max - sequence.generated(), 1, std::max(1, cells / 4));
  return choose_drop(sequence.job.droppable, size_of(sequence.chain), cells - room);
}

void Lane::make_room_in_chains() {
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state == Sequence::State::finished || size_of(sequence->chain) < shape().sequence_cells_max) continue;
    const auto drop = droppable_turns(*sequence);
    UMA_CHECK(drop && !sequence->is_elsewhere());
    drop_turns(*sequence, *drop);
  }
  remove_finished();
}

// Takes the turns out of the chain, and out of the slot that has them, where the context can.
void Lane::drop_turns(Sequence& sequence, const TurnDrop& drop) {
  const auto begin = static_cast<std::size_t>(drop.begin);
  const auto end = static_cast<std::size_t>(drop.end);
  const bool is_running = sequence.state == Sequence::State::running;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const bool is_its = is_running ? sequence.slot == i : slots_[i].owner.session == sequence.job.session;
    if (!is_its) continue;
    const bool is_shifted = kv::common_prefix(slots_[i].tokens, sequence.chain) > end && shift_slot(i, drop);
    if (is_running && !is_shifted) (void)cut_slot(i, std::min(begin, slots_[i].tokens.size()));
  }
  sequence.chain.erase(sequence.chain.begin() + drop.begin, sequence.chain.begin() + drop.end);
  sequence.prompt_tokens -= drop.end - drop.begin;
  note_dropped(sequence.job.droppable, drop);
  drop_runs(sequence.job.images, drop.begin, drop.end);
  sequence.drafter = {};  // what it knows is by position
  sequence.usage.dropped_turns += drop.turns;
  sequence.usage.dropped_tokens += drop.end - drop.begin;
  stats_.context_shifts_total.add();
  log_info("request {} session {}: the context is full, goes on without the {} oldest turns ({} tokens)", sequence.job.id.value,
           sequence.job.session.value, drop.turns, drop.end - drop.begin);
  // Like a token it must not be lost.
  contain_in(sequence, [&] {
    const ContextShiftEvent shift{.dropped_turns = drop.turns, .dropped_tokens = drop.end - drop.begin};
    if (!sequence.job.sink->deliver(shift)) finish(sequence, FinishReason::slow_consumer);
  });
}

// --- Waiting and admission
// ------------------------------------------------------------------------------------------------------

void Lane::expire(TimePoint now) {
  std::size_t position = 0;
  for (const SequencePtr& pointer : sequences_) {
    Sequence& sequence = *pointer;
    if (sequence.state == Sequence::State::finished) continue;
    contain_in(sequence, [&] {
      if (now >= sequence.job.timeout) {
        finish(sequence, FinishReason::timeout);
      } else if (!sequence.in_batch && !sequence.is_verified && now >= sequence.job.deadline) {
        fail_waiting(sequence, position);
      }
    });
    if (sequence.state == Sequence::State::waiting) ++position;
  }
  remove_finished();
}

void Lane::fail_waiting(Sequence& sequence, std::size_t position) {
  const double waited_ms = to_ms(clock_.now() - sequence.job.received);
  const double estimate_ms = service_ms_ * static_cast<double>(position + 1) / static_cast<double>(slots_.size());
  finish(sequence, FinishReason::error,
         Error{ErrorCode::limit_wait,
               std::format(
                   "waited {:.0f} ms, its deadline, at position {} of the queue; about {:.0f} ms more were needed: try again "
                   "later or set a longer deadline_ms",
                   waited_ms, position + 1, estimate_ms)});
}

// What is on disk is read while others go first. The order of admission: what is urgent before what is not; of those, what was
// swapped out before what is new; then the client that has had the least work done. The first that does not fit holds back
// those behind it, so that a large request is not overtaken for ever. For an urgent one a background sequence makes room.
void Lane::admit(TimePoint now) {
  waits_for_room_ = false;
  while (Sequence* next = next_waiting(now)) {
    Admission admission = Admission::ended;
    contain_in(*next, [&] { admission = try_to_admit(*next, now); });
    if (admission == Admission::holds_back) break;
    if (admission == Admission::placed) room_wanted_since_ = kNever;
    if (admission != Admission::no_room) continue;
    if (waits_for_room_ || !is_urgent(*next, now)) break;
    Sequence* victim = choose_less_important(now);
    if (victim == nullptr) break;
    log_info("request {}: makes room for request {}, which is more important", victim->job.id.value, next->job.id.value);
    swap_out(*victim);
  }
  if (!waits_for_room_) room_wanted_since_ = kNever;
  if (std::exchange(queue_changed_, false)) report_positions(now);
}

Lane::Admission Lane::try_to_admit(Sequence& next, TimePoint now) {
  const Source source = choose_source(next);
  if (source.is_on_disk() && !make_slot_ahead(next)) return Admission::holds_back;
  if (begin_fetch(next, source) || begin_to_wait(next, source)) return Admission::waits;
  return place(next, source, now) ? Admission::placed : Admission::no_room;
}

// Interactive, or in the background and waiting for so long that it is its turn.
bool Lane::is_urgent(const Sequence& sequence, TimePoint now) const {
  return !sequence.job.is_background || to_ms(now - sequence.waits_since) >= sched::kBackgroundWaitMaxMs;
}

Lane::Sequence* Lane::next_waiting(TimePoint now) {
  Sequence* first = nullptr;
  AdmissionOrder least;
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::waiting || sequence->is_fetching() || waits_for_another(*sequence)) continue;
    const AdmissionOrder order = admission_order(*sequence, now);
    if (first != nullptr && least <= order) continue;
    first = sequence.get();
    least = order;
  }
  return first;
}

Lane::AdmissionOrder Lane::admission_order(const Sequence& sequence, TimePoint now) const {
  return {!is_urgent(sequence, now), !sequence.was_placed(), shares_.rank(sequence.job.flow)};
}

// The newest background sequence, if one may be sent away; one whose prompt is being computed elsewhere, which then begins
// anew, only where there is no other.
Lane::Sequence* Lane::choose_less_important(TimePoint now) {
  Sequence* away = nullptr;
  for (auto sequence = sequences_.rbegin(); sequence != sequences_.rend(); ++sequence) {
    const bool may_go =
        (*sequence)->state == Sequence::State::running && (*sequence)->job.is_background && now >= (*sequence)->keeps_until;
    if (may_go && !(*sequence)->is_elsewhere()) return sequence->get();
    if (may_go && away == nullptr) away = sequence->get();
  }
  return away;
}

void Lane::report_positions(TimePoint now) {
  const auto is_waiting = [](const SequencePtr& sequence) { return sequence->state == Sequence::State::waiting; };
  const bool is_heard = std::ranges::any_of(
      sequences_, [&](const SequencePtr& sequence) { return is_waiting(sequence) && sequence->job.wants_progress; });
  if (!is_heard) return;
  std::vector<std::pair<AdmissionOrder, Sequence*>> waiting;
  for (const SequencePtr& sequence : sequences_) {
    if (is_waiting(sequence)) waiting.emplace_back(admission_order(*sequence, now), sequence.get());
  }
  std::ranges::stable_sort(waiting, {}, &std::pair<AdmissionOrder, Sequence*>::first);
  for (std::size_t position = 0; position < waiting.size(); ++position) {
    report_queued(*waiting[position].second, static_cast<std::int64_t>(position));
  }
}

void Lane::report_queued(Sequence& sequence, std::int64_t position) {
  if (!sequence.job.wants_progress || sequence.position_reported == position) return;
  sequence.position_reported = position;
  const ProgressEvent progress{.stage = ProgressStage::queued,
                               .position = position,
                               .eta_ms = service_ms_ * static_cast<double>(position + 1) / static_cast<double>(slots_.size())};
  run_noting([&] { (void)sequence.job.sink->deliver(progress); });
}

// Makes sure that the cells of so many rows exist: drops idle sessions' caches, then swaps sequences out, which changes the
// plan and is seen as false: the next step plans anew.
bool Lane::make_room(std::int64_t rows) {
  if (!shape().is_unified) return true;
  while (cells_used() + cells_arriving() + rows > shape().cells) {
    if (free_unused_cells()) continue;
    Sequence* victim = choose_victim();
    if (victim == nullptr) return true;  // alone it fits: its length is bounded by the context's
    swap_out(*victim);
    return false;
  }
  return true;
}

// --- One tick
// -------------------------------------------------------------------------------------------------------------------

void Lane::build_views(TimePoint now) {
  least_work_of_prompts_ = std::numeric_limits<double>::infinity();
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::running || sequence->generated() > 0) continue;
    least_work_of_prompts_ = std::min(least_work_of_prompts_, shares_.rank(sequence->job.flow).tenant_work);
  }
  views_.clear();
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = *sequences_[i];
    if (sequence.state != Sequence::State::running || sequence.is_elsewhere()) continue;
    if (!sequence.job.images.empty()) prepare_images(sequence);
    const std::int32_t cached = size_of(slots_[sequence.slot].tokens);
    const std::int32_t pending = size_of(sequence.chain) - cached;
    UMA_CHECK(pending >= 1);
    views_.push_back({.id = sequence.job.id.value,
                      .index = static_cast<std::int32_t>(i),
                      .slot = static_cast<std::int32_t>(sequence.slot),
                      .pending_tokens = pending,
                      .cached_tokens = cached,
                      .decodes = pending == 1 && sequence.generated() > 0,
                      .is_background = sequence.job.is_background,
                      .waited_ms = to_ms(now - sequence.job.received),
                      .placed_ms = to_ms(now - sequence.placed_at),
                      .due_ms = time_left_ms(sequence, now)});
  }
}

// Long prompts go to the prefill lane: those that would hold up the streams beside them, and, where nobody streams yet, those
// that would hold up whoever comes next; unless their state, which moves there and back, takes as long.
void Lane::send_prompts_away() {
  constexpr double kAloneMs = 1000;
  if (prefill_ == nullptr || options_.policy.policy != sched::Policy::continuous) return;
  const bool someone_decodes = std::ranges::any_of(views_, &sched::SequenceView::decodes);
  const double stay_ms = someone_decodes ? 2 * (tick_target_ms() - step_model_.decode_ms()) : kAloneMs;
  // Out of one context and into the other, at both ends.
  const auto moves_ms = [&](const sched::SequenceView& view) {
    const std::size_t tokens = 2 * static_cast<std::size_t>(view.cached_tokens) + static_cast<std::size_t>(view.pending_tokens);
    return 2 * load_ms(tokens * shape().kv_bytes_per_token);
  };
  std::erase_if(views_, [&](const sched::SequenceView& view) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(view.index)];
    if (view.decodes || view.pending_tokens < sched::kPrefillChunkMin || sequence.stays || !sequence.has_rows) return false;
    const double ms = step_model_.prefill_ms(view.pending_tokens, view.cached_tokens);
    if (ms == 0 ? view.pending_tokens <= sched::kFastChunk : ms <= std::max(stay_ms, 0.0) + moves_ms(view)) return false;
    return send_away(sequence);
  });
}

// Steps back to where a call can begin, and asks for what is missing of the images that are to be computed.
void Lane::prepare_images(Sequence& sequence) {
  const std::int32_t before = size_of(slots_[sequence.slot].tokens);
  const ImageRun* begun = run_at(sequence.job.images, before);
  if (begun != nullptr && begun->encoded) (void)cut_slot(sequence.slot, static_cast<std::size_t>(call_begin(*begun, before)));
  const std::int32_t cached = size_of(slots_[sequence.slot].tokens);
  sequence.has_rows = true;
  for (const ImageRun& run : sequence.job.images) {
    if (run.end() <= cached || run.encoded) continue;
    sequence.has_rows = false;
    if (!encoding_.insert(run.image).second) continue;
    options_.encode({sequence.job.flow.tenant}, run.image, [inbox = inbox_, image = run.image](Expected<EncodedPtr> encoded) {
      inbox->push(EncodedReport{image, std::move(encoded)});
    });
  }
}

void Lane::take_encoded(const EncodedReport& report) {
  encoding_.erase(report.image);
  for (const SequencePtr& sequence : sequences_) {
    contain_in(*sequence, [&] { take_encoded(*sequence, report); });
  }
}

void Lane::take_encoded(Sequence& sequence, const EncodedReport& report) {
  if (sequence.state == Sequence::State::finished) return;
  Expected<Unit> all_fit;
  for (ImageRun& run : sequence.job.images) {
    if (run.image != report.image) continue;
    const auto fits = report.encoded ? check_encoded(run, **report.encoded, shape().image_rows_max)
                                     : Expected<Unit>(std::unexpected(report.encoded.error()));
    if (fits) {
      run.encoded = *report.encoded;
    } else {
      all_fit = fits;
    }
  }
  // Who has no slot yet may need nothing of it, and asks again.
  const bool waits_for_it = sequence.state == Sequence::State::running && !sequence.is_elsewhere() && !sequence.has_rows;
  if (!all_fit && waits_for_it) finish(sequence, FinishReason::error, all_fit.error());
}

// Text and images do not share a call: what is planned ends before the next image. Returns the first sequence that is at one.
Lane::Sequence* Lane::stop_at_images() {
  Sequence* first = nullptr;
  for (sched::SequenceView& view : views_) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(view.index)];
    const std::int32_t end = text_end(sequence.job.images, view.cached_tokens, size_of(sequence.chain));
    view.pending_tokens = end - view.cached_tokens;
    const ImageRun* run = run_at(sequence.job.images, view.cached_tokens);
    if (first == nullptr && run != nullptr && run->encoded) first = &sequence;
  }
  std::erase_if(views_, [](const sched::SequenceView& view) { return view.pending_tokens == 0; });
  return first;
}

// Computes the next rows of an image, in a call of their own.
void Lane::run_image(Sequence& sequence) {
  const auto index = std::ranges::find(sequences_, &sequence, &SequencePtr::get) - sequences_.begin();
  const std::int32_t cached = size_of(slots_[sequence.slot].tokens);
  const ImageRun& run = *run_at(sequence.job.images, cached);
  const std::int32_t end = call_end(run, cached, shape().image_rows_max);
  const std::int32_t rows = end - cached;
  if (!make_room(rows)) return;
  const auto tokens =
      std::span<const Token>(sequence.chain).subspan(static_cast<std::size_t>(cached), static_cast<std::size_t>(rows));
  {
    const MutexLock lock(prefilled_mutex_);
    prefilled_.push_back(sequence.job.id);
  }
  set_threads(cores_.decode_threads());
  const TimePoint began = clock_.now();
  const auto status = context_->decode_image({.tokens = tokens,
                                              .values = rows_of(run, cached, end),
                                              .position = cached,
                                              .sequence = static_cast<std::int32_t>(sequence.slot),
                                              .is_causal = run.encoded->is_causal,
                                              .wants_logits = end == size_of(sequence.chain)},
                                             &interrupt_);
  const TimePoint ended = clock_.now();
  stats_.note_call_ended(ended, false);
  {
    const MutexLock lock(prefilled_mutex_);
    prefilled_.clear();
  }
  stats_.batch_calls_total.add();
  if (!status) {
    clear_slot(sequence.slot);
    return finish(sequence, FinishReason::error, status.error());
  }
  if (*status != llm::DecodeStatus::done) {
    resync_slot(sequence.slot);
    if (*status == llm::DecodeStatus::no_room) find_room(sequence);
    return;
  }
  log_debug("lane {}: {} rows of an image took {:.2f} ms", options_.index, rows, to_ms(ended - began));
  stats_.prefill_call.record_ms(to_ms(ended - began));
  stats_.prompt_tokens_total.add(static_cast<std::uint64_t>(rows));
  const sched::PlanRow row{
      .index = static_cast<std::int32_t>(index), .slot = static_cast<std::int32_t>(sequence.slot), .tokens_count = rows};
  note_bytes_moved(std::span(&row, 1), true, began, ended);
  note_tokens_computed(std::span(&row, 1), began);
  if (sequence.job.wants_progress) report_progress(sequence, end);
  if (end == size_of(sequence.chain)) sample_row(sequence, rows - 1, ended);
}

bool Lane::send_away(Sequence& sequence) {
  const Slot& slot = slots_[sequence.slot];
  if (slot.was_moved()) return false;
  PrefillJob job{.id = sequence.job.id,
                 .tokens = sequence.chain,
                 .images = sequence.job.images,
                 .image = std::nullopt,
                 .is_background = sequence.job.is_background,
                 .received = sequence.job.received,
                 .placed = sequence.placed_at,
                 .due = prompt_due(sequence)};
  // For its beginning, what is put aside of it meanwhile and what comes back, one after another.
  auto room = pool_.reserve(room_of_prompt(prefill_->context().shape(), size_of(sequence.chain)));
  if (!room) {
    log_debug("request {}: memory has no room for the state of its prompt, which is computed in the context itself",
              sequence.job.id.value);
    sequence.stays = true;
    return false;
  }
  if (slot.tokens.empty()) {
    job.room = std::move(*room);
  } else {
    auto image = save_sequence(*context_, static_cast<std::int32_t>(sequence.slot), slot.tokens, pool_, std::move(*room));
    if (!image) {
      sequence.stays = true;
      return false;
    }
    job.image = std::move(*image);
  }
  sequence.is_away = true;
  cores_.prefill_job_sent();
  prefill_->post(std::move(job));
  return true;
}

// Requests that arrive together should be computed together, but they come through the queue one by one: after idleness the
// first tick waits until none has come for a moment, in all at most a twentieth of what the tick will take.
bool Lane::should_gather(TimePoint now) {
  const bool is_fresh = std::ranges::all_of(sequences_, [](const SequencePtr& sequence) { return !sequence->in_batch; });
  if (views_.empty() || !is_fresh) {
    gather_ = {};
    return false;
  }
  if (gather_.sequences != sequences_.size()) {
    std::int32_t pending = 0;
    for (const sched::SequenceView& view : views_) pending += view.pending_tokens;
    if (gather_.sequences == 0) gather_.began = now;
    const TimePoint latest = gather_.began + from_ms(std::min(kGatherMaxMs, step_model_.prefill_ms(pending, 0) / 20));
    gather_.sequences = sequences_.size();
    gather_.until = std::min(now + from_ms(kGatherQuietMs), latest);
  }
  return now < gather_.until;
}

void Lane::append_rows(const sched::PlanRow& row) {
  const Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
  const std::int32_t cached = size_of(slots_[sequence.slot].tokens);
  for (std::int32_t i = 0; i < row.tokens_count; ++i) {
    const std::int32_t position = cached + i;
    call_rows_.push_back({.token = sequence.token_at(position),
                          .position = position,
                          .sequence = static_cast<std::int32_t>(sequence.slot),
                          .wants_logits = position + 1 >= size_of(sequence.chain)});
  }
}

// Before the slots have the new tokens.
void Lane::note_bytes_moved(std::span<const sched::PlanRow> plan, bool is_prefill, TimePoint began, TimePoint ended) {
  std::int32_t rows = 0;
  double kv_tokens = 0;
  for (const sched::PlanRow& row : plan) {
    rows += row.tokens_count;
    const Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    const double cached = static_cast<double>(slots_[sequence.slot].tokens.size()) + row.tokens_count;
    kv_tokens += cached * sched::attention_tiles(row.tokens_count);
  }
  const double bytes = sched::bytes_of_call(options_.weights, rows, kv_tokens, shape().kv_bytes_per_token);
  stats_.note_bytes_moved(bytes, to_ms(ended - began));
  if (!is_prefill) {
    stats_.bytes_moved_per_token.store(bytes / static_cast<double>(plan.size()), std::memory_order_relaxed);
  }
  bandwidth_.charge(bytes, to_ms(began.time_since_epoch()));
}

void Lane::note_tokens_computed(std::span<const sched::PlanRow> plan, TimePoint now) {
  for (const sched::PlanRow& row : plan) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    for (std::int32_t i = 0; i < row.tokens_count; ++i) {
      const Token token = sequence.token_at(size_of(slots_[sequence.slot].tokens));
      add_cached(sequence.slot, std::span(&token, 1));
    }
    note_in_batch(sequence, now);
  }
}

void Lane::note_in_batch(Sequence& sequence, TimePoint now) {
  if (std::exchange(sequence.in_batch, true)) return;
  sequence.usage.queue_ms = to_ms(now - sequence.job.received);
  stats_.queue_wait.record_ms(sequence.usage.queue_ms);
}

// After a call that did not end well the context says what it kept.
void Lane::resync_slot(std::size_t index) {
  const auto owner = std::ranges::find_if(sequences_, [&](const SequencePtr& sequence) {
    return sequence->state == Sequence::State::running && sequence->slot == index;
  });
  UMA_CHECK(owner != sequences_.end());
  const std::vector<Token>& chain = (*owner)->chain;
  const auto length = static_cast<std::size_t>(context_->sequence_length(static_cast<std::int32_t>(index)));
  const std::size_t known = slots_[index].tokens.size();
  if (length < known) {
    keep_cached(index, length);
  } else {
    const std::size_t end = std::min(length, chain.size());
    if (known < end) add_cached(index, std::span(chain).subspan(known, end - known));
  }
  // What lies beyond the chain are guesses; and its last token must stay pending, or its logits would be lost with the call.
  const std::size_t kept = std::min(length, chain.size() - 1);
  if (kept == length) return;
  if (context_->truncate(static_cast<std::int32_t>(index), static_cast<std::int32_t>(kept))) {
    keep_cached(index, kept);
  } else {
    drop_tokens(index);
  }
}

bool Lane::run_call(std::span<const sched::PlanRow> plan, bool is_prefill) {
  call_rows_.clear();
  sched::StepShape call;
  for (const sched::PlanRow& row : plan) {
    append_rows(row);
    const std::int32_t cached = call_rows_.back().position + 1 - row.tokens_count;
    if (is_prefill) {
      call.add_chunk(row.tokens_count, cached);
    } else {
      call.add_decode(cached, row.tokens_count - 1);
    }
  }
  if (is_prefill) {
    const MutexLock lock(prefilled_mutex_);
    for (const sched::PlanRow& row : plan) prefilled_.push_back(sequences_[static_cast<std::size_t>(row.index)]->job.id);
  }
  set_threads(needs_one_thread(plan) ? 1 : cores_.decode_threads());
  const TimePoint began = clock_.now();
  const auto status = context_->decode(call_rows_, is_prefill ? &interrupt_ : nullptr);
  const TimePoint ended = clock_.now();
  stats_.note_call_ended(ended, !is_prefill);
  if (is_prefill) {
    const MutexLock lock(prefilled_mutex_);
    prefilled_.clear();
  }
  stats_.batch_calls_total.add();

  if (!status) {
    run_one_by_one(plan, status.error());
    return false;
  }
  const double ms = to_ms(ended - began);
  log_debug("lane {}: {} call of {} rows for {} sequences took {:.2f} ms, {:.2f} were predicted", options_.index,
            is_prefill ? "prefill" : "decode", call_rows_.size(), plan.size(), ms, step_model_.predict_ms(call));
  if (*status == llm::DecodeStatus::done) {
    step_model_.observe(call, ms);
    if (is_prefill) {
      stats_.prefill_call.record_ms(ms);
      stats_.prompt_tokens_total.add(call_rows_.size());
    } else {
      stats_.decode_call.record_ms(ms);
    }
    note_bytes_moved(plan, is_prefill, began, ended);
    note_tokens_computed(plan, began);
    return true;
  }
  for (const sched::PlanRow& row : plan) resync_slot(sequences_[static_cast<std::size_t>(row.index)]->slot);
  if (*status == llm::DecodeStatus::no_room) find_room(*sequences_[static_cast<std::size_t>(plan.front().index)]);
  return false;
}

// After a call for the sequence, and others, that had none.
void Lane::find_room(Sequence& sequence) {
  if (free_unused_cells()) return;
  if (Sequence* victim = choose_victim()) {
    swap_out(*victim);
  } else {
    finish(sequence, FinishReason::error,
           Error{ErrorCode::runtime_decode, "the context has no room for this request, though nothing else is in it"});
  }
}

// A failed call says nothing about who is to blame: each sequence is tried alone, and only those that fail again end.
void Lane::run_one_by_one(std::span<const sched::PlanRow> plan, const Error& first_error) {
  log_warning("a decode of {} sequences failed ({}), trying each alone", plan.size(), first_error.message);
  for (const sched::PlanRow& row : plan) resync_slot(sequences_[static_cast<std::size_t>(row.index)]->slot);
  for (const sched::PlanRow& row : plan) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    sched::PlanRow alone = row;
    alone.tokens_count = std::min(row.tokens_count, size_of(sequence.chain) - size_of(slots_[sequence.slot].tokens));
    call_rows_.clear();
    append_rows(alone);
    const TimePoint began = clock_.now();
    const auto status = context_->decode(call_rows_, nullptr);
    stats_.batch_calls_total.add();
    if (status && *status == llm::DecodeStatus::done) {
      note_tokens_computed(std::span(&alone, 1), began);
      if (call_rows_.back().wants_logits) sample_row(sequence, static_cast<std::int32_t>(call_rows_.size()) - 1, clock_.now());
      continue;
    }
    const Error error = status ? Error{ErrorCode::runtime_decode, "the context has no room for this request"} : status.error();
    clear_slot(sequence.slot);
    finish(sequence, FinishReason::error, error);
  }
}

// Adds to the planned decode rows guesses of what comes after them, where that is likely to pay.
void Lane::add_drafts() {
  constexpr std::uint32_t kPlainEvery = 32;  // calls: one without guesses shows what they cost
  // Guesses beside several sequences would leave rows alone.
  if (options_.is_reproducible && plan_.decode.size() > 1) return;
  if (!options_.speculates || !can_take_back_ || ++decode_calls_ % kPlainEvery == 0) return;
  const auto sequences = static_cast<std::int32_t>(plan_.decode.size());
  const double token_ms = step_model_.decode_ms() / sequences;
  std::int32_t rows_left = std::min(shape().batch_rows_max, shape().logits_rows_max) - sequences;
  if (shape().is_unified)
    rows_left = static_cast<std::int32_t>(std::min<std::int64_t>(rows_left, shape().cells - cells_promised() - sequences));
  for (sched::PlanRow& row : plan_.decode) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    // The call itself brings one token more than the guesses that are right.
    const std::int32_t room = std::min({sequence.job.tokens_max - sequence.generated() - 1,
                                        shape().sequence_cells_max - size_of(sequence.chain) - 1, rows_left});
    sequence.draft.clear();
    sequence.draft_chances.clear();
    sequence.is_models_draft = false;
    if (room <= 0) continue;
    const std::int32_t wanted = sequence.draft_control.tokens_worthwhile(token_ms, step_model_.draft_row_ms());
    if (options_.guess) {
      options_.guess(sequence.chain, std::min(room, std::max(wanted, 1)), sequence.draft);
    } else {
      sequence.drafter.draft(sequence.chain, std::min(room, std::max(wanted, 1)), sequence.draft);
    }
    const auto image = std::ranges::find_if(sequence.draft, llm::is_image_token);
    sequence.draft.erase(image, sequence.draft.end());
    if (wanted == 0 && !sequence.draft.empty()) {
      sequence.draft.clear();
      sequence.draft_control.observe_untried();
    }
    row.tokens_count += size_of(sequence.draft);
    rows_left -= size_of(sequence.draft);
  }
  if (model_drafter_) add_model_drafts(token_ms, rows_left);
}

// The draft model's guesses, for the sequences that have none.
void Lane::add_model_drafts(double token_ms, std::int32_t rows_left) {
  candidates_.clear();
  for (const sched::PlanRow& row : plan_.decode) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    const std::int32_t room = std::min({sequence.job.tokens_max - sequence.generated() - 1,
                                        shape().sequence_cells_max - size_of(sequence.chain) - 1, rows_left});
    // The draft model sees no images.
    if (!sequence.draft.empty() || room <= 0 || !sequence.job.images.empty()) continue;
    sequence.is_models_draft = true;
    candidates_.push_back({.slot = sequence.slot,
                           .chain = sequence.chain,
                           .room = room,
                           .sampler = &sequence.sampler,
                           .seed = sequence.job.seed,
                           .control = &sequence.model_control,
                           .draft = &sequence.draft,
                           .chances = &sequence.draft_chances});
  }
  const ModelDrafter::Prices prices{
      .call_ms = step_model_.decode_ms(), .token_ms = token_ms, .row_ms = step_model_.draft_row_ms()};
  set_threads(cores_.decode_threads());
  model_drafter_->draft(candidates_, prices, rows_left, threads_);
  for (sched::PlanRow& row : plan_.decode) {
    row.tokens_count = 1 + size_of(sequences_[static_cast<std::size_t>(row.index)]->draft);
  }
}

// Samples from the rows of a sequence one after the other, for as long as the guess after a row is what was sampled: the tokens
// are those that would have come without guesses, drawn with the same random numbers. Guesses that a draft model has drawn by
// chance are accepted by chance: the tokens are other ones, equally likely. Then drops the guesses that were wrong.
void Lane::verify(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now) {
  const std::size_t index = sequence.slot;
  const std::int32_t known = size_of(slots_[index].tokens) - rows + 1;  // cached tokens that are no guesses
  const std::int32_t drafted = rows - 1;
  std::int32_t right = 0;
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t length = size_of(sequence.chain);
    sample_row(sequence, row + i, now, i < drafted && !sequence.draft_chances.empty() ? i : -1);
    if (sequence.state == Sequence::State::finished || sequence.is_unsound || i == drafted) break;
    UMA_CHECK(size_of(sequence.chain) == length + 1);
    if (sequence.chain.back() != sequence.draft[static_cast<std::size_t>(i)]) break;
    ++right;
  }
  if (drafted == 0) return;
  (sequence.is_models_draft ? sequence.model_control : sequence.draft_control).observe(drafted, right);
  stats_.drafted_tokens_total.add(static_cast<std::uint64_t>(drafted));
  stats_.drafted_accepted_total.add(static_cast<std::uint64_t>(right));
  const std::int32_t kept = known + right;
  if (size_of(slots_[index].tokens) <= kept) return;  // all were right, or the end of the sequence has cleared its slot
  if (context_->truncate(static_cast<std::int32_t>(index), kept)) {
    keep_cached(index, static_cast<std::size_t>(kept));
  } else {
    can_take_back_ = false;
    drop_tokens(index);
  }
}

void Lane::run_decode() {
  add_drafts();
  stats_.decode_ticks_total.add();
  stats_.decode_rows_total.add(plan_.decode.size());
  const std::span<const sched::PlanRow> rows(plan_.decode);
  const std::size_t together = put_lone_rows_last();
  bool did_all = together == 0 || run_decode_call(rows.first(together));
  for (std::size_t i = together; did_all && i < rows.size(); ++i) did_all = run_decode_call(rows.subspan(i, 1));
  if (!did_all) plan_.prefill.clear();  // what else was planned may not exist any more
}

bool Lane::run_decode_call(std::span<const sched::PlanRow> plan) {
  if (!run_call(plan, false)) return false;
  const TimePoint began = clock_.now();
  std::int32_t row = 0;
  for (const sched::PlanRow& planned : plan) {
    verify(*sequences_[static_cast<std::size_t>(planned.index)], row, planned.tokens_count, began);
    row += planned.tokens_count;
  }
  stats_.sampling.record_ms(to_ms(clock_.now() - began));
  return true;
}

// Where bits count, rows that the library would compute alone, because no neighbouring slot has one, get calls of their own.
// Returns how many come before them.
std::size_t Lane::put_lone_rows_last() {
  std::vector<sched::PlanRow>& rows = plan_.decode;
  if (!options_.is_reproducible) return rows.size();
  const auto is_lone = [&, slots = occupied_slots(rows)](const sched::PlanRow& row) {
    return !slots.contains(row.slot - 1) && !slots.contains(row.slot + 1);
  };
  return static_cast<std::size_t>(std::ranges::stable_partition(rows, std::not_fn(is_lone)).begin() - rows.begin());
}

// A single row over many cells is divided among the threads by cells, which sums in another order than one thread does.
bool Lane::needs_one_thread(std::span<const sched::PlanRow> plan) const {
  if (!options_.is_reproducible || plan.size() != 1 || plan.front().tokens_count != 1) return false;
  const Sequence& sequence = *sequences_[static_cast<std::size_t>(plan.front().index)];
  return size_of(slots_[sequence.slot].tokens) >= sched::kDividedCells;
}

void Lane::run_prefill() {
  if (!run_call(plan_.prefill, true)) return;
  const TimePoint now = clock_.now();
  std::int32_t row_end = 0;
  for (const sched::PlanRow& row : plan_.prefill) {
    row_end += row.tokens_count;
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.index)];
    if (sequence.job.wants_progress) report_progress(sequence, size_of(slots_[sequence.slot].tokens));
    if (size_of(slots_[sequence.slot].tokens) == size_of(sequence.chain)) sample_row(sequence, row_end - 1, now);
  }
}

// Follows what other processes take of the cores.
void Lane::watch_load(TimePoint now) {
  if (!options_.others_busy || now < load_asked_ + from_ms(sched::ThreadControl::kSampleMs)) return;
  // After a pause the time since the last question says nothing about now.
  const bool was_paused = now > load_asked_ + from_ms(3 * sched::ThreadControl::kSampleMs);
  load_asked_ = now;
  const auto busy = options_.others_busy();
  if (!busy || was_paused) return;
  const std::int32_t before = thread_control_.threads();
  thread_control_.observe(*busy);
  if (thread_control_.threads() == before) return;
  cores_.set_threads(thread_control_.threads());
  stats_.threads.set(thread_control_.threads());
  log_info("lane {}: computes with {} of {} threads, other processes keep {:.1f} cores busy", options_.index,
           thread_control_.threads(), options_.threads, *busy);
}

void Lane::set_threads(std::int32_t threads) {
  if (threads == threads_) return;
  threads_ = threads;
  context_->set_threads(threads);
  step_model_.set_threads(threads);
}

void Lane::report_progress(Sequence& sequence, std::int32_t done) {
  const double rate = step_model_.prefill_tokens_per_ms();
  ProgressEvent progress{.stage = ProgressStage::prefill, .done = done, .total = size_of(sequence.chain)};
  if (rate > 0) progress.eta_ms = static_cast<double>(progress.total - done) / rate;
  // A lost progress report is no reason to end a stream.
  run_noting([&] { (void)sequence.job.sink->deliver(progress); });
}

// `drawn_guess`: which guess of the sequence a draft model has drawn for this row; negative: none.
void Lane::sample_row(Sequence& sequence, std::int32_t row, TimePoint now, std::int32_t drawn_guess) {
  const std::span<float> logits = context_->logits(row);
  if (logits.empty()) {
    finish(sequence, FinishReason::error, Error{ErrorCode::runtime_decode, "the engine gave no logits for a token"});
    return;
  }
  if (!llm::are_sound(logits)) {
    sequence.is_unsound = has_unsound_ = true;
    return;
  }
  sequence.is_anew = false;
  stats_.logits_rows_total.add();
  if (options_.on_logits) options_.on_logits(sequence.job.id, logits);
  contain_in(sequence, [&] { push_token(sequence, choose_token(sequence, logits, drawn_guess), now); });
}

Token Lane::choose_token(Sequence& sequence, std::span<float> logits, std::int32_t drawn_guess) {
  // The sampler writes into them.
  if (sequence.reply.wants_logprobs()) raw_logits_.assign(logits.begin(), logits.end());
  if (drawn_guess < 0) return sequence.sampler.sample(logits);
  const auto guess = static_cast<std::size_t>(drawn_guess);
  return sequence.sampler.verify(logits, sequence.draft[guess], sequence.draft_chances[guess]);
}

// From the logits that came with a prompt.
void Lane::choose_first_token(Sequence& sequence, std::span<float> logits) {
  stats_.logits_rows_total.add();
  stats_.logits_copied_total.add();
  if (options_.on_logits) options_.on_logits(sequence.job.id, logits);
  contain_in(sequence, [&] { push_token(sequence, choose_token(sequence, logits, -1), clock_.now()); });
}

double Lane::default_tbt_ms() const {
  return options_.target_tbt_ms > 0 ? options_.target_tbt_ms : std::max(options_.tick_ms, 3 * step_model_.decode_ms());
}

double Lane::target_tbt_ms(const Sequence& sequence) const {
  // Half of what others have: in shorter ticks too little would be left for everybody's prompts.
  const double wanted_ms = sequence.job.target_tbt_ms;
  return wanted_ms > 0 ? std::max(wanted_ms, default_tbt_ms() / 2) : default_tbt_ms();
}

// What a tick may take: the shortest time between tokens that an interactive stream wants, less what it is behind.
double Lane::tick_target_ms() const {
  double target_ms = std::numeric_limits<double>::infinity();
  for (const sched::SequenceView& view : views_) {
    const Sequence& sequence = *sequences_[static_cast<std::size_t>(view.index)];
    if (!view.decodes || sequence.job.is_background) continue;
    const double wanted_ms = target_tbt_ms(sequence);
    target_ms = std::min(target_ms, wanted_ms - std::clamp(sequence.gap_ms - wanted_ms, 0.0, wanted_ms / 2));
  }
  return target_ms != std::numeric_limits<double>::infinity() ? target_ms : default_tbt_ms();
}

double Lane::time_left_ms(const Sequence& sequence, TimePoint now) const {
  const TimePoint due = prompt_due(sequence);
  return due == kNever || sequence.generated() > 0 ? sched::kNotDue : to_ms(due - now);
}

// When its prompt is to be computed, before those without a time. What a client wants puts its tenant's prompts in order, and
// before those of tenants for whom as much was done; it takes nothing from one for whom less was.
TimePoint Lane::prompt_due(const Sequence& sequence) const {
  const bool has_turn = shares_.rank(sequence.job.flow).tenant_work <= least_work_of_prompts_;
  return has_turn ? first_token_due(sequence) : kNever;
}

TimePoint Lane::first_token_due(const Sequence& sequence) const {
  const double wanted_ms = sequence.job.target_ttft_ms > 0 ? sequence.job.target_ttft_ms : options_.target_ttft_ms;
  return wanted_ms > 0 ? sequence.job.received + from_ms(wanted_ms) : kNever;
}

void Lane::note_promise(bool is_kept) {
  (is_kept ? stats_.promises_kept_total : stats_.promises_broken_total).add();
}

void Lane::push_token(Sequence& sequence, Token token, TimePoint now) {
  if (token == kNoToken) {
    if (sequence.sampler.constraint()->can_end()) return finish(sequence, FinishReason::stop);
    return finish(sequence, FinishReason::error,
                  Error{ErrorCode::runtime_decode, "no token of this model continues the text as its grammar demands"});
  }
  if (vocab_.is_end_of_generation(token)) {
    finish(sequence, FinishReason::stop);
    return;
  }
  sequence.chain.push_back(token);
  sequence.sampler.accept(token);
  stats_.tokens_total.add();
  shares_.charge(sequence.job.flow, 1);
  if (sequence.generated() == 1) {
    sequence.first_token_at = now;
    sequence.usage.ttft_ms = to_ms(now - sequence.job.received);
    stats_.ttft.record_ms(sequence.usage.ttft_ms);
    if (const TimePoint due = first_token_due(sequence); due != kNever) note_promise(now <= due);
  } else {
    const double gap_ms = to_ms(now - sequence.last_token_at);
    stats_.inter_token.record_ms(gap_ms);
    sequence.gap_ms = sequence.gap_ms == 0 ? gap_ms : sequence.gap_ms + (gap_ms - sequence.gap_ms) / 8;
    note_promise(gap_ms <= target_tbt_ms(sequence));
  }
  sequence.last_token_at = now;

  using Next = capability::ReplyStream::Next;
  const Next next = sequence.reply.push(token, raw_logits_, sequence.sampler, *sequence.job.sink);
  if (next == Next::slow_client) {
    finish(sequence, FinishReason::slow_consumer);
  } else if (next == Next::stop || sequence.sampler.is_complete()) {
    finish(sequence, FinishReason::stop);
  } else if (sequence.generated() >= sequence.job.tokens_max ||
             (size_of(sequence.chain) >= shape().sequence_cells_max && !droppable_turns(sequence))) {
    finish(sequence, FinishReason::length);
  }
}

// --- The end of a sequence
// ------------------------------------------------------------------------------------------------------

void Lane::finish(Sequence& sequence, FinishReason reason, std::optional<Error> error) {
  UMA_CHECK(sequence.state != Sequence::State::finished);
  if (sequence.is_away) come_home(sequence);
  sequence.arriving.reset();
  end_verification(sequence);
  if (sequence.state == Sequence::State::running) {
    leave_slot(sequence);
    const double service_ms = to_ms(clock_.now() - sequence.placed_at);
    service_ms_ = service_ms_ == 0 ? service_ms : service_ms_ + (service_ms - service_ms_) / 8;
  } else {
    stats_.queue_depth.add(-1);
    if (sequence.is_swapped_out()) {
      stats_.swapped_sequences.add(-1);
      stats_.swapped_bytes.add(-static_cast<std::int64_t>(sequence.image->bytes()));
    }
  }
  sequence.state = Sequence::State::finished;
  shares_.leave(sequence.job.flow);
  queue_changed_ = true;
  if (error) stats_.requests_failed_total.add();

  capability::ReplyStream::End reply = sequence.reply.finish();
  if (reason == FinishReason::stop && reply.has_tool_calls) reason = FinishReason::tool_calls;
  const std::int32_t generated = sequence.generated();
  sequence.usage.completion_tokens = generated;
  sequence.usage.reasoning_tokens = sequence.reply.reasoning_tokens();
  if (generated > 1) {
    const double ms = to_ms(sequence.last_token_at - sequence.first_token_at);
    if (ms > 0) sequence.usage.tokens_per_s = (generated - 1) * 1000.0 / ms;
  }
  // Before the result: the session's next request looks for the lane that holds it.
  if (std::exchange(residents_changed_, false)) publish_residents();
  GenerationResult result{
      .id = sequence.job.id,
      .generated = std::vector<Token>(sequence.chain.begin() + sequence.prompt_tokens, sequence.chain.end()),
      .dropped_turns = sequence.usage.dropped_turns,
      .reply = std::move(reply.content),
      .reply_extra = std::move(reply.message_extra),
      .terminal = {}};
  if (error && generated == 0) {
    result.terminal = FailureEvent{std::move(*error)};
  } else {
    result.terminal = EosEvent{.reason = reason,
                               .usage = sequence.usage,
                               .text = std::move(reply.text),
                               .error = std::move(error),
                               .parts = std::move(reply.parts),
                               .logprobs = std::move(reply.logprobs)};
  }
  sequence.has_result = true;
  on_result_(std::move(result));
}

// Its work has thrown: it ends, however far it was, and nothing of it is kept here.
void Lane::fail_thrown(Sequence& sequence, const Error& error) {
  run_noting([&] {
    if (sequence.state == Sequence::State::running) clear_slot(sequence.slot);
    if (sequence.state != Sequence::State::finished) finish(sequence, FinishReason::error, error);
  });
  if (std::exchange(sequence.has_result, true)) return;
  sequence.state = Sequence::State::finished;
  give_failed(sequence.job.id, EosEvent{.reason = FinishReason::error, .usage = {}, .text = {}, .error = error});
}

void Lane::fail_thrown(RequestId id, const Error& error) {
  if (Sequence* sequence = find(id); sequence != nullptr) fail_thrown(*sequence, error);
}

// A result of which nothing is but its end.
void Lane::give_failed(RequestId id, Event terminal) {
  on_result_({.id = id, .generated = {}, .reply = {}, .reply_extra = {}, .terminal = std::move(terminal)});
}

void Lane::remove_finished() {
  std::erase_if(sequences_, [](const SequencePtr& sequence) { return sequence->state == Sequence::State::finished; });
}

void Lane::update_gauges() {
  std::int64_t active = 0;
  std::int64_t hot = 0;
  for (const Slot& slot : slots_) {
    active += slot.is_running ? 1 : 0;
    hot += !slot.owner.session.empty() && !slot.tokens.empty() ? 1 : 0;
  }
  stats_.sequences_active.set(active);
  stats_.hot_sessions.set(hot);
  stats_.cells_used.set(cells_used());
  const auto first_in_line = std::ranges::find_if(sequences_, [](const SequencePtr& sequence) { return !sequence->in_batch; });
  stats_.waiting_since_us.set(first_in_line == sequences_.end() ? 0 : to_us((*first_in_line)->job.received));
  if (std::exchange(residents_changed_, false)) publish_residents();
}

void Lane::publish_residents() {
  const MutexLock lock(residents_mutex_);
  residents_.clear();
  for (const Slot& slot : slots_) {
    if (!slot.owner.session.empty() && (slot.is_running || !slot.tokens.empty()))
      residents_[slot.owner.session] = slot.tokens.size();
  }
}

bool Lane::holds(const SessionId& session) const {
  const MutexLock lock(residents_mutex_);
  return residents_.contains(session);
}

std::uint64_t Lane::bytes_of(const SessionId& session) const {
  const MutexLock lock(residents_mutex_);
  const auto found = residents_.find(session);
  return found == residents_.end() ? 0 : found->second * shape().kv_bytes_per_token;
}

TimePoint Lane::next_wake() const {
  constexpr double kLookAgainMs = 10;
  TimePoint wake = waits_for_room_ ? clock_.now() + from_ms(kLookAgainMs) : kNever;
  for (const SequencePtr& sequence : sequences_) {
    wake = std::min(wake, sequence->job.timeout);
    if (!sequence->in_batch) wake = std::min(wake, sequence->job.deadline);
  }
  return wake;
}

void Lane::check_invariants() {
  if (model_drafter_) model_drafter_->check_invariants();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    UMA_CHECK(size_of(slot.tokens) == context_->sequence_length(static_cast<std::int32_t>(i)));
    UMA_CHECK(cells_.held(i) == slot.tokens.size());
    UMA_CHECK(!slot.was_moved() || !slot.owner.session.empty());
    UMA_CHECK(!slot.was_moved() || !shape().is_unified || !cells_.is_shared(i, slot.moved_from));
    const auto owners = std::ranges::count_if(sequences_, [&](const SequencePtr& sequence) {
      return sequence->state == Sequence::State::running && sequence->slot == i;
    });
    UMA_CHECK(owners == (slot.is_running ? 1 : 0));
  }
  UMA_CHECK(cells_used() <= shape().cells);
  UMA_CHECK(!verifier_.current() || context_->sequence_length(shape().spare) == verifier_.rows_done());
  UMA_CHECK(std::ranges::count_if(sequences_, [](const SequencePtr& sequence) { return sequence->is_verified; }) ==
            (verifier_.current() ? 1 : 0));
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::running || sequence->arriving) continue;
    const std::vector<Token>& cached = slots_[sequence->slot].tokens;
    UMA_CHECK(cached.size() < sequence->chain.size());
    UMA_CHECK(std::ranges::equal(cached, std::span<const Token>(sequence->chain).first(cached.size())));
  }
}

}  // namespace uma::engine
