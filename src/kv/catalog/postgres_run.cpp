#include "kv/catalog/postgres_run.h"

#include <algorithm>
#include <chrono>
#include <format>

#include "base/log.h"
#include "kv/catalog/postgres_catalog.h"
#include "kv/catalog/postgres_schema.h"
#include "kv/catalog/run_identity.h"

namespace uma::kv {
namespace {

constexpr int kRenewalsPerLease = 5;
constexpr Duration kConnectEvery = std::chrono::seconds(1);

}  // namespace

PostgresRun::PostgresRun(PostgresConnection& connection, const PostgresCatalogOptions& options)
    : connection_(connection),
      options_(options),
      clock_(*options.clock),
      add_(connection_, R"sql(
        INSERT INTO daemons (run, node, address, lease_until, version, models, incarnation, shared_states)
        VALUES (nextval('uma_runs'), ?1, '', clock_timestamp() + ?2 * interval '1 millisecond', ?3, ?4, ?5, ?6) RETURNING run)sql"),
      renew_(connection_, R"sql(
        INSERT INTO daemons (run, node, address, lease_until, version, models, incarnation, shared_states)
        VALUES (?1, ?2, '', clock_timestamp() + ?3 * interval '1 millisecond', ?4, ?5, ?6, ?7)
        ON CONFLICT (run) DO UPDATE SET lease_until = excluded.lease_until)sql"),
      end_former_(connection_, "DELETE FROM daemons WHERE incarnation = ?1 RETURNING run"),
      end_(connection_, "DELETE FROM daemons WHERE run = ?1 OR lease_until < clock_timestamp() - interval '1 day'"),
      give_up_all_(connection_, std::format("UPDATE sessions SET {} WHERE owner = ?1", kGivenUp)),
      notify_(connection_, "SELECT pg_notify('uma_run_' || ?1::bigint, '')") {}

SqlExpected<Unit> PostgresRun::connect() {
  if (clock_.now() < next_connect_) {
    return std::unexpected(SqlError{SqlFault::lost, "no connection to the database"});
  }
  auto done =
      connection_.connect(std::format("umad {}", options_.node), {"client_min_messages=warning", "statement_timeout=15s",
                                                                  "lock_timeout=5s", "idle_in_transaction_session_timeout=30s",
                                                                  "synchronous_commit=on", std::format("uma.run={}", number_)});
  if (done && number_ == 0) done = begin();
  if (done) done = renew();
  if (done) done = connection_.run(std::format("LISTEN uma_run_{}", number_));
  if (!done) connection_.disconnect();
  next_connect_ = clock_.now() + kConnectEvery;
  return done;
}

SqlExpected<Unit> PostgresRun::begin() {
  if (auto migrated = migrate_postgres(connection_); !migrated) return migrated;
  if (auto ended = end_former(); !ended) return ended;
  if (lock_.is_open()) incarnation_ = begin_incarnation(lock_);
  add_.bind(options_.node, lease_ms(), options_.version, options_.models, incarnation_, options_.shared_states);
  const auto row = add_.next();
  if (!row) return std::unexpected(row.error());
  number_ = add_.integer(0);
  add_.end();
  return connection_.run(std::format("SET uma.run = '{}'", number_));
}

// Ends the lease of this data folder's former run, if that one is dead. Then any daemon may take its sessions.
SqlExpected<Unit> PostgresRun::end_former() {
  const std::string former = lock_.is_open() ? dead_incarnation(lock_) : "";
  if (former.empty()) return Unit{};
  end_former_.bind(former);
  const auto row = end_former_.next();
  if (!row) return std::unexpected(row.error());
  if (*row) log_info("catalog: run {} of this data folder is dead: its lease ends", end_former_.integer(0));
  end_former_.end();
  return Unit{};
}

SqlExpected<Unit> PostgresRun::renew() {
  const TimePoint asked = clock_.now();
  auto done =
      renew_.run(number_, options_.node, lease_ms(), options_.version, options_.models, incarnation_, options_.shared_states);
  if (!done) return done;
  renewed_at_ = asked;
  // The former lease may have ended before the database renewed it.
  if (clock_.now() >= holds_until_.load()) ++lease_;
  holds_until_ = asked + options_.lease;
  return done;
}

TimePoint PostgresRun::next_renewal() const {
  return std::max(renewed_at_ + options_.lease / kRenewalsPerLease, next_renewal_try_);
}

void PostgresRun::put_off_renewal() {
  next_renewal_try_ = clock_.now() + kConnectEvery;
}

bool PostgresRun::is_reachable() const {
  return clock_.now() < holds_until_.load() - options_.lease * 3 / kRenewalsPerLease;
}

SqlExpected<Unit> PostgresRun::end() {
  auto done = give_up_all_.run(number_);
  if (done) done = end_.run(number_);
  holds_until_ = TimePoint{};
  return done;
}

SqlExpected<Unit> PostgresRun::notify_of(Statement& bound) {
  const auto row = bound.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t run = *row ? bound.integer(0) : 0;
  bound.end();
  if (run == 0 || run == number_) return Unit{};
  if (auto sent = notify_.run(run); !sent) log_debug("catalog: run {} is not notified: {}", run, sent.error().message);
  return Unit{};
}

std::int64_t PostgresRun::lease_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease).count();
}

}  // namespace uma::kv
