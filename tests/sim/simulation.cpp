#include "simulation.h"

#include <algorithm>
#include <array>
#include <format>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "grammar/grammar.h"
#include "llm/adapters.h"
#include "llm/sampling/token_constraint.h"

namespace uma::sim {
namespace {

const TenantId kTenants[] = {{"one"}, {"another"}};

std::string text_of(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) {
    if (token < 256) text += static_cast<char>(token);
  }
  return text;
}

// A context in `list` as long as it lives.
class ListedContext final : public testing::FakeContext {
 public:
  ListedContext(std::vector<testing::FakeContext*>& list, const testing::FakeOptions& options)
      : FakeContext(options), list_(list) {
    list_.push_back(this);
  }
  ~ListedContext() override { std::erase(list_, this); }

 private:
  std::vector<testing::FakeContext*>& list_;
};

}  // namespace

// --- The catalog

void SlowCatalog::commit(kv::RecordPtr record, kv::RecordPtr before, Done done) {
  if (throws()) throw std::bad_alloc();
  SessionId id = record->id;
  calls_.push_back({std::move(record), std::move(before), std::move(id), std::move(done)});
}

void SlowCatalog::remove(const SessionId& id, Done done) {
  if (throws()) throw std::bad_alloc();
  calls_.push_back({nullptr, nullptr, id, std::move(done)});
}

void SlowCatalog::read(const SessionId& id, OnRead on_read) {
  if (throws()) throw std::bad_alloc();
  calls_.push_back({nullptr, nullptr, id, nullptr, std::move(on_read)});
}

void SlowCatalog::crash(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    calls_[i].done = [](const Expected<Unit>&) {};
    if (calls_[i].on_read) calls_[i].on_read = [](const Expected<kv::RecordPtr>&) {};
  }
  calls_.resize(count);
  while (answer_one(false)) {
  }
}

bool SlowCatalog::answer_one(bool with_failure) {
  if (calls_.empty()) return false;
  Call call = std::move(calls_.front());
  calls_.erase(calls_.begin());
  if (call.on_read && with_failure) {
    call.on_read(fail(ErrorCode::io_failed, "the simulated disk cannot be read"));
  } else if (call.on_read) {
    ++readings_count_;
    kept_.read(call.id, std::move(call.on_read));
  } else if (with_failure) {
    call.done(fail(ErrorCode::io_failed, "the simulated disk is full"));
  } else if (call.record != nullptr) {
    kept_.commit(std::move(call.record), std::move(call.before), std::move(call.done));
  } else {
    kept_.remove(call.id, std::move(call.done));
  }
  return true;
}

// --- A client's stream

// Checks a stream from the client's view: one terminal event, nothing after it, and the tokens that the model generates after
// the chain.
class Simulation::Sink final : public EventSink {
 public:
  Sink(Simulation& simulation, std::string session, std::string prompt, std::string_view gbnf, int patience)
      : simulation_(simulation), session_(std::move(session)), prompt_(std::move(prompt)), patience_(patience) {
    if (!gbnf.empty()) grammar_ = *grammar::Grammar::parse(gbnf);
  }

