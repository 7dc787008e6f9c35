#include "scheduling_sim.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <limits>

#include "base/check.h"
#include "sched/plan_batch.h"

namespace uma::sim {
namespace {

constexpr std::uint64_t kWholeTenant = std::numeric_limits<std::uint64_t>::max();
constexpr std::int32_t kThreads = 4;
constexpr double kTickMs = 30;          // The value of LaneOptions::tick_ms.
constexpr double kPrefillCallMs = 400;  // Limit for a call of the prefill lane.
constexpr double kKeepsMs = 2000;       // Time for which a background request that had to wait keeps its slot.
constexpr double kUrgentMs = 10'000;    // The documented value of sched::kBackgroundWaitMaxMs.
constexpr double kLateShare = 0.05;     // The share of late ticks that the step model allows.
constexpr int kLateByChance = 2;
constexpr int kSpeedChangeTicks = 8;  // Ticks that the step model may need after a change of speed.

}  // namespace

class SchedulingSim::Sink final : public EventSink {
 public:
  Sink(SchedulingSim& sim, Request& request) : sim_(sim), request_(request) {}
  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      sim_.note_token(request_, token->token);
    } else if (is_terminal(event)) {
      UMA_CHECK(std::holds_alternative<EosEvent>(event));
      sim_.note_end(request_);
    }
    return true;
  }

 private:
  SchedulingSim& sim_;
  Request& request_;
};

// --- The world

std::int32_t SchedulingSim::between(std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random_.next_below(static_cast<std::uint64_t>(high - low) + 1));
}

double SchedulingSim::between(double low, double high) {
  return low + (high - low) * random_.next_unit();
}

SchedulingSim::SchedulingSim(std::uint64_t seed) : random_(seed), mix_(static_cast<Mix>(random_.next_below(7))) {
  make_world();
  make_requests();
}

SchedulingSim::~SchedulingSim() = default;

void SchedulingSim::make_world() {
  Price& price = machine_options_.price;
  price.decode_call = between(3.0, 12.0);
  price.decode_row = between(0.5, 3.0);
  price.decode_kv = between(0.0001, 0.0006);
  price.prefill_call = between(0.5, 4.0);
  price.prefill_row = between(0.05, 0.6);
  price.prefill_kv = between(0.00001, 0.0001);
  slowest_ = 1 + price.noise;
  if (random_.next_below(3) == 0) {
    const double factor = between(0.6, 1.8);
    machine_options_.speeds.push_back({timeline_.now() + from_ms(between(500.0, 5000.0)), factor});
    slowest_ *= std::max(1.0, factor);
  }

  testing::FakeOptions& model = machine_options_.model;
  model.sequences = between(2, 6);
  model.cells = 4096 * model.sequences;
  model.batch_rows_max = 512;
  engine::LaneOptions& lane = machine_options_.lane;
  lane.threads = kThreads;
  lane.tick_ms = kTickMs;
  lane.speculates = false;
  if (random_.next_below(2) == 0) lane.target_tbt_ms = between(40.0, 150.0);
  machine_options_.has_prefill_lane = random_.next_below(2) == 0;
  if (machine_options_.has_prefill_lane && random_.next_below(2) == 0) lane.threads_beside_prefill = kThreads / 2;
  machine_options_.seed = random_.next_u64();

  model_ = std::make_shared<const testing::FakeModel>(model);
  engine::RouterOptions options;
  options.limits.deadline_ms = 0;
  router_ = std::make_unique<engine::Router>(options, source_, catalog_, store_, work_, timeline_);
  machine_ = std::make_unique<Machine>(machine_options_, timeline_, model_->vocab(), [this](engine::GenerationResult result) {
    router_->post([this, result = std::move(result)]() mutable { router_->generations().on_result(std::move(result)); });
  });
  machine_->on_begin = [this](const Call& call) { note_begin(call); };
  machine_->on_call = [this](const Call& call) { note_call(call); };
  machine_->on_step = [this] { note_step(); };
  machine_->on_state = [this](double ms) {
    for (const auto& request : requests_) request->state_ms_seen += ms;
  };
  router_->on_loaded("fake", engine::chat_model(model_, {&machine_->lane()}));
}

