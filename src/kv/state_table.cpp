#include "kv/state_table.h"

#include <algorithm>
#include <format>
#include <iterator>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace uma::kv {
namespace {

constexpr std::size_t kCheckpoints = 4;  // Checkpoints of a session whose states cannot be cut.

// The scopes of the index: the states of a family for one tenant, for all tenants, and for one session only.
std::string tenant_scope(FamilyId family, const TenantId& tenant) {
  return std::format("{} tenant {}", family, tenant.value);
}
std::string public_scope(FamilyId family) {
  return std::format("{} public", family);
}
std::string scope_of(FamilyId family, const StateOwner& owner) {
  if (owner.is_private) return std::format("{} session {}", family, owner.session.value);
  return owner.is_public ? public_scope(family) : tenant_scope(family, owner.tenant);
}

// The model's part of the identity, which precedes the settings.
std::string_view model_of(std::string_view identity) {
  return identity.substr(0, identity.find('|'));
}

// The settings of a context; what follows in the identity of a state are the adapters that it was computed with.
std::string_view settings_of(std::string_view identity) {
  return identity.substr(0, identity.find("|lora "));
}

}  // namespace

StateTable::Families::pointer StateTable::family_of(std::string identity) {
  const auto [found, is_new] = families_.try_emplace(std::move(identity));
  if (is_new) {
    families_by_id_.push_back(&found->second);
    found->second.id = static_cast<FamilyId>(families_by_id_.size());
  }
  return &*found;
}

const StateTable::Family& StateTable::family_of(FamilyId id) const {
  UMA_CHECK(id > 0 && id <= families_by_id_.size());
  return *families_by_id_[id - 1];
}

std::ptrdiff_t StateTable::join(const std::string& identity, bool can_cut) {
  Family& family = family_of(identity)->second;
  family.is_joined = true;
  family.is_outdated = false;
  family.can_cut = can_cut;
  std::ptrdiff_t outdated = 0;
  for (auto& [other_identity, other] : families_) {
    if (other.is_joined || other.is_outdated || model_of(other_identity) != model_of(identity)) continue;
    if (settings_of(other_identity) == settings_of(identity)) continue;
    other.is_outdated = true;
    const Family* const family_now = &other;
    outdated +=
        std::ranges::count_if(entries_, [family_now](const auto& entry) { return &entry.second.family->second == family_now; });
  }
  return outdated;
}

std::vector<std::string> StateTable::joined_identities() const {
  std::vector<std::string> joined;
  for (const auto& [identity, family] : families_) {
    if (family.is_joined) joined.push_back(identity);
  }
  return joined;
}

// --- Entries

std::uint64_t StateTable::Entry::cold_bytes() const {
  std::uint64_t bytes = file_bytes;
  for (const ColdPart& part : parts) bytes += part.bytes;
  return bytes;
}

// Called after bytes were added to a tier, and before bytes are removed.
void StateTable::count(const TenantId& tenant, Place place, std::uint64_t bytes, bool has_come) {
  const auto used = tenants_.try_emplace(tenant).first;
  for (TierBytes* const taken : {&used->second, &bytes_}) {
    std::uint64_t& tier = place == Place::memory ? taken->warm : taken->cold;
    tier = has_come ? tier + bytes : tier - bytes;
  }
  if (used->second.total() == 0) tenants_.erase(used);
  Gauge& tier_bytes = place == Place::memory ? stats_.warm_bytes : stats_.cold_bytes;
  tier_bytes.set(static_cast<std::int64_t>(bytes_.in(place)));
}

void StateTable::count_state(const Entry& entry, Place place, std::uint64_t bytes, bool has_come) {
  count(entry.owner.tenant, place, bytes, has_come);
  Gauge& tier_states = place == Place::memory ? stats_.warm_states : stats_.cold_states;
  tier_states.add(has_come ? 1 : -1);
}

StateId StateTable::add(Entry entry) {
  UMA_CHECK(!entry.tokens.empty() && (entry.snapshot || !entry.file.empty() || !entry.shared.empty()));
  const StateId id = entry.id = ++last_id_;
  const Entry& added = entries_.emplace(id, std::move(entry)).first->second;
  index_.add(id, scope_of(added.family->second.id, added.owner), added.tokens);
  if (!added.owner.session.empty()) of_session_[added.owner.session].push_back(id);
  if (added.snapshot) count_state(added, Place::memory, added.warm_bytes(), true);
  if (!added.file.empty()) {
    Entry& with_file = entries_.at(id);
    set_file(with_file, std::move(with_file.file), with_file.file_bytes, std::move(with_file.parts));
  }
  return id;
}