  bool deliver(const Event& event) override {
    UMA_CHECK(!ended);
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (patience_ == 0) return false;
      --patience_;
      look_at_start();
      tokens_.push_back(token->token);
      note_logprobs(token->logprobs);
    } else if (const auto* shift = std::get_if<ContextShiftEvent>(&event)) {
      if (patience_ == 0) return false;
      look_at_start();
      shifts_.push_back({tokens_.size(), *shift});
    } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
      ended = true;
      check_end(*eos);
    } else if (std::holds_alternative<FailureEvent>(event)) {
      ended = true;
      UMA_CHECK(tokens_.empty());
      ++simulation_.outcome_.failures;
    }
    return true;
  }

  RequestId id;
  bool ended = false;
  bool wants_logprobs = false;
  llm::AdapterSet adapters{};

 private:
  void note_logprobs(std::span<const TokenLogprobs> logprobs) {
    for (const TokenLogprobs& place : logprobs) likely_.push_back(place.chosen.token);
  }

  void check_end(const EosEvent& eos) {
    note_logprobs(eos.logprobs);
    // Every token has a part of the text, so at the end all log probabilities were reported.
    if (eos.reason != FinishReason::slow_consumer) UMA_CHECK(likely_ == (wants_logprobs ? tokens_ : std::vector<Token>()));
    UMA_CHECK(eos.usage.prompt_tokens == eos.usage.reused_tokens + eos.usage.recomputed_tokens);
    simulation_.outcome_.shared += eos.usage.reuse_reason == "prefix" ? 1 : 0;
    simulation_.outcome_.reused_tokens += static_cast<std::uint64_t>(eos.usage.reused_tokens);
    if (eos.reason == FinishReason::cancelled) ++simulation_.outcome_.cancelled;
    check_grammar(eos.reason);
    if (session_.empty()) {
      UMA_CHECK(shifts_.empty());
      std::vector<Token> chain{testing::kFakeBos};
      for (const char c : prompt_) chain.push_back(static_cast<unsigned char>(c));
      (void)check_tokens(std::move(chain));
      return;
    }
    const kv::RecordPtr record = simulation_.catalog_.kept().find(SessionId{session_});
    const bool is_turn = !tokens_.empty() || eos.reason == FinishReason::stop;
    if (record == nullptr || !is_turn || eos.error || eos.reason == FinishReason::slow_consumer) return;
    if (!simulation_.known_.contains(session_)) return;  // The session ended during the generation, so nothing is guaranteed.
    // Commit before claim: the chain in the catalog ends with the tokens that the client just received.
    UMA_CHECK(record->chain.size() >= tokens_.size());
    const std::span<const Token> chain(record->chain);
    UMA_CHECK(std::ranges::equal(chain.last(tokens_.size()), tokens_));
    UMA_CHECK(record->pending.empty());
    if (tokens_.empty()) look_at_start_of(*record, chain.size());
    check_shifts(*record, eos.usage);
    // The stored chain is the chain before, without dropped turns, plus the reply.
    UMA_CHECK(check_tokens(start_) == record->chain);
    ++simulation_.outcome_.finished_turns;
  }

  // The text follows the grammar, and stops only where the grammar allows the end.
  void check_grammar(FinishReason reason) {
    if (grammar_ == nullptr) return;
    llm::TokenConstraint constraint(grammar_, vocab_);
    for (const Token token : tokens_) {
      UMA_CHECK(constraint.allows(token));
      constraint.accept(token);
    }
    UMA_CHECK(constraint.can_end() || reason != FinishReason::stop);
    ++simulation_.outcome_.constrained;
  }

  // Records the session at its first token or shift. Nothing else can change it until the end.
  void look_at_start() {
    if (session_.empty() || !start_.empty()) return;
    const kv::RecordPtr record = simulation_.catalog_.kept().find(SessionId{session_});
    if (record == nullptr) return;
    start_ = record->chain;
    start_.insert(start_.end(), record->pending.begin(), record->pending.end());
    before_ = record;
  }
  // A turn that the model ended at once, without a shift, added only its input.
  void look_at_start_of(const kv::SessionRecord& record, std::size_t length) {
    if (before_ != nullptr) return;
    start_.assign(record.chain.begin(), record.chain.begin() + static_cast<std::ptrdiff_t>(length));
  }

  // Whole turns were dropped, the oldest ones after the kept prefix, and the client, the receipt and the record agree.
  void check_shifts(const kv::SessionRecord& after, const Usage& usage) {
    std::int32_t turns = 0;
    std::int32_t dropped = 0;
    for (const Shift& shift : shifts_) {
      turns += shift.told.dropped_turns;
      dropped += shift.told.dropped_tokens;
      UMA_CHECK(shift.told.dropped_turns > 0 && shift.told.dropped_tokens > 0);
      const auto count = static_cast<std::size_t>(turns);
      UMA_CHECK(count <= before_->turns.size());
      const std::int32_t end =
          count < before_->turns.size() ? before_->turns[count].tokens_begin : static_cast<std::int32_t>(before_->chain.size());
      UMA_CHECK(end == before_->n_keep + dropped);
      ++simulation_.outcome_.shifts;
    }
    UMA_CHECK(usage.dropped_turns == turns && usage.dropped_tokens == dropped);
    if (before_ == nullptr) return;
    UMA_CHECK(shifts_.empty() || before_->on_full == OnFull::shift);
    UMA_CHECK(after.turns_dropped == before_->turns_dropped + turns);
    const auto cells = static_cast<std::size_t>(simulation_.model_options_.unified
                                                    ? simulation_.model_options_.cells
                                                    : simulation_.model_options_.cells / simulation_.model_options_.sequences);
    UMA_CHECK(after.chain.size() <= cells);
  }

  // Checks that the model generates these tokens after `chain`, which loses the dropped turns that the client was told about.
  // Returns the whole chain.
  [[nodiscard]] std::vector<Token> check_tokens(std::vector<Token> chain) const {
    std::size_t said = 0;
    std::optional<llm::TokenConstraint> constraint;
    if (grammar_ != nullptr) constraint.emplace(grammar_, vocab_);
    const auto say_until = [&](std::size_t end) {
      const auto count = static_cast<std::int32_t>(end - said);
      const auto part =
          fake_continuation(simulation_.model_options_, chain, count, constraint ? &*constraint : nullptr, adapters);
      UMA_CHECK(std::ranges::equal(part, std::span(tokens_).subspan(said, end - said)));
      chain.insert(chain.end(), part.begin(), part.end());
      said = end;
    };
    for (const Shift& shift : shifts_) {
      say_until(shift.after);
      const auto begin = chain.begin() + before_->n_keep;
      chain.erase(begin, begin + shift.told.dropped_tokens);
    }
    say_until(tokens_.size());
    return chain;
  }

  Simulation& simulation_;
  const testing::FakeVocab vocab_;
  std::shared_ptr<const grammar::Grammar> grammar_;  // Null: no grammar.
  std::vector<Token> likely_;                        // Tokens whose log probabilities were reported.
  std::string session_;
  std::string prompt_;
  int patience_;  // Tokens until it stops reading.
  struct Shift {
    std::size_t after = 0;  // Number of tokens before.
    ContextShiftEvent told;
  };
  std::vector<Token> tokens_;
  std::vector<Shift> shifts_;
  kv::RecordPtr before_;      // The session's record at the begin.
  std::vector<Token> start_;  // The session's tokens at the begin.
};