void SchedulingSim::add_request(double at_ms, const sched::Flow& flow, bool is_background, std::int32_t prompt,
                                std::int32_t reply) {
  auto request = std::make_unique<Request>();
  request->id = requests_.size();
  request->flow = flow;
  request->is_background = is_background;
  request->prompt = std::max(prompt, 1 + kNameLength);
  request->reply = reply;
  if (random_.next_below(4) == 0) request->target_tbt_ms = between(35.0, 200.0);
  if (random_.next_below(4) == 0) request->target_ttft_ms = between(50.0, 2000.0);
  length_max_ = std::max(length_max_, request->work());
  work_max_ = std::max(work_max_, request->work());
  timeline_.at(timeline_.now() + from_ms(at_ms), [this, added = request.get()] { arrive(*added); });
  requests_.push_back(std::move(request));
}

void SchedulingSim::make_requests() {
  const Price& price = machine_options_.price;
  const std::int32_t slots = machine_options_.model.sequences;
  const auto tenant = [](int i) { return std::format("tenant{}", i); };
  // The cost of a request of this size while all slots are in use.
  const auto service_ms = [&](double prompt, double reply) {
    return prompt * price.prefill_row * 1.2 + reply * (price.decode_call / slots + price.decode_row);
  };
  switch (mix_) {
    case Mix::calm: {
      double at_ms = 0;
      for (int i = 0; i < 40; ++i) {
        at_ms += between(0.0, 2.0) * service_ms(150, 14) / 0.6;
        const bool is_long = random_.next_below(8) == 0;
        add_request(at_ms, {tenant(between(0, 2)), 1 + random_.next_below(3)}, random_.next_below(4) == 0,
                    is_long ? between(300, 1500) : between(10, 90), between(2, 24));
      }
      break;
    }
    case Mix::storm: {
      for (int i = 0; i < slots + 2; ++i) {
        add_request(between(0.0, 300.0), {tenant(i % 2), 1}, false, between(10, 60), between(20, 60));
      }
      for (int storm = 0; storm < 2; ++storm) {
        const double at_ms = between(500.0, 3000.0);
        for (int i = 0; i < 6; ++i) {
          add_request(at_ms + between(0.0, 20.0), {tenant(between(0, 1)), 2 + random_.next_below(2)},
                      random_.next_below(4) == 0, between(400, 1800), between(2, 12));
        }
      }
      break;
    }
    case Mix::hog: {
      const std::int32_t prompt = between(30, 120);
      const std::int32_t reply = between(3, 20);
      for (int i = 0; i < 50; ++i)
        add_request(between(0.0, 5.0), {tenant(0), 1}, false, between(20, prompt), between(2, reply));
      for (int i = 0; i < 4; ++i) {
        add_request(between(20.0, 600.0), {tenant(i < 2 ? 0 : 1), 2 + static_cast<std::uint64_t>(i)}, false,
                    between(20, prompt), reply);
      }
      break;
    }
    case Mix::preemption: {
      for (int i = 0; i < slots + 2; ++i) {
        add_request(between(0.0, 10.0), {tenant(0), 1}, true,
                    random_.next_below(3) == 0 ? between(300, 1800) : between(20, 200), between(40, 150));
      }
      for (double at_ms = between(100.0, 600.0); at_ms < 8000; at_ms += between(300.0, 1500.0)) {
        const bool is_long = random_.next_below(3) == 0;
        add_request(at_ms, {tenant(between(0, 1)), 2}, false, is_long ? between(150, 600) : between(10, 90), between(2, 12));
      }
      break;
    }
    case Mix::tenants: {
      const int tenants = between(2, 3);
      for (int i = 0; i < tenants; ++i) {
        const int clients = between(1, 2);
        const std::int32_t prompt = between(20, 150);
        const std::int32_t reply = between(4, 24);
        const double at_ms = between(0.0, 200.0);
        for (int n = between(8, 30); n > 0; --n) {
          add_request(at_ms + between(0.0, 20.0), {tenant(i), 1 + random_.next_below(static_cast<std::uint64_t>(clients))},
                      false, between(10, prompt), between(2, reply));
        }
      }
      break;
    }
    case Mix::overload: {
      // More interactive work than the machine can do, for longer than background work may have to wait.
      for (int i = 0; i < 3; ++i) add_request(between(100.0, 2000.0), {tenant(1), 9}, true, between(10, 120), between(4, 20));
      const double pace = between(0.6, 0.8);
      for (double at_ms = 0; at_ms < 18'000; at_ms += between(0.0, 2.0) * pace * service_ms(60, 60)) {
        add_request(at_ms, {tenant(0), 1 + random_.next_below(2)}, false, between(20, 100), between(40, 80));
      }
      break;
    }
    case Mix::prompts: {
      // So many short prompts that a long prompt only has its turn because it waits.
      add_request(between(50.0, 200.0), {tenant(1), 9}, false, between(400, 1200), between(2, 10));
      const double pace = between(0.7, 0.9);
      for (double at_ms = 0; at_ms < 8000; at_ms += between(0.0, 2.0) * pace * service_ms(100, 8)) {
        add_request(at_ms, {tenant(0), 1 + random_.next_below(2)}, false, between(60, 140), between(4, 12));
      }
      break;
    }
  }
}

