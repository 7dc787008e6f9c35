// A run of this daemon in the database that several share: its row in `daemons` with a lease by the database's clock, and the
// notifications between runs. Owned by the thread of the catalog; whether the lease holds, any thread may ask.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/system/unique_fd.h"
#include "kv/catalog/postgres.h"

namespace uma::kv {

struct PostgresCatalogOptions;

class PostgresRun {
 public:
  // The arguments outlive the run.
  PostgresRun(PostgresConnection& connection, const PostgresCatalogOptions& options);

  // The run of this data folder, whose former run is over; see take_catalog_lock().
  void set_lock(UniqueFd lock) { lock_ = std::move(lock); }
  // Connects, at most once a second. The first time the run begins, later its lease is renewed.
  [[nodiscard]] SqlExpected<Unit> connect();
  // A lease that has ended begins again: sessions that nobody took meanwhile are still this run's.
  [[nodiscard]] SqlExpected<Unit> renew();
  [[nodiscard]] TimePoint next_renewal() const;
  void put_off_renewal();
  void renew_soon() { renewed_at_ = {}; }
  // Gives up all sessions and ends the lease. Requires: connected.
  [[nodiscard]] SqlExpected<Unit> end();
  // Notifies the run in the statement's row, if there is one. Without the notification it looks a little later.
  [[nodiscard]] SqlExpected<Unit> notify_of(Statement& bound);
  // The number of this run; 0: it has not begun.
  [[nodiscard]] std::int64_t number() const { return number_; }

  // --- Any thread
  // The number of this lease; 0: it has ended.
  [[nodiscard]] std::uint64_t lease() const {
    // In this order: renew() sets them in the other one.
    const bool holds = clock_.now() < holds_until_.load();
    return holds ? lease_.load() : 0;
  }
  // The last renewal, of which there are five in a lease, was not missed twice.
  [[nodiscard]] bool is_reachable() const;

 private:
  [[nodiscard]] SqlExpected<Unit> begin();
  [[nodiscard]] SqlExpected<Unit> end_former();
  [[nodiscard]] std::int64_t lease_ms() const;

  PostgresConnection& connection_;
  const PostgresCatalogOptions& options_;
  const Clock& clock_;
  UniqueFd lock_;
  Statement add_;
  Statement renew_;
  Statement end_former_;
  Statement end_;
  Statement give_up_all_;
  Statement notify_;
  std::int64_t number_ = 0;
  std::string incarnation_;  // The incarnation of this run, see run_identity.h; empty: it has no data folder.
  TimePoint renewed_at_{};
  TimePoint next_renewal_try_{};
  TimePoint next_connect_{};
  std::atomic<TimePoint> holds_until_{TimePoint{}};
  std::atomic<std::uint64_t> lease_{0};
};

// The columns of a session that its owner gives up. It is kept for a moment for the daemon that asked for it: else the next
// request of the former owner would always be faster.
inline constexpr std::string_view kGivenUp = R"sql(
  owner = NULL, is_wanted = false, kept_until = CASE WHEN is_wanted THEN clock_timestamp() + interval '1 second' END)sql";

}  // namespace uma::kv
