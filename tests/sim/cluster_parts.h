// The parts of ClusterSim that its files share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster_sim.h"
#include "core/work/work_pool.h"
#include "engine/lane/lane.h"
#include "engine/model/model_loader_test_support.h"
#include "engine/router/router.h"
#include "kv/state_store.h"

namespace uma::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline const TenantId kTeam{"team"};
inline constexpr Duration kRestMax = seconds(600);  // For the end of everything, once the faults have stopped.

inline std::vector<ChatMessage> messages_of(const kv::SessionRecord& record) {
  std::vector<ChatMessage> all = record.messages;
  all.insert(all.end(), record.pending_messages.begin(), record.pending_messages.end());
  return all;
}

// How often an input is in a session.
inline std::size_t count_of(const kv::SessionRecord& record, const std::string& element) {
  return static_cast<std::size_t>(std::ranges::count(messages_of(record), element, &ChatMessage::content));
}

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
  std::int64_t incarnation = 0;  // In its data folder.
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
  std::unique_ptr<WorkPool> work;
  std::unique_ptr<engine::Router> router;
  std::vector<std::unique_ptr<engine::Lane>> lanes;

  [[nodiscard]] bool is_reachable() const { return state == State::up && is_awake; }
};

}  // namespace uma::sim