SchedulingOutcome SchedulingSim::run() {
  timeline_.run();
  UMA_CHECK(router_->requests_open() == 0);
  for (const auto& request : requests_) UMA_CHECK(request->has_ended);
  machine_->lane().check_invariants();
  check_starts();
  check_shares();
  check_tokens();
  if (machine_->crowded_calls() > 0) broken(std::format("cores: {} calls had too few", machine_->crowded_calls()));
  outcome_.requests = requests_.size();
  outcome_.preemptions = machine_->lane().stats().preemptions_total.value();
  outcome_.handovers = machine_->lane().stats().handover.count();
  return std::move(outcome_);
}

void SchedulingSim::pump() {
  bool worked = true;
  while (worked) {
    worked = router_->step();
    worked |= work_.step();
  }
}

// --- What happens

void SchedulingSim::arrive(Request& request) {
  request.received = timeline_.now();
  if (traces_) {
    trace(std::format("request {}{} of {}/{} comes: prompt {}, reply {}, first token due in {:.0f} ms (0: any time)",
                      class_of(request), request.id, request.flow.tenant, request.flow.client, request.prompt, request.reply,
                      request.target_ttft_ms));
  }
  ledger_.enter(request.flow);
  request.rank = ledger_.rank(request.flow);
  request.must_be_next = mix_ == Mix::preemption && !request.is_background;
  for (const auto& other : requests_) {
    const bool is_open = other->received != TimePoint{} && !other->has_ended;
    if (!is_open || other.get() == &request) continue;
    request.others.emplace_back(other->flow, ledger_.rank(other->flow));
    // A background request that has waited too long counts as interactive.
    const bool is_urgent = request.received - other->received > from_ms(0.9 * kUrgentMs);
    if (!other->is_background || is_urgent) request.must_be_next = false;
  }
  request.step_at_arrival = machine_->steps();
  const auto slots = static_cast<std::size_t>(machine_options_.model.sequences);
  if (request.must_be_next && request.others.size() >= slots) ++outcome_.preemptions_checked;

  GenerateRequest wanted;
  wanted.client = request.flow.client;
  wanted.input.text = name_of(request.id);
  wanted.input.text.append(static_cast<std::size_t>(request.prompt - 1 - kNameLength), 'x');
  wanted.options.max_tokens = request.reply;
  wanted.options.target_tbt_ms = request.target_tbt_ms;
  wanted.options.target_ttft_ms = request.target_ttft_ms;
  if (request.is_background) wanted.options.request_class = RequestClass::background;
  router_->generations().start(RequestId{request.id + 1}, TenantId{request.flow.tenant}, std::move(wanted),
                               {std::make_shared<Sink>(*this, request)});
  pump();
  update_contests();
  machine_->wake_lane();
}

// UMA_SIM_TRACE=1 logs every call: its rows, the tokens before them, and the class of the requests, background (b) or
// interactive (i).
void SchedulingSim::trace(const std::string& what) const {
  std::puts(std::format("{:9.2f} {}", to_ms(timeline_.now() - began_), what).c_str());
}

