#include "kv/state_store.h"

#include <algorithm>
#include <cstring>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"

namespace uma::kv {
namespace {

constexpr Duration kMaintenance = std::chrono::minutes(1);
constexpr Duration kWritePause = std::chrono::minutes(1);  // after one that failed
constexpr std::size_t kCheckpoints = 4;                    // of a session whose states cannot be cut
constexpr double kMegabyte = 1e6;
constexpr double kReadMs = 2;           // that reading takes before the first byte, about
constexpr std::uint64_t kPoolPart = 8;  // of the memory for states
constexpr std::uint64_t kPoolBytesMax = std::uint64_t{1} << 30;
constexpr Duration kReadPatience = std::chrono::seconds(2);  // with those who have the memory
constexpr Duration kReadAgain = std::chrono::milliseconds(5);
constexpr std::uint64_t kLeavingPart = 4;  // as much more may be on its way to disk, until limit_memory() says how much

// In the index: of a family a tenant's own entries, those of everybody, and those that only their session may use.
std::string scope_of(FamilyId family, const TenantId& tenant) {
  return std::format("{} tenant {}", family, tenant.value);
}
std::string public_scope_of(FamilyId family) {
  return std::format("{} public", family);
}
std::string scope_of(FamilyId family, const StateOwner& owner) {
  if (owner.is_private) return std::format("{} session {}", family, owner.session.value);
  return owner.is_public ? public_scope_of(family) : scope_of(family, owner.tenant);
}

// An identity begins with that of the model; settings follow.
std::string_view model_of(std::string_view identity) {
  return identity.substr(0, identity.find('|'));
}

Error gone() {
  return {ErrorCode::runtime_decode, "the stored state is gone"};
}

}  // namespace

StateStore::StateStore(StoreOptions options, std::unique_ptr<ColdStore> cold, const Clock& clock)
    : options_(std::move(options)),
      cold_(std::move(cold)),
      clock_(clock),
      maintenance_at_(clock.now()),
      pool_(std::min(options_.warm_bytes_max / kPoolPart, kPoolBytesMax)),
      limit_{.at_rest = options_.warm_bytes_max, .in_all = options_.warm_bytes_max + options_.warm_bytes_max / kLeavingPart} {}

StateStore::~StateStore() = default;

void StateStore::open(const std::unordered_set<SessionId>& sessions) {
  std::vector<ColdHead> heads;
  if (cold_ != nullptr) {
    if (auto listed = cold_->list()) {
      heads = std::move(*listed);
    } else {
      log_warning("kv: no stored states can be read: {}", listed.error().message);
    }
  }
  const MutexLock lock(mutex_);
  const std::int64_t now_s = clock_.unix_s();
  for (ColdHead& head : heads) {
    const SessionId& session = head.owner.session;
    if (!session.empty() && (!sessions.contains(session) || forgotten_.contains(session))) {
      inbox_.push({.kind = JobKind::remove, .file = std::move(head.name)});
      continue;
    }
    Entry entry;
    entry.owner = std::move(head.owner);
    entry.family = family_of(std::move(head.identity));
    entry.tokens = std::move(head.tokens);
    entry.file = std::move(head.name);
    entry.file_bytes = head.bytes;
    entry.last_used = clock_.now() - std::chrono::seconds(std::max<std::int64_t>(0, now_s - head.last_used_s));
    add(std::move(entry));
  }
  is_open_ = true;
  forgotten_ = {};
  // The quota may be smaller than it was.
  std::vector<TenantId> tenants;
  for (const auto& [tenant, bytes] : tenants_) tenants.push_back(tenant);
  for (const TenantId& tenant : tenants) make_tenant_room(tenant);
}

StateStore::Families::pointer StateStore::family_of(std::string identity) {
  const auto [found, is_new] = families_.try_emplace(std::move(identity));
  if (is_new) {
    families_by_id_.push_back(&found->second);
    found->second.id = static_cast<FamilyId>(families_by_id_.size());
  }
  return &*found;
}

const StateStore::Family& StateStore::family_of(FamilyId id) const {
  UMA_CHECK(id > 0 && id <= families_by_id_.size());
  return *families_by_id_[id - 1];
}

FamilyId StateStore::join(const std::string& identity, bool can_cut) {
  const MutexLock lock(mutex_);
  Family& family = family_of(identity)->second;
  family.is_joined = true;
  family.is_outdated = false;
  family.can_cut = can_cut;
  std::ptrdiff_t outdated = 0;
  for (auto& [other_identity, other] : families_) {
    if (other.is_joined || other.is_outdated || model_of(other_identity) != model_of(identity)) continue;
    other.is_outdated = true;
    const Family* const family_now = &other;
    outdated +=
        std::ranges::count_if(entries_, [family_now](const auto& entry) { return &entry.second.family->second == family_now; });
  }
  if (outdated > 0)
    log_info("kv: {} stored states of this model are of other settings: kept until their room is needed", outdated);
  return family.id;
}

// --- Entries
// --------------------------------------------------------------------------------------------------------------------

void StateStore::count_for_tenant(const Entry& entry, std::uint64_t TenantBytes::* tier, std::uint64_t bytes, bool has_come) {
  const auto tenant = tenants_.try_emplace(entry.owner.tenant).first;
  TenantBytes& taken = tenant->second;
  taken.*tier = has_come ? taken.*tier + bytes : taken.*tier - bytes;
  if (taken.warm + taken.cold == 0) tenants_.erase(tenant);
}

void StateStore::count_image(const Entry& entry, bool has_come) {
  count_for_tenant(entry, &TenantBytes::warm, entry.warm_bytes(), has_come);
  warm_bytes_ = has_come ? warm_bytes_ + entry.warm_bytes() : warm_bytes_ - entry.warm_bytes();
  stats_.warm_bytes.set(static_cast<std::int64_t>(warm_bytes_));
  stats_.warm_states.add(has_come ? 1 : -1);
}

void StateStore::count_file(const Entry& entry, bool has_come) {
  count_for_tenant(entry, &TenantBytes::cold, entry.file_bytes, has_come);
  cold_bytes_ = has_come ? cold_bytes_ + entry.file_bytes : cold_bytes_ - entry.file_bytes;
  stats_.cold_bytes.set(static_cast<std::int64_t>(cold_bytes_));
  stats_.cold_states.add(has_come ? 1 : -1);
}

void StateStore::add(Entry entry) {
  UMA_CHECK(!entry.tokens.empty() && (entry.image || !entry.file.empty()));
  const StateId id = ++last_id_;
  const Entry& added = entries_.emplace(id, std::move(entry)).first->second;
  index_.add(id, scope_of(added.family->second.id, added.owner), added.tokens);
  if (!added.owner.session.empty()) of_session_[added.owner.session].push_back(id);
  if (added.image) count_image(added, true);
  if (!added.file.empty()) count_file(added, true);
}

// The entry, its memory and its file; as soon as it is not busy.
void StateStore::remove(StateId id) {
  Entry& entry = entries_.at(id);
  if (entry.is_busy) {
    entry.is_forgotten = true;
    return;
  }
  if (!entry.file.empty()) drop_file(entry);
  if (entry.image) count_image(entry, false);
  index_.remove(id, scope_of(entry.family->second.id, entry.owner), entry.tokens);
  if (const auto owned = of_session_.find(entry.owner.session); owned != of_session_.end()) {
    std::erase(owned->second, id);
    if (owned->second.empty()) of_session_.erase(owned);
  }
  entries_.erase(id);
}

// Frees the memory of an entry that is not busy; one without a file is gone.
void StateStore::drop_image(StateId id) {
  Entry& entry = entries_.at(id);
  UMA_CHECK(entry.image && !entry.is_busy);
  if (entry.file.empty()) return remove(id);
  count_image(entry, false);
  entry.image.reset();
}

void StateStore::drop_file(Entry& entry) {
  count_file(entry, false);
  entry.file_bytes = 0;
  inbox_.push({.kind = JobKind::remove, .file = std::exchange(entry.file, {})});
}

// Of the entries of some sessions the one that shares most with `chain`.
std::optional<PrefixIndex::Match> StateStore::best_of(std::initializer_list<SessionId> sessions, const Family& family,
                                                      std::span<const Token> chain) const {
  PrefixIndex::Match best;
  for (const SessionId& session : sessions) {
    const auto owned = of_session_.find(session);
    if (owned == of_session_.end()) continue;
    for (const StateId id : owned->second) {
      const Entry& entry = entries_.at(id);
      const std::size_t common = common_prefix(entry.tokens, chain);
      const bool is_usable = &entry.family->second == &family && (family.can_cut || common == entry.tokens.size());
      if (is_usable && common > best.tokens_count) best = {id, common};
    }
  }
  return best.tokens_count > 0 ? std::optional(best) : std::nullopt;
}

std::optional<StoredMatch> StateStore::find(const Asker& asker, std::span<const Token> chain) const {
  const MutexLock lock(mutex_);
  const Family& family = family_of(asker.family);
  std::optional<PrefixIndex::Match> best = best_of({asker.session, asker.forked_from}, family, chain);
  if (asker.takes_others) {
    for (const std::string& scope : {scope_of(family.id, asker.tenant), public_scope_of(family.id)}) {
      const auto match = family.can_cut ? index_.longest_common(scope, chain) : index_.longest_whole(scope, chain);
      if (match && (!best || match->tokens_count > best->tokens_count)) best = match;
    }
  }
  if (!best) return std::nullopt;
  const Entry& entry = entries_.at(best->id);
  if (entry.is_forgotten) return std::nullopt;
  const std::uint64_t bytes = entry.image ? entry.warm_bytes() : entry.file_bytes;
  return StoredMatch{
      .id = best->id,
      .tokens_count = static_cast<std::int32_t>(best->tokens_count),
      .tokens_stored = static_cast<std::int32_t>(entry.tokens.size()),
      .tier = entry.image ? Tier::warm : Tier::cold,
      .bytes = bytes,
      .fetch_ms = entry.image ? 0 : kReadMs + read_ms_per_mb_ * static_cast<double>(queued_bytes_ + bytes) / kMegabyte,
      .is_own = !asker.session.empty() && entry.owner.session == asker.session};
}

ImagePtr StateStore::take(StateId id) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.image) return nullptr;
  found->second.last_used = clock_.now();
  ++found->second.uses;
  return found->second.image;
}

