#include "kv/state_store.h"

#include <algorithm>
#include <format>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "kv/shared/shared_prefix.h"

namespace uma::kv {
namespace {

constexpr Duration kMaintenance = std::chrono::minutes(1);
constexpr std::uint64_t kPoolPart = 8;  // Share of the memory for states.
constexpr std::uint64_t kPoolBytesMax = std::uint64_t{1} << 30;
// For so long it is remembered that the shared store has a state. A session that is taken again is looked up again.
constexpr Duration kSharedKnown = std::chrono::minutes(10);
constexpr double kUsualReadMsPerMb = 1;
constexpr Duration kReadAgain = std::chrono::milliseconds(5);
// This share of the memory may additionally be on its way to disk until limit_memory() sets a limit.
constexpr std::uint64_t kLeavingPart = 4;
// No more of what stays in memory is written at a time: it cannot give way meanwhile.
constexpr std::uint64_t kUnwrittenBytesMax = std::uint64_t{64} << 20;

}  // namespace

StateStore::StateStore(StoreOptions options, std::unique_ptr<ColdStore> cold, const Clock& clock, SharedStates* shared)
    : options_(std::move(options)),
      cold_(std::move(cold)),
      clock_(clock),
      shared_(shared),
      maintenance_at_(clock.now()),
      pool_(std::min(options_.warm_bytes_max / kPoolPart, kPoolBytesMax)),
      table_(options_.eviction, clock, stats_),
      limit_{.at_rest = options_.warm_bytes_max, .in_all = options_.warm_bytes_max + options_.warm_bytes_max / kLeavingPart} {}

StateStore::~StateStore() = default;

void StateStore::open(const std::unordered_set<SessionId>& sessions) {
  std::vector<ColdHead> heads;
  if (cold_ != nullptr) {
    if (auto listed = cold_->list()) {
      heads = std::move(*listed);
    } else {
      log_warning("kv: the stored states cannot be read: {}", listed.error().message);
    }
  }
  // After a kill a session may have two, of which the later one counts.
  std::ranges::sort(heads, {}, [](const ColdHead& head) { return std::tuple(head.last_used_s, head.tokens.size()); });
  const MutexLock lock(mutex_);
  const std::int64_t now_s = clock_.unix_s();
  for (ColdHead& head : heads) {
    const SessionId& session = head.owner.session;
    if (!session.empty() && !is_prefix(session) && (!sessions.contains(session) || forgotten_.contains(session))) {
      inbox_.push({.kind = JobKind::remove, .file = std::move(head.name)});
      for (ColdPart& part : head.parts) inbox_.push({.kind = JobKind::remove, .file = std::move(part.name)});
      continue;
    }
    Entry entry;
    entry.owner = std::move(head.owner);
    entry.family = table_.family_of(std::move(head.identity));
    entry.tokens = std::move(head.tokens);
    entry.file = std::move(head.name);
    entry.file_bytes = head.bytes;
    entry.parts = std::move(head.parts);
    entry.last_used = clock_.now() - std::chrono::seconds(std::max<std::int64_t>(0, now_s - head.last_used_s));
    table_.add(std::move(entry));
  }
  is_open_ = true;
  forgotten_ = {};
  // The quota may be smaller than before.
  std::vector<TenantId> tenants;
  for (const auto& [tenant, bytes] : table_.tenants()) tenants.push_back(tenant);
  for (const TenantId& tenant : tenants) make_tenant_room(tenant);
}

FamilyId StateStore::join(const std::string& identity, bool can_cut) {
  const MutexLock lock(mutex_);
  const std::ptrdiff_t outdated = table_.join(identity, can_cut);
  if (outdated > 0)
    log_info("kv: {} stored states of this model are for other settings; they are kept until their space is needed", outdated);
  return table_.family_of(identity)->second.id;
}

void StateStore::delete_later(std::vector<std::string> files) {
  for (std::string& file : files) inbox_.push({.kind = JobKind::remove, .file = std::move(file)});
}

std::optional<StoredMatch> StateStore::find(const PrefixQuery& query, std::span<const Token> chain) const {
  const MutexLock lock(mutex_);
  if (query.family == 0) return std::nullopt;
  const auto best = table_.find(query, chain);
  if (!best) return std::nullopt;
  const Entry& entry = *table_.find(best->id);
  const std::uint64_t bytes = entry.snapshot ? entry.warm_bytes() : entry.bytes_to_read();
  const Tier tier = entry.tier();
  return StoredMatch{.id = best->id,
                     .tokens_count = static_cast<std::int32_t>(best->tokens_count),
                     .tokens_stored = static_cast<std::int32_t>(entry.tokens.size()),
                     .tier = tier,
                     .bytes = bytes,
                     .fetch_ms = tier == Tier::warm || entry.is_refused ? 0
                                 : tier == Tier::shared                 ? shared_->reader.read_ms(entry.is_busy ? 0 : bytes)
                                                                        : disk_read_ms(queued_bytes_ + bytes),
                     .is_own = !query.session.empty() && entry.owner.session == query.session,
                     .was_read_ahead = entry.was_read_ahead};
}

SnapshotPtr StateStore::take(StateId id) {
  const MutexLock lock(mutex_);
  Entry* const entry = table_.find(id);
  if (entry == nullptr || !entry->snapshot) return nullptr;
  entry->last_used = clock_.now();
  entry->was_read_ahead = false;
  ++entry->uses;
  return entry->snapshot;
}

SnapshotPtr StateStore::hold(StateId id) const {
  const MutexLock lock(mutex_);
  const Entry* const entry = table_.find(id);
  return entry == nullptr ? nullptr : entry->snapshot;
}

void StateStore::settle(StateId id, const PrefixQuery& query) {
  const MutexLock lock(mutex_);
  Entry* const entry = table_.find(id);
  if (!table_.family_of(query.family).can_cut || query.session.empty() || entry == nullptr) return;
  if (entry->owner.session != query.session || !entry->snapshot) return;
  if (entry->is_busy) {
    entry->must_leave = true;  // Once it is on disk.
  } else {
    table_.drop_snapshot(id);
  }
}

void StateStore::fetch(StateId id, OnFetched on_fetched, TimePoint until) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    const Entry* const entry = table_.find(id);
    if (entry != nullptr && !entry->snapshot) bytes = entry->cold_bytes();  // The shared store has a queue of its own.
    queued_bytes_ += bytes;
  }
  Job job{.kind = JobKind::read, .id = id, .bytes = bytes, .on_fetched = std::move(on_fetched), .until = until};
  if (!read_shared(job)) inbox_.push(std::move(job));
}