void SchedulingSim::trace(const Call& call) const {
  if (!traces_) return;
  std::string parts;
  for (const CallPart& part : call.parts) {
    const bool is_known = part.request != kUnknownRequest;
    parts += is_known ? std::format(" {}{}", class_of(*requests_[part.request]), part.request) : " ?";
    parts += std::format(":{}@{}", part.rows, part.cached);
  }
  trace(std::format("{} {} of {:.2f} ms ends:{}", call.in_prefill_lane ? "prefill lane" : "lane",
                    call.is_prefill ? "prefill" : "decode", call.ms, parts));
}

void SchedulingSim::note_step() {
  pump();
  const std::uint64_t step = machine_->steps();
  for (const auto& request : requests_) {
    if (request->received == TimePoint{}) continue;
    if (request->seen == TimePoint{} && step >= request->step_at_arrival) request->seen = timeline_.now();
    if (request->admitted == TimePoint{} && step > request->step_at_arrival) request->admitted = timeline_.now();
  }
}

void SchedulingSim::note_begin(const Call& call) {
  const bool is_known = std::ranges::none_of(call.parts, [](const CallPart& part) { return part.request == kUnknownRequest; });
  for (const CallPart& part : call.parts) {
    if (part.request == kUnknownRequest) continue;
    Request& request = *requests_[part.request];
    if (request.computed != TimePoint{}) continue;
    request.computed = call.began;
    charge(request, request.prompt);
    update_contests();
  }
  // After the tick of its arrival, the lane computes the request that must be next. With a prefill lane it may be computed
  // there, after the call that runs when the lane sends it.
  for (const auto& request : requests_) {
    if (!request->must_be_next || request->received == TimePoint{} || request->computed != TimePoint{}) continue;
    bool is_late = false;
    if (call.in_prefill_lane) {
      // The prefill lane may have begun another call when the request arrives there.
      if (request->admitted == TimePoint{} || request->admitted >= call.began) continue;
      request->let_pass.insert(call.parts.front().request);
      is_late = request->let_pass.size() > 1;
    } else if (call.step > request->step_at_arrival && !machine_options_.has_prefill_lane) {
      if (request->next_tick == 0) request->next_tick = call.step;
      is_late = call.step > request->next_tick;
    }
    if (!is_late || !is_known) continue;
    request->must_be_next = false;
    broken(std::format("preempt: request {} came {:.1f} ms ago and other work goes on", request->id,
                       to_ms(call.began - request->received)));
  }
  if (call.in_prefill_lane) {
    for (const auto& request : requests_) request->is_beside_prefill = true;
    return;
  }
  if (!call.is_prefill) {
    shadow_.set_threads(call.threads);
    shadow_before_ = shadow_;
  }
}

void SchedulingSim::note_call(const Call& call) {
  trace(call);
  if (call.in_prefill_lane) return;
  if (!call.is_prefill) {
    for (const auto& request : requests_) request->decode_ms_seen = std::max(request->decode_ms_seen, call.ms);
    last_decode_ = call;
  } else if (last_decode_.step == call.step && !last_decode_.parts.empty()) {
    check_tick(last_decode_, call);
  }
  shadow_.set_threads(call.threads);
  shadow_.observe(call.shape, call.ms);
}

double SchedulingSim::target_of(const Request& request) const {
  const double configured = machine_options_.lane.target_tbt_ms;
  const double promised = configured > 0 ? configured : std::max(kTickMs, 3 * shadow_before_.decode_ms());
  return request.target_tbt_ms > 0 ? std::max(request.target_tbt_ms, promised / 2) : promised;
}

