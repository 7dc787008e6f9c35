// Reads from the shared tables what other daemons have done: all sessions, or those that were changed since the last question,
// in pages. Part of PostgresCatalog, and owned by its thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "kv/catalog/catalog.h"
#include "kv/catalog/postgres.h"

namespace uma::kv {

class PostgresListing {
 public:
  using Fences = std::unordered_map<SessionId, std::int64_t>;

  // A page has at most `page_rows` sessions. The references outlive the object.
  PostgresListing(PostgresConnection& connection, const Clock& clock, std::int64_t page_rows);

  // RecordRows::session_columns(), without the texts that no list shows.
  [[nodiscard]] static std::string columns();

  // The next page of the listing in progress, or the first one of a new listing. Sessions that `run` owns under the fences in
  // `fences` are left out; those that it has lost are removed from there.
  [[nodiscard]] SqlExpected<CatalogChanges> next_page(std::int64_t run, Fences& fences);
  [[nodiscard]] bool is_in_progress() const { return listing_.has_value(); }
  // The next listing has all sessions.
  void begin_anew();
  // The session exists, though a complete listing in progress may have passed its place before it was committed.
  void note_found(const SessionId& id);

 private:
  struct Listing {
    bool is_complete = false;
    std::int64_t since = 0;  // Transactions before this one were seen.
    std::int64_t seen = 0;   // Transactions before this one will have been seen.
    TimePoint begun{};
    std::int64_t last_changed = 0;  // `changed` of the last row that was read.
    std::int64_t last_key = 0;
    std::vector<SessionId> all{};  // If it is complete: the sessions so far.
  };

  [[nodiscard]] SqlExpected<Unit> begin();
  [[nodiscard]] SqlExpected<Unit> read_page(CatalogChanges& changes, std::int64_t run, Fences& fences);
  [[nodiscard]] SqlExpected<Unit> end(CatalogChanges& changes);

  const Clock& clock_;
  const std::int64_t page_rows_;
  Statement get_xmin_;
  Statement get_all_;
  Statement get_changed_;
  Statement get_ended_;
  Statement get_wanted_;
  Statement forget_ended_;
  std::optional<Listing> listing_;  // The one in progress.
  std::int64_t seen_ = 0;           // Transactions before this one are seen by the last listing that has ended.
  TimePoint seen_at_{};
  TimePoint forgot_at_{};
};

}  // namespace uma::kv
