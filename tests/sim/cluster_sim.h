// Several machines that share sessions: each has the real router, session table, lane and work pool, a ClusterCatalog, and a
// clock of its own, which is wrong, drifts, and may stop while the machine sleeps. They share a ClusterDatabase over a network
// that delays and loses messages. Machines are killed, stopped, cut off and sent to sleep; the database restarts, is replaced
// by another server, and is slow. Clients talk to any machine, try again what may be tried again, and check what they read.
//
// The observer sees every commit in the database in its order. From that, for each session, the versions and when each was the
// present one: the linear history that every answer must fit. Checked, besides the invariants of the engine:
//   commits     a commit was made from the version it replaces, and only adds to it; under one fence one run commits; a reply
//               is what the model generates after the tokens before it.
//   writes      an input or a reply that was acknowledged is in the present version, once. One that was refused is in none.
//   reads       an answer is a version that was the present one between the request and the answer.
//   names       a read or an end by a name is of a session that had it then; only a name that nobody had then is unknown.
//   requests    each gets one end, of a documented kind, within a bound.
//   recovery    when the faults stop, every machine continues every session, and lists what there is.
// A database that loses its last commits in a takeover (by the seed) weakens `writes` and `reads`: what was lost may be
// missing, and may have been read.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cluster_catalog.h"
#include "cluster_database.h"
#include "core/session_info.h"
#include "testing/fake_model.h"
#include "timeline.h"

namespace uma::sim {

struct ClusterOptions {
  std::uint64_t seed = 1;
  // What is wrong on purpose, to see that the simulation finds it.
  bool checks_fences = true;                // False: a commit of an earlier owner is stored.
  bool trusts_transaction_numbers = false;  // See ClusterCatalog.
};

struct ClusterOutcome {
  std::uint64_t requests = 0;
  std::uint64_t inputs = 0;  // Acknowledged.
  std::uint64_t turns = 0;   // Finished.
  std::uint64_t reads = 0;
  std::uint64_t moves = 0;  // Sessions that another machine took.
  std::uint64_t refused = 0;
  std::uint64_t unknown = 0;            // Requests without an answer that says whether they are done.
  std::uint64_t fenced = 0;             // Commits of a run that did not own the session any more.
  std::uint64_t commits_asked_for = 0;  // Outcomes of commits whose answer was lost.
  std::uint64_t kills = 0;
  std::uint64_t former_runs_ended = 0;  // Leases that a machine ended when it started again.
  std::uint64_t stops = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t partitions = 0;
  std::uint64_t crashes = 0;  // Of the database.
  std::uint64_t takeovers = 0;
  std::uint64_t commits_lost = 0;
  std::uint64_t ends = 0;
  std::uint64_t forks = 0;
  std::uint64_t renames = 0;
  double seconds = 0;               // Of simulated time.
  std::vector<std::string> broken;  // Sentences; empty: all invariants held.
  std::string story;                // The last events, if something broke.
};

class ClusterSim {
 public:
  explicit ClusterSim(const ClusterOptions& options);
  ~ClusterSim();
  ClusterOutcome run();

  // The last events of the simulation that runs now, for a handler of SIGABRT.
  static void print_story();

 private:
  class MachineClock;
  class Network;
  class Sink;
  struct Machine;
  struct Request;
  struct Client;
  struct Goal;
  // What the database had from `from` on.
  struct Version {
    TimePoint from{};
    kv::RecordPtr record;  // Null: the session has ended.
    bool is_lost = false;  // In a takeover.
  };
  enum class Action : std::uint8_t { create, append, generate, read, fork, rename, end };
  using RequestPtr = std::shared_ptr<Request>;

  // --- The machines
  void start(Machine& machine);
  void start_engine(Machine& machine);
  void kill(Machine& machine, Duration down);
  void stop(Machine& machine);
  void stop_if_done(Machine& machine);
  void sleep(Machine& machine, Duration time);
  void wake(Machine& machine);
  void poke(Machine& machine, Duration within);
  void step(Machine& machine);

  // --- Faults
  void plan_fault();
  void cause_fault();
  void crash_database();
  void heal();
  [[nodiscard]] bool chance(double probability) { return random_.next_unit() < probability; }
  [[nodiscard]] Duration between(Duration low, Duration high);
  [[nodiscard]] Duration delay();
  [[nodiscard]] bool is_lost(double weight = 1);
  [[nodiscard]] Machine& any_machine();

  // --- The clients
  void think(Client& client);
  void choose(Client& client);
  void attempt(Client& client);
  void attempt_later(Client& client, Duration low, Duration high);
  void deliver(const RequestPtr& request);
  void start_request(Machine& machine, const RequestPtr& request);
  void end_request(const RequestPtr& request, std::optional<ErrorCode> error);
  void on_read(const RequestPtr& request, const SessionDetail& detail);
  void on_done(Client& client, const RequestPtr& request);
  void on_refused(Client& client, const RequestPtr& request, ErrorCode code);
  void give_up(Client& client, const std::string& why);
  [[nodiscard]] Machine* choose_machine(const Client& client);

  // --- The observer
  void on_change(const SessionChange& change);
  void check_commit(const SessionChange& change);
  void check_reply(const SessionChange& change, const kv::SessionRecord& before, const kv::SessionRecord& after);
  void check_stored(const Request& request, std::string_view what);
  void check_turn(const Request& request);
  [[nodiscard]] static bool is_by_name(const Request& request);
  void check_unknown(const Request& request);
  void check_ended_by_name(const Request& request);
  void check_rest();
  void audit();
  void check_waiting();
  [[nodiscard]] const Version* present(const SessionId& id) const;
  [[nodiscard]] bool was_version(const Request& request, const std::function<bool(const Version*)>& fits,
                                 const SessionId& id) const;
  [[nodiscard]] TimePoint seen_from(const Request& request) const;
  void lose_versions(Duration lost);
  void check_end();
  [[nodiscard]] std::string name_of(const SessionId& id) const { return id.value.substr(0, 6); }
  void note(std::string text);
  void fail(std::string text);

  const ClusterOptions options_;
  Random random_;
  Timeline timeline_;
  const TimePoint began_;
  ClusterDatabase database_;
  testing::FakeOptions model_options_;
  std::shared_ptr<const testing::FakeModel> model_;
  std::size_t record_bytes_max_ = 0;
  std::uint64_t lanes_count_ = 1;
  bool may_lose_commits_ = false;
  double loss_ = 0;  // Probability that a message is lost with its connection.
  double slow_ = 0;  // Probability that a message is slow.
  bool has_faults_ = true;
  bool is_over_ = false;
  Duration fault_every_{};
  Duration slack_{};  // What clocks may be wrong by within a lease.
  Duration jumps_{};  // Of the database's clock so far.
  TimePoint end_{};   // Of the faults.

  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<RequestPtr> open_;
  std::uint64_t last_request_ = 0;
  std::uint64_t last_element_ = 0;

  std::map<SessionId, std::vector<Version>> history_;
  std::map<SessionId, std::map<std::int64_t, std::int64_t>> runs_of_fences_;
  std::set<std::string> refused_;  // Inputs of which no attempt was stored.
  std::vector<SessionId> pool_;    // Sessions that clients use.
  std::deque<std::string> story_;
  ClusterOutcome outcome_;
};

}  // namespace uma::sim