ImagePtr StateStore::hold(StateId id) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.image;
}

void StateStore::settle(StateId id, const Asker& asker) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (!family_of(asker.family).can_cut || asker.session.empty() || found == entries_.end()) return;
  const Entry& entry = found->second;
  if (entry.owner.session == asker.session && entry.image && !entry.is_busy) drop_image(id);
}

void StateStore::fetch(StateId id, OnFetched on_fetched) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end() && !found->second.image) bytes = found->second.file_bytes;
    queued_bytes_ += bytes;
  }
  inbox_.push({.kind = JobKind::read, .id = id, .bytes = bytes, .on_fetched = std::move(on_fetched)});
}

void StateStore::prefetch(const SessionId& session) {
  const MutexLock lock(mutex_);
  const auto owned = of_session_.find(session);
  if (owned == of_session_.end()) return;
  const StateId id = owned->second.back();
  if (!entries_.at(id).image) inbox_.push({.kind = JobKind::read, .id = id});
}

// Whether what begins like this is kept already: of the same session, or, where it is nobody's, of anybody.
bool StateStore::is_redundant(const StateOwner& owner, const Family& family, std::span<const Token> tokens) {
  if (!family.can_cut) return false;
  const auto match = owner.session.empty() ? index_.longest_common(scope_of(family.id, owner), tokens)
                                           : best_of({owner.session}, family, tokens);
  if (!match || match->tokens_count < tokens.size()) return false;
  Entry& entry = entries_.at(match->id);
  if (entry.is_forgotten) return false;
  entry.last_used = clock_.now();
  return true;
}