// Checks that a response that has ended is stored completely.
class Simulation::ResponseSink final : public EventSink {
 public:
  ResponseSink(Simulation& simulation, GenerateRequest request, TenantId tenant)
      : simulation_(simulation), request_(std::move(request)), tenant_(std::move(tenant)) {}

  bool deliver(const Event& event) override {
    UMA_CHECK(!ended);
    if (const auto* place = std::get_if<ResponseBegunEvent>(&event)) {
      UMA_CHECK(!begun_ && tokens_ == 0);
      begun_ = *place;
    } else if (std::holds_alternative<TokenEvent>(event)) {
      UMA_CHECK(begun_.has_value());
      ++tokens_;
    } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
      ended = true;
      if (!eos->error && (tokens_ > 0 || eos->reason == FinishReason::stop)) check_kept();
    } else if (std::holds_alternative<FailureEvent>(event)) {
      ended = true;
      UMA_CHECK(tokens_ == 0);
    }
    return true;
  }

  RequestId id;
  bool ended = false;

 private:
  void check_kept() {
    const ResponseRequest& response = *request_.response;
    const std::string& session = begun_->session.value;
    const kv::RecordPtr record = simulation_.catalog_.kept().find(begun_->session);
    const bool is_in_conversation = response.previous.empty() && !request_.session.empty();
    if (!response.is_kept && !is_in_conversation) {
      UMA_CHECK(record == nullptr);
      return;
    }
    UMA_CHECK(record != nullptr && record->pending_messages.empty());
    UMA_CHECK(record->messages.size() >= 2 && record->messages.back().role == "assistant");
    UMA_CHECK(record->messages[record->messages.size() - 2] == request_.input.messages.back());
    UMA_CHECK(record->has_instructions == response.instructions.has_value());
    UMA_CHECK(!record->has_instructions || record->messages.front().content == *response.instructions);
    if (!response.is_kept) return;
    UMA_CHECK(!record->responses.empty() && record->responses.back()->id == response.id);
    if (record->turns_dropped > 0) simulation_.shifted_.insert(session);
    ++simulation_.outcome_.responses;
    if (!response.previous.empty() && session != request_.session) ++simulation_.outcome_.forks;
    simulation_.responses_.push_back({session, response.id, tenant_, is_in_conversation});
  }

  Simulation& simulation_;
  const GenerateRequest request_;
  const TenantId tenant_;
  std::optional<ResponseBegunEvent> begun_;
  int tokens_ = 0;
};

// --- The machine

