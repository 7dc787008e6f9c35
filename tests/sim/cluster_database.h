// The database that the machines of ClusterSim share: what PostgresCatalog uses of PostgreSQL, as values and without SQL.
// Backends run statements in transactions at READ COMMITTED. A changed row is locked until its transaction ends, and other
// changes of it wait. A transaction has a number from its first change on. A commit takes effect after a while, as with a
// standby that must confirm it. Its clock is the true time, and jumps when another server takes over.
//
// A server that crashes ends all backends and keeps what is committed. Numbers of transactions that left no trace are given
// again, as in PostgreSQL. A takeover without synchronous replication also loses the last commits.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "core/ids.h"
#include "kv/catalog/catalog.h"
#include "kv/catalog/sql.h"
#include "timeline.h"

namespace uma::sim {

struct StoredSession {
  kv::RecordPtr record;
  std::int64_t owner = 0;  // Run of a daemon; 0: nobody.
  std::int64_t fence = 0;
  bool is_wanted = false;
  std::int64_t changed = 0;  // Number of the transaction that changed it last.
};

// One statement of PostgresCatalog.
struct Statement {
  enum class Kind : std::uint8_t {
    begin,
    commit,
    roll_back,
    end_former_run,  // Of the same incarnation.
    add_run,         // Answers with its number.
    renew,           // The lease of `run`, for `lease`.
    end_run,         // Of `run`.
    give_up_all,     // Sessions of `run`.
    raise_fence,     // Of `id`, if `run` owns it at `fence`. Answers with the number of the transaction.
    get_transaction,
    get_outcome,  // Of the transaction `number`.
    get_fence,    // Of `id`: the owner as `number`, and the fence.
    find,         // The session `text` of `tenant`.
    get_owner,    // The name of the node that owns `id`.
    take,         // `id` for `run`. Answers with its fence.
    want,
    give_up,
    read,
    get_xmin,
    get_changed,  // Since `number`.
    get_ended,    // Since `number`.
    get_wanted,   // Of `run`.
    insert,
    write,
    remove,
  };
  Kind kind = Kind::begin;
  std::int64_t run = 0;
  std::int64_t fence = 0;
  std::int64_t number = 0;
  std::int64_t incarnation = 0;  // Of the run.
  SessionId id{};
  TenantId tenant{};
  std::string text{};
  Duration lease{};
  kv::RecordPtr record{};
  kv::RecordPtr before{};  // The record that the change was made from.
};

struct Answer {
  std::optional<kv::SqlError> error{};
  bool has_row = false;
  std::int64_t number = 0;
  std::int64_t fence = 0;
  std::string text{};
  kv::RecordPtr record{};
  std::vector<StoredSession> rows{};
  std::vector<SessionId> ids{};
};

// A committed change of a session, for the observer.
struct SessionChange {
  SessionId id;
  int machine = 0;                      // Of the backend.
  std::optional<StoredSession> before;  // Nullopt: it is new.
  std::optional<StoredSession> after;   // Nullopt: it has ended.
  bool has_content = false;             // A commit of its owner, not only of ownership.
  std::int64_t run = 0;                 // With content: the run that changed it, and under which fence.
  std::int64_t fence = 0;
  kv::RecordPtr made_from;
};

class ClusterDatabase {
 public:
  using OnAnswer = std::function<void(Answer)>;

  ClusterDatabase(Timeline& timeline, std::uint64_t seed) : timeline_(timeline), random_(seed) {}

  // A new backend for a connection of the machine; 0: the server is down. Statements of one backend run one after another, and
  // those behind an error are skipped. An answer is that of the last statement, or the error. A backend that ends answers
  // nothing more.
  [[nodiscard]] std::uint64_t connect(int machine);
  void execute(std::uint64_t backend, std::vector<Statement> statements, OnAnswer on_answer);
  void end(std::uint64_t backend);
  [[nodiscard]] bool has(std::uint64_t backend) const { return backends_.contains(backend); }
  [[nodiscard]] std::vector<std::uint64_t> backends_of(int machine) const;

