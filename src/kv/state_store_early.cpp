// StateStore's functions for states that are written to disk while they stay in their context (docs/decisions/0094).
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "kv/disk/state_file.h"
#include "kv/state_store.h"

namespace uma::kv {

EarlyWrite StateStore::begin_early(const StateOwner& owner, const std::string& identity, std::span<const Token> tokens,
                                   std::span<const std::int32_t> ends, std::uint64_t bytes) {
  constexpr Duration kFullDayPause = std::chrono::minutes(1);
  if (cold_ == nullptr || bytes > options_.cold_bytes_max) return {};
  if (options_.tenant_bytes_max > 0 && bytes > options_.tenant_bytes_max) return {};
  Early early{
      .owner = owner, .wanted = parts_of(owner, identity, tokens, ends), .bytes_left = bytes, .tokens_count = tokens.size()};
  const MutexLock lock(mutex_);
  if (is_day_full(owner.tenant)) return {.again_after = kFullDayPause};
  if (clock_.now() < writes_from_) return {.again_after = writes_from_ - clock_.now()};
  const auto family = table_.family_of(identity);
  if (const Entry* const same = table_.find_equal(owner, family->second, tokens)) {
    if (same->file.empty()) unwritten_.push_back(same->id);
    write_waiting();
    return {};
  }
  if (table_.find_longer(owner, family->second, tokens) != nullptr) return {};
  for (const StatePart& part : early.wanted) {
    if (!table_.is_part_used(part.name)) break;
    early.parts.push_back({.name = part.name});
  }
  UMA_CHECK(table_.hold_parts(owner.tenant, early.parts));
  if (!early.parts.empty()) {
    const auto known = static_cast<std::size_t>(early.wanted[early.parts.size() - 1].end);
    early.bytes_left = bytes / tokens.size() * (tokens.size() - known);
  }
  const EarlyWrite begun{.id = ++last_early_, .known = early.parts.size()};
  early_.emplace(begun.id, std::move(early));
  return begun;
}

void StateStore::write_early(std::uint64_t id, Snapshot snapshot, MoveOnlyFunction<void(bool)> then) {
  {
    const MutexLock lock(mutex_);
    Early& early = early_.at(id);
    UMA_CHECK(!early.is_busy);
    early.is_busy = true;
  }
  run_later([this, id, snapshot = std::make_shared<Snapshot>(std::move(snapshot)), then = std::move(then)]() mutable {
    bool is_written = false;
    run_noting([&] { is_written = write_pieces(id, *snapshot); });
    recycle(std::move(*snapshot), pool_);
    snapshot.reset();
    {
      const MutexLock lock(mutex_);
      Early& early = early_.at(id);
      early.is_busy = false;
      if (early.is_given_up) remove_early(id);
    }
    then(is_written);
  });
}

void StateStore::end_early(std::uint64_t id) {
  const MutexLock lock(mutex_);
  Early& early = early_.at(id);
  UMA_CHECK(!early.is_given_up);
  early.is_given_up = true;
  if (!early.is_busy) remove_early(id);
}

void StateStore::remove_early(std::uint64_t id) {
  const auto early = early_.find(id);
  delete_later(table_.release_parts(early->second.owner.tenant, early->second.parts));
  early_.erase(early);
}

// Writes that have these parts become no states.
void StateStore::make_void(std::span<const std::string> parts) {
  for (auto& [id, early] : early_) {
    early.is_void |=
        std::ranges::any_of(early.parts, [&](const ColdPart& part) { return std::ranges::contains(parts, part.name); });
  }
}

// False: it cannot be written, or nobody wants it.
bool StateStore::write_pieces(std::uint64_t id, Snapshot& snapshot) {
  Early begun;
  {
    const MutexLock lock(mutex_);
    begun = early_.at(id);
  }
  const StateOwner& owner = begun.owner;
  const std::vector<std::string> lost = cold_->lost(begun.parts);
  {
    const MutexLock lock(mutex_);
    if (!lost.empty()) {
      log_warning("kv: {} parts of stored states are gone", lost.size());
      forget_lost(lost);
    }
    const Early& early = early_.at(id);
    if (early.is_void || early.is_given_up) return false;
    // All that is left, so that nothing is written of what does not fit.
    const StateView arrives{.bytes = early.bytes_left, .tokens_count = early.tokens_count, .uses = 1};
    if (!make_cold_room(arrives, owner.tenant, early.bytes_left)) return false;
  }
  for (const StatePart& part : std::span(begun.wanted).subspan(begun.parts.size())) {
    const auto piece = std::ranges::find(snapshot.pieces, part.begin, &SnapshotPiece::begin);
    if (piece == snapshot.pieces.end()) break;
    if (!write_piece(id, owner, snapshot, part)) return false;
    pool_.give(std::exchange(piece->bytes, {}));
  }
  if (snapshot.tokens.size() < begun.tokens_count) return true;
  auto written = write_cold(owner, snapshot);
  if (!written) return false;
  const MutexLock lock(mutex_);
  const bool is_accepted = accept_early(early_.at(id), snapshot, std::move(*written));
  make_tenant_room(owner.tenant);
  return is_accepted;
}

bool StateStore::write_piece(std::uint64_t id, const StateOwner& owner, const Snapshot& snapshot, const StatePart& part) {
  {
    const MutexLock lock(mutex_);
    const Early& early = early_.at(id);
    if (early.is_void || early.is_given_up) return false;
  }
  auto written = contain([&] { return cold_->write_part(owner, snapshot, part); });
  const MutexLock lock(mutex_);
  count_written(owner.tenant);
  if (!written) {
    note_write_failed(written.error(), snapshot.tokens.size());
    return false;
  }
  Early& early = early_.at(id);
  early.bytes_left -= std::min(early.bytes_left, written->bytes);
  std::vector<ColdPart> held{std::move(*written)};
  UMA_CHECK(table_.hold_parts(owner.tenant, held));
  early.parts.push_back(std::move(held.front()));
  return true;
}

// Makes an entry of a state that was written, unless its session has ended or has a longer one.
bool StateStore::accept_early(Early& early, const Snapshot& snapshot, ColdHead written) {
  const StateOwner& owner = early.owner;
  const auto family = table_.family_of(snapshot.identity);
  Entry* const same = table_.find_equal(owner, family->second, snapshot.tokens);
  if (early.is_void || (same == nullptr && table_.find_longer(owner, family->second, snapshot.tokens) != nullptr)) {
    delete_later({std::move(written.name)});
  } else if (same != nullptr) {
    // One that is itself about to be written will have the same file.
    const bool waits = same->is_busy && same->snapshot;
    if (same->file.empty() && !waits) table_.set_file(*same, std::move(written.name), written.bytes, std::move(written.parts));
  } else {
    delete_later(table_.supersede(owner, family->second, snapshot.tokens));
    Entry entry;
    entry.owner = owner;
    entry.family = family;
    entry.tokens = snapshot.tokens;
    entry.last_used = clock_.now();
    entry.file = std::move(written.name);
    entry.file_bytes = written.bytes;
    entry.parts = std::move(written.parts);
    table_.add(std::move(entry));
  }
  delete_later(table_.release_parts(owner.tenant, std::exchange(early.parts, {})));
  return !early.is_void;
}

}  // namespace uma::kv
