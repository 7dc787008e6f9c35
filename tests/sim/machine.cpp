#include "machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace uma::sim {
namespace {

constexpr double kStepMs = 0.02;  // Time of a step without calls: plan, sampling, bookkeeping.

}  // namespace

std::string name_of(std::uint64_t request) {
  std::string name(kNameLength, 'a');
  for (char& letter : name) {
    letter = static_cast<char>('a' + request % 26);
    request /= 26;
  }
  UMA_CHECK(request == 0);
  return name;
}

// A FakeContext whose calls take virtual time. A call is computed at its begin; only its own lane sees the effects, at the end.
class Machine::PricedContext final : public llm::Context {
 public:
  PricedContext(Machine& machine, const testing::FakeOptions& options, bool is_prefill_lane)
      : machine_(machine), is_prefill_lane_(is_prefill_lane), inner_(options), shape_(inner_.shape()) {
    shape_.layers = machine.options_.layers;
  }

  [[nodiscard]] const llm::ContextShape& shape() const override { return shape_; }
  [[nodiscard]] const std::string& state_identity() const override { return inner_.state_identity(); }
  [[nodiscard]] Expected<llm::DecodeStatus> decode(std::span<const llm::BatchRow> rows, llm::CallMonitor* monitor) override {
    Call call = describe(rows, monitor != nullptr);
    auto status = inner_.decode(rows, nullptr);
    for (CallPart& part : call.parts) part.request = request_in(static_cast<std::int32_t>(part.request));
    call.began = machine_.timeline_.now();
    machine_.on_begin(call);
    const Price& price = machine_.options_.price;
    const double all_threads_ms =
        call.is_prefill ? price.prefill_ms(call.shape) : price.decode_ms(call.shape.decode_rows, call.shape.kv_tokens);
    const double share = static_cast<double>(machine_.options_.lane.threads) / inner_.threads();
    const Duration time = from_ms(machine_.noisy(all_threads_ms * std::pow(share, price.threads_exponent)));
    if (is_prefill_lane_) {
      // The gate of a worker blocks real threads, and its monitor measures the real time. Here both are virtual.
      static_cast<engine::Interrupt*>(monitor)->add_waited(machine_.compute_prefill(time, inner_.threads()));
    } else {
      machine_.compute_decode(time, inner_.threads());
    }
    call.ended = machine_.timeline_.now();
    call.ms = to_ms(time);
    machine_.on_call(call);
    return status;
  }
  [[nodiscard]] Expected<llm::DecodeStatus> decode_image(const llm::ImageRows& rows, llm::CallMonitor* monitor) override {
    return inner_.decode_image(rows, monitor);
  }
  [[nodiscard]] std::span<float> logits(std::int32_t row) override { return inner_.logits(row); }
  [[nodiscard]] std::int32_t sequence_length(std::int32_t sequence) override { return inner_.sequence_length(sequence); }
  [[nodiscard]] bool can_truncate(std::int32_t sequence, std::int32_t begin) override {
    return inner_.can_truncate(sequence, begin);
  }
  [[nodiscard]] bool truncate(std::int32_t sequence, std::int32_t begin) override { return inner_.truncate(sequence, begin); }
  void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) override { inner_.shift(sequence, begin, end); }
  void share(std::int32_t from, std::int32_t to, std::int32_t count) override { inner_.share(from, to, count); }
  void clear() override { inner_.clear(); }
  void set_threads(std::int32_t threads) override { inner_.set_threads(threads); }
  void use_adapters(const llm::AdapterSet& set) override { inner_.use_adapters(set); }
  [[nodiscard]] std::uint64_t state_bytes(std::int32_t sequence) const override { return inner_.state_bytes(sequence); }
  [[nodiscard]] Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override {
    move_state(end - begin);
    return inner_.save_state(sequence, begin, end, bytes);
  }
  [[nodiscard]] Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                          std::span<const std::byte> bytes) override {
    move_state(end - begin);
    return inner_.load_state(sequence, begin, end, bytes);
  }
  [[nodiscard]] Expected<Unit> move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override {
    move_state(2 * (end - begin));
    return inner_.move_cells(sequence, begin, end, bytes);
  }

 private:
  // A part belongs to a request if the number of its sequence is known.
  [[nodiscard]] Call describe(std::span<const llm::BatchRow> rows, bool is_prefill) const {
    Call call{.in_prefill_lane = is_prefill_lane_,
              .is_prefill = is_prefill,
              .threads = inner_.threads(),
              .step = machine_.steps_,
              .shape = {},
              .parts = {}};
    for (const llm::BatchRow& row : rows) {
      const auto sequence = static_cast<std::uint64_t>(row.sequence);
      if (call.parts.empty() || call.parts.back().request != sequence) call.parts.push_back({sequence, 0, row.position});
      ++call.parts.back().rows;
    }
    for (const CallPart& part : call.parts) {
      if (is_prefill) {
        call.shape.add_chunk(part.rows, part.cached);
      } else {
        call.shape.add_decode(part.cached, part.rows - 1);
      }
    }
    return call;
  }

  [[nodiscard]] std::uint64_t request_in(std::int32_t sequence) const {
    const std::vector<Token> tokens = inner_.cached(sequence, kNameLength + 1);
    if (tokens.size() <= kNameLength) return kUnknownRequest;
    UMA_CHECK(tokens.front() == testing::kFakeBos);
    std::uint64_t request = 0;
    for (int i = kNameLength; i > 0; --i) {
      request = request * 26 + static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(i)] - 'a');
    }
    return request;
  }

  void move_state(std::int32_t tokens) {
    Timeline::Actor& self = is_prefill_lane_ ? *machine_.prefiller_ : *machine_.decoder_;
    const double ms = machine_.noisy(machine_.options_.price.state_ms(tokens));
    machine_.timeline_.spend(self, from_ms(ms));
    if (!is_prefill_lane_) machine_.on_state(ms);
    // A real lane would wait at the gate, which it enters next.
    if (is_prefill_lane_) machine_.wait_for_open_gate(self);
  }

  Machine& machine_;
  const bool is_prefill_lane_;
  testing::FakeContext inner_;
  llm::ContextShape shape_;
};