  // The server stops at once, and start() continues from what was committed. `lost`: it is another server, which does not have
  // the commits of so long.
  void crash(Duration lost);
  void start(Duration clock_jump);
  [[nodiscard]] bool is_up() const { return is_up_; }

  [[nodiscard]] TimePoint now() const { return timeline_.now() + clock_offset_; }
  [[nodiscard]] const std::map<SessionId, StoredSession>& sessions() const { return state_.sessions; }
  // Whether the lease of the run holds by the database's clock.
  [[nodiscard]] bool holds(std::int64_t run) const;

  // Living leases that the next runs in their data folders have ended.
  [[nodiscard]] std::uint64_t former_runs_ended() const { return former_runs_ended_; }

  std::function<void(const SessionChange&)> on_change = [](const SessionChange&) {};
  // How long a commit waits for its standby.
  std::function<Duration()> commit_time = [] { return Duration{}; };
  // False: commits are not fenced off, to see that this is found.
  bool checks_fences = true;

 private:
  struct Daemon {
    std::string node;
    TimePoint lease_until{};
    std::int64_t incarnation = 0;
  };
  struct State {
    std::map<SessionId, StoredSession> sessions;
    std::map<SessionId, std::int64_t> ended;  // The numbers of their transactions.
    std::map<std::int64_t, Daemon> daemons;
    std::int64_t last_transaction = 2;
    std::map<std::int64_t, bool> outcomes;  // True: committed.
  };
  struct Content {
    std::int64_t run = 0;
    std::int64_t fence = 0;
    kv::RecordPtr made_from;
  };
  struct Backend {
    int machine = 0;
    std::deque<Statement> statements;
    OnAnswer on_answer;
    bool is_in_transaction = false;
    bool has_failed = false;
    bool is_committing = false;
    bool is_waiting = false;  // For a row.
    std::int64_t transaction = 0;
    std::map<SessionId, std::optional<StoredSession>> rows;  // Changed by the transaction; nullopt: deleted.
    std::map<SessionId, Content> contents;
    std::optional<std::int64_t> last_run;  // Whose fence was raised last, and to what.
    std::int64_t last_fence = 0;
    std::uint64_t activity = 0;  // Counts statements and waits.
  };

  void advance(std::uint64_t id);
  // Nullopt: it waits.
  [[nodiscard]] std::optional<Answer> run(std::uint64_t id, Backend& backend, const Statement& statement);
  [[nodiscard]] std::optional<Answer> change_session(std::uint64_t id, Backend& backend, const Statement& statement);
  [[nodiscard]] std::optional<Answer> store(std::uint64_t id, Backend& backend, const Statement& statement);
  void answer(std::uint64_t id, Answer answer);
  void wait_for_row(std::uint64_t id, Backend& backend);
  void finish(std::uint64_t id);
  void roll_back(Backend& backend);
  void apply(Backend& backend);
  void wake_waiting();
  [[nodiscard]] bool is_locked(const SessionId& row, std::uint64_t by_other_than) const;
  // The row as the backend sees it.
  [[nodiscard]] std::optional<StoredSession> seen(const Backend& backend, const SessionId& id) const;
  [[nodiscard]] std::int64_t transaction_of(Backend& backend);
  [[nodiscard]] std::int64_t xmin() const;

  Timeline& timeline_;
  Random random_;
  State state_;
  std::deque<std::pair<TimePoint, State>> earlier_;  // Before each commit of the last seconds.
  std::map<std::uint64_t, Backend> backends_;
  std::uint64_t last_backend_ = 0;
  std::uint64_t former_runs_ended_ = 0;
  std::int64_t last_run_ = 0;  // Sequences do not go back.
  Duration clock_offset_{};
  bool is_up_ = true;
};

}  // namespace uma::sim