// Removes what a new state of these tokens replaces: the session's former one, or, where states cannot be cut, those that it
// does not continue and all but the last few; of nobody's those that it continues.
void StateStore::supersede(const StateOwner& owner, const Family& family, std::span<const Token> tokens) {
  if (!owner.session.empty()) {
    const auto owned = of_session_.find(owner.session);
    if (owned == of_session_.end()) return;
    std::vector<StateId> former = owned->second;
    const auto leads_here = [&](StateId id) REQUIRES_LOCK(mutex_) {
      const std::vector<Token>& before = entries_.at(id).tokens;
      return !family.can_cut && before.size() < tokens.size() && common_prefix(before, tokens) == before.size();
    };
    const auto dead = std::ranges::stable_partition(former, leads_here);
    for (const StateId id : dead) remove(id);
    former.erase(dead.begin(), dead.end());
    for (std::size_t i = 0; i + kCheckpoints - 1 < former.size(); ++i) remove(former[i]);
    return;
  }
  if (!family.can_cut) return;
  while (const auto match = index_.longest_whole(scope_of(family.id, owner), tokens)) {
    const Entry& entry = entries_.at(match->id);
    if (entry.owner.session.empty() && !entry.is_busy) {
      remove(match->id);
    } else {
      tokens = tokens.first(match->tokens_count - 1);
    }
  }
}