void StateStore::prefetch(const SessionId& session) {
  const MutexLock lock(mutex_);
  const auto owned = table_.of_session(session);
  if (owned.empty()) return;
  const Entry& newest = table_.at(owned.back());
  if (!newest.snapshot && !newest.is_refused) inbox_.push({.kind = JobKind::read, .id = owned.back()});
}

double StateStore::read_ms(std::uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return disk_read_ms(bytes);
}

bool StateStore::has_place_for(const TenantId& tenant, std::uint64_t bytes, Keep keep) const {
  const MutexLock lock(mutex_);
  const auto used = table_.tenants().find(tenant);
  const std::uint64_t of_tenant = used == table_.tenants().end() ? 0 : used->second.total();
  if (options_.tenant_bytes_max > 0 && of_tenant + bytes > options_.tenant_bytes_max) return false;
  const bool fits_on_disk = keep == Keep::anywhere && can_write(table_.bytes().cold + bytes);
  return fits_on_disk || bytes_at_rest() + bytes <= limit_.at_rest;
}

void StateStore::put(StateOwner owner, Snapshot snapshot, Keep keep) {
  if (!add(std::move(owner), snapshot, keep)) recycle(std::move(snapshot), pool_);
}

bool StateStore::add(StateOwner owner, Snapshot& snapshot, Keep keep) {
  const MutexLock lock(mutex_);
  const auto family = table_.family_of(snapshot.identity);
  UMA_CHECK(family->second.is_joined);
  if (Entry* const same = table_.find_equal(owner, family->second, snapshot.tokens)) {
    same->last_used = clock_.now();
    if (same->snapshot || same->is_busy || same->file.empty()) return false;
    table_.set_snapshot(*same, share_snapshot(std::move(snapshot), pool_));
    make_tenant_room(owner.tenant);
    make_warm_room();
    return true;
  }
  if (table_.find_longer(owner, family->second, snapshot.tokens) != nullptr) return false;
  if (options_.tenant_bytes_max > 0 && snapshot.bytes() > options_.tenant_bytes_max) {
    stats_.dropped_total.add();
    return false;
  }
  auto former = table_.supersede(owner, family->second, snapshot.tokens);
  const TenantId tenant = owner.tenant;
  Entry entry;
  entry.owner = std::move(owner);
  entry.family = family;
  entry.tokens = snapshot.tokens;
  entry.last_used = clock_.now();
  entry.snapshot = share_snapshot(std::move(snapshot), pool_);
  entry.is_for_memory = keep == Keep::in_memory;
  const StateId id = table_.add(std::move(entry));
  // A state that leaves its context sooner than write_within after its turn is not on disk yet. The former files go after the
  // write, which uses their parts, so that a crash always finds one of them.
  if (options_.write_within > Duration(0)) unwritten_.push_back(id);
  write_waiting();
  delete_later(std::move(former));
  make_tenant_room(tenant);
  make_warm_room();
  return true;
}

