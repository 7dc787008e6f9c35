// The whole engine without threads, time or weights: router, preparer and lanes on FakeModel and SimClock, stepped in an order
// that a seed decides, with clients that come, go, cancel, stall and disagree, with faults in decodes, states and commits, and
// with crashes, after which a new router and new lanes go on from what the catalog has kept. After every step the invariants of
// ARCHITECTURE.md are checked; a broken one aborts with the seed in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/lane.h"
#include "engine/preparer.h"
#include "engine/router/router.h"
#include "engine/worker_source_test_support.h"
#include "kv/catalog.h"
#include "kv/state_store.h"
#include "testing/fake_cold_store.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::sim {

// A catalog whose answers come later, in order, and sometimes are failures; sometimes it throws. What failed is not kept.
class SlowCatalog final : public kv::Catalog {
 public:
  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return kept_.load(); }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;
  // Answers the oldest waiting call. False: none waits.
  bool answer_one(bool with_failure);
  // The process dies: of what waits the first `count` calls are kept, and nobody is told.
  void crash(std::size_t count);
  [[nodiscard]] std::size_t waiting_count() const { return calls_.size(); }
  [[nodiscard]] std::uint64_t readings_count() const { return readings_count_; }
  [[nodiscard]] const kv::MemoryCatalog& kept() const { return kept_; }
  std::function<bool()> throws = [] { return false; };  // the next call

 private:
  struct Call {
    kv::RecordPtr record;  // null: a removal
    kv::RecordPtr before;
    SessionId id;
    Done done;
    OnRead on_read = nullptr;  // set: neither, but a reading
  };
  kv::MemoryCatalog kept_;
  std::vector<Call> calls_;
  std::uint64_t readings_count_ = 0;
};

struct Outcome {
  std::uint64_t generations = 0;
  std::uint64_t finished_turns = 0;
  std::uint64_t failures = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t crashes = 0;
  std::uint64_t retirements = 0;  // of the model
  std::uint64_t preemptions = 0;
  std::uint64_t handovers = 0;  // of prompts that were computed in a prefill lane
  std::uint64_t reused_tokens = 0;
  std::uint64_t warm_hits = 0;
  std::uint64_t cold_hits = 0;
  std::uint64_t shifts = 0;   // of full contexts
  std::uint64_t moves = 0;    // of them, those that moved cells
  std::uint64_t imports = 0;  // of exported sessions
  std::uint64_t imports_with_kv = 0;
  std::uint64_t readings = 0;     // of sessions from the catalog
  std::uint64_t constrained = 0;  // replies that followed a grammar
  std::uint64_t shared = 0;       // requests that began with what another had computed
  std::uint64_t responses = 0;    // that were kept
  std::uint64_t verified = 0;     // reuses that were computed again
  std::uint64_t not_finite = 0;   // replies whose logits were not finite
  std::uint64_t forks = 0;        // of them, those that went on beside the session of the one before
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed);
  ~Simulation();

  // Runs `actions` random actions of clients and machine, then lets everything come to rest. Aborts where an invariant breaks.
  Outcome run(int actions);

 private:
  class Sink;
  class ResponseSink;
  // A response that a client was told the end of.
  struct KnownResponse {
    std::string session;
    std::string id;
    TenantId tenant;
    bool is_in_conversation = false;
  };
  // What a client knows of a session it made.
  struct KnownSession {
    std::string system;  // what it begins with
    TenantId tenant;
    std::vector<std::string> inputs;  // acknowledged, in order
    bool was_cut = false;             // rewound or regenerated: inputs may be gone
  };

  void start_machine();
  void make_lanes();
  void crash_and_start_again();
  void retire_model();
  void count_lanes();

  void act();
  void ask_something();
  void step_something();
  void check_after_step();
  void come_to_rest();

  void create_session();
  void append();
  void generate(bool in_session);
  void cancel();
  void end_session();
  void fork_or_rewind();
  void export_and_import();
  void create_conversation();
  void respond();
  void forget_response();
  void check_responses();
  void inject_faults();
  void check_session_texts();
  [[nodiscard]] std::string pick_session();
  [[nodiscard]] TenantId tenant_of(const std::string& session);
  [[nodiscard]] std::string new_text();
  [[nodiscard]] std::string input_text();
  [[nodiscard]] std::string prompt_text();
  template <class T>
  Reply<T> expect_reply(std::move_only_function<void(Expected<T>)> then);

  Random random_;
  bool has_prefill_lanes_ = false;
  bool clients_are_alike_ = false;  // most say the same few things, as many users of one program do
  testing::SimClock clock_;
  testing::FakeOptions model_options_;
  std::shared_ptr<const testing::FakeModel> model_;
  engine::RouterOptions router_options_;
  engine::LaneOptions lane_options_;
  std::uint64_t lanes_count_ = 0;
  SlowCatalog catalog_;
  std::map<std::string, testing::FakeColdStore::File> files_;  // on the disk, while no daemon lives
  kv::StoreOptions store_options_;

  // One life of the daemon.
  testing::FakeColdStore* cold_ = nullptr;  // the store's
  std::unique_ptr<kv::StateStore> store_;
  engine::NamedModels source_;
  std::unique_ptr<engine::Preparer> preparer_;
  std::unique_ptr<engine::Router> router_;
  std::vector<std::unique_ptr<engine::Lane>> lanes_;
  std::vector<testing::FakeContext*> contexts_;
  bool is_loaded_ = false;
  bool has_faults_ = false;

  std::uint64_t last_request_ = 0;
  std::uint64_t texts_made_ = 0;
  std::int64_t replies_owed_ = 0;
  int life_ = 0;  // of the daemon, by crashes
  std::vector<std::shared_ptr<Sink>> sinks_;
  std::vector<std::shared_ptr<ResponseSink>> response_sinks_;
  std::map<std::string, KnownSession> known_;
  std::vector<std::pair<std::string, TenantId>> conversations_;
  std::vector<KnownResponse> responses_;
  std::set<std::string> shifted_;  // sessions of responses that a full context has cost turns
  Outcome outcome_;
};

}  // namespace uma::sim