void StateStore::put(StateOwner owner, StateImage image) {
  const MutexLock lock(mutex_);
  const Families::pointer family = family_of(image.identity);
  UMA_CHECK(family->second.is_joined);
  if (is_redundant(owner, family->second, image.tokens)) return;
  if (options_.tenant_bytes_max > 0 && image.bytes() > options_.tenant_bytes_max) {
    stats_.dropped_total.add();
    return;
  }
  supersede(owner, family->second, image.tokens);
  const TenantId tenant = owner.tenant;
  Entry entry;
  entry.owner = std::move(owner);
  entry.family = family;
  entry.tokens = image.tokens;
  entry.last_used = clock_.now();
  entry.image = share_image(std::move(image), pool_);
  add(std::move(entry));
  make_tenant_room(tenant);
  make_warm_room();
}

void StateStore::expect(std::size_t piece_bytes, std::size_t pieces) {
  constexpr std::size_t kWorthIt = std::size_t{8} << 20;  // less is there in a few milliseconds
  if (piece_bytes * pieces < kWorthIt || pool_.has(piece_bytes, pieces) || !pool_.can_keep(piece_bytes, pieces)) return;
  inbox_.push({.kind = JobKind::expect, .bytes = piece_bytes, .count = pieces});
}

void StateStore::discard(StateId id) {
  const MutexLock lock(mutex_);
  if (entries_.contains(id)) remove(id);
}

void StateStore::forget(const SessionId& session) {
  const MutexLock lock(mutex_);
  if (!is_open_) forgotten_.insert(session);
  const auto owned = of_session_.find(session);
  if (owned == of_session_.end()) return;
  const std::vector<StateId> ids = owned->second;
  for (const StateId id : ids) remove(id);
}

SessionStates StateStore::states_of(const SessionId& session) const {
  const MutexLock lock(mutex_);
  const auto owned = of_session_.find(session);
  if (owned == of_session_.end()) return {};
  SessionStates states;
  for (const StateId id : owned->second) {
    states.warm_bytes += entries_.at(id).warm_bytes();
    states.cold_bytes += entries_.at(id).file_bytes;
  }
  const Entry& newest = entries_.at(owned->second.back());
  if (newest.family->second.is_joined && !newest.is_forgotten) states.tier = newest.image ? Tier::warm : Tier::cold;
  return states;
}

// What is kept for the next ones is for those that have room already.
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

// --- Room
// -----------------------------------------------------------------------------------------------------------------------

StateView StateStore::view_of(StateId id, const Entry& entry, std::uint64_t bytes) const {
  return {.id = id,
          .bytes = bytes,
          .tokens_count = entry.tokens.size(),
          .uses = entry.uses,
          .idle_s = to_ms(clock_.now() - entry.last_used) / 1000,
          .is_foreign = entry.family->second.is_outdated,
          .is_over_share = false};
}

// What a place has for each tenant that has states there.
std::uint64_t StateStore::share_of(Place place) const {
  const auto uses_it = [place](const auto& tenant) {
    return (place == Place::memory ? tenant.second.warm : tenant.second.cold) > 0;
  };
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(tenants_, uses_it));
  return (place == Place::memory ? limit_.at_rest : options_.cold_bytes_max) / std::max<std::uint64_t>(1, count);
}

bool StateStore::is_over_share(const TenantId& tenant, Place place, std::uint64_t share) const {
  const TenantBytes& taken = tenants_.at(tenant);
  return (place == Place::memory ? taken.warm : taken.cold) > share;
}

