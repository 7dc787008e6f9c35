// The whole engine without threads, real time or weights: router, work pool and lanes on FakeModel and SimClock, stepped in an
// order that depends on a seed. Clients come, leave, cancel, stall and disagree. Decodes, states and commits fail. After a
// crash, a new router and new lanes continue from the content of the catalog. The invariants of ARCHITECTURE.md are checked
// after every step; a violation aborts with the seed in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/move_only_function.h"
#include "base/random.h"
#include "core/work/work_pool.h"
#include "engine/lane/lane.h"
#include "engine/model/model_loader_test_support.h"
#include "engine/router/router.h"
#include "kv/catalog/catalog.h"
#include "kv/state_store.h"
#include "testing/fake_cold_store.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::sim {

// A catalog with delayed answers, in order, some of them failures or exceptions. Failed commits are not stored.
class SlowCatalog final : public kv::Catalog {
 public:
  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return kept_.load(); }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;
  // Answers the oldest waiting call. False: there is none.
  bool answer_one(bool with_failure);
  // Simulates a crash: the first `count` waiting calls are stored, and none is answered.
  void crash(std::size_t count);
  [[nodiscard]] std::size_t waiting_count() const { return calls_.size(); }
  [[nodiscard]] std::uint64_t readings_count() const { return readings_count_; }
  [[nodiscard]] const kv::MemoryCatalog& kept() const { return kept_; }
  std::function<bool()> throws = [] { return false; };  // Whether the next call throws.

 private:
  struct Call {
    kv::RecordPtr record;  // Null: a removal.
    kv::RecordPtr before;
    SessionId id;
    Done done;
    OnRead on_read = nullptr;  // If set, the call is a read.
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
  std::uint64_t retirements = 0;  // Unloads of the model.
  std::uint64_t preemptions = 0;
  std::uint64_t handovers = 0;    // Prompts that were computed in a prefill lane.
  std::uint64_t widened = 0;      // Contexts of prefill lanes that became wider.
  std::uint64_t cells_moved = 0;  // Cells that were moved to the place of free ones.
  std::uint64_t idle_stored = 0;  // Idle slots that were stored because rows skipped their cells.
  std::uint64_t reused_tokens = 0;
  std::uint64_t warm_hits = 0;
  std::uint64_t cold_hits = 0;
  std::uint64_t shifts = 0;   // Shifts of full contexts.
  std::uint64_t moves = 0;    // Shifts that moved cells.
  std::uint64_t imports = 0;  // Imports of exported sessions.
  std::uint64_t imports_with_kv = 0;
  std::uint64_t readings = 0;     // Reads of sessions from the catalog.
  std::uint64_t constrained = 0;  // Replies that followed a grammar.
  std::uint64_t shared = 0;       // Requests with a prefix that another request had computed.
  std::uint64_t responses = 0;    // Stored responses.
  std::uint64_t verified = 0;     // Reuses that were verified by computing again.
  std::uint64_t not_finite = 0;   // Replies with logits that are not finite.
  std::uint64_t forks = 0;        // Responses that branched off the session of an earlier one.
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed);
  ~Simulation();

  // Runs `actions` random actions of clients and machine, then waits until all work is done. Aborts on a violated invariant.
  Outcome run(int actions);

 private:
  class Sink;
  class ResponseSink;
  // A response whose end a client received.
  struct KnownResponse {
    std::string session;
    std::string id;
    TenantId tenant;
    bool is_in_conversation = false;
  };
  // The knowledge of a client about its session.
  struct KnownSession {
    std::string system;  // The system prompt.
    TenantId tenant;
    std::vector<std::string> inputs;  // Acknowledged inputs, in order.
    bool was_cut = false;             // Rewound or regenerated, so inputs may be missing.
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
  void change_session();
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
  Promise<T> expect_reply(MoveOnlyFunction<void(Expected<T>)> then);

  Random random_;
  bool has_prefill_lanes_ = false;
  bool clients_are_alike_ = false;  // Most clients send the same few texts, like users of one program.
  testing::SimClock clock_;
  testing::FakeOptions model_options_;
  std::shared_ptr<const testing::FakeModel> model_;
  engine::RouterOptions router_options_;
  engine::LaneOptions lane_options_;
  std::uint64_t lanes_count_ = 0;
  SlowCatalog catalog_;
  std::map<std::string, testing::FakeColdStore::File> files_;  // Files on the disk between two daemons.
  std::map<std::string, Bytes> pieces_;                        // Their parts.
  kv::StoreOptions store_options_;

  // The current daemon.
  testing::FakeColdStore* cold_ = nullptr;  // Owned by the store.
  std::unique_ptr<kv::StateStore> store_;
  engine::NamedModels source_;
  std::unique_ptr<WorkPool> work_;
  std::unique_ptr<engine::Router> router_;
  std::vector<testing::FakeContext*> contexts_;
  std::vector<std::unique_ptr<engine::Lane>> lanes_;
  bool is_loaded_ = false;
  bool has_faults_ = false;

  std::uint64_t last_request_ = 0;
  std::uint64_t texts_made_ = 0;
  std::int64_t replies_owed_ = 0;
  int life_ = 0;  // Number of crashes so far.
  std::vector<std::shared_ptr<Sink>> sinks_;
  std::vector<std::shared_ptr<ResponseSink>> response_sinks_;
  std::map<std::string, KnownSession> known_;
  std::vector<std::pair<std::string, TenantId>> conversations_;
  std::vector<KnownResponse> responses_;
  std::set<std::string> shifted_;  // Sessions of responses that lost turns to a full context.
  Outcome outcome_;
};

}  // namespace uma::sim