Simulation::Simulation(std::uint64_t seed) : random_(seed) {
  model_options_.sequences = 2 + static_cast<std::int32_t>(random_.next_below(3));
  model_options_.unified = random_.next_below(2) == 0;
  // Cells of a sequence; the small number is full after two turns.
  const std::int32_t cells = random_.next_below(2) == 0 ? 160 : 64;
  model_options_.cells = model_options_.unified ? cells : cells * model_options_.sequences;
  model_options_.batch_rows_max = 8 + static_cast<std::int32_t>(random_.next_below(60));
  model_options_.can_truncate = random_.next_below(4) != 0;
  model_options_.can_shift = random_.next_below(4) != 0;
  model_options_.end_every = 40;
  model_options_.adapters = 2;
  model_options_.clock = &clock_;
  model_ = std::make_shared<const testing::FakeModel>(model_options_);

  router_options_.limits.max_sessions = 20;
  router_options_.record_bytes_max = random_.next_below(3) * 1000;  // No records, or those of a few sessions.
  router_options_.limits.deadline_ms = random_.next_below(2) == 0 ? 0 : 400;
  if (random_.next_below(4) == 0) {
    router_options_.limits.tenant_sessions_max = 8;
    router_options_.limits.tenant_tokens_max = 600;
  }
  store_options_ = {.warm_bytes_max = random_.next_below(100'000),
                    .cold_bytes_max = random_.next_below(200'000),
                    .tenant_bytes_max = random_.next_below(2) * (1 + random_.next_below(150'000)),
                    .ttl = std::chrono::milliseconds(random_.next_below(2) * 1000),
                    .write_within = std::chrono::milliseconds(random_.next_below(3) * 100)};
  lanes_count_ = 1 + random_.next_below(2);
  clients_are_alike_ = random_.next_below(2) == 0;
  // A third of the seeds has the default policy, a third has it with a prefill lane, and the rest has one of the four policies.
  lane_options_.threads = 2;
  lane_options_.stored_tokens_min = 4;
  model_options_.skip_cost = std::chrono::microseconds(10 * random_.next_below(2));
  lane_options_.skipped_cells_max = 8;
  const auto kind = random_.next_below(3);
  has_prefill_lanes_ = kind == 1;
  if (has_prefill_lanes_) lane_options_.target_tbt_ms = 2;  // So short that most prompts are computed in the prefill lane.
  if (kind == 2) {
    lane_options_.policy = {.policy = static_cast<sched::Policy>(1 + random_.next_below(4)),
                            .static_batch_wait_ms = static_cast<double>(random_.next_below(20)),
                            .slice_ms = static_cast<double>(random_.next_below(30))};
  }
  lane_options_.verify_every = static_cast<std::int32_t>(random_.next_below(4));
  model_options_.has_spare = lane_options_.verify_every > 0;
  // Draft tokens that are right, partly right, or wrong.
  lane_options_.test_drafter = [this](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    if (random_.next_below(4) == 0) return;
    draft = fake_continuation(model_options_, std::vector<Token>(chain.begin(), chain.end()), count);
    for (Token& token : draft) {
      if (random_.next_below(6) == 0) token = static_cast<Token>(random_.next_below(256));
    }
  };
  start_machine();
}

// Makes router, work pool and lanes, with the catalog as the only input.
void Simulation::start_machine() {
  auto cold = std::make_unique<testing::FakeColdStore>();
  cold_ = cold.get();
  cold_->files = std::move(files_);
  cold_->pieces = std::move(pieces_);
  store_ = std::make_unique<kv::StateStore>(store_options_, std::move(cold), clock_);
  work_ = std::make_unique<WorkPool>();
  router_options_.seed = random_.next_u64();
  router_ = std::make_unique<engine::Router>(router_options_, source_, catalog_, *store_, *work_, clock_);
  store_->open(router_->session_ids());
  lane_options_.store = store_.get();
  make_lanes();
}

void Simulation::make_lanes() {
  for (std::uint64_t i = 0; i < lanes_count_; ++i) {
    auto context = std::make_unique<testing::FakeContext>(model_options_);
    contexts_.push_back(context.get());
    std::unique_ptr<testing::FakeContext> prefill_context;
    if (has_prefill_lanes_) {
      testing::FakeOptions one = model_options_;
      one.sequences = 1;
      one.has_spare = false;
      // In half of the lanes it is too narrow for most prompts at first.
      one.cells = context->shape().sequence_cells_max / (random_.next_below(2) == 0 ? 1 : 4);
      prefill_context = std::make_unique<ListedContext>(contexts_, one);
      lane_options_.make_prefill_context = [this, one](std::int32_t cells) mutable -> Expected<std::unique_ptr<llm::Context>> {
        if (has_faults_ && random_.next_below(10) == 0) return fail(ErrorCode::model_load, "a fault of the simulation");
        ++outcome_.widened;
        one.cells = cells;
        return std::make_unique<ListedContext>(contexts_, one);
      };
    }
    lanes_.push_back(std::make_unique<engine::Lane>(lane_options_, std::move(context), std::move(prefill_context),
                                                    model_->vocab(), clock_, [this](engine::GenerationResult result) {
                                                      router_->post([this, result = std::move(result)]() mutable {
                                                        router_->generations().on_result(std::move(result));
                                                      });
                                                    }));
    if (random_.next_below(2) == 0) {
      // A cheaper draft model that is sometimes wrong.
      testing::FakeOptions draft = model_options_;
      draft.has_spare = false;
      draft.differs_every = static_cast<std::uint32_t>(random_.next_below(4));
      draft.decode_cost /= 10;
      draft.row_cost /= 10;
      auto draft_context = std::make_unique<testing::FakeContext>(draft);
      contexts_.push_back(draft_context.get());
      lanes_.back()->draft_with(std::make_unique<engine::ModelDrafter>(std::move(draft_context), model_->vocab(), clock_));
    }
  }
}

Simulation::~Simulation() = default;

void Simulation::crash_and_start_again() {
  ++outcome_.crashes;
  count_lanes();
  ++life_;
  catalog_.crash(random_.next_below(catalog_.waiting_count() + 1));
  lanes_.clear();
  contexts_.clear();
  files_ = std::move(cold_->files);
  pieces_ = std::move(cold_->pieces);
  // Destroying them still answers requests and unlocks sessions.
  work_.reset();
  store_.reset();
  router_.reset();
  for (const auto& sink : sinks_) sink->ended = true;  // After a crash, no client receives an end.
  for (const auto& sink : response_sinks_) sink->ended = true;
  replies_owed_ = 0;
  is_loaded_ = false;
  clock_.advance(std::chrono::milliseconds(random_.next_below(2000)));
  start_machine();
  if (has_faults_) inject_faults();

  // Every session that a client knows exists, and belongs to its tenant.
  for (const TenantId& tenant : kTenants) {
    SessionList all;
    router_->tasks().answer(Promise<SessionList>([&](Expected<SessionList> list) { all = std::move(list).value(); }),
                            router_->sessions().list(tenant, {}));
    for (const auto& [id, session] : known_) {
      UMA_CHECK(std::ranges::contains(all.sessions, SessionId{id}, &SessionInfo::id) == (session.tenant == tenant));
    }
  }
}

// The model is unloaded when it has no leases, and loaded again on demand.
void Simulation::retire_model() {
  if (!router_->retire("fake")) return;
  ++outcome_.retirements;
  for (const auto& lane : lanes_) {
    UMA_CHECK(lane->is_idle());
    lane->close();
    lane->cancel_all();
  }
  count_lanes();
  lanes_.clear();
  contexts_.clear();
  is_loaded_ = false;
  make_lanes();
  if (has_faults_) inject_faults();
  router_->on_retired("fake");
}

void Simulation::count_lanes() {
  for (const testing::FakeContext* context : contexts_) outcome_.moves += static_cast<std::uint64_t>(context->shifts());
  for (const auto& lane : lanes_) {
    outcome_.warm_hits += lane->stats().warm_hits_total.value();
    outcome_.cold_hits += lane->stats().cold_hits_total.value();
    outcome_.handovers += lane->stats().handover.count();
    outcome_.preemptions += lane->stats().preemptions_total.value();
    outcome_.cells_moved += lane->stats().moved_cells_total.value();
    outcome_.idle_stored += lane->stats().idle_stored_total.value();
    outcome_.verified += lane->stats().reuses_verified_total.value();
    outcome_.not_finite += lane->stats().not_finite_total.value();
    UMA_CHECK(lane->stats().reuses_wrong_total.value() == 0);
  }
}

void Simulation::inject_faults() {
  has_faults_ = true;
  catalog_.throws = [this] { return has_faults_ && random_.next_below(100) == 0; };
  for (testing::FakeContext* context : contexts_) {
    context->fault = [this](std::span<const llm::BatchRow>) {
      switch (random_.next_below(60)) {
        case 0:
          return testing::FakeFault::decode_error;
        case 1:
          return testing::FakeFault::out_of_cells;
        case 2:
          return testing::FakeFault::interrupted_half;
        case 3:
          return testing::FakeFault::not_finite;
        case 4:
          return testing::FakeFault::throws;
        default:
          return testing::FakeFault::none;
      }
    };
  }
}

void Simulation::step_something() {
  switch (random_.next_below(6)) {
    case 5:
      cold_->fails = [this] { return has_faults_ && random_.next_below(8) == 0; };
      store_->step();
      // Memory for no states, or for some; loading and unloading models changes it.
      if (random_.next_below(20) == 0) {
        store_->limit_memory({.at_rest = random_.next_below(60'000), .in_all = random_.next_below(100'000)});
      }
      break;
    case 0:
      router_->step();
      break;
    case 1:
      work_->step();
      break;
    case 2:
      catalog_.answer_one(has_faults_ && random_.next_below(30) == 0);
      break;
    default: {
      const std::size_t lane = random_.next_below(lanes_.size());
      if (has_faults_) contexts_[random_.next_below(contexts_.size())]->fail_state = random_.next_below(10) == 0;
      engine::PrefillLane* prefill = lanes_[lane]->prefill_lane();
      if (prefill != nullptr && random_.next_below(3) == 0) {
        prefill->step();
      } else {
        lanes_[lane]->step();
      }
    }
  }
  check_after_step();
}

void Simulation::check_after_step() {
  router_->check_invariants();
  store_->check_invariants();
  for (const auto& lane : lanes_) {
    lane->check_invariants();
    if (lane->prefill_lane() != nullptr) lane->prefill_lane()->check_invariants();
  }
}

void Simulation::come_to_rest() {
  has_faults_ = false;
  for (testing::FakeContext* context : contexts_) {
    context->fault = nullptr;
    context->fail_state = false;
  }
  if (!is_loaded_) act();
  for (int quiet = 0; quiet < 3;) {
    bool worked = router_->step();
    worked |= work_->step();
    worked |= store_->step();
    while (catalog_.answer_one(false)) worked = true;
    for (const auto& lane : lanes_) {
      if (lane->prefill_lane() != nullptr) worked |= lane->prefill_lane()->step().did_work;
      worked |= lane->step().did_work;
    }
    check_after_step();
    const bool is_idle = std::ranges::all_of(lanes_, [](const auto& lane) { return lane->is_idle(); });
    // A lane waits for more requests before its first tick.
    if (!worked && !is_idle) clock_.advance(std::chrono::milliseconds(1));
    quiet = worked || !is_idle ? 0 : quiet + 1;
  }
}

Outcome Simulation::run(int actions) {
  if (random_.next_below(2) == 0) inject_faults();
  for (int i = 0; i < actions; ++i) {
    if (random_.next_below(400) == 0) {
      crash_and_start_again();
    } else if (random_.next_below(4) == 0) {
      act();
    } else {
      step_something();
    }
  }
  come_to_rest();
  UMA_CHECK(router_->requests_open() == 0);
  UMA_CHECK(replies_owed_ == 0);
  for (const auto& sink : sinks_) UMA_CHECK(sink->ended);
  for (const auto& sink : response_sinks_) UMA_CHECK(sink->ended);
  check_session_texts();
  check_responses();
  for (const auto& lane : lanes_) {
    UMA_CHECK(lane->is_idle());
    UMA_CHECK(lane->stats().queue_depth.value() == 0);
    UMA_CHECK(lane->stats().swapped_bytes.value() == 0 && lane->stats().swapped_sequences.value() == 0);
  }
  count_lanes();
  outcome_.readings = catalog_.readings_count();
  return outcome_;
}

// Every acknowledged input is in its session, in order, or is among the oldest inputs that a full context dropped.
void Simulation::check_session_texts() {
  for (const auto& [id, session] : known_) {
    const kv::RecordPtr record = catalog_.kept().find(SessionId{id});
    UMA_CHECK(record != nullptr);
    const std::string text = text_of(record->chain) + text_of(record->pending);
    UMA_CHECK(text.starts_with(session.system));
    if (session.was_cut) continue;
    std::size_t end = text.size();
    std::size_t missing = session.inputs.size();
    while (missing > 0) {
      const std::string& input = session.inputs[missing - 1];
      const std::size_t at = end < input.size() ? std::string::npos : text.rfind(input, end - input.size());
      if (at == std::string::npos) break;
      end = at;
      --missing;
    }
    UMA_CHECK(missing == 0 || record->turns_dropped > 0);
  }
}

// --- The clients

template <class T>
Promise<T> Simulation::expect_reply(MoveOnlyFunction<void(Expected<T>)> then) {
  ++replies_owed_;
  return [this, then = std::move(then), life = life_, called = false](Expected<T> value) mutable {
    UMA_CHECK(!called);
    called = true;
    if (life != life_) return;  // The asking client ended with the last daemon.
    --replies_owed_;
    then(std::move(value));
  };
}

std::string Simulation::new_text() {
  return std::format("[{}{}]", ++texts_made_, std::string(random_.next_below(40), 'x'));
}

// The text of an input to a session or a response.
std::string Simulation::input_text() {
  if (!clients_are_alike_ || random_.next_below(4) == 0) return new_text();
  return std::format("[my name is {}]", random_.next_below(3));
}

// The prompt of a request without a session: if clients are alike, often the same long text.
std::string Simulation::prompt_text() {
  if (!clients_are_alike_ || random_.next_below(3) == 0) return input_text();
  const std::int32_t cells = model_options_.unified ? model_options_.cells : model_options_.cells / model_options_.sequences;
  std::string text = "[";
  while (std::ssize(text) < cells * 5 / 8) text += "one two three ";
  return text + "]";
}

std::string Simulation::pick_session() {
  if (known_.empty()) return "nobody";
  auto picked = known_.begin();
  std::advance(picked, static_cast<std::ptrdiff_t>(random_.next_below(known_.size())));
  return picked->first;
}

// For an unknown session, any tenant.
TenantId Simulation::tenant_of(const std::string& session) {
  const auto known = known_.find(session);
  return known != known_.end() ? known->second.tenant : kTenants[random_.next_below(2)];
}

void Simulation::create_session() {
  const TenantId tenant = tenant_of("");
  CreateSessionRequest request;
  request.mode = SessionMode::text;
  if (random_.next_below(3) == 0) request.system = input_text();
  if (random_.next_below(20) == 0) request.ttl_s = 1;
  if (random_.next_below(4) != 0) {
    request.on_full = OnFull::shift;
    request.n_keep = random_.next_below(2) == 0 ? 0 : static_cast<std::int32_t>(random_.next_below(30));
  }
  const bool can_expire = request.ttl_s > 0;
  router_->tasks().answer(
      expect_reply<SessionInfo>([this, tenant, can_expire, system = request.system](Expected<SessionInfo> made) {
        if (!made || can_expire) return;
        known_[made->id.value].tenant = tenant;
        known_[made->id.value].system = system;
      }),
      router_->sessions().create(tenant, request));
}

void Simulation::append() {
  const std::string session = pick_session();
  const std::string text = input_text();
  router_->tasks().answer(
      expect_reply<SessionInfo>([this, session, text](const Expected<SessionInfo>& done) {
        if (done && known_.contains(session)) known_[session].inputs.push_back(text);
      }),
      router_->sessions().append(tenant_of(session), {.session = session, .input = {.text = text, .messages = {}}}));
}

void Simulation::generate(bool in_session) {
  GenerateRequest request;
  if (in_session) request.session = pick_session();
  if (!in_session || random_.next_below(2) == 0) request.input.text = in_session ? input_text() : prompt_text();
  if (in_session && random_.next_below(10) == 0) {
    request.regenerate = true;
    request.input = {};
    known_[request.session].was_cut = known_.contains(request.session);
    if (request.session == "nobody") known_.erase("nobody");
  }
  request.options.max_tokens = 1 + static_cast<std::int32_t>(random_.next_below(60));
  if (random_.next_below(6) == 0) request.options.timeout_ms = 1 + static_cast<std::int64_t>(random_.next_below(100));
  if (random_.next_below(3) == 0) request.options.request_class = RequestClass::background;
  request.client = 1 + random_.next_below(3);
  request.options.progress = random_.next_below(4) == 0;
  if (random_.next_below(4) == 0) request.options.target_ttft_ms = static_cast<double>(1 + random_.next_below(50));
  const int patience = random_.next_below(8) == 0 ? static_cast<int>(random_.next_below(10)) : 1'000'000;
  constexpr std::array<std::string_view, 3> kGrammars = {"root ::= [a-m ]*", R"g(root ::= ("yes" | "no") (", " root)?)g",
                                                         R"g(root ::= "(" ([^()] | root)* ")")g"};
  if (random_.next_below(4) == 0) request.options.grammar = kGrammars[random_.next_below(kGrammars.size())];
  auto sink = std::make_shared<Sink>(*this, request.session, request.input.text, request.options.grammar, patience);
  sink->wants_logprobs = request.options.max_tokens.value_or(0) % 3 == 0;
  if (sink->wants_logprobs) request.options.logprobs = 2;
  // Two of five requests have adapters.
  const std::int32_t kind = request.options.max_tokens.value_or(0) % 5;
  if (kind < 2) {
    request.options.adapters = {{.name = kind == 0 ? "a" : "b", .scale = 0.5}};
    sink->adapters = llm::make_adapter_set(model_->facts().adapters, {{.index = kind, .scale = 0.5F}});
  }
  sink->id = RequestId{++last_request_};
  sinks_.push_back(sink);
  ++outcome_.generations;
  const TenantId tenant = tenant_of(request.session);
  router_->generations().start(sink->id, tenant, std::move(request), {sink});
}

void Simulation::cancel() {
  if (sinks_.empty()) return;
  const auto& sink = sinks_[random_.next_below(sinks_.size())];
  if (random_.next_below(2) == 0) {
    (void)router_->cancel(sink->id);
  } else {
    const std::string session = pick_session();
    (void)router_->cancel_session(tenant_of(session), session);
  }
}

void Simulation::end_session() {
  const std::string session = pick_session();
  const TenantId tenant = tenant_of(session);
  std::optional<KnownSession> known;
  if (const auto found = known_.find(session); found != known_.end()) {
    known = std::move(found->second);
    known_.erase(found);
    // If it cannot be removed it is unchanged, but inputs that were sent meanwhile are unknown.
    known->inputs.clear();
    known->was_cut = true;
  }
  router_->tasks().answer(expect_reply<Unit>([this, session, known](const Expected<Unit>& done) {
                            const bool is_kept = catalog_.kept().find(SessionId{session}) != nullptr;
                            UMA_CHECK(is_kept == (!done && done.error().code != ErrorCode::session_unknown));
                            if (known && is_kept) known_[session] = *known;
                          }),
                          router_->sessions().end(tenant, session));
}

void Simulation::change_session() {
  const std::string session = pick_session();
  const TenantId tenant = tenant_of(session);
  const std::uint64_t kind = random_.next_below(5);
  if (kind < 2) {
    ForkRequest request{.session = session};
    if (random_.next_below(2) == 0) request.turn = static_cast<std::int32_t>(random_.next_below(3)) - 1;
    router_->tasks().answer(expect_reply<SessionInfo>([this, tenant, session](const Expected<SessionInfo>& made) {
                              if (!made) return;
                              UMA_CHECK(made->parent.value == session);
                              known_[made->id.value].tenant = tenant;
                            }),
                            router_->sessions().fork(tenant, std::move(request)));
  } else if (kind == 2) {
    // Few names, so that sessions compete for them.
    const std::string name = random_.next_below(4) == 0 ? "" : std::format("name {}", random_.next_below(3));
    const std::string metadata = std::format("\"{}\"", random_.next_below(1000));
    router_->tasks().answer(
        expect_reply<SessionInfo>([name, metadata](const Expected<SessionInfo>& changed) {
          if (!changed) return;
          UMA_CHECK(changed->name == name && changed->metadata == std::format(R"({{"n":{}}})", metadata));
        }),
        router_->sessions().update(tenant, {.session = session, .name = name, .metadata = {{R"("n")", metadata}}}));
  } else {
    if (known_.contains(session)) known_[session].was_cut = true;
    router_->tasks().answer(expect_reply<SessionInfo>([](const Expected<SessionInfo>&) {}),
                            router_->sessions().rewind(tenant, session, static_cast<std::int32_t>(random_.next_below(3))));
  }
}

void Simulation::export_and_import() {
  const std::string session = pick_session();
  const TenantId tenant = tenant_of(session);
  const bool with_kv = random_.next_below(2) == 0;
  router_->tasks().answer(expect_reply<ExportedSession>([this, tenant](Expected<ExportedSession> exported) {
                            if (!exported) return;
                            const std::int32_t tokens = exported->info.tokens;
                            const bool had_kv = exported->kv_bytes > 0;
                            ImportRequest request{.name = new_text(), .file = std::move(exported->file)};
                            router_->tasks().answer(expect_reply<ImportedSession>(
                                                        [this, tenant, tokens, had_kv](const Expected<ImportedSession>& made) {
                                                          if (!made) return;
                                                          UMA_CHECK(made->are_tokens_kept && made->info.tokens == tokens);
                                                          UMA_CHECK(had_kv == (made->kv != ImportedKv::none));
                                                          outcome_.imports_with_kv += made->kv == ImportedKv::kept ? 1 : 0;
                                                          known_[made->info.id.value].tenant = tenant;
                                                          ++outcome_.imports;
                                                        }),
                                                    router_->transfer().import_session(tenant, std::move(request)));
                          }),
                          router_->transfer().export_session(tenant, session, with_kv));
}

void Simulation::create_conversation() {
  const TenantId tenant = tenant_of("");
  CreateSessionRequest request;
  request.mode = SessionMode::chat;
  if (random_.next_below(2) == 0) request.messages = {{"user", input_text()}};
  router_->tasks().answer(expect_reply<SessionInfo>([this, tenant](const Expected<SessionInfo>& made) {
                            if (made) conversations_.emplace_back(made->id.value, tenant);
                          }),
                          router_->sessions().create(tenant, request));
}

void Simulation::respond() {
  GenerateRequest request;
  request.response.emplace();
  ResponseRequest& response = *request.response;
  TenantId tenant = tenant_of("");
  const std::uint64_t kind = random_.next_below(4);
  if (kind == 0 && !conversations_.empty()) {
    std::tie(request.session, tenant) = conversations_[random_.next_below(conversations_.size())];
  } else if (kind > 1 && !responses_.empty()) {
    const KnownResponse& known = responses_[random_.next_below(responses_.size())];
    request.session = known.session;
    response.previous = known.id;
    tenant = known.tenant;
  }
  request.input.messages = {{"user", input_text().substr(0, 12)}};
  response.id = std::format("{}", ++texts_made_);
  response.is_kept = random_.next_below(5) != 0;
  if (random_.next_below(3) == 0) response.instructions = random_.next_below(2) == 0 ? "a" : "b";
  if (random_.next_below(3) == 0) response.on_full = random_.next_below(4) == 0 ? OnFull::error : OnFull::shift;
  request.options.max_tokens = 1 + static_cast<std::int32_t>(random_.next_below(20));
  auto sink = std::make_shared<ResponseSink>(*this, request, tenant);
  sink->id = RequestId{++last_request_};
  response_sinks_.push_back(sink);
  router_->generations().start(sink->id, tenant, std::move(request), {sink});
  if (random_.next_below(8) == 0) (void)router_->cancel(sink->id);
}

void Simulation::forget_response() {
  if (responses_.empty()) return;
  const auto picked = responses_.begin() + static_cast<std::ptrdiff_t>(random_.next_below(responses_.size()));
  const KnownResponse known = std::move(*picked);
  responses_.erase(picked);
  router_->tasks().answer(expect_reply<Unit>([](const Expected<Unit>&) {}),
                          router_->sessions().forget_response(known.tenant, known.session, known.id));
}

// Every response whose end a client received is stored, unless a full context dropped its turn.
void Simulation::check_responses() {
  for (const KnownResponse& known : responses_) {
    if (known.is_in_conversation) continue;  // If a template cannot find the turns any more, all turns become one.
    const kv::RecordPtr record = catalog_.kept().find(SessionId{known.session});
    // A response without its turn does not keep its session when the others are deleted.
    UMA_CHECK(record != nullptr || shifted_.contains(known.session));
    if (record == nullptr) continue;
    const bool is_kept = std::ranges::contains(record->responses, known.id, [](const auto& response) { return response->id; });
    UMA_CHECK(is_kept || record->turns_dropped > 0);
  }
}

void Simulation::act() {
  if (!is_loaded_ && (random_.next_below(4) == 0 || last_request_ > 20)) {
    is_loaded_ = true;
    std::vector<engine::Lane*> lanes;
    for (const auto& lane : lanes_) lanes.push_back(lane.get());
    router_->on_loaded("fake", chat_model(model_, lanes));
    return;
  }
  if (is_loaded_ && random_.next_below(3) == 0) retire_model();
  run_noting([this] { ask_something(); });
}

void Simulation::ask_something() {
  switch (random_.next_below(21)) {
    case 0:
    case 1:
      create_session();
      break;
    case 2:
    case 3:
    case 4:
      append();
      break;
    case 5:
    case 6:
    case 7:
    case 8:
      generate(true);
      break;
    case 9:
    case 10:
    case 11:
      generate(false);
      break;
    case 12:
      cancel();
      break;
    case 13:
      if (random_.next_below(3) == 0) end_session();
      break;
    case 14:
      change_session();
      break;
    case 15:
      export_and_import();
      break;
    case 16:
    case 17:
    case 18:
      respond();
      break;
    case 19:
      if (random_.next_below(3) == 0) forget_response();
      if (random_.next_below(3) == 0) create_conversation();
      break;
    default:
      clock_.advance(std::chrono::milliseconds(random_.next_below(30)));
  }
  check_after_step();
}

}  // namespace uma::sim