// Of those that are not busy; `is_nowhere_else`: and that no lane has as well, whose memory would stay with it.
std::optional<StateView> StateStore::least_valuable_in(Place place, bool is_nowhere_else) const {
  std::vector<StateView> views;
  views.reserve(entries_.size());
  const std::uint64_t share = share_of(place);
  for (const auto& [id, entry] : entries_) {
    const std::uint64_t bytes = place == Place::memory ? entry.warm_bytes() : entry.file_bytes;
    if (entry.is_busy || bytes == 0 || (is_nowhere_else && entry.image.use_count() > 1)) continue;
    views.push_back(view_of(id, entry, bytes));
    views.back().is_over_share = is_over_share(entry.owner.tenant, place, share);
  }
  const StateView* least = least_valuable(views, options_.eviction);
  return least == nullptr ? std::nullopt : std::optional(*least);
}

// Of a tenant's states that are not busy. What is in memory and on disk as well comes before all others.
std::optional<StateView> StateStore::least_valuable_of(const TenantId& tenant) const {
  std::vector<StateView> views;
  std::vector<StateView> copies;
  for (const auto& [id, entry] : entries_) {
    if (entry.is_busy || entry.owner.tenant != tenant) continue;
    const bool is_copy = entry.image && !entry.file.empty();
    (is_copy ? copies : views).push_back(view_of(id, entry, entry.warm_bytes() + entry.file_bytes));
  }
  const StateView* least = least_valuable(copies.empty() ? views : copies, options_.eviction);
  return least == nullptr ? std::nullopt : std::optional(*least);
}

// Keeps a tenant within its quota, by giving up its own states.
void StateStore::make_tenant_room(const TenantId& tenant) {
  if (options_.tenant_bytes_max == 0) return;
  for (auto found = tenants_.find(tenant);
       found != tenants_.end() && found->second.warm + found->second.cold > options_.tenant_bytes_max;
       found = tenants_.find(tenant)) {
    const auto least = least_valuable_of(tenant);
    if (!least) return;
    const Entry& entry = entries_.at(least->id);
    if (entry.image && !entry.file.empty()) {
      drop_image(least->id);
    } else {
      stats_.dropped_total.add();
      remove(least->id);
    }
  }
}

bool StateStore::can_write(const Entry& entry) const {
  return cold_ != nullptr && clock_.now() >= writes_from_ && entry.tokens.size() >= options_.cold_tokens_min &&
         entry.warm_bytes() <= options_.cold_bytes_max;
}

// False: the store is closed, and its thread takes no more.
bool StateStore::begin_write(StateId id) {
  if (!inbox_.push({.kind = JobKind::write, .id = id})) return false;
  Entry& entry = entries_.at(id);
  entry.is_busy = true;
  leaving_bytes_ += entry.warm_bytes();
  return true;
}

// What leaves memory goes to disk where there is memory for it meanwhile.
void StateStore::make_warm_room() {
  const std::uint64_t elsewhere = pool_.bytes_reserved() - warm_bytes_;  // whatever is given up here
  const auto is_within_all = [&]() REQUIRES_LOCK(mutex_) { return warm_bytes_ + elsewhere <= limit_.in_all; };
  while (bytes_at_rest() > limit_.at_rest || !is_within_all()) {
    const auto least = least_valuable_in(Place::memory);
    if (!least) return;
    const StateId id = least->id;
    Entry& entry = entries_.at(id);
    if (entry.file.empty() && is_within_all() && can_write(entry) && begin_write(id)) continue;
    if (entry.file.empty()) stats_.dropped_total.add();
    drop_image(id);
  }
}

// Whether there would be as much if all gave way that can.
bool StateStore::can_make_room(std::uint64_t bytes, GiveWay how) const {
  std::uint64_t least = pool_.bytes_reserved();
  for (const auto& [id, entry] : entries_) {
    const bool is_leaving = entry.is_busy && entry.file.empty();
    if (is_leaving ? how == GiveWay::by_disk : !entry.is_busy && entry.image.use_count() == 1) least -= entry.warm_bytes();
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
    const auto least = least_valuable_in(Place::memory, true);
    if (!least) return std::nullopt;
    Entry& entry = entries_.at(least->id);
    if (how == GiveWay::by_disk && entry.file.empty() && can_write(entry) && begin_write(least->id)) {
      entry.must_leave = true;
      continue;
    }
    if (entry.file.empty()) stats_.dropped_total.add();
    drop_image(least->id);
  }
}