Machine::Machine(MachineOptions options, Timeline& timeline, const llm::Vocab& vocab, engine::Lane::OnResult on_result)
    : options_(std::move(options)), timeline_(timeline), random_(options_.seed) {
  auto context = std::make_unique<PricedContext>(*this, options_.model, false);
  std::unique_ptr<llm::Context> prefill_context;
  if (options_.has_prefill_lane) {
    testing::FakeOptions one = options_.model;
    one.sequences = 1;
    one.cells = context->shape().sequence_cells_max;
    prefill_context = std::make_unique<PricedContext>(*this, one, true);
  }
  lane_ = std::make_unique<engine::Lane>(options_.lane, std::move(context), std::move(prefill_context), vocab, timeline_,
                                         std::move(on_result));
  decoder_ = &timeline_.add_actor([this](Timeline::Actor& self) { run_lane(self); });
  if (options_.has_prefill_lane) {
    prefiller_ = &timeline_.add_actor([this](Timeline::Actor& self) { run_prefill_lane(self); });
  }
  timeline_.watch_clock_of(*decoder_, [this] { watch_gate(); });
}

Machine::~Machine() = default;

engine::CoreShare& Machine::cores() {
  return lane_->cores();
}

double Machine::speed() const {
  double factor = 1;
  for (const SpeedChange& change : options_.speeds) {
    if (change.at <= timeline_.now()) factor = change.factor;
  }
  return factor;
}

double Machine::noisy(double ms) {
  return ms * speed() * (1 + options_.price.noise * (2 * random_.next_unit() - 1));
}

void Machine::run_lane(Timeline::Actor& self) {
  while (!timeline_.is_stopping()) {
    ++steps_;
    const engine::StepOutcome outcome = lane_->step();
    watch_gate();
    wake_prefill_lane();
    on_step();
    if (outcome.did_work) {
      timeline_.spend(self, from_ms(kStepMs));
    } else {
      timeline_.wait(self, outcome.wake == kNever ? kNever : std::max(outcome.wake, timeline_.now() + from_ms(kStepMs)));
    }
  }
}

void Machine::run_prefill_lane(Timeline::Actor& self) {
  while (!timeline_.is_stopping()) {
    wait_for_open_gate(self);
    if (cores().prefill_is_busy() && lane_->prefill_lane()->step().did_work) {
      timeline_.wake(*decoder_);
    } else {
      timeline_.wait(self, kNever);
    }
  }
}

void Machine::wake_prefill_lane() {
  if (prefiller_ != nullptr && cores().prefill_is_busy() && !cores().gate().is_closed()) timeline_.wake(*prefiller_);
}

void Machine::wait_for_open_gate(Timeline::Actor& self) {
  while (cores().gate().is_closed() && !timeline_.is_stopping()) timeline_.wait(self, kNever);
}

void Machine::compute_decode(Duration time, std::int32_t threads) {
  wake_prefill_lane();
  if (held_.is_running && !held_.is_paused && held_.threads + threads > options_.lane.threads) ++crowded_calls_;
  decode_threads_ = threads;
  timeline_.spend(*decoder_, time);
  decode_threads_ = 0;
}

// Returns the time while interrupted. During that time the lane counts as outside of the gate; otherwise the decode lane, which
// runs on the same real thread at a time, would wait for ever.
Duration Machine::compute_prefill(Duration time, std::int32_t threads) {
  if (decode_threads_ > 0 && decode_threads_ + threads > options_.lane.threads) ++crowded_calls_;
  cores().gate().leave();
  held_ = {.is_running = true,
           .is_paused = false,
           .threads = threads,
           .total = time,
           .left = time,
           .since = timeline_.now(),
           .held_up = {}};
  timeline_.spend(*prefiller_, time);
  held_.is_running = false;
  return held_.held_up;
}

// The decode lane has closed the gate, which takes effect at the end of the prefill lane's current computation step, or has
// opened it.
void Machine::watch_gate() {
  const bool is_closed = cores().gate().is_closed();
  if (is_closed == gate_was_closed_) return;
  gate_was_closed_ = is_closed;
  if (!is_closed) {
    if (held_.is_running && held_.is_paused) {
      held_.is_paused = false;
      held_.held_up += timeline_.now() - held_.since;
      held_.since = timeline_.now();
      timeline_.move_end(*prefiller_, held_.since + held_.left);
    } else if (prefiller_ != nullptr) {
      timeline_.wake(*prefiller_);
    }
    return;
  }
  if (!held_.is_running) return;
  const Duration step = std::max(held_.total / options_.layers, Duration(1));
  const Duration done = held_.total - held_.left + (timeline_.now() - held_.since);
  const Duration boundary = std::min(held_.total, (done + step - Duration(1)) / step * step);
  timeline_.spend(*decoder_, boundary - done);
  if (boundary == held_.total) held_.is_running = false;  // The call ends now.
  if (!held_.is_running) return;
  held_.left = held_.total - boundary;
  held_.since = timeline_.now();
  held_.is_paused = true;
  timeline_.move_end(*prefiller_, kNever);
}

}  // namespace uma::sim
