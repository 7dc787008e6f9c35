#include "cluster_sim.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <utility>

#include "base/check.h"
#include "engine/lane/lane.h"
#include "engine/model/worker_source_test_support.h"
#include "engine/preparer.h"
#include "engine/router/router.h"
#include "kv/state_store.h"

namespace uma::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

const TenantId kTenant{"team"};
constexpr std::size_t kStoryLines = 400;
constexpr Duration kWaitMax = seconds(240);  // For the end of a request.
constexpr Duration kRestMax = seconds(600);  // For the end of everything, once the faults have stopped.
constexpr Duration kRequestTries = seconds(60);
constexpr std::size_t kSessionsMax = 8;

const ClusterSim* running = nullptr;

std::vector<ChatMessage> messages_of(const kv::SessionRecord& record) {
  std::vector<ChatMessage> all = record.messages;
  all.insert(all.end(), record.pending_messages.begin(), record.pending_messages.end());
  return all;
}

bool starts_with(const auto& whole, const auto& part) {
  return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
}

std::size_t count_of(const kv::SessionRecord& record, const std::string& element) {
  return static_cast<std::size_t>(std::ranges::count(messages_of(record), element, &ChatMessage::content));
}

std::string_view name_of_action(auto action) {
  constexpr std::array<std::string_view, 7> kNames{"create", "append", "generate", "read", "fork", "rename", "end"};
  return kNames[static_cast<std::size_t>(action)];
}

}  // namespace

// --- A machine

// The true time with an error, which may stand still.
class ClusterSim::MachineClock final : public Clock {
 public:
  MachineClock(const Timeline& timeline, double rate, Duration skew, std::int64_t wall_skew_s)
      : timeline_(timeline), rate_(rate), true_(timeline.now()), own_(timeline.now() + skew), wall_skew_s_(wall_skew_s) {}

  [[nodiscard]] TimePoint now() const override { return is_stopped_ ? own_ : own_ + passed(); }
  [[nodiscard]] std::int64_t unix_s() const override {
    return 1'700'000'000 + wall_skew_s_ + std::chrono::duration_cast<seconds>(timeline_.now().time_since_epoch()).count();
  }
  void stop() {
    own_ = now();
    is_stopped_ = true;
  }
  void go_on() {
    if (!std::exchange(is_stopped_, false)) return;
    true_ = timeline_.now();
  }

 private:
  [[nodiscard]] Duration passed() const { return from_ms(to_ms(timeline_.now() - true_) * rate_); }

  const Timeline& timeline_;
  const double rate_;
  TimePoint true_;
  TimePoint own_;
  const std::int64_t wall_skew_s_;
  bool is_stopped_ = false;
};

// What a client asked for.
struct ClusterSim::Goal {
  Action action = Action::read;
  SessionId session;
  std::string name;            // Of a new or renamed session; of a session that is read by its name.
  std::string element;         // The input.
  Machine* machine = nullptr;  // The one to use; null: any.
  bool must_read = false;      // The last attempt may be stored: it reads before it tries again.
  bool may_be_stored = false;  // Some attempt may be.
  TimePoint began{};
};

struct ClusterSim::Client {
  int number = 0;
  std::optional<Goal> goal;
  std::deque<Goal> plan;  // Of an auditor.
  bool is_auditor = false;
  bool is_done = false;
  std::map<SessionId, Machine*> last_machines;
};

struct ClusterSim::Request {
  std::uint64_t id = 0;
  Action action = Action::read;
  Goal goal;
  Client* client = nullptr;
  Machine* machine = nullptr;
  int life = 0;
  TimePoint invoked{};
  bool has_ended = false;
  bool is_abandoned = false;  // Its machine has died.
  bool has_token = false;
};

struct ClusterSim::Machine {
  enum class State : std::uint8_t { down, starting, up, stopping };

  int number = 0;
  std::string name;
  std::unique_ptr<MachineClock> clock;
  std::unique_ptr<Network> network;
  State state = State::down;
  int life = 0;
  bool is_awake = true;
  TimePoint slept_at{};
  TimePoint partitioned_until{};
  // A machine whose clock stood still believes in its lease, until it asks for changes.
  TimePoint stale_from{};
  TimePoint stale_until{};
  TimePoint woke_own{};
  int fresh_steps = 0;
  TimePoint next_step = kNever;
  std::uint64_t step_number = 0;

  std::unique_ptr<ClusterCatalog> catalog;
  std::unique_ptr<kv::StateStore> store;
  std::unique_ptr<engine::NamedModels> source;
  std::unique_ptr<engine::Preparer> preparer;
  std::unique_ptr<engine::Router> router;
  std::vector<std::unique_ptr<engine::Lane>> lanes;

  [[nodiscard]] bool is_reachable() const { return state == State::up && is_awake; }
};

// --- The network

// Each message takes a while. One that is lost takes its connection with it, which the machine notices at some time, and the
// server at another.
class ClusterSim::Network final : public ClusterNetwork {
 public:
  Network(ClusterSim& sim, Machine& machine) : sim_(sim), machine_(machine) {}

  void connect(OnConnected on_connected) override {
    after(sim_.delay(), [this, on_connected = std::move(on_connected)]() mutable {
      if (is_cut()) return;  // Nobody answers.
      const std::uint64_t backend = sim_.database_.connect(machine_.number);
      after(sim_.delay(), [this, backend, on_connected = std::move(on_connected)] {
        if (backend == 0 && !is_cut()) return arrive([&] { on_connected(std::nullopt); });
        if (is_cut() || sim_.is_lost()) return notice_end(backend, seconds(8));
        arrive([&] { on_connected(backend); });
      });
    });
  }

  void send(std::uint64_t backend, std::vector<Statement> statements, OnAnswer on_answer) override {
    const bool is_commit = statements.back().kind == Statement::Kind::commit;
    waiting_[backend] = std::make_shared<OnAnswer>(std::move(on_answer));
    const bool is_lost = sim_.is_lost(is_commit ? 4 : 1);
    if (is_lost) notice_loss(backend);
    Duration way = sim_.delay();
    if (is_cut()) {
      // It is sent again until the network is back; or the connection ends before.
      notice_loss(backend);
      if (sim_.chance(0.5)) return;
      way += machine_.partitioned_until - sim_.timeline_.now();
    }
    if (is_lost && sim_.chance(0.5)) return notice_end(backend, seconds(12));
    if (is_lost)
      sim_.note(std::format("{}: the connection will be lost behind {}", machine_.name, is_commit ? "a commit" : "a message"));
    after(way, [this, backend, is_lost, statements = std::move(statements)]() mutable {
      if (!sim_.database_.has(backend)) return fail(backend, milliseconds(1));
      sim_.database_.execute(backend, std::move(statements), [this, backend, is_lost](Answer answer) {
        if (is_lost) return notice_end(backend, seconds(12));
        deliver(backend, std::move(answer));
      });
    });
  }