// So that the file of a state fits, for which only less valuable ones make room. False: it does not.
bool StateStore::make_cold_room(StateId incoming) {
  const Entry& entry = entries_.at(incoming);
  StateView arrives = view_of(incoming, entry, entry.warm_bytes());
  if (arrives.bytes > options_.cold_bytes_max) return false;
  // Its tenant is judged as if it were there already.
  tenants_.at(entry.owner.tenant).cold += arrives.bytes;
  bool has_room = true;
  while (has_room && cold_bytes_ + arrives.bytes > options_.cold_bytes_max) {
    arrives.is_over_share = is_over_share(entry.owner.tenant, Place::disk, share_of(Place::disk));
    const auto least = least_valuable_in(Place::disk);
    const StateView both[] = {arrives, least.value_or(arrives)};
    has_room = least && least_valuable(both, options_.eviction)->id != incoming;
    if (has_room) drop_from_disk(least->id);
  }
  tenants_.at(entry.owner.tenant).cold -= arrives.bytes;
  return has_room;
}

// Removes the file of a state that is not busy; one without an image is gone.
void StateStore::drop_from_disk(StateId id) {
  Entry& entry = entries_.at(id);
  if (entry.image) {
    drop_file(entry);
  } else {
    stats_.dropped_total.add();
    remove(id);
  }
}

// --- The store's thread
// ---------------------------------------------------------------------------------------------------------

bool StateStore::step() {
  inbox_.drain(taken_);
  const bool any = !taken_.empty();
  for (Job& job : taken_) run_noting([&] { run(std::move(job)); });
  taken_.clear();
  if (clock_.now() >= maintenance_at_) run_noting([this] { maintain(); });
  if (clock_.now() >= preparation_.next) run_noting([this] { prepare(); });
  for (Job& job : std::exchange(waiting_reads_, {})) run_noting([&] { read(std::move(job)); });
  return any;
}

bool StateStore::wait() {
  const TimePoint again = waiting_reads_.empty() ? kNever : clock_.now() + kReadAgain;
  if (inbox_.wait_drain(taken_, std::min({maintenance_at_, preparation_.next, again}))) return true;
  for (Job& job : std::exchange(waiting_reads_, {})) end_read(std::move(job), fail(ErrorCode::limit_wait, "the daemon stops"));
  return false;
}

// Uses a little more of the memory that is expected to be needed. First use keeps a core busy, so where others compute it is
// spread over time.
void StateStore::prepare() {
  constexpr std::size_t kStep = std::size_t{2} << 20;
  constexpr Duration kPause = std::chrono::milliseconds(50);
  Preparation& wanted = preparation_;
  const bool has_room = [&] {
    const MutexLock lock(mutex_);
    return bytes_at_rest() + wanted.bytes <= limit_.at_rest;
  }();
  if (!has_room || pool_.has(wanted.bytes, wanted.count)) {
    wanted = {};
    return;
  }
  if (wanted.memory.empty()) {
    auto room = pool_.reserve(BytePool::room_for(wanted.bytes));
    if (!room) {
      wanted = {};
      return;
    }
    wanted.room = std::move(*room);
    wanted.memory = BytePool::make(wanted.bytes);
    wanted.memory.resize(wanted.memory.capacity());
  }
  const std::size_t step = std::min(kStep, wanted.memory.size() - wanted.used);
  std::memset(wanted.memory.data() + wanted.used, 0, step);
  wanted.used += step;
  if (wanted.used == wanted.memory.size()) {
    pool_.give(std::exchange(wanted.memory, {}));
    wanted.room = {};
    wanted.used = 0;
  }
  wanted.next = clock_.now() + (options_.is_busy && options_.is_busy() ? kPause : Duration(0));
}

// What nobody has used for long goes to disk, and in the end away.
void StateStore::maintain() {
  maintenance_at_ = clock_.now() + kMaintenance;
  const MutexLock lock(mutex_);
  std::vector<StateId> expired;
  std::vector<StateId> idle;
  for (const auto& [id, entry] : entries_) {
    if (entry.is_busy) continue;
    const Duration unused = clock_.now() - entry.last_used;
    if (options_.ttl > Duration(0) && unused >= options_.ttl) {
      expired.push_back(id);
    } else if (entry.image && unused >= options_.archive_after) {
      idle.push_back(id);
    }
  }
  for (const StateId id : expired) remove(id);
  stats_.expired_total.add(expired.size());
  if (!expired.empty()) log_info("kv: {} states that nobody had used for kv.ttl were removed", expired.size());
  for (const StateId id : idle) {
    Entry& entry = entries_.at(id);
    if (!entry.file.empty()) {
      drop_image(id);
    } else if (can_write(entry)) {
      (void)begin_write(id);
    }
  }
}