bool StateStore::has_in_memory(const StateOwner& owner, FamilyId family, std::span<const Token> tokens) {
  const MutexLock lock(mutex_);
  const StateTable::Family& known = table_.family_of(family);
  const Entry* entry = table_.find_equal(owner, known, tokens);
  if (entry == nullptr) entry = table_.find_longer(owner, known, tokens);
  return entry != nullptr && entry->snapshot;
}

void StateStore::expect(std::size_t piece_bytes, std::size_t pieces) {
  if (pool_.has(piece_bytes, pieces) || !pool_.can_keep(piece_bytes, pieces)) return;
  inbox_.push({.kind = JobKind::expect, .bytes = piece_bytes, .count = pieces});
}

void StateStore::want(std::size_t piece_bytes) {
  inbox_.push({.kind = JobKind::want, .bytes = piece_bytes});
}

void StateStore::forget(const SessionId& session) {
  const MutexLock lock(mutex_);
  if (!is_open_) forgotten_.insert(session);
  for (auto& [id, early] : early_) early.is_void |= early.owner.session == session;
  const auto owned = table_.of_session(session);
  for (const StateId id : std::vector(owned.begin(), owned.end())) remove(id);
}

SessionStates StateStore::states_of(const SessionId& session) const {
  const MutexLock lock(mutex_);
  const auto owned = table_.of_session(session);
  if (owned.empty()) return {};
  SessionStates states;
  for (const StateId id : owned) {
    states.warm_bytes += table_.find(id)->warm_bytes();
    states.cold_bytes += table_.find(id)->cold_bytes();
  }
  const Entry& newest = *table_.find(owned.back());
  if (newest.family->second.is_joined && !newest.is_forgotten) states.tier = newest.tier();
  return states;
}

// The pool's unused memory is for states with a reservation.
std::uint64_t StateStore::memory_bytes() const {
  const MutexLock lock(mutex_);
  return std::max(pool_.bytes_reserved(), bytes_here());
}

bool StateStore::is_at_rest() const {
  const MutexLock lock(mutex_);
  return leaving_bytes_ == 0;
}

void StateStore::limit_memory(MemoryLimit limit) {
  limit.at_rest = std::min(limit.at_rest, options_.warm_bytes_max);
  limit.in_all = std::max(limit.in_all, limit.at_rest);
  pool_.limit_idle(std::min(limit.at_rest / kPoolPart, kPoolBytesMax));
  pool_.limit(limit.in_all);
  const MutexLock lock(mutex_);
  limit_ = limit;
  make_warm_room();
}

// --- Eviction

// Keeps a tenant within its quota by dropping its own states.
void StateStore::make_tenant_room(const TenantId& tenant) {
  if (options_.tenant_bytes_max == 0) return;
  const auto& tenants = table_.tenants();
  for (auto found = tenants.find(tenant); found != tenants.end() && found->second.total() > options_.tenant_bytes_max;
       found = tenants.find(tenant)) {
    const auto least = table_.least_valuable_of(tenant);
    if (!least) return;
    const Entry& entry = table_.at(least->id);
    if (entry.snapshot && !entry.file.empty()) {
      table_.drop_snapshot(least->id);
    } else {
      stats_.dropped_total.add();
      remove(least->id);
    }
  }
}

// Returns false if the store is closed.
bool StateStore::begin_write(StateId id, bool stays_in_memory) {
  if (!inbox_.push({.kind = JobKind::write, .id = id, .stays_in_memory = stays_in_memory})) return false;
  mark_leaving(table_.at(id));
  return true;
}