StateTable::Entry* StateTable::find(StateId id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const StateTable::Entry* StateTable::find(StateId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

std::span<const StateId> StateTable::of_session(const SessionId& session) const {
  const auto owned = of_session_.find(session);
  return owned == of_session_.end() ? std::span<const StateId>() : std::span<const StateId>(owned->second);
}

std::vector<std::string> StateTable::remove(StateId id) {
  Entry& entry = entries_.at(id);
  if (entry.is_busy) {
    entry.is_forgotten = true;
    return {};
  }
  std::vector<std::string> files = drop_file(entry);
  if (entry.snapshot) count_state(entry, Place::memory, entry.warm_bytes(), false);
  index_.remove(id, scope_of(entry.family->second.id, entry.owner), entry.tokens);
  if (const auto owned = of_session_.find(entry.owner.session); owned != of_session_.end()) {
    std::erase(owned->second, id);
    if (owned->second.empty()) of_session_.erase(owned);
  }
  entries_.erase(id);
  return files;
}

void StateTable::drop_snapshot(StateId id) {
  Entry& entry = entries_.at(id);
  UMA_CHECK(entry.snapshot && !entry.is_busy);
  if (entry.file.empty() && entry.shared.empty()) {
    (void)remove(id);  // It has no file.
    return;
  }
  count_state(entry, Place::memory, entry.warm_bytes(), false);
  entry.snapshot.reset();
}

std::vector<std::string> StateTable::drop_file(Entry& entry) {
  if (entry.file.empty()) return {};
  count_state(entry, Place::disk, entry.file_bytes, false);
  entry.file_bytes = 0;
  files_.erase(entry.file);
  std::vector<std::string> files = release_parts(entry.owner.tenant, std::exchange(entry.parts, {}));
  files.push_back(std::exchange(entry.file, {}));
  return files;
}

void StateTable::set_snapshot(Entry& entry, SnapshotPtr snapshot) {
  entry.snapshot = std::move(snapshot);
  count_state(entry, Place::memory, entry.warm_bytes(), true);
}

void StateTable::set_file(Entry& entry, std::string file, std::uint64_t bytes, std::vector<ColdPart> parts) {
  entry.file = std::move(file);
  entry.file_bytes = bytes;
  files_.insert(entry.file);
  entry.parts = std::move(parts);
  UMA_CHECK(hold_parts(entry.owner.tenant, entry.parts));
  count_state(entry, Place::disk, bytes, true);
}

StateTable::Entry* StateTable::find_equal(const StateOwner& owner, const Family& family, std::span<const Token> tokens) {
  const auto is_equal = [&](const Entry& entry) {
    return entry.owner == owner && &entry.family->second == &family && !entry.is_forgotten &&
           std::ranges::equal(entry.tokens, tokens);
  };
  if (owner.session.empty()) {
    const auto match = index_.longest_common(scope_of(family.id, owner), tokens);
    Entry* const entry = match ? &entries_.at(match->id) : nullptr;
    return entry != nullptr && is_equal(*entry) ? entry : nullptr;
  }
  for (const StateId id : of_session(owner.session)) {
    if (is_equal(entries_.at(id))) return &entries_.at(id);
  }
  return nullptr;
}

// --- Parts of files

bool StateTable::hold_parts(const TenantId& tenant, std::vector<ColdPart>& parts) {
  const auto is_unknown = [&](const ColdPart& part) { return part.bytes == 0 && !parts_.contains(part.name); };
  if (std::ranges::any_of(parts, is_unknown)) return false;
  for (ColdPart& part : parts) {
    const auto [known, is_new] = parts_.try_emplace(part.name, Part{.users = 0, .bytes = part.bytes});
    ++known->second.users;
    part.bytes = known->second.bytes;
    if (is_new) count(tenant, Place::disk, part.bytes, true);
  }
  return true;
}

std::vector<std::string> StateTable::release_parts(const TenantId& tenant, std::span<const ColdPart> parts) {
  std::vector<std::string> unused;
  for (const ColdPart& part : parts) {
    const auto known = parts_.find(part.name);
    if (--known->second.users > 0) continue;
    count(tenant, Place::disk, known->second.bytes, false);
    parts_.erase(known);
    unused.push_back(part.name);
  }
  return unused;
}

// --- Lookups by tokens

// The entry of these sessions with the longest common prefix.
std::optional<PrefixIndex::Match> StateTable::best_of(std::initializer_list<SessionId> sessions, const Family& family,
                                                      std::span<const Token> chain) const {
  PrefixIndex::Match best;
  for (const SessionId& session : sessions) {
    for (const StateId id : of_session(session)) {
      const Entry& entry = entries_.at(id);
      const std::size_t common = common_prefix(entry.tokens, chain);
      const bool is_usable = &entry.family->second == &family && (family.can_cut || common == entry.tokens.size());
      if (is_usable && common > best.tokens_count) best = {id, common};
    }
  }
  return best.tokens_count > 0 ? std::optional(best) : std::nullopt;
}

std::optional<PrefixIndex::Match> StateTable::find(const PrefixQuery& query, std::span<const Token> chain) const {
  const Family& family = family_of(query.family);
  std::optional<PrefixIndex::Match> best = best_of({query.session, query.forked_from}, family, chain);
  if (query.takes_others) {
    for (const std::string& scope : {tenant_scope(family.id, query.tenant), public_scope(family.id)}) {
      const auto match = family.can_cut ? index_.longest_common(scope, chain) : index_.longest_whole(scope, chain);
      if (match && (!best || match->tokens_count > best->tokens_count)) best = match;
    }
  }
  if (best && entries_.at(best->id).is_forgotten) return std::nullopt;
  return best;
}

StateTable::Entry* StateTable::find_longer(const StateOwner& owner, const Family& family, std::span<const Token> tokens) {
  if (!family.can_cut) return nullptr;
  const auto match = owner.session.empty() ? index_.longest_common(scope_of(family.id, owner), tokens)
                                           : best_of({owner.session}, family, tokens);
  if (!match || match->tokens_count < tokens.size()) return nullptr;
  Entry& entry = entries_.at(match->id);
  if (entry.is_forgotten) return nullptr;
  entry.last_used = clock_.now();
  return &entry;
}

std::vector<std::string> StateTable::supersede(const StateOwner& owner, const Family& family, std::span<const Token> tokens) {
  std::vector<std::string> files;
  const auto remove_one = [&](StateId id) { std::ranges::move(remove(id), std::back_inserter(files)); };
  if (!owner.session.empty()) {
    const std::span<const StateId> owned = of_session(owner.session);
    std::vector<StateId> former(owned.begin(), owned.end());
    const auto leads_here = [&](StateId id) {
      const std::vector<Token>& before = entries_.at(id).tokens;
      return !family.can_cut && before.size() < tokens.size() && common_prefix(before, tokens) == before.size();
    };
    const auto dead = std::ranges::stable_partition(former, leads_here);
    std::ranges::for_each(dead, remove_one);
    former.erase(dead.begin(), dead.end());
    for (std::size_t i = 0; i + kCheckpoints - 1 < former.size(); ++i) remove_one(former[i]);
    return files;
  }
  if (!family.can_cut) return files;
  while (const auto match = index_.longest_whole(scope_of(family.id, owner), tokens)) {
    const Entry& entry = entries_.at(match->id);
    if (entry.owner.session.empty() && !entry.is_busy) {
      remove_one(match->id);
    } else {
      tokens = tokens.first(match->tokens_count - 1);
    }
  }
  return files;
}

std::vector<StateId> StateTable::having(std::span<const std::string> parts) const {
  const std::unordered_set<std::string_view> names(parts.begin(), parts.end());
  std::vector<StateId> found;
  for (const auto& [id, entry] : entries_) {
    if (std::ranges::any_of(entry.parts, [&](const ColdPart& part) { return names.contains(part.name); })) found.push_back(id);
  }
  return found;
}

// --- Bytes

void StateTable::uncount_incoming_file(const TenantId& tenant, std::uint64_t bytes) {
  const auto used = tenants_.find(tenant);
  used->second.cold -= bytes;
  if (used->second.total() == 0) tenants_.erase(used);
}

// --- Eviction order

StateView StateTable::view_of(StateId id, const Entry& entry, std::uint64_t bytes) const {
  return {.id = id,
          .bytes = bytes,
          .tokens_count = entry.tokens.size(),
          .uses = entry.uses,
          .idle_s = to_ms(clock_.now() - entry.last_used) / 1000,
          .is_foreign = entry.family->second.is_outdated,
          .is_over_share = false};
}

std::uint64_t StateTable::freed_bytes(const Entry& entry) const {
  std::uint64_t bytes = entry.file_bytes;
  for (const ColdPart& part : entry.parts) bytes += parts_.at(part.name).users == 1 ? part.bytes : 0;
  return bytes;
}

// The equal share of each tenant that has states in the tier.
std::uint64_t StateTable::share_of(Place place, std::uint64_t place_bytes) const {
  const auto uses_it = [place](const auto& tenant) { return tenant.second.in(place) > 0; };
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(tenants_, uses_it));
  return place_bytes / std::max<std::uint64_t>(1, count);
}

bool StateTable::is_over_share(const TenantId& tenant, Place place, std::uint64_t place_bytes) const {
  return tenants_.at(tenant).in(place) > share_of(place, place_bytes);
}

std::optional<StateView> StateTable::least_valuable_in(Place place, std::uint64_t place_bytes, bool is_nowhere_else) const {
  const std::uint64_t share = share_of(place, place_bytes);
  std::vector<StateView> views;
  views.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) {
    const std::uint64_t bytes = place == Place::memory ? entry.warm_bytes() : freed_bytes(entry);
    if (entry.is_busy || bytes == 0 || (is_nowhere_else && entry.snapshot.use_count() > 1)) continue;
    views.push_back(view_of(id, entry, bytes));
    views.back().is_over_share = tenants_.at(entry.owner.tenant).in(place) > share;
  }
  const StateView* least = least_valuable(views, eviction_);
  return least == nullptr ? std::nullopt : std::optional(*least);
}