// A tick with decode rows and a chunk. The model can keep the target if the smallest allowed chunk fits, with the guard. Then
// it must keep it, except for the share that the guard allows (5 % of calls).
void SchedulingSim::check_tick(const Call& decode, const Call& prefill) {
  double target_ms = std::numeric_limits<double>::infinity();
  for (const CallPart& part : decode.parts) {
    const Request& request = *requests_[part.request];
    if (!request.is_background) target_ms = std::min(target_ms, target_of(request));
  }
  if (target_ms == std::numeric_limits<double>::infinity()) return;
  double least_ms = 0;
  for (const CallPart& part : prefill.parts) {
    sched::StepShape least;
    least.add_chunk(std::min(part.rows, sched::kPrefillChunkMin), part.cached);
    least_ms = std::max(least_ms, shadow_before_.guarded_ms(decode.shape, least));
  }
  if (least_ms > target_ms) return;
  if (traces_) {
    trace(std::format("tick of {:.2f} + {:.2f} ms, target {:.2f}; expected {:.2f} + {:.2f}, guarded {:.2f}",
                      to_ms(decode.ended - decode.began), to_ms(prefill.ended - prefill.began), target_ms,
                      shadow_before_.predict_ms(decode.shape), shadow_before_.predict_ms(prefill.shape),
                      shadow_before_.guarded_ms(decode.shape, prefill.shape)));
  }
  ++(to_ms(prefill.ended - decode.began) > target_ms ? outcome_.ticks_late : outcome_.ticks_in_time);
}

void SchedulingSim::note_token(Request& request, Token token) {
  const TimePoint now = timeline_.now();
  request.tokens.push_back(token);
  charge(request, 1);
  if (request.tokens.size() == 1) {
    request.first_token = now;
    update_contests();
  } else if (!request.is_background) {
    check_gap(request, to_ms(now - request.last_token));
  }
  request.last_token = now;
  request.decode_ms_seen = 0;
  request.state_ms_seen = 0;
  request.target_seen_ms = target_of(request);
  request.is_beside_prefill = machine_->prefill_lane_computes();
}

// Between two tokens of an interactive stream there are one tick and its state transfers. A tick has the decode rows of all
// slots and a chunk that fits into the target, or the smallest chunk: 16 rows, or 64 while prompts are unmeasured. The step
// model decides what fits; after a change of speed it is wrong by that change for some ticks. Beside a prefill lane that takes
// turns, the stream also waits for that lane's turn, which is at most one and a half ticks or the least target, and for the end
// of a layer.
void SchedulingSim::check_gap(const Request& request, double gap_ms) {
  const double target_ms = std::max(request.target_seen_ms, target_of(request));
  const double chunk_ms = machine_options_.price.chunk_ms(sched::kFastChunk, length_max_);
  const double thread_factor = std::pow(kThreads / std::max(1.0, double(machine_options_.lane.threads_beside_prefill)),
                                        machine_options_.lane.threads_beside_prefill > 0 ? 0.9 : 0.0);
  double allowed_ms = slowest_ * (std::max(1.3 * target_ms, thread_factor * chunk_ms) + thread_factor * decode_full_ms()) +
                      request.state_ms_seen;
  if (machine_options_.has_prefill_lane) {
    allowed_ms += std::max(kTickMs, 1.5 * slowest_ * decode_full_ms()) + layer_ms();
    const double kept_ms = std::max(target_ms, 1.5 * request.decode_ms_seen + request.state_ms_seen + layer_ms());
    if (request.is_beside_prefill) ++(gap_ms > kept_ms ? outcome_.gaps_late : outcome_.gaps_in_time);
  }
  ++outcome_.gaps;
  outcome_.worst_gap = std::max(outcome_.worst_gap, gap_ms / allowed_ms);
  if (gap_ms > allowed_ms) {
    broken(std::format("stream: request {} waited {:.1f} ms for a token, {:.1f} are allowed", request.id, gap_ms, allowed_ms));
  }
}

void SchedulingSim::note_end(Request& request) {
  request.ended = timeline_.now();
  request.has_ended = true;
  ledger_.leave(request.flow);
  update_contests();
}

// --- Fairness