// Begins to write states that stay in memory, the newest first, as long as little is on its way to disk.
void StateStore::write_waiting() {
  const std::uint64_t most = std::min(kUnwrittenBytesMax, limit_.in_all - limit_.at_rest);
  while (!unwritten_.empty()) {
    const StateId id = unwritten_.back();
    const Entry* const entry = table_.find(id);
    if (entry != nullptr && entry->snapshot && entry->file.empty() && !entry->is_busy && !is_day_full(entry->owner.tenant)) {
      if (clock_.now() < writes_from_ || (leaving_bytes_ > 0 && leaving_bytes_ + entry->warm_bytes() > most)) return;
      if (can_write(*entry) && !begin_write(id, true)) return;
    }
    unwritten_.pop_back();
  }
}

// Moves excess states to disk, as far as there is memory for the transfer, and drops the others.
void StateStore::make_warm_room() {
  const std::uint64_t elsewhere = pool_.bytes_reserved() - table_.bytes().warm;  // Independent of what is freed here.
  const auto is_within_all = [&]() REQUIRES_LOCK(mutex_) { return table_.bytes().warm + elsewhere <= limit_.in_all; };
  while (bytes_at_rest() > limit_.at_rest || !is_within_all()) {
    const auto least = least_valuable_in_memory();
    if (!least) return;
    const StateId id = least->id;
    Entry& entry = table_.at(id);
    if (entry.file.empty() && is_within_all() && can_write(entry) && begin_write(id)) continue;
    if (entry.file.empty()) stats_.dropped_total.add();
    table_.drop_snapshot(id);
  }
}

// Whether evicting every possible state would suffice.
bool StateStore::can_make_room(std::uint64_t bytes, GiveWay how) const {
  std::uint64_t least = pool_.bytes_reserved();
  for (const auto& [id, entry] : table_.entries()) {
    const bool is_leaving = entry.is_busy && entry.file.empty();
    if (is_leaving ? how == GiveWay::by_disk : !entry.is_busy && entry.snapshot.use_count() == 1) least -= entry.warm_bytes();
  }
  return bytes <= pool_.bytes_max() && least <= pool_.bytes_max() - bytes;
}

std::optional<ByteBudget::Share> StateStore::make_room(std::uint64_t bytes, GiveWay how) {
  if (auto room = pool_.reserve(bytes)) return room;
  const MutexLock lock(mutex_);
  if (!can_make_room(bytes, how)) return std::nullopt;
  for (;;) {
    if (auto room = pool_.reserve(bytes)) return room;
    if (how == GiveWay::by_disk && pool_.bytes_reserved() + bytes - leaving_bytes_ <= pool_.bytes_max()) return std::nullopt;
    const auto least = least_valuable_in_memory(true);
    if (!least) return std::nullopt;
    Entry& entry = table_.at(least->id);
    if (how == GiveWay::by_disk && entry.file.empty() && can_write(entry) && begin_write(least->id)) {
      entry.must_leave = true;
      continue;
    }
    if (entry.file.empty()) stats_.dropped_total.add();
    table_.drop_snapshot(least->id);
  }
}

// --- The store's thread

bool StateStore::step() {
  inbox_.drain(taken_);
  const bool any = !taken_.empty();
  for (Job& job : taken_) run_noting([&] { run(std::move(job)); });
  taken_.clear();
  if (clock_.now() >= maintenance_at_) run_noting([this] { maintain(); });
  if (clock_.now() >= preparation_.next()) run_noting([this] { prepare(); });
  for (Job& job : std::exchange(waiting_reads_, {})) run_noting([&] { read(std::move(job)); });
  return any;
}

bool StateStore::wait() {
  const TimePoint again = waiting_reads_.empty() ? kNever : clock_.now() + kReadAgain;
  if (inbox_.wait_drain(taken_, std::min({maintenance_at_, preparation_.next(), again}))) return true;
  for (Job& job : std::exchange(waiting_reads_, {}))
    end_read(std::move(job), fail(ErrorCode::limit_wait, "the daemon is stopping"));
  return false;
}

