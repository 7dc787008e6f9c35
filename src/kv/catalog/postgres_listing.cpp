#include "kv/catalog/postgres_listing.h"

#include <chrono>
#include <format>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "kv/catalog/record_rows.h"

namespace uma::kv {
namespace {

// Behind RecordRows::session_columns().
constexpr int kOwnerColumn = 27;
constexpr int kFenceColumn = 28;
constexpr int kChangedColumn = 29;
constexpr int kKeyColumn = 30;
// The database forgets which sessions have ended after an hour. A daemon that has not asked for so long reads everything again.
constexpr Duration kChangesKept = std::chrono::minutes(50);
constexpr Duration kForgetEvery = std::chrono::minutes(10);

}  // namespace

PostgresListing::PostgresListing(PostgresConnection& connection, const Clock& clock, std::int64_t page_rows)
    : clock_(clock),
      page_rows_(page_rows),
      get_xmin_(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"),
      get_all_(
          connection,
          std::format("SELECT {}, owner, fence, changed, key FROM sessions WHERE key > ?1 ORDER BY key LIMIT ?2", columns())),
      get_changed_(connection, std::format(R"sql(
        SELECT {}, owner, fence, changed, key FROM sessions WHERE (changed, key) > (?1, ?2) ORDER BY changed, key LIMIT ?3)sql",
                                           columns())),
      get_ended_(connection, "SELECT id FROM ended_sessions WHERE changed >= ?1"),
      get_wanted_(connection, "SELECT id FROM sessions WHERE owner = ?1 AND is_wanted"),
      forget_ended_(connection, "DELETE FROM ended_sessions WHERE ended < now() - interval '1 hour'") {}

std::string PostgresListing::columns() {
  constexpr std::string_view kLong = "tools, template_arguments";
  std::string columns(RecordRows::session_columns());
  const std::size_t at = columns.find(kLong);
  UMA_CHECK(at != std::string::npos);
  return columns.replace(at, kLong.size(), "''::text, ''::text");
}

SqlExpected<CatalogChanges> PostgresListing::next_page(std::int64_t run, Fences& fences) {
  CatalogChanges changes;
  SqlExpected<Unit> done;
  if (!listing_) done = begin();
  if (done) done = read_page(changes, run, fences);
  if (done && !changes.has_more) done = end(changes);
  if (!done) return std::unexpected(done.error());
  get_wanted_.bind(run);
  auto row = get_wanted_.next();
  for (; row && *row; row = get_wanted_.next()) changes.wanted.push_back({std::string(get_wanted_.text(0))});
  get_wanted_.end();
  if (!row) return std::unexpected(row.error());
  return changes;
}

SqlExpected<Unit> PostgresListing::begin() {
  Listing listing{.begun = clock_.now()};
  listing.is_complete = seen_ == 0 || listing.begun > seen_at_ + kChangesKept;
  listing.since = listing.is_complete ? 0 : seen_;
  listing.last_changed = listing.since;
  // Transactions that are in progress now may change sessions later, but have numbers from this one on.
  get_xmin_.bind();
  const auto row = get_xmin_.next();
  if (!row) return std::unexpected(row.error());
  listing.seen = get_xmin_.integer(0);
  get_xmin_.end();
  listing_ = std::move(listing);
  return Unit{};
}

SqlExpected<Unit> PostgresListing::read_page(CatalogChanges& changes, std::int64_t run, Fences& fences) {
  Statement& rows = listing_->is_complete ? get_all_ : get_changed_;
  if (listing_->is_complete) rows.bind(listing_->last_key, page_rows_);
  if (!listing_->is_complete) rows.bind(listing_->last_changed, listing_->last_key, page_rows_);
  std::int64_t rows_count = 0;
  auto row = rows.next();
  for (; row && *row; row = rows.next()) {
    ++rows_count;
    listing_->last_changed = rows.integer(kChangedColumn);
    listing_->last_key = rows.integer(kKeyColumn);
    auto summary = RecordRows::summary_of_row(rows);
    if (!summary) continue;
    if (listing_->is_complete) listing_->all.push_back(summary->id);
    if (const auto own = fences.find(summary->id); own != fences.end()) {
      const bool is_own = rows.integer(kOwnerColumn) == run && rows.integer(kFenceColumn) == own->second;
      if (is_own) continue;
      fences.erase(own);
    }
    changes.changed.push_back(std::move(*summary));
  }
  rows.end();
  if (!row) return std::unexpected(row.error());
  changes.has_more = rows_count >= page_rows_;
  return Unit{};
}

SqlExpected<Unit> PostgresListing::end(CatalogChanges& changes) {
  if (!listing_->is_complete) {
    get_ended_.bind(listing_->since);
    auto row = get_ended_.next();
    for (; row && *row; row = get_ended_.next()) changes.ended.push_back({std::string(get_ended_.text(0))});
    get_ended_.end();
    if (!row) return std::unexpected(row.error());
  }
  if (listing_->begun > forgot_at_ + kForgetEvery) {
    if (auto done = forget_ended_.run(); !done) return std::unexpected(done.error());
    forgot_at_ = listing_->begun;
  }
  changes.is_complete = listing_->is_complete;
  changes.all = std::move(listing_->all);
  seen_ = listing_->seen;
  seen_at_ = listing_->begun;
  listing_.reset();
  return Unit{};
}

void PostgresListing::begin_anew() {
  seen_ = 0;
  listing_.reset();
}

void PostgresListing::note_found(const SessionId& id) {
  if (listing_ && listing_->is_complete) listing_->all.push_back(id);
}

}  // namespace uma::kv