  void close(std::uint64_t backend) override {
    waiting_.erase(backend);
    const TimePoint now = sim_.timeline_.now();
    notice_end(backend, is_cut() ? machine_.partitioned_until - now + milliseconds(100) : milliseconds(5));
  }

  // The server has ended: its machine says so, or nobody does.
  void on_crash(bool is_told) {
    for (const auto& [backend, waits] : std::map(waiting_)) {
      if (is_told && !is_cut()) fail(backend, milliseconds(50));
      if (!is_told) notice_loss(backend);
    }
  }
  [[nodiscard]] bool is_cut() const { return sim_.timeline_.now() < machine_.partitioned_until; }

 private:
  void after(Duration time, std::function<void()> event) { sim_.timeline_.at(sim_.timeline_.now() + time, std::move(event)); }
  void arrive(const std::function<void()>& call) {
    call();
    sim_.poke(machine_, microseconds(300));
  }
  void deliver(std::uint64_t backend, Answer answer) {
    after(sim_.delay(), [this, backend, answer = std::move(answer)]() mutable {
      if (is_cut()) {
        if (sim_.chance(0.5)) return;  // The machine notices on its own.
        const Duration rest = machine_.partitioned_until - sim_.timeline_.now();
        return after(rest, [this, backend, answer = std::move(answer)]() mutable { answer_now(backend, std::move(answer)); });
      }
      answer_now(backend, std::move(answer));
    });
  }
  void answer_now(std::uint64_t backend, std::optional<Answer> answer) {
    const auto found = waiting_.find(backend);
    if (found == waiting_.end()) return;
    const auto on_answer = found->second;
    waiting_.erase(found);
    arrive([&] { (*on_answer)(std::move(answer)); });
  }
  // The machine finds the connection lost.
  void fail(std::uint64_t backend, Duration within) {
    const auto found = waiting_.find(backend);
    if (found == waiting_.end()) return;
    after(sim_.between(microseconds(100), within), [this, backend, waits = found->second] {
      const auto still = waiting_.find(backend);
      if (still != waiting_.end() && still->second == waits) answer_now(backend, std::nullopt);
    });
  }
  void notice_loss(std::uint64_t backend) { fail(backend, sim_.chance(0.5) ? Duration(milliseconds(20)) : seconds(11)); }
  // The server finds the connection lost.
  void notice_end(std::uint64_t backend, Duration within) {
    if (backend == 0) return;
    after(sim_.between(microseconds(100), std::max<Duration>(within, milliseconds(1))), [this, backend] {
      sim_.database_.end(backend);
      if (sim_.database_.has(backend)) notice_end(backend, milliseconds(50));  // It commits.
    });
  }

  ClusterSim& sim_;
  Machine& machine_;
  std::map<std::uint64_t, std::shared_ptr<OnAnswer>> waiting_;  // By the backend.
};

// --- A reply

class ClusterSim::Sink final : public EventSink {
 public:
  Sink(ClusterSim& sim, RequestPtr request) : sim_(sim), request_(std::move(request)) {}

  bool deliver(const Event& event) override {
    if (request_->is_abandoned) return true;
    if (request_->has_ended) sim_.fail(std::format("request {} got an event behind its end", request_->id));
    if (std::holds_alternative<TokenEvent>(event) && !std::exchange(request_->has_token, true)) {
      sim_.check_stored(*request_, "a token came before the input was stored");
    } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
      const bool is_turn = !eos->error && (request_->has_token || eos->reason == FinishReason::stop);
      if (is_turn) {
        ++sim_.outcome_.turns;
        sim_.check_turn(*request_);
      }
      if (eos->error) {
        const ErrorCode code = eos->error->code;
        if (code != ErrorCode::io_failed && code != ErrorCode::limit_wait && code != ErrorCode::session_busy &&
            code != ErrorCode::session_unknown) {
          sim_.fail(std::format("request {}: the reply ended with {}", request_->id, eos->error->message));
        }
        if (code == ErrorCode::session_unknown) sim_.check_unknown(*request_);
      }
      // The input is stored, whatever became of the reply; but one that was cancelled may have ended before that.
      const bool may_be_stored = eos->reason == FinishReason::cancelled && !request_->has_token;
      sim_.end_request(request_, may_be_stored ? std::optional(ErrorCode::limit_wait) : std::nullopt);
    } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
      if (request_->has_token) sim_.fail(std::format("request {} failed behind a token", request_->id));
      sim_.end_request(request_, failure->error.code);
    }
    return true;
  }

 private:
  ClusterSim& sim_;
  const RequestPtr request_;
};

// --- The simulation

