// Sessions in a PostgreSQL database that several daemons share (docs/CLUSTER.md, docs/decisions/0080). The tables are those of
// the SQLite catalog.
//
// Ownership. A run of a daemon has a row in `daemons` with a lease by the database's clock, which step() and wait() renew. A
// session belongs to the run in its row, until the run gives it up or its lease has ended and another one takes it. Whoever
// wants a session, and whoever gives up a wanted one, notifies the other run (NOTIFY), which otherwise looks now and then. Each
// owner raises the session's fence, and a change names the fence under which it was made, in the transaction that stores it:
// the change of an owner that lost the session stores nothing, however late it comes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "base/system/descriptors.h"
#include "kv/catalog/catalog.h"
#include "kv/catalog/catalog_calls.h"
#include "kv/catalog/postgres.h"
#include "kv/catalog/postgres_images.h"
#include "kv/catalog/postgres_listing.h"
#include "kv/catalog/postgres_run.h"
#include "kv/catalog/record_rows.h"
#include "kv/catalog/tenant_turns.h"
#include "kv/shared/shared_limits.h"

namespace uma::kv {

// How the images of sessions get into the database (docs/decisions/0085).
struct CatalogImages {
  std::shared_ptr<PostgresImages> database;  // Shared with those who fetch images; null: images are not stored.
  // The ids of the images that a ChatMessage::extra has.
  std::function<std::vector<std::string>(const std::string& extra)> ids_of{};
  PostgresImages::ReadFile read{};
};

struct PostgresCatalogOptions {
  std::string address;          // Connection string or URI of libpq.
  std::string node;             // The daemon's name for people and clients.
  std::string version{};        // The version of umad, for other daemons to compare.
  std::string models{};         // The models that it serves, one a line, for other daemons to compare.
  std::string shared_states{};  // Where it shares states, for other daemons to compare.
  std::string lock{};           // See take_catalog_lock(): the daemon's own folder, which is not shared; empty: none.
  Duration lease = std::chrono::seconds(15);
  Duration handover = kTakeMax;  // How long a session that another daemon owns is waited for.
  // The most sessions of a tenant, counted where a session is made, so that daemons together do not exceed it; 0: no limit.
  std::size_t tenant_sessions_max = 0;
  std::int64_t page_rows = 1000;  // Sessions that one statement reads at most, and one answer to changes() has.
  CatalogImages images{};
  const Clock* clock = &machine_clock();  // Thread-safe; outlives the catalog.
};

class PostgresCatalog final : public Catalog {
 public:
  // Connects, makes or migrates the tables, and takes a lease. Errors: E_IO_001.
  [[nodiscard]] static Expected<std::unique_ptr<PostgresCatalog>> open(PostgresCatalogOptions options);
  ~PostgresCatalog() override;

  // All sessions, none of which this daemon owns.
  [[nodiscard]] std::vector<SessionSummary> load() override { return std::move(loaded_); }
  // Stores the images that the record has and `before` has not, then the record.
  void commit(RecordPtr record, RecordPtr before, Done done) override;
  void remove(const SessionId& id, Done done) override;
  void read(const SessionId& id, OnRead on_read) override;
  [[nodiscard]] bool is_shared() const override { return true; }
  [[nodiscard]] std::uint64_t lease() const override { return run_.lease(); }
  [[nodiscard]] bool is_reachable() const override { return run_.is_reachable(); }
  void look_up(const TenantId& tenant, const std::string& session, OnFound on_found) override;
  void take(const SessionId& id, OnRead on_read) override;
  void give_up(const SessionId& id) override;
  void changes(OnChanges on_changes) override;
  void call_on_news(std::function<void()> on_news) override;
  // Remaining calls are still handled. Then all sessions are given up and the lease ends.
  void close() override;

  // Stores waiting changes, gives sessions up behind their last changes, then answers questions: a bounded number of them, in
  // turns by tenant, so that a change waits for no more than that. Changes that follow one another form one transaction. Blocks
  // on the database.
  bool step() override;
  bool wait() override;

  // The number of this run, for tests.
  [[nodiscard]] std::int64_t run() const { return run_.number(); }
  // Drops the connection as a broken network does, for tests.
  void disconnect() { connection_.disconnect(); }