std::optional<StateView> StateTable::least_valuable_of(const TenantId& tenant) const {
  std::vector<StateView> views;
  std::vector<StateView> copies;
  for (const auto& [id, entry] : entries_) {
    if (entry.is_busy || entry.is_shared_only() || entry.owner.tenant != tenant) continue;
    const bool is_copy = entry.snapshot && !entry.file.empty();
    (is_copy ? copies : views).push_back(view_of(id, entry, entry.warm_bytes() + freed_bytes(entry)));
  }
  const StateView* least = least_valuable(copies.empty() ? views : copies, eviction_);
  return least == nullptr ? std::nullopt : std::optional(*least);
}

void StateTable::check_invariants() const {
  std::map<TenantId, TierBytes> taken;
  TierBytes all;
  std::unordered_map<std::string, std::size_t> users;
  for (const auto& [id, entry] : entries_) {
    UMA_CHECK(entry.snapshot || !entry.file.empty() || !entry.shared.empty());
    UMA_CHECK(entry.shared.empty() == (entry.shared_bytes == 0));
    UMA_CHECK(!entry.snapshot || entry.snapshot->tokens == entry.tokens);
    UMA_CHECK(!entry.is_forgotten || entry.is_busy);
    UMA_CHECK(entry.file.empty() == (entry.file_bytes == 0));
    UMA_CHECK(!entry.file.empty() || entry.parts.empty());
    if (entry.is_shared_only()) continue;  // Its bytes are not here.
    std::uint64_t cold = entry.file_bytes;
    for (const ColdPart& part : entry.parts) {
      if (++users[part.name] == 1) cold += part.bytes;
    }
    for (TierBytes* const bytes : {&taken[entry.owner.tenant], &all}) {
      bytes->warm += entry.warm_bytes();
      bytes->cold += cold;
    }
  }
  // Parts that are about to be written have other users.
  UMA_CHECK(std::ranges::all_of(users, [&](const auto& part) { return parts_.at(part.first).users >= part.second; }));
  if (users.size() == parts_.size()) UMA_CHECK(all == bytes_ && taken == tenants_);
  for (const auto& [session, ids] : of_session_) {
    UMA_CHECK(!ids.empty());
    for (const StateId id : ids) UMA_CHECK(entries_.at(id).owner.session == session);
  }
}

}  // namespace uma::kv