void StateStore::run(Job job) {
  switch (job.kind) {
    case JobKind::write:
      return write(job.id);
    case JobKind::read:
      return read(std::move(job));
    case JobKind::expect:
      if (job.bytes != preparation_.bytes) preparation_ = {.bytes = job.bytes};
      preparation_.count = job.count;
      preparation_.next = clock_.now();
      return;
    case JobKind::task:
      return job.task();
    case JobKind::remove:
      if (auto removed = cold_->remove(job.file); !removed) log_warning("kv: {}", removed.error().message);
      return;
  }
}

// The store's thread is done with an entry. `leaves_memory`: it is on disk and was not used meanwhile.
void StateStore::end_busy(StateId id, bool leaves_memory) {
  Entry& entry = entries_.at(id);
  const TenantId tenant = entry.owner.tenant;
  entry.is_busy = false;
  entry.must_leave = false;
  if (entry.is_forgotten) {
    remove(id);
  } else if (leaves_memory) {
    drop_image(id);
  }
  make_tenant_room(tenant);
  make_warm_room();
}

// Moves a state that is on its way to disk there. One that there is no room for stays where it is, if memory has room.
void StateStore::write(StateId id) {
  ImagePtr image;
  StateOwner owner;
  TimePoint used;
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_.at(id);
    UMA_CHECK(entry.is_busy && entry.image);
    if (entry.is_forgotten || !make_cold_room(id)) {
      leaving_bytes_ -= entry.warm_bytes();
      if (!entry.is_forgotten && (entry.must_leave || bytes_at_rest() > limit_.at_rest)) {
        stats_.dropped_total.add();
        entry.is_forgotten = true;
      }
      end_busy(id, false);
      return;
    }
    image = entry.image;
    owner = entry.owner;
    used = entry.last_used;
  }
  const TimePoint began = clock_.now();
  auto written = contain([&] { return cold_->write(owner, *image); });
  stats_.write.record_ms(to_ms(clock_.now() - began));
  image.reset();  // its memory goes with the entry's

  const MutexLock lock(mutex_);
  Entry& entry = entries_.at(id);
  leaving_bytes_ -= entry.warm_bytes();
  if (!written) {
    log_warning("kv: a state of {} tokens could not be stored: {}", entry.tokens.size(), written.error().message);
    stats_.failed_total.add();
    writes_from_ = clock_.now() + kWritePause;
    end_busy(id, false);
    return;
  }
  entry.file = std::move(written->name);
  entry.file_bytes = written->bytes;
  count_file(entry, true);
  end_busy(id, entry.last_used == used);
}

// Waits for memory where others have to leave it first, or lanes have it.
void StateStore::read(Job job) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(job.id);
    if (found != entries_.end() && !found->second.image) bytes = found->second.file_bytes;
  }
  const std::uint64_t most = bytes + bytes / 4;  // of what room_for() of its pieces may be
  auto room = bytes > 0 ? make_room(most, GiveWay::by_disk) : ByteBudget::Share();
  if (room) {
    auto image = read(job.id, std::move(*room));
    return end_read(std::move(job), std::move(image));
  }
  if (job.began == kNever) job.began = clock_.now();
  if (most > pool_.bytes_max() || clock_.now() >= job.began + kReadPatience) {
    return end_read(std::move(job), fail(ErrorCode::limit_wait, "memory has no room for it"));
  }
  waiting_reads_.push_back(std::move(job));
}

void StateStore::end_read(Job job, Expected<ImagePtr> image) {
  {
    const MutexLock lock(mutex_);
    queued_bytes_ -= job.bytes;
  }
  if (job.on_fetched) job.on_fetched(std::move(image));
}