 private:
  using Change = calls::Change;
  using Reading = calls::Reading;
  using Finding = calls::Finding;
  using Taking = calls::Taking;
  using GivingUp = calls::GivingUp;
  using Asking = calls::Asking;
  using Call = calls::Call;
  PostgresCatalog(PostgresCatalogOptions options, Pipe wake);
  void post(Call call);
  void wake();
  void hear_news();
  void wait_for_news();
  [[nodiscard]] SqlExpected<Unit> connect();
  void renew_if_due();
  void end_run();
  void queue(Change& call);
  void queue(GivingUp& call);
  void queue(Reading& call);
  void queue(Finding& call);
  void queue(Taking& call);
  void queue(Asking& call);
  [[nodiscard]] TenantId tenant_of(const SessionId& id);
  [[nodiscard]] TenantId turn_of_order(const SessionId& id);
  void handle_orders();
  void handle_questions();
  // These return the bytes that were read.
  std::size_t handle(Reading& call);
  std::size_t handle(Finding& call);
  std::size_t handle(Taking& call);
  void retry_takings();
  void handle(GivingUp& call);
  void handle(Asking& call);
  void keep_changes();
  [[nodiscard]] SqlExpected<bool> keep(std::span<Change> changes);
  [[nodiscard]] SqlExpected<bool> apply(const Change& change);
  [[nodiscard]] calls::ImageChanges image_changes(const SessionRecord& record, const SessionRecord* before) const;
  [[nodiscard]] SqlExpected<Unit> apply_images(const Change& change);
  [[nodiscard]] SqlExpected<Unit> check_quota(const TenantId& tenant);
  [[nodiscard]] SqlExpected<std::optional<SessionSummary>> find_now(const Finding& call);
  [[nodiscard]] SqlExpected<RecordPtr> take_now(const Taking& call, std::optional<Error>& refusal);
  [[nodiscard]] std::optional<bool> outcome(std::span<const Change> changes);
  [[nodiscard]] SqlExpected<std::optional<bool>> is_in_rows(std::span<const Change> changes);
  [[nodiscard]] Error refusal_of(const Change& change, const SqlError& error);
  [[nodiscard]] SqlExpected<Unit> load_all();
  [[nodiscard]] Error failure(const SqlError& error);
  template <class Work>
  auto with_connection(Work&& work) -> decltype(work());

  const PostgresCatalogOptions options_;
  const Clock& clock_;
  const std::string shown_;  // The address for logs.
  PostgresConnection connection_;
  PostgresRun run_;
  RecordRows rows_;
  Statement raise_fence_;
  Statement get_transaction_;
  Statement get_outcome_;
  Statement get_fence_;
  Statement add_image_;
  Statement remove_image_;
  Statement lock_tenant_;
  Statement count_sessions_;
  Statement find_;
  Statement get_owner_;
  Statement take_;
  Statement want_;
  Statement give_up_;
  PostgresListing listing_;
  std::vector<SessionSummary> loaded_;

  // Owned by the thread that calls step().
  // Fences of own sessions. A commit raises one, too, so that a commit on another state than the one it was made from stores
  // nothing.
  std::unordered_map<SessionId, std::int64_t> fences_;
  std::int64_t transaction_ = 0;  // The one that keep() has begun last.
  std::vector<Call> taken_;
  TenantTurns<std::variant<Change, GivingUp>> orders_;
  TenantTurns<std::variant<Reading, Finding, Taking>> questions_;
  std::vector<Asking> askings_;  // Questions of this daemon, which have no tenant.
  std::vector<Change> changes_;  // The next transaction.
  std::vector<Taking> waiting_;  // For sessions that other daemons were asked to give up.
  TimePoint next_retry_ = kNever;
  bool is_failing_ = false;
  std::string logged_;  // The last error in the log.
  TimePoint logged_at_{};

  // Shared.
  Mailbox<Call> inbox_;
  const Pipe wake_;  // Has a byte if the inbox was posted to.
  std::atomic<bool> is_awake_{false};
  Mutex mutex_;
  std::function<void()> on_news_ GUARDED_BY(mutex_);
};

}  // namespace uma::kv
