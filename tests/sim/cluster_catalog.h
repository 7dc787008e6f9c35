// PostgresCatalog on a ClusterDatabase: the same calls, statements and rules, step by step, with answers that come later. A
// statement that PostgresCatalog waits for is a message over a ClusterNetwork, for whose answer a task waits. Times are the
// machine's own. News come now and then, whether or not there are any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/move_only_function.h"
#include "cluster_database.h"
#include "core/work/task.h"
#include "kv/catalog/catalog.h"
#include "kv/catalog/catalog_calls.h"
#include "kv/catalog/sql.h"

namespace uma::sim {

// The way from a machine to the database.
class ClusterNetwork {
 public:
  // Nullopt: the connection was found to be lost, or could not be made.
  using OnConnected = std::function<void(std::optional<std::uint64_t>)>;
  using OnAnswer = std::function<void(std::optional<Answer>)>;

  virtual ~ClusterNetwork() = default;
  // The callback may never come.
  virtual void connect(OnConnected on_connected) = 0;
  virtual void send(std::uint64_t backend, std::vector<Statement> statements, OnAnswer on_answer) = 0;
  // The client's end of a connection.
  virtual void close(std::uint64_t backend) = 0;
};

class ClusterCatalog final : public kv::Catalog {
 public:
  // `incarnation`: the one in the machine's data folder, which open() raises. `trusts_transaction_numbers`: a lost commit is
  // what the transaction of its number is, which is wrong on purpose.
  ClusterCatalog(std::string node, std::int64_t& incarnation, ClusterNetwork& network, const Clock& clock,
                 bool trusts_transaction_numbers);
  ~ClusterCatalog() override;

  // PostgresCatalog::open(). `done` is called in a step(): false: it cannot.
  void open(std::function<void(bool)> done);

  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return std::move(loaded_); }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;
  [[nodiscard]] bool is_shared() const override { return true; }
  [[nodiscard]] std::uint64_t lease() const override { return clock_.now() < holds_until_ ? lease_ : 0; }
  void look_up(const TenantId& tenant, const std::string& session, OnFound on_found) override;
  void take(const SessionId& id, OnRead on_read) override;
  void give_up(const SessionId& id) override;
  void changes(OnChanges on_changes) override;
  void call_on_news(std::function<void()> on_news) override { on_news_ = std::move(on_news); }
  void close() override { is_closed_ = true; }

  // Delivers answers that have arrived, and goes on. True: there was work.
  bool step() override;
  // After close(): all calls are handled, and the run has ended.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  [[nodiscard]] std::int64_t run() const { return run_; }
  // When the last successful changes() began, by the machine's clock.
  [[nodiscard]] TimePoint changes_asked_at() const { return seen_at_; }
  // Commits that another run's ownership stopped, and lost ones whose outcome was asked for.
  [[nodiscard]] std::uint64_t fenced_count() const { return fenced_count_; }
  [[nodiscard]] std::uint64_t outcomes_count() const { return outcomes_count_; }

 private:
  using Change = kv::calls::Change;
  using Reading = kv::calls::Reading;
  using Finding = kv::calls::Finding;
  using Taking = kv::calls::Taking;
  using GivingUp = kv::calls::GivingUp;
  using Asking = kv::calls::Asking;
  using Call = kv::calls::Call;
  template <class T>
  using Asked = kv::SqlExpected<T>;
  // What the messages of this catalog share with those on their way.
  struct Mail {
    std::uint64_t number = 0;  // Of the question that waits.
    Promise<std::optional<Answer>> reply;
    bool waits = false;
  };

  // Of one exchange with the server.
  [[nodiscard]] Task<Asked<Answer>> ask(std::vector<Statement> statements);
  [[nodiscard]] Task<Asked<Answer>> ask(Statement statement);
  [[nodiscard]] Task<> pause(Duration time);
  void disconnect();

  [[nodiscard]] Task<Asked<Unit>> connect();
  [[nodiscard]] Task<Asked<Unit>> connect_for_work();
  [[nodiscard]] Task<Asked<Unit>> renew();
  [[nodiscard]] Task<> renew_if_due();
  [[nodiscard]] Task<> end_run();
  [[nodiscard]] Task<> open_now(std::function<void(bool)> done);
  [[nodiscard]] Task<> work();
  [[nodiscard]] Task<> stop();
  [[nodiscard]] Task<> retry_takings();
  [[nodiscard]] Task<> handle(Reading& call);
  [[nodiscard]] Task<> handle(Finding& call);
  [[nodiscard]] Task<> handle(Taking call);
  [[nodiscard]] Task<> handle(GivingUp& call);
  [[nodiscard]] Task<> handle(Asking& call);
  [[nodiscard]] Task<Expected<kv::RecordPtr>> take_now(const SessionId& id);
  [[nodiscard]] Task<Asked<kv::CatalogChanges>> changes_now();
  [[nodiscard]] Task<> keep_changes();
  [[nodiscard]] Task<Asked<bool>> keep(std::vector<Change*> changes);
  [[nodiscard]] Task<std::optional<bool>> outcome(std::vector<Change*> changes);
  [[nodiscard]] Task<Asked<std::optional<bool>>> is_in_rows(std::vector<Change*> changes);
  [[nodiscard]] Error refusal_of(const Change& change, const kv::SqlError& error) const;
  [[nodiscard]] static Error failure(const kv::SqlError& error);
  [[nodiscard]] TimePoint next_renewal() const;
  [[nodiscard]] Statement statement(Statement::Kind kind, SessionId id = {}) const;

  const std::string node_;
  std::int64_t& incarnation_;
  ClusterNetwork& network_;
  const Clock& clock_;
  const bool trusts_transaction_numbers_;

  std::function<void()> on_news_;
  std::uint64_t steps_ = 0;
  std::vector<MoveOnlyFunction<void()>> arrived_;
  const std::shared_ptr<Mail> mail_ = std::make_shared<Mail>();
  TimePoint answer_deadline_ = kNever;
  TimePoint pause_until_ = kNever;
  Promise<Unit> paused_;
  std::uint64_t backend_ = 0;  // 0: the connection is lost.
  bool is_open_ = false;
  bool is_busy_ = false;
  bool is_closed_ = false;
  bool has_ended_ = false;

  // As in PostgresCatalog.
  std::vector<kv::SessionSummary> loaded_;
  std::int64_t run_ = 0;
  std::unordered_map<SessionId, std::int64_t> fences_;
  std::int64_t transaction_ = 0;
  std::int64_t seen_ = 0;
  TimePoint seen_at_{};
  std::uint64_t fenced_count_ = 0;
  std::uint64_t outcomes_count_ = 0;
  TimePoint renewed_at_{};
  TimePoint next_renewal_try_{};
  TimePoint next_connect_{};
  std::vector<Call> inbox_;
  std::vector<Change> changes_;
  std::vector<Taking> waiting_;
  TimePoint next_retry_ = kNever;
  TimePoint holds_until_{};
  std::uint64_t lease_ = 0;

  TaskRunner tasks_{[this](MoveOnlyFunction<void()> command) { arrived_.push_back(std::move(command)); }, clock_};
};

}  // namespace uma::sim