// The counters of two waiting clients of a tenant stay together, or approach each other: the tenant's next slot goes to the
// smaller counter. Running work continues, so the counters may differ by the content of the slots and by one request. Tenants
// share slots (sched::SlotShares), and their counters only say whose turn it is in those that are left over.
void SchedulingSim::charge(const Request& request, std::int64_t tokens) {
  ledger_.charge(request.flow, tokens);
  const std::int32_t slots = machine_options_.model.sequences;
  const double limit = (slots + 2) * static_cast<double>(work_max_);
  for (auto& [clients, contest] : contests_) {
    if (!contest.is_on) continue;
    const auto& [first, second] = clients;
    if (first == request.flow) contest.ahead += static_cast<double>(tokens);
    if (second == request.flow) contest.ahead -= static_cast<double>(tokens);
    const double lead = contest.lead + contest.ahead;
    if (lead <= std::max(contest.lead, 0.0) + limit && lead >= std::min(contest.lead, 0.0) - limit) continue;
    broken(std::format("fair: clients {} and {} of {} are {:.0f} tokens apart, {:.0f} at first", first.client, second.client,
                       first.tenant, lead, contest.lead));
    contest.is_on = false;
  }
}

void SchedulingSim::update_contests() {
  if (mix_ != Mix::hog && mix_ != Mix::tenants) return;
  std::map<sched::Flow, double> waiting;  // Counters of waiting clients.
  for (const auto& request : requests_) {
    if (request->received == TimePoint{} || request->first_token != TimePoint{}) continue;
    waiting[request->flow] = ledger_.rank(request->flow).client_work;
  }
  for (auto& [clients, contest] : contests_) {
    if (!waiting.contains(clients.first) || !waiting.contains(clients.second)) contest.is_on = false;
  }
  for (auto first = waiting.begin(); first != waiting.end(); ++first) {
    for (auto second = std::next(first); second != waiting.end(); ++second) {
      const auto& [a, a_work] = *first;
      const auto& [b, b_work] = *second;
      if (a.tenant != b.tenant) continue;
      Contest& contest = contests_[{a, b}];
      if (contest.is_on) continue;
      contest = {.is_on = true, .lead = a_work - b_work, .ahead = 0};
      ++outcome_.contests;
    }
  }
}

// --- First tokens

double SchedulingSim::decode_full_ms() const {
  const std::int32_t slots = machine_options_.model.sequences;
  return machine_options_.price.decode_ms(slots, std::int64_t{slots} * length_max_);
}

// The longest step of a call in the prefill lane.
double SchedulingSim::layer_ms() const {
  const double least_ms = machine_options_.price.chunk_ms(2 * sched::kFastChunk, length_max_);
  return slowest_ * std::max(kPrefillCallMs, least_ms) / machine_options_.layers;
}

// The longest time for a prompt once it is the first in its lane: beside streams in chunks of 16 rows, each after the decode
// rows of all slots; or in a prefill lane, which has its own threads or at least a fifth of the time.
double SchedulingSim::prefill_bound_ms(std::int32_t tokens) const {
  const Price& price = machine_options_.price;
  const std::int64_t chunks = tokens / sched::kPrefillChunkMin + 1;
  sched::StepShape whole;
  whole.add_chunk(tokens, 0);
  const double rows_ms = price.prefill_ms(whole);
  const double here_ms =
      price.small_chunk_factor * rows_ms + static_cast<double>(chunks) * (price.prefill_call + decode_full_ms());
  if (!machine_options_.has_prefill_lane) return here_ms;
  const std::int32_t beside = machine_options_.lane.threads_beside_prefill;
  const double slower = beside > 0 ? std::pow(double(kThreads) / (kThreads - beside), price.threads_exponent) : 5;
  const double there_ms =
      slower * (rows_ms + std::floor(static_cast<double>(tokens) / sched::kFastChunk) * price.prefill_call) +
      4 * price.state_ms(tokens);
  return std::max(here_ms, there_ms);
}

// A prompt with a target for its first token is computed before prompts with a later target or none.
bool SchedulingSim::is_due_before(const Request& one, const Request& other) {
  const auto due = [](const Request& request) { return request.received + from_ms(request.target_ttft_ms); };
  return one.target_ttft_ms > 0 && (other.target_ttft_ms <= 0 || due(one) < due(other));
}

// Whether `other`, which came later, may be placed first because it has waited longer for its size (decision 65). What it
// reuses makes it smaller, and how much that is, is not known.
bool SchedulingSim::may_overtake(const Request& other, const Request& request) {
  constexpr double kReplyTokens = 64;
  constexpr double kLongPrompt = 1024;
  const double share = kReplyTokens / (kReplyTokens + std::min<double>(request.prompt, kLongPrompt));
  return to_ms(request.first_token - other.received) >= share * to_ms(request.first_token - request.received);
}