ClusterSim::ClusterSim(std::uint64_t seed) : random_(seed), began_(timeline_.now()), database_(timeline_, seed ^ 0xdb) {
  running = this;
  model_options_.sequences = 3;
  model_options_.cells = 3 * 4096;
  model_options_.end_every = 12;
  model_ = std::make_shared<const testing::FakeModel>(model_options_);
  record_bytes_max_ = std::array<std::size_t, 3>{0, 4000, 1 << 20}[random_.next_below(3)];
  lanes_count_ = 1 + random_.next_below(2);
  may_lose_commits_ = random_.next_below(5) == 0;
  loss_ = std::array{0.0, 0.002, 0.01}[random_.next_below(3)];
  slow_ = std::array{0.0, 0.01, 0.05}[random_.next_below(3)];
  fault_every_ = milliseconds(std::array{1500, 4000, 10000}[random_.next_below(3)]);
  end_ = began_ + seconds(random_.next_below(4) == 0 ? 90 : 30);
  const double drift = random_.next_below(2) == 0 ? 0.0005 : 0.01;
  slack_ = from_ms(20 + 15'000 * 2 * drift);
  const auto machines = 2 + random_.next_below(3);
  for (std::uint64_t i = 0; i < machines; ++i) {
    Machine& machine = *machines_.emplace_back(std::make_unique<Machine>());
    machine.number = static_cast<int>(i) + 1;
    machine.name = std::format("m{}", i + 1);
    machine.clock =
        std::make_unique<MachineClock>(timeline_, 1 + drift * (2 * random_.next_unit() - 1), between(Duration{}, seconds(3000)),
                                       static_cast<std::int64_t>(random_.next_below(600)) - 300);
    machine.network = std::make_unique<Network>(*this, machine);
  }
  for (std::uint64_t i = 0, count = 2 + random_.next_below(5); i < count; ++i) {
    Client& client = *clients_.emplace_back(std::make_unique<Client>());
    client.number = static_cast<int>(i) + 1;
  }
  database_.on_change = [this](const SessionChange& change) { on_change(change); };
  database_.commit_time = [this] {
    if (!has_faults_ || !chance(0.03)) return between(Duration{}, milliseconds(2));
    return between(Duration{}, seconds(chance(0.1) ? 30 : 2));
  };
}

ClusterSim::~ClusterSim() {
  for (const auto& machine : machines_) {
    for (const RequestPtr& request : open_) request->is_abandoned = true;
    machine->lanes.clear();
    machine->preparer.reset();
    machine->store.reset();
    machine->router.reset();
    machine->catalog.reset();
  }
  running = nullptr;
}

ClusterOutcome ClusterSim::run() {
  for (const auto& machine : machines_) {
    timeline_.at(timeline_.now() + between(Duration{}, milliseconds(300)), [this, &machine] { start(*machine); });
  }
  for (const auto& client : clients_) {
    timeline_.at(timeline_.now() + milliseconds(500), [this, &client] { think(*client); });
  }
  plan_fault();
  timeline_.at(end_, [this] { heal(); });
  timeline_.at(end_ + kRestMax, [this] {
    if (is_over_) return;
    fail("it does not come to rest");
    is_over_ = true;
  });
  check_waiting();
  timeline_.run();
  for (const auto& machine : machines_) {
    if (machine->catalog == nullptr) continue;
    outcome_.fenced += machine->catalog->fenced_count();
    outcome_.commits_asked_for += machine->catalog->outcomes_count();
  }
  if (!outcome_.broken.empty()) {
    for (const std::string& line : story_) outcome_.story += line + "\n";
  }
  return outcome_;
}

Duration ClusterSim::between(Duration low, Duration high) {
  return low + Duration(static_cast<Duration::rep>(random_.next_below(static_cast<std::uint64_t>((high - low).count()) + 1)));
}

// Of a message.
Duration ClusterSim::delay() {
  if (has_faults_ && chance(slow_)) return between(milliseconds(1), chance(0.1) ? Duration(seconds(9)) : milliseconds(600));
  return between(microseconds(50), milliseconds(1));
}

bool ClusterSim::is_lost(double weight) {
  return has_faults_ && chance(loss_ * weight);
}

ClusterSim::Machine& ClusterSim::any_machine() {
  return *machines_[random_.next_below(machines_.size())];
}

void ClusterSim::note(std::string text) {
  story_.push_back(std::format("{:9.3f} s  {}", to_ms(timeline_.now() - began_) / 1000, std::move(text)));
  if (story_.size() > kStoryLines) story_.pop_front();
}

void ClusterSim::fail(std::string text) {
  note("BROKEN: " + text);
  if (outcome_.broken.size() < 5) outcome_.broken.push_back(std::move(text));
  is_over_ = true;
}

void ClusterSim::print_story() {
  if (running == nullptr) return;
  for (const std::string& line : running->story_) std::fprintf(stderr, "%s\n", line.c_str());
}

// --- Machines

void ClusterSim::start(Machine& machine) {
  if (is_over_ || machine.state != Machine::State::down) return;
  machine.state = Machine::State::starting;
  ++machine.life;
  machine.catalog = std::make_unique<ClusterCatalog>(machine.name, *machine.network, *machine.clock, ClusterCatalogFaults{});
  machine.catalog->open([this, &machine, life = machine.life](bool is_open) {
    // Not from within the catalog.
    timeline_.at(timeline_.now(), [this, &machine, life, is_open] {
      if (machine.life != life) return;
      if (is_open) return start_engine(machine);
      note(std::format("{} cannot start: no database", machine.name));
      kill(machine, between(milliseconds(500), seconds(3)));
    });
  });
  poke(machine, milliseconds(1));
}

void ClusterSim::start_engine(Machine& machine) {
  machine.store = std::make_unique<kv::StateStore>(kv::StoreOptions{.warm_bytes_max = 200'000}, nullptr, *machine.clock);
  machine.source = std::make_unique<engine::NamedModels>();
  machine.preparer = std::make_unique<engine::Preparer>();
  engine::RouterOptions options;
  options.seed = random_.next_u64();
  options.record_bytes_max = record_bytes_max_;
  machine.router = std::make_unique<engine::Router>(options, *machine.source, *machine.catalog, *machine.store,
                                                    *machine.preparer, *machine.clock);
  machine.store->open(machine.router->session_ids());
  engine::LaneOptions lane;
  lane.threads = 2;
  lane.stored_tokens_min = 4;
  lane.store = machine.store.get();
  std::vector<engine::Lane*> lanes;
  for (std::uint64_t i = 0; i < lanes_count_; ++i) {
    machine.lanes.push_back(std::make_unique<engine::Lane>(
        lane, std::make_unique<testing::FakeContext>(model_options_), nullptr, model_->vocab(), *machine.clock,
        [router = machine.router.get()](engine::GenerationResult result) {
          router->post([router, result = std::move(result)]() mutable { router->generations().on_result(std::move(result)); });
        }));
    lanes.push_back(machine.lanes.back().get());
  }
  machine.router->on_loaded("fake", engine::chat_model(model_, lanes));
  machine.state = Machine::State::up;
  note(std::format("{} is up: run {}, {} sessions", machine.name, machine.catalog->run(), machine.router->sessions_count()));
  poke(machine, milliseconds(1));
}

// The machine stops where it is, without a word, and starts again later.
void ClusterSim::kill(Machine& machine, Duration down) {
  if (machine.state == Machine::State::down) return;
  machine.state = Machine::State::down;
  ++machine.life;
  for (const RequestPtr& request : std::vector(open_)) {
    if (request->machine != &machine || request->is_abandoned) continue;
    request->is_abandoned = true;
    std::erase(open_, request);
    timeline_.at(timeline_.now() + delay(), [this, request] { on_refused(*request->client, request, ErrorCode::limit_wait); });
  }
  if (machine.catalog != nullptr) {
    outcome_.fenced += machine.catalog->fenced_count();
    outcome_.commits_asked_for += machine.catalog->outcomes_count();
  }
  machine.lanes.clear();
  machine.preparer.reset();
  machine.store.reset();
  machine.router.reset();
  machine.catalog.reset();
  machine.source.reset();
  machine.is_awake = true;
  machine.clock->go_on();
  machine.stale_until = machine.stale_from = {};
  timeline_.at(timeline_.now() + down, [this, &machine] { start(machine); });
}

// As after SIGTERM.
void ClusterSim::stop(Machine& machine) {
  if (!machine.is_reachable()) return;
  note(std::format("{} is told to stop", machine.name));
  ++outcome_.stops;
  machine.state = Machine::State::stopping;
  machine.router->drain();
}

void ClusterSim::stop_if_done(Machine& machine) {
  const bool has_requests = std::ranges::any_of(open_, [&](const RequestPtr& request) { return request->machine == &machine; });
  if (machine.router->requests_open() > 0 || has_requests) return;
  machine.catalog->close();
  if (!machine.catalog->has_ended()) return;
  note(std::format("{} has stopped", machine.name));
  kill(machine, between(milliseconds(100), seconds(5)));
}

void ClusterSim::sleep(Machine& machine, Duration time) {
  if (!machine.is_awake || machine.state == Machine::State::down) return;
  ++outcome_.sleeps;
  const bool stops_clock = random_.next_below(2) == 0;
  note(std::format("{} sleeps for {:.1f} s{}", machine.name, to_ms(time) / 1000, stops_clock ? ", and so does its clock" : ""));
  machine.is_awake = false;
  machine.slept_at = timeline_.now();
  if (stops_clock) machine.clock->stop();
  if (stops_clock && machine.stale_from == TimePoint{}) machine.stale_from = timeline_.now();
  if (stops_clock) machine.stale_until = kNever;
  timeline_.at(timeline_.now() + time, [this, &machine, life = machine.life] {
    if (machine.life == life) wake(machine);
  });
}

void ClusterSim::wake(Machine& machine) {
  if (std::exchange(machine.is_awake, true)) return;
  machine.clock->go_on();
  machine.woke_own = machine.clock->now();
  machine.fresh_steps = 0;
  note(std::format("{} wakes up", machine.name));
  poke(machine, milliseconds(5));
}

void ClusterSim::poke(Machine& machine, Duration within) {
  const TimePoint at = timeline_.now() + between(Duration{}, within);
  if (machine.next_step <= at) return;
  machine.next_step = at;
  timeline_.at(at, [this, &machine, number = ++machine.step_number] {
    if (machine.step_number != number) return;
    machine.next_step = kNever;
    step(machine);
  });
}

void ClusterSim::step(Machine& machine) {
  if (is_over_ || !machine.is_awake || machine.state == Machine::State::down) return;
  bool worked = machine.catalog->step();
  if (machine.router != nullptr) {
    if (random_.next_below(4) != 0) worked |= machine.router->step();
    if (random_.next_below(2) == 0) worked |= machine.preparer->step();
    if (random_.next_below(4) == 0) worked |= machine.store->step();
    for (const auto& lane : machine.lanes) {
      if (random_.next_below(3) == 0) continue;
      worked |= lane->step().did_work || !lane->is_idle();
      lane->check_invariants();
    }
    machine.router->check_invariants();
    const bool has_asked = machine.catalog->changes_asked_at() > machine.woke_own || machine.catalog->lease() == 0;
    if (machine.stale_until == kNever && has_asked && ++machine.fresh_steps > 20) {
      machine.stale_until = timeline_.now();
      machine.stale_from = {};
    }
    if (machine.state == Machine::State::stopping) stop_if_done(machine);
    if (machine.state == Machine::State::down) return;
  }
  const bool has_requests = std::ranges::any_of(open_, [&](const RequestPtr& request) { return request->machine == &machine; });
  poke(machine, worked ? milliseconds(1) : has_requests ? milliseconds(10) : milliseconds(100));
}

// --- Faults

void ClusterSim::plan_fault() {
  timeline_.at(timeline_.now() + between(milliseconds(1), 2 * fault_every_), [this] {
    if (!has_faults_ || is_over_) return;
    cause_fault();
    plan_fault();
  });
}

void ClusterSim::cause_fault() {
  Machine& machine = any_machine();
  const Duration shorter = between(milliseconds(20), seconds(2));
  const Duration longer = between(milliseconds(20), seconds(25));
  switch (random_.next_below(10)) {
    case 0:
    case 1:
      if (machine.state == Machine::State::down) break;
      ++outcome_.kills;
      note(std::format("{} is killed", machine.name));
      kill(machine, chance(0.5) ? shorter : longer);
      break;
    case 2:
      stop(machine);
      break;
    case 3:
    case 4:
      sleep(machine, chance(0.5) ? shorter : longer);
      break;
    case 5:
    case 6: {
      ++outcome_.partitions;
      const Duration time = chance(0.5) ? shorter : longer;
      note(std::format("{} is cut off from the database for {:.1f} s", machine.name, to_ms(time) / 1000));
      machine.partitioned_until = std::max(machine.partitioned_until, timeline_.now() + time);
      break;
    }
    case 7:
      note(std::format("the server ends the connections of {}", machine.name));
      for (const std::uint64_t backend : database_.backends_of(machine.number)) database_.end(backend);
      break;
    default:
      crash_database();
  }
}

void ClusterSim::crash_database() {
  if (!database_.is_up()) return;
  const bool is_takeover = chance(0.5);
  const Duration lost = is_takeover && may_lose_commits_ ? between(Duration{}, seconds(3)) : Duration{};
  const Duration down = between(milliseconds(100), chance(0.3) ? Duration(seconds(20)) : milliseconds(1500));
  ++(is_takeover ? outcome_.takeovers : outcome_.crashes);
  note(std::format("the database {}; back in {:.1f} s{}", is_takeover ? "is taken over by another server" : "crashes",
                   to_ms(down) / 1000,
                   lost > Duration{} ? std::format(", without the commits of {:.1f} s", to_ms(lost) / 1000) : ""));
  database_.crash(lost);
  if (lost > Duration{}) lose_versions(lost);
  for (const auto& machine : machines_) machine->network->on_crash(!is_takeover);
  const Duration jump = is_takeover ? between(Duration{}, milliseconds(400)) - milliseconds(200) : Duration{};
  jumps_ += jump < Duration{} ? -jump : jump;
  timeline_.at(timeline_.now() + down, [this, jump] {
    if (!database_.is_up()) database_.start(jump);
    note("the database is up");
  });
}

void ClusterSim::lose_versions(Duration lost) {
  for (auto& [id, versions] : history_) {
    for (Version& version : versions) {
      if (version.from <= timeline_.now() - lost || version.is_lost) continue;
      version.is_lost = true;
      ++outcome_.commits_lost;
    }
  }
  runs_of_fences_.clear();
}

void ClusterSim::heal() {
  if (is_over_) return;
  note("the faults stop");
  has_faults_ = false;
  if (!database_.is_up()) database_.start({});
  for (const auto& machine : machines_) {
    machine->partitioned_until = {};
    wake(*machine);
    start(*machine);
  }
  check_rest();
}

// --- Clients

void ClusterSim::think(Client& client) {
  timeline_.at(timeline_.now() + between(milliseconds(10), milliseconds(chance(0.1) ? 3000 : 500)), [this, &client] {
    if (is_over_ || client.is_done) return;
    choose(client);
  });
}

void ClusterSim::choose(Client& client) {
  client.goal.reset();
  if (client.is_auditor) {
    if (client.plan.empty()) {
      client.is_done = true;
      return;
    }
    client.goal = std::move(client.plan.front());
    client.plan.pop_front();
  } else if (!has_faults_) {
    client.is_done = true;
    return;
  } else {
    Goal goal;
    const auto kind = random_.next_below(20);
    if (pool_.empty() || (kind == 0 && pool_.size() < kSessionsMax)) {
      goal.action = Action::create;
    } else {
      goal.session = pool_[random_.next_below(pool_.size())];
      goal.action = kind < 6    ? Action::append
                    : kind < 12 ? Action::generate
                    : kind < 17 ? Action::read
                    : kind < 18 ? Action::fork
                    : kind < 19 ? Action::rename
                                : Action::end;
      if (goal.action == Action::fork && pool_.size() >= kSessionsMax) goal.action = Action::read;
      if (goal.action == Action::end && pool_.size() < 3) goal.action = Action::append;
    }
    const bool has_name = goal.action == Action::rename || random_.next_below(3) == 0;
    if (has_name) goal.name = std::format("name {}", random_.next_below(4));
    client.goal = std::move(goal);
  }
  client.goal->began = timeline_.now();
  if (client.goal->action == Action::append || client.goal->action == Action::generate)
    client.goal->element = std::format("[{}]", ++last_element_);
  attempt(client);
}

ClusterSim::Machine* ClusterSim::choose_machine(const Client& client) {
  if (client.goal->machine != nullptr) return client.goal->machine;
  const auto last = client.last_machines.find(client.goal->session);
  if (last != client.last_machines.end() && chance(0.6)) return last->second;
  return &any_machine();
}

void ClusterSim::attempt_later(Client& client, Duration low, Duration high) {
  if (is_over_) return;
  timeline_.at(timeline_.now() + between(low, high), [this, &client] {
    if (!is_over_) attempt(client);
  });
}

void ClusterSim::attempt(Client& client) {
  Goal& goal = *client.goal;
  if (timeline_.now() - goal.began > (client.is_auditor ? kRestMax : kRequestTries) && !goal.must_read)
    return give_up(client, "it has tried for long");
  Machine* machine = choose_machine(client);
  if (machine->state != Machine::State::up) return attempt_later(client, milliseconds(50), milliseconds(400));
  auto request = std::make_shared<Request>();
  request->id = ++last_request_;
  request->action = goal.must_read ? Action::read : goal.action;
  request->goal = goal;
  if (goal.must_read) request->goal.name.clear();
  request->client = &client;
  request->machine = machine;
  request->life = machine->life;
  request->invoked = timeline_.now();
  ++outcome_.requests;
  open_.push_back(request);
  client.last_machines[goal.session] = machine;
  note(std::format("client {} asks {}: {} {} {}{} (request {})", client.number, machine->name, name_of_action(request->action),
                   name_of(goal.session), goal.element, request->goal.name.empty() ? "" : " as \"" + request->goal.name + "\"",
                   request->id));
  timeline_.at(timeline_.now() + between(microseconds(50), milliseconds(2)), [this, request] { deliver(request); });
}

void ClusterSim::deliver(const RequestPtr& request) {
  if (request->is_abandoned || is_over_) return;
  Machine& machine = *request->machine;
  if (!machine.is_awake) {
    timeline_.at(timeline_.now() + milliseconds(200), [this, request] { deliver(request); });
    return;
  }
  // A daemon that stops takes no connection.
  if (machine.state != Machine::State::up) return end_request(request, ErrorCode::session_busy);
  start_request(machine, request);
  poke(machine, microseconds(500));
}

void ClusterSim::start_request(Machine& machine, const RequestPtr& request) {
  engine::Router& router = *machine.router;
  const Goal& goal = request->goal;
  const std::string& session = goal.session.value;
  const auto on_info = [this, request](const Expected<SessionInfo>& info) {
    if (request->is_abandoned) return;
    if (info && (request->action == Action::create || request->action == Action::fork)) request->goal.session = info->id;
    if (info && request->action == Action::fork && info->parent != request->client->goal->session)
      fail(std::format("request {}: the fork has another parent", request->id));
    end_request(request, info ? std::nullopt : std::optional(info.error().code));
  };
  switch (request->action) {
    case Action::create: {
      CreateSessionRequest call;
      call.mode = SessionMode::chat;
      call.name = goal.name;
      call.messages = {{"user", std::format("[new {}]", request->id)}};
      return router.tasks().answer(Reply<SessionInfo>(on_info), router.sessions().create(kTenant, std::move(call)));
    }
    case Action::append:
      return router.tasks().answer(
          Reply<SessionInfo>(on_info),
          router.sessions().append(kTenant, {.session = session, .input = {.text = {}, .messages = {{"user", goal.element}}}}));
    case Action::fork:
      return router.tasks().answer(Reply<SessionInfo>(on_info),
                                   router.sessions().fork(kTenant, {.session = session, .name = goal.name}));
    case Action::rename:
      return router.tasks().answer(Reply<SessionInfo>(on_info),
                                   router.sessions().update(kTenant, {.session = session, .name = goal.name}));
    case Action::end:
      return router.tasks().answer(Reply<Unit>([this, request](const Expected<Unit>& done) {
                                     if (request->is_abandoned) return;
                                     end_request(request, done ? std::nullopt : std::optional(done.error().code));
                                   }),
                                   router.sessions().end(kTenant, session));
    case Action::read:
      return router.tasks().answer(Reply<SessionDetail>([this, request](const Expected<SessionDetail>& detail) {
                                     if (request->is_abandoned) return;
                                     if (!detail) return end_request(request, detail.error().code);
                                     on_read(request, *detail);
                                   }),
                                   router.sessions().get(kTenant, goal.name.empty() ? session : goal.name));
    case Action::generate: {
      GenerateRequest call;
      call.session = session;
      call.input.messages = {{"user", goal.element}};
      call.options.max_tokens = 1 + static_cast<std::int32_t>(random_.next_below(10));
      const RequestId id{request->id};
      router.generations().start(id, kTenant, std::move(call), {std::make_shared<Sink>(*this, request)});
      if (chance(0.08)) {
        timeline_.at(timeline_.now() + between(Duration{}, milliseconds(20)), [this, &machine, request, id] {
          if (!request->is_abandoned && !request->has_ended && machine.is_awake) (void)machine.router->cancel(id);
        });
      }
    }
  }
}

// The machine has answered.
void ClusterSim::end_request(const RequestPtr& request, std::optional<ErrorCode> error) {
  if (request->has_ended) return fail(std::format("request {} ended twice", request->id));
  request->has_ended = true;
  std::erase(open_, request);
  if (is_over_) return;
  Client& client = *request->client;
  if (error) {
    note(std::format("{} answers request {}: {}", request->machine->name, request->id, code_name(*error)));
    return on_refused(client, request, *error);
  }
  note(std::format("{} answers request {}: done", request->machine->name, request->id));
  on_done(client, request);
}

void ClusterSim::on_done(Client& client, const RequestPtr& request) {
  const Goal& goal = request->goal;
  const auto check_now = [&](const std::function<bool(const Version*)>& fits, std::string_view what) {
    if (!was_version(*request, fits, goal.session))
      fail(std::format("request {}: {} {}", request->id, what, name_of(goal.session)));
  };
  switch (request->action) {
    case Action::append:
    case Action::generate:
      ++outcome_.inputs;
      check_stored(*request, "an acknowledged input is not stored");
      break;
    case Action::create:
      check_now([](const Version* version) { return version != nullptr; }, "nobody has made");
      pool_.push_back(goal.session);
      break;
    case Action::fork: {
      ++outcome_.forks;
      const auto made = history_.find(goal.session);
      if (made == history_.end()) {
        fail(std::format("request {}: the fork was not stored", request->id));
        break;
      }
      const kv::SessionRecord& first = *made->second.front().record;
      const bool fits = was_version(
          *request,
          [&](const Version* version) {
            return version != nullptr && version->record != nullptr && messages_of(*version->record) == messages_of(first);
          },
          client.goal->session);
      if (!fits) fail(std::format("request {}: the fork is of no present version", request->id));
      if (pool_.size() < kSessionsMax) pool_.push_back(goal.session);
      break;
    }
    case Action::rename:
      ++outcome_.renames;
      check_now(
          [&](const Version* version) { return version != nullptr && version->record && version->record->name == goal.name; },
          "no version has the new name:");
      break;
    case Action::end:
      ++outcome_.ends;
      if (const Version* version = present(goal.session); version != nullptr && version->record != nullptr)
        fail(std::format("request {}: session {} has not ended", request->id, name_of(goal.session)));
      std::erase(pool_, goal.session);
      break;
    case Action::read:
      break;
  }
  think(client);
}

void ClusterSim::on_read(const RequestPtr& request, const SessionDetail& detail) {
  ++outcome_.reads;
  const Goal& goal = request->goal;
  const bool fits = was_version(
      *request,
      [&](const Version* version) {
        if (version == nullptr || version->record == nullptr) return false;
        const kv::SessionRecord& record = *version->record;
        return record.messages == detail.messages && record.pending_messages == detail.pending_messages &&
               record.name == detail.info.name && (goal.name.empty() || record.name == goal.name);
      },
      detail.info.id);
  if (!fits) {
    fail(std::format("request {}: session {} \"{}\" with {} messages and {} pending ones was no version at that time",
                     request->id, name_of(detail.info.id), detail.info.name, detail.messages.size(),
                     detail.pending_messages.size()));
  }
  if (request->has_ended) return fail(std::format("request {} ended twice", request->id));
  request->has_ended = true;
  std::erase(open_, request);
  if (is_over_) return;
  note(std::format("{} answers request {}: {} messages, {} pending", request->machine->name, request->id,
                   detail.messages.size(), detail.pending_messages.size()));
  Client& client = *request->client;
  Goal& own = *client.goal;
  if (!std::exchange(own.must_read, false)) return think(client);
  // It knows now whether its input is there.
  std::size_t count = 0;
  for (const auto* messages : {&detail.messages, &detail.pending_messages}) {
    count += static_cast<std::size_t>(std::ranges::count(*messages, own.element, &ChatMessage::content));
  }
  if (count == 0) {
    own.may_be_stored = false;
    return attempt(client);
  }
  ++outcome_.inputs;
  think(client);
}

void ClusterSim::on_refused(Client& client, const RequestPtr& request, ErrorCode code) {
  if (is_over_) return;
  ++outcome_.refused;
  Goal& goal = *client.goal;
  const bool has_input = goal.action == Action::append || goal.action == Action::generate;
  switch (code) {
    case ErrorCode::session_busy:
    case ErrorCode::io_failed:
      return attempt_later(client, milliseconds(20), milliseconds(800));
    case ErrorCode::limit_wait:
      ++outcome_.unknown;
      if (has_input && request->action != Action::read) goal.must_read = goal.may_be_stored = true;
      if (goal.action == Action::create || goal.action == Action::fork) return give_up(client, "it may be done");
      return attempt_later(client, milliseconds(20), milliseconds(800));
    case ErrorCode::session_unknown:
      check_unknown(*request);
      if (request->goal.name.empty() || goal.action != Action::read) std::erase(pool_, goal.session);
      return give_up(client, "the session has ended");
    case ErrorCode::session_name_taken:
      if (goal.action != Action::create && goal.action != Action::fork && goal.action != Action::rename)
        fail(std::format("request {}: a name is taken, but it has none", request->id));
      return give_up(client, "the name is taken");
    case ErrorCode::limit_context:
    case ErrorCode::limit_prompt:
      std::erase(pool_, goal.session);
      return give_up(client, "the session is full");
    default:
      fail(std::format("request {}: {} is no error that was expected", request->id, code_name(code)));
  }
}

void ClusterSim::give_up(Client& client, const std::string& why) {
  const Goal& goal = *client.goal;
  note(std::format("client {} gives up: {}", client.number, why));
  if (client.is_auditor && why != "the session is full" && why != "the session has ended")
    fail(std::format("client {} cannot continue session {}: {}", client.number, name_of(goal.session), why));
  if (!goal.element.empty() && !goal.may_be_stored) {
    refused_.insert(goal.element);
    const Version* version = present(goal.session);
    if (version != nullptr && version->record != nullptr && count_of(*version->record, goal.element) > 0)
      fail(std::format("the input {} was refused, and is stored", goal.element));
  }
  think(client);
}

// --- The observer

void ClusterSim::on_change(const SessionChange& change) {
  if (change.after && change.before && change.after->owner != 0 && change.after->owner != change.before->owner)
    ++outcome_.moves;
  if (!change.has_content) {
    if (change.after && change.before && change.after->owner != change.before->owner) {
      note(std::format("        database: session {} belongs to {}, fence {}", name_of(change.id),
                       change.after->owner == 0 ? "nobody" : std::format("run {}", change.after->owner), change.after->fence));
    }
    return;
  }
  note(std::format(
      "        database: run {} has {} session {}, fence {}{}", change.run,
      !change.before ? "made"
      : change.after ? "changed"
                     : "ended",
      name_of(change.id), change.fence,
      change.after ? std::format(", {} messages, \"{}\"", messages_of(*change.after->record).size(), change.after->record->name)
                   : ""));
  check_commit(change);
  history_[change.id].push_back({timeline_.now(), change.after ? change.after->record : nullptr, false});
}

void ClusterSim::check_commit(const SessionChange& change) {
  const std::string session = name_of(change.id);
  auto& runs = runs_of_fences_[change.id];
  if (!runs.try_emplace(change.fence, change.run).second)
    fail(std::format("two commits in session {} under fence {}: of run {} and run {}", session, change.fence,
                     runs.at(change.fence), change.run));
  const Version* last = present(change.id);
  const kv::SessionRecord* before = last == nullptr ? nullptr : last->record.get();
  if ((before == nullptr) != !change.before) return fail(std::format("session {} came back", session));
  if (before != nullptr && change.before->owner != change.run)
    fail(std::format("run {} has changed session {}, which run {} owns", change.run, session, change.before->owner));
  if (!change.after) return;
  const kv::SessionRecord& after = *change.after->record;
  for (const ChatMessage& message : after.messages) {
    if (message.role == "user" && count_of(after, message.content) != 1)
      fail(std::format("{} is in session {} more than once", message.content, session));
  }
  for (const ChatMessage& message : after.pending_messages) {
    if (count_of(after, message.content) != 1)
      fail(std::format("{} is in session {} more than once", message.content, session));
    if (refused_.contains(message.content)) fail(std::format("{} was refused, and is stored now", message.content));
  }
  if (before == nullptr) return;
  if (change.made_from == nullptr || !(*change.made_from == *before))
    return fail(std::format("session {} was changed from another version than the present one", session));
  if (!starts_with(after.chain, before->chain) || !starts_with(messages_of(after), messages_of(*before)))
    fail(std::format("a change of session {} has lost something", session));
  check_reply(change, *before, after);
}

void ClusterSim::check_reply(const SessionChange& change, const kv::SessionRecord& before, const kv::SessionRecord& after) {
  if (after.turns.size() == before.turns.size()) return;
  const auto begin = static_cast<std::size_t>(after.turns.back().reply_begin);
  const std::vector<Token> prompt(after.chain.begin(), after.chain.begin() + static_cast<std::ptrdiff_t>(begin));
  const std::vector<Token> reply(after.chain.begin() + static_cast<std::ptrdiff_t>(begin), after.chain.end());
  const std::vector<Token> expected = fake_continuation(model_options_, prompt, static_cast<std::int32_t>(reply.size()));
  if (!starts_with(reply, expected) || reply.size() > expected.size() + 1)
    fail(std::format("a reply in session {} is not the model's", name_of(change.id)));
}

const ClusterSim::Version* ClusterSim::present(const SessionId& id) const {
  const auto found = history_.find(id);
  if (found == history_.end()) return nullptr;
  for (auto version = found->second.rbegin(); version != found->second.rend(); ++version) {
    if (!version->is_lost) return &*version;
  }
  return nullptr;
}

// When an answer may be from.
TimePoint ClusterSim::seen_from(const Request& request) const {
  TimePoint from = request.invoked - slack_ - jumps_;
  const Machine& machine = *request.machine;
  if (request.invoked <= machine.stale_until && machine.stale_from != TimePoint{})
    from = std::min(from, machine.stale_from - slack_);
  return may_lose_commits_ ? TimePoint{} : from;
}

// Whether one of the versions since the request fits; nullptr: there was none.
bool ClusterSim::was_version(const Request& request, const std::function<bool(const Version*)>& fits,
                             const SessionId& id) const {
  const TimePoint from = seen_from(request);
  const auto found = history_.find(id);
  if (found == history_.end() || found->second.front().from > from) {
    if (fits(nullptr)) return true;
  }
  if (found == history_.end()) return false;
  const std::vector<Version>& versions = found->second;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const bool was_replaced = i + 1 < versions.size() && versions[i + 1].from < from;
    if (!was_replaced && fits(&versions[i])) return true;
  }
  return false;
}

void ClusterSim::check_stored(const Request& request, std::string_view what) {
  const SessionId& session = request.goal.session;
  const auto has = [&](const Version* version) {
    return version != nullptr && version->record != nullptr && count_of(*version->record, request.goal.element) == 1;
  };
  const Version* version = present(session);
  if (has(version)) return;
  const auto found = history_.find(session);
  const bool was_there =
      found != history_.end() && std::ranges::any_of(found->second, [&](const Version& each) { return has(&each); });
  const bool has_ended = version != nullptr && version->record == nullptr;
  if (was_there && (has_ended || may_lose_commits_)) return;
  fail(std::format("request {}: {}: {} in session {}", request.id, what, request.goal.element, name_of(session)));
}

// The reply to the input is in the session.
void ClusterSim::check_turn(const Request& request) {
  const auto found = history_.find(request.goal.session);
  const auto has = [&](const Version& version) {
    if (version.record == nullptr) return false;
    const auto& messages = version.record->messages;
    const auto input = std::ranges::find(messages, request.goal.element, &ChatMessage::content);
    return input != messages.end() && input + 1 != messages.end() && (input + 1)->role == "assistant";
  };
  const bool is_there = found != history_.end() && std::ranges::any_of(found->second, has);
  if (!is_there)
    fail(std::format("request {}: the finished turn of {} is not in session {}", request.id, request.goal.element,
                     name_of(request.goal.session)));
}

// Somebody is told that a session does not exist.
void ClusterSim::check_unknown(const Request& request) {
  const Goal& goal = request.goal;
  const TimePoint from = seen_from(request);
  if (request.action != Action::read || goal.name.empty()) {
    const bool fits = was_version(
        request, [](const Version* version) { return version == nullptr || version->record == nullptr; }, goal.session);
    if (!fits) fail(std::format("request {}: session {} exists", request.id, name_of(goal.session)));
    return;
  }
  // Was there a time at which no session had the name?
  std::vector<TimePoint> times{from};
  for (const auto& [id, versions] : history_) {
    for (const Version& version : versions) {
      if (version.from > from) times.push_back(version.from);
    }
  }
  const auto is_free_at = [&](TimePoint time) {
    return std::ranges::none_of(history_, [&](const auto& each) {
      const Version* then = nullptr;
      for (const Version& version : each.second) {
        if (version.from <= time) then = &version;
      }
      return then != nullptr && then->record != nullptr && then->record->name == goal.name;
    });
  };
  if (!std::ranges::any_of(times, is_free_at) && !may_lose_commits_)
    fail(std::format("request {}: a session has the name \"{}\"", request.id, goal.name));
}

void ClusterSim::check_waiting() {
  if (is_over_) return;
  for (const RequestPtr& request : std::vector(open_)) {
    if (timeline_.now() - request->invoked > kWaitMax) {
      fail(std::format("request {} of client {} at {} waits since {:.3f} s", request->id, request->client->number,
                       request->machine->name, to_ms(request->invoked - began_) / 1000));
    }
  }
  timeline_.at(timeline_.now() + seconds(5), [this] { check_waiting(); });
}

// --- The end

// Waits until the clients have done what they wanted, then lets each machine continue each session.
void ClusterSim::check_rest() {
  if (is_over_) return;
  const bool is_quiet = std::ranges::all_of(clients_, [](const auto& client) { return client->is_done; });
  const bool has_audited = clients_.back()->is_auditor;
  if (is_quiet && has_audited) {
    timeline_.at(timeline_.now() + seconds(4), [this] { check_end(); });
    return;
  }
  if (is_quiet) audit();
  timeline_.at(timeline_.now() + milliseconds(100), [this] { check_rest(); });
}

void ClusterSim::audit() {
  note("every machine continues every session");
  Client& auditor = *clients_.emplace_back(std::make_unique<Client>());
  auditor.number = static_cast<int>(clients_.size());
  auditor.is_auditor = true;
  for (const SessionId& session : pool_) {
    for (const auto& machine : machines_) {
      for (const Action action : {Action::generate, Action::read}) {
        Goal goal;
        goal.action = action;
        goal.session = session;
        goal.machine = machine.get();
        auditor.plan.push_back(std::move(goal));
      }
    }
  }
  think(auditor);
}

// Everybody lists what there is, and the database has what was acknowledged.
void ClusterSim::check_end() {
  if (is_over_) return;
  if (!open_.empty()) fail("a request has no end");
  for (const auto& [id, versions] : history_) {
    const Version* last = present(id);
    const auto stored = database_.sessions().find(id);
    const bool is_there = last != nullptr && last->record != nullptr;
    if (is_there != (stored != database_.sessions().end()))
      fail(std::format("session {} is not as the last commit left it", name_of(id)));
    if (is_there && stored != database_.sessions().end() && !(*stored->second.record == *last->record))
      fail(std::format("session {} is not as the last commit left it", name_of(id)));
  }
  for (const auto& machine : machines_) {
    if (machine->state != Machine::State::up) {
      fail(std::format("{} is not up", machine->name));
      continue;
    }
    const SessionList list = machine->router->sessions().list(kTenant, {}).value();
    std::map<SessionId, std::string> listed;
    for (const SessionInfo& info : list.sessions) listed[info.id] = info.name;
    for (const auto& [id, stored] : database_.sessions()) {
      const auto found = listed.find(id);
      if (found == listed.end()) {
        fail(std::format("{} does not list session {}", machine->name, name_of(id)));
      } else if (found->second != stored.record->name) {
        fail(std::format("{} lists session {} as \"{}\", its name is \"{}\"", machine->name, name_of(id), found->second,
                         stored.record->name));
      }
    }
    for (const auto& [id, name] : listed) {
      if (!database_.sessions().contains(id))
        fail(std::format("{} lists session {}, which has ended", machine->name, name_of(id)));
    }
  }
  outcome_.seconds = to_ms(timeline_.now() - began_) / 1000;
  is_over_ = true;
}

}  // namespace uma::sim