Expected<ImagePtr> StateStore::read(StateId id, ByteBudget::Share room) {
  std::string file;
  StateOwner owner;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second.is_forgotten) return std::unexpected(gone());
    Entry& entry = found->second;
    entry.last_used = clock_.now();
    ++entry.uses;
    if (entry.image) return entry.image;
    entry.is_busy = true;
    file = entry.file;
    owner = entry.owner;
  }
  const TimePoint began = clock_.now();
  auto image = contain([&] { return cold_->read(file, owner, pool_); });
  const double ms = to_ms(clock_.now() - began);
  if (image) cold_->touch(file);

  const MutexLock lock(mutex_);
  Entry& entry = entries_.at(id);
  if (image && (image->identity != entry.family->first || image->tokens != entry.tokens)) {
    image = fail(ErrorCode::runtime_decode, std::format("stored state {}: it is not the one that was stored", file));
  }
  if (!image) {
    log_warning("kv: a stored state of {} tokens is of no use: {}", entry.tokens.size(), image.error().message);
    stats_.failed_total.add();
    entry.is_forgotten = true;
    end_busy(id, false);
    return std::unexpected(image.error());
  }
  stats_.read.record_ms(ms);
  room.correct(image->bytes());
  image->room = std::move(room);
  ImagePtr read = share_image(std::move(*image), pool_);
  read_ms_per_mb_ += (ms * kMegabyte / static_cast<double>(std::max<std::size_t>(1, read->bytes())) - read_ms_per_mb_) / 4;
  entry.image = read;
  count_image(entry, true);
  end_busy(id, false);
  return read;
}

void StateStore::save_all(TimePoint deadline) {
  std::vector<std::pair<double, StateId>> unsaved;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : entries_) {
      if (!entry.image || !entry.file.empty() || entry.is_busy) continue;
      unsaved.emplace_back(value_of(view_of(id, entry, entry.warm_bytes())), id);
    }
  }
  {
    const MutexLock lock(mutex_);
    writes_from_ = clock_.now();  // a disk that was full may have room by now, and later is too late
  }
  std::ranges::sort(unsaved, std::greater());
  std::size_t saved = 0;
  for (const auto& [value, id] : unsaved) {
    if (clock_.now() >= deadline) break;
    {
      const MutexLock lock(mutex_);
      Entry& entry = entries_.at(id);
      if (!can_write(entry)) continue;
      entry.is_busy = true;
      leaving_bytes_ += entry.warm_bytes();
    }
    write(id);
    ++saved;
  }
  if (!unsaved.empty()) log_info("kv: {} of {} states in memory were written to disk", saved, unsaved.size());
}

void StateStore::check_invariants() const {
  const MutexLock lock(mutex_);
  std::uint64_t warm = 0;
  std::uint64_t leaving = 0;
  std::uint64_t cold = 0;
  std::map<TenantId, TenantBytes> taken;
  std::map<TenantId, std::size_t> at_rest;
  for (const auto& [id, entry] : entries_) {
    taken[entry.owner.tenant].warm += entry.warm_bytes();
    taken[entry.owner.tenant].cold += entry.file_bytes;
    at_rest[entry.owner.tenant] += entry.is_busy ? 0 : 1;
    UMA_CHECK(entry.image || !entry.file.empty());
    UMA_CHECK(!entry.image || entry.image->tokens == entry.tokens);
    UMA_CHECK(!entry.is_forgotten || entry.is_busy);
    UMA_CHECK(entry.file.empty() == (entry.file_bytes == 0));
    warm += entry.warm_bytes();
    leaving += entry.is_busy && entry.image && entry.file.empty() ? entry.warm_bytes() : 0;
    cold += entry.file_bytes;
  }
  UMA_CHECK(warm == warm_bytes_ && leaving == leaving_bytes_ && cold == cold_bytes_);
  const bool has_others =
      std::ranges::any_of(entries_, [](const auto& entry) { return entry.second.image && !entry.second.is_busy; });
  UMA_CHECK(bytes_at_rest() <= limit_.at_rest || !has_others);
  UMA_CHECK(warm_bytes_ <= pool_.bytes_reserved());
  UMA_CHECK(warm_bytes_ <= limit_.in_all || !has_others);
  UMA_CHECK(taken.size() == tenants_.size());
  for (const auto& [tenant, bytes] : tenants_) {
    UMA_CHECK(bytes.warm == taken.at(tenant).warm && bytes.cold == taken.at(tenant).cold);
    UMA_CHECK(options_.tenant_bytes_max == 0 || bytes.warm + bytes.cold <= options_.tenant_bytes_max ||
              at_rest.at(tenant) == 0);
  }
  for (const auto& [session, ids] : of_session_) {
    UMA_CHECK(!ids.empty());
    for (const StateId id : ids) UMA_CHECK(entries_.at(id).owner.session == session);
  }
}

}  // namespace uma::kv