// The requests whose work may come before the first token of `request`, which waits as an interactive request from `since` on:
// - running requests, and background requests that have waited so long that they keep their turn;
// - requests of the same client that came earlier, or have waited longer for their size;
// - equally much of other clients of its tenant, and equally much of other tenants, each up to the request that exceeds it, and
// up to the amount by which their counters are behind.
std::vector<const SchedulingSim::Request*> SchedulingSim::in_front_of(const Request& request, TimePoint since) const {
  std::vector<const Request*> front;
  std::vector<const Request*> waiting;  // Sorted by arrival.
  for (const auto& other : requests_) {
    if (other.get() == &request || other->ended <= since || other->received > request.first_token) continue;
    const bool is_running = other->received <= since && other->is_computed_at(since);
    const bool is_kept =
        other->is_background && (request.is_background || other->received + from_ms(kUrgentMs) < request.first_token);
    if (is_kept || (is_running && !other->is_background)) {
      front.push_back(other.get());
    } else if (!other->is_background) {
      waiting.push_back(other.get());
    }
  }
  std::ranges::sort(waiting, {}, [](const Request* other) { return std::pair(other->received, other->id); });

  double client_work = request.prompt;
  double tenant_work = 0;
  for (const Request* other : front) {
    if (other->flow == request.flow) client_work += other->reply;
    if (other->flow.tenant == request.flow.tenant) tenant_work += other->reply;
  }
  for (const Request* other : waiting) {
    if (other->flow != request.flow) continue;
    if (other->received > request.received && !is_due_before(*other, request) && !may_overtake(*other, request)) continue;
    client_work += other->work();
    front.push_back(other);
  }
  tenant_work += client_work;
  // A client that was absent at its arrival begins with the least counter of the present clients.
  double client_least = request.rank.client_work;
  double tenant_least = request.rank.tenant_work;
  for (const auto& [flow, rank] : request.others) {
    tenant_least = std::min(tenant_least, rank.tenant_work);
    if (flow.tenant == request.flow.tenant) client_least = std::min(client_least, rank.client_work);
  }
  std::map<sched::Flow, double> left;
  const auto take = [&](const Request* other, const sched::Flow& key, double allowance) {
    double& rest = left.try_emplace(key, allowance).first->second;
    if (rest < 0) return false;
    rest -= other->work();
    front.push_back(other);
    return true;
  };
  for (const Request* other : waiting) {
    if (other->flow == request.flow || other->flow.tenant != request.flow.tenant) continue;
    if (take(other, other->flow, client_work + request.rank.client_work - client_least)) tenant_work += other->work();
  }
  for (const Request* other : waiting) {
    if (other->flow.tenant == request.flow.tenant) continue;
    (void)take(other, {other->flow.tenant, kWholeTenant}, tenant_work + request.rank.tenant_work - tenant_least);
  }
  if (machine_options_.has_prefill_lane) {
    // Requests in a slot whose prompt waits in the prefill lane: there may be as many as slots, and no counter tells which.
    std::ranges::stable_sort(waiting, std::greater<>(), &Request::work);
    std::int32_t added = 0;
    for (const Request* other : waiting) {
      if (other->received > since || std::ranges::contains(front, other)) continue;
      if (++added > machine_options_.model.sequences) break;
      front.push_back(other);
    }
  }
  return front;
}