// Prepares memory slowly while models compute.
void StateStore::prepare() {
  constexpr Duration kPause = std::chrono::milliseconds(50);
  const bool has_room = [&] {
    const MutexLock lock(mutex_);
    return bytes_at_rest() + preparation_.bytes() <= limit_.at_rest;
  }();
  const bool is_busy = options_.is_busy && options_.is_busy();
  preparation_.step(has_room, clock_.now(), is_busy ? kPause : Duration(0));
}

// Moves unused states to disk, and removes them after their time to live.
void StateStore::maintain() {
  maintenance_at_ = clock_.now() + kMaintenance;
  const MutexLock lock(mutex_);
  stats_.written_day_bytes.set(static_cast<std::int64_t>(written_.total(clock_.now())));
  read_ms_per_mb_ += (kUsualReadMsPerMb - read_ms_per_mb_) / 64;  // A disk that was slow once is asked again.
  std::erase_if(unwritten_, [&](StateId id) REQUIRES_LOCK(mutex_) { return table_.find(id) == nullptr; });
  write_waiting();
  std::vector<StateId> expired;
  std::vector<StateId> idle;
  std::vector<StateId> elsewhere;
  for (const auto& [id, entry] : table_.entries()) {
    if (entry.is_busy) continue;
    const Duration unused = clock_.now() - entry.last_used;
    if (entry.is_shared_only()) {
      if (unused >= kSharedKnown) elsewhere.push_back(id);
    } else if (options_.ttl > Duration(0) && unused >= options_.ttl) {
      expired.push_back(id);
    } else if (entry.snapshot && unused >= options_.archive_after) {
      idle.push_back(id);
    }
  }
  for (const StateId id : elsewhere) remove(id);
  for (const StateId id : expired) remove(id);
  stats_.expired_total.add(expired.size());
  if (!expired.empty()) log_info("kv: removed {} states that were unused for kv.ttl", expired.size());
  for (const StateId id : idle) {
    Entry& entry = table_.at(id);
    if (!entry.file.empty()) {
      table_.drop_snapshot(id);
    } else if (can_write(entry)) {
      (void)begin_write(id);
    }
  }
}

void StateStore::run(Job job) {
  switch (job.kind) {
    case JobKind::write:
      return write(job.id, !job.stays_in_memory);
    case JobKind::read:
      return read(std::move(job));
    case JobKind::expect:
      return preparation_.expect(job.bytes, job.count, clock_.now());
    case JobKind::want:
      return preparation_.want(job.bytes, clock_.now());
    case JobKind::task:
      return job.task();
    case JobKind::remove:
      if (!job.is_wrong && is_used(job.file)) return;
      if (auto removed = cold_->remove(job.file); !removed) log_warning("kv: {}", removed.error().message);
      return;
  }
}

// Ends the work of the store's thread on an entry. `leaves_memory`: it is on disk and was not used meanwhile.
void StateStore::end_busy(StateId id, bool leaves_memory) {
  Entry& entry = table_.at(id);
  const TenantId tenant = entry.owner.tenant;
  entry.is_busy = false;
  entry.must_leave = false;
  if (entry.is_forgotten) {
    remove(id);
  } else if (leaves_memory) {
    table_.drop_snapshot(id);
  }
  make_tenant_room(tenant);
  make_warm_room();
  write_waiting();
}

void StateStore::check_invariants() const {
  const MutexLock lock(mutex_);
  table_.check_invariants();
  std::uint64_t leaving = 0;
  std::map<TenantId, std::size_t> not_busy;
  bool has_others = false;  // States that could leave memory.
  for (const auto& [id, entry] : table_.entries()) {
    leaving += entry.is_busy && entry.snapshot && entry.file.empty() ? entry.warm_bytes() : 0;
    not_busy[entry.owner.tenant] += entry.is_busy ? 0 : 1;
    has_others |= entry.snapshot && !entry.is_busy;
  }
  UMA_CHECK(leaving == leaving_bytes_);
  UMA_CHECK(bytes_at_rest() <= limit_.at_rest || !has_others);
  UMA_CHECK(table_.bytes().warm <= pool_.bytes_reserved());
  UMA_CHECK(table_.bytes().warm <= limit_.in_all || !has_others);
  for (const auto& [tenant, bytes] : table_.tenants()) {
    UMA_CHECK(options_.tenant_bytes_max == 0 || bytes.total() <= options_.tenant_bytes_max || not_busy.at(tenant) == 0);
  }
}

}  // namespace uma::kv
