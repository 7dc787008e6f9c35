// The machines of ClusterSim, their network and the faults.
#include <algorithm>
#include <array>
#include <cstdio>
#include <format>
#include <utility>

#include "cluster_parts.h"

namespace uma::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kStoryLines = 400;

const ClusterSim* running = nullptr;

}  // namespace

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

// --- The simulation

ClusterSim::ClusterSim(const ClusterOptions& options)
    : options_(options), random_(options.seed), began_(timeline_.now()), database_(timeline_, options.seed ^ 0xdb) {
  running = this;
  database_.checks_fences = options.checks_fences;
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
    machine.incarnation = machine.number * 1'000'000;  // None of another machine.
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
    machine->work.reset();
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
  outcome_.former_runs_ended = database_.former_runs_ended();
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
  machine.catalog = std::make_unique<ClusterCatalog>(machine.name, machine.incarnation, *machine.network, *machine.clock,
                                                     options_.trusts_transaction_numbers);
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
  machine.work = std::make_unique<WorkPool>();
  engine::RouterOptions options;
  options.seed = random_.next_u64();
  options.record_bytes_max = record_bytes_max_;
  machine.router = std::make_unique<engine::Router>(options, *machine.source, *machine.catalog, *machine.store, *machine.work,
                                                    *machine.clock);
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
    timeline_.at(timeline_.now() + delay(),
                 [this, request] { on_refused(*request->client, request, ErrorCode::outcome_unknown); });
  }
  if (machine.catalog != nullptr) {
    outcome_.fenced += machine.catalog->fenced_count();
    outcome_.commits_asked_for += machine.catalog->outcomes_count();
  }
  machine.lanes.clear();
  machine.work.reset();
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
    if (random_.next_below(2) == 0) worked |= machine.work->step();
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

}  // namespace uma::sim