// Graham's bound for list scheduling: prompts are computed one after the other and replies in all slots, so the work in front
// takes at most the time of its prompts, of its replies divided by the slots, and of its longest reply. Additional times: the
// tick of its arrival, shorter prompts that overtake its own (prefill_rank), and the prefill lane's call.
double SchedulingSim::start_bound_ms(const Request& request) const {
  const TimePoint since = request.is_background ? request.received + from_ms(kUrgentMs) : request.received;
  double prompts_ms = prefill_bound_ms(request.prompt);
  double replies = 0;
  double longest = 0;
  const std::vector<const Request*> front = in_front_of(request, since);
  for (const Request* other : front) {
    prompts_ms += prefill_bound_ms(other->prompt);
    replies += other->reply;
    longest = std::max(longest, static_cast<double>(other->reply));
  }
  double tick_ms = decode_full_ms();
  double other_ms = 20 + to_ms(request.seen - request.received);
  if (machine_options_.has_prefill_lane) {
    const std::int32_t beside = machine_options_.lane.threads_beside_prefill;
    tick_ms = beside > 0 ? tick_ms * std::pow(double(kThreads) / beside, machine_options_.price.threads_exponent)
                         : std::max(kTickMs, 1.5 * tick_ms) + layer_ms();
    other_ms += slowest_ * kPrefillCallMs;
  }
  double own_ms = 1.5 * machine_options_.price.chunk_ms(request.prompt, 0);
  // While no stream decodes, its call may include rows of later prompts.
  const bool shares_its_call = std::ranges::any_of(requests_, [&](const auto& other) {
    return other.get() != &request && other->received < request.first_token && other->first_token >= request.first_token &&
           !std::ranges::contains(front, other.get());
  });
  if (shares_its_call) own_ms = std::max(own_ms, sched::BatchLimits().prefill_tick_ms);
  double overtaken_ms = 0;
  for (const auto& other : requests_) {
    const bool overtakes =
        other->received > since && other->prompt < request.prompt && other->first_token <= request.first_token;
    if (overtakes) overtaken_ms += prefill_bound_ms(other->prompt);
  }
  own_ms += std::min({overtaken_ms, sched::kPatience * own_ms, own_ms + sched::kPatienceMaxMs});
  double bound_ms =
      other_ms + slowest_ * (prompts_ms + own_ms + (replies / machine_options_.model.sequences + longest) * tick_ms);
  // A background request has its turn after waiting, and again if its prompt takes longer than the time for which it is kept.
  if (request.is_background) {
    bound_ms += kUrgentMs + std::floor(slowest_ * prefill_bound_ms(request.prompt) / kKeepsMs) * (kUrgentMs + kKeepsMs);
  }
  return bound_ms;
}

void SchedulingSim::check_starts() {
  for (const auto& request : requests_) {
    const double waited_ms = to_ms(request->first_token - request->received);
    const double bound_ms = start_bound_ms(*request);
    if (request->is_background && waited_ms > kUrgentMs) ++outcome_.starts_background;
    outcome_.worst_start = std::max(outcome_.worst_start, waited_ms / bound_ms);
    if (waited_ms <= bound_ms) continue;
    broken(std::format("start: {} request {} of {} tokens had its first after {:.0f} ms, the work in front allows {:.0f}",
                       request->is_background ? "background" : "interactive", request->id, request->prompt, waited_ms,
                       bound_ms));
  }
}

// By its guard, the model allows 5 % of late ticks. Chance may add three deviations and, for small numbers, kLateByChance; a
// change of speed adds the ticks that the model needs to adapt.
void SchedulingSim::check_shares() {
  const auto check = [&](const char* what, std::uint64_t late, std::uint64_t in_time) {
    const auto all = static_cast<double>(late + in_time);
    const double changes = static_cast<double>(machine_options_.speeds.size());
    const double expected = kLateShare * all;
    const double allowed = expected + 3 * std::sqrt(expected) + kLateByChance + kSpeedChangeTicks * changes;
    if (static_cast<double>(late) > allowed) broken(std::format("target: {} of {:.0f} {} were late", late, all, what));
  };
  check("ticks", outcome_.ticks_late, outcome_.ticks_in_time);
  const auto streams = static_cast<std::uint64_t>(machine_options_.model.sequences);
  check("gaps", outcome_.gaps_late / streams, outcome_.gaps_in_time / streams);
}

void SchedulingSim::check_tokens() {
  for (const auto& request : requests_) {
    std::vector<Token> chain{testing::kFakeBos};
    for (const char c : name_of(request->id)) chain.push_back(static_cast<unsigned char>(c));
    chain.resize(static_cast<std::size_t>(request->prompt), 'x');
    if (testing::fake_continuation(machine_options_.model, std::move(chain), request->reply) != request->tokens) {
      broken(std::format("tokens: those of request {} are not those of a run by itself", request->id));
    }
  }
}

}  // namespace uma::sim
