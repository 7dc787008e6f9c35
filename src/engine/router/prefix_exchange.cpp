#include "engine/router/prefix_exchange.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"
#include "kv/shared/shared_limits.h"
#include "kv/shared/shared_prefix.h"

namespace uma::engine {
namespace {

constexpr Duration kAgainAfter = std::chrono::minutes(1);  // For so long the result of a lookup or a write counts.
constexpr std::size_t kKnownMax = 4096;                    // Heads that are remembered.

kv::Checksum checksum_of(std::span<const Token> tokens) {
  return kv::hash_of(std::as_bytes(tokens));
}

}  // namespace

PrefixExchange::Known& PrefixExchange::know(const SessionId& head, const std::vector<Token>& prompt) {
  if (known_.size() >= kKnownMax && !known_.contains(head)) {
    known_.erase(std::ranges::min_element(known_, {}, [](const auto& each) { return each.second.last_used; }));
  }
  const auto [found, is_new] = known_.try_emplace(head);
  Known& known = found->second;
  known.last_used = clock_.now();
  if (is_new) {
    known.tokens_count = prompt.size();
    known.conversation = checksum_of(prompt);
  }
  return known;
}

std::optional<PromptHead> PrefixExchange::head_of(const kv::SessionRecord& record, const TenantId& tenant, const Lane& lane,
                                                  const llm::AdapterSet& adapters) {
  const std::vector<Token>& prompt = record.pending;
  const auto count = static_cast<std::size_t>(record.head_tokens);
  if (!is_enabled_ || !record.chain.empty() || count < store_.shared_tokens_min() || count >= prompt.size()) return {};
  const bool is_public = record.is_public && !record.has_foreign_kv;
  PromptHead head;
  head.tokens.assign(prompt.begin(), prompt.begin() + record.head_tokens);
  head.owner = kv::prefix_owner(tenant, is_public, head.tokens);
  head.adapters = adapters;
  head.identity = lane.state_identity() + adapters.identity;
  head.family = adapters.is_empty() ? lane.family() : 0;
  const Known& known = know(head.owner.session, prompt);
  // A client without a session sends the whole conversation with each turn.
  const bool continues_first =
      prompt.size() >= known.tokens_count && checksum_of(std::span(prompt).first(known.tokens_count)) == known.conversation;
  head.is_wanted = !record.is_ephemeral && !record.has_foreign_kv && (is_public || !continues_first);
  return head;
}

// Whether a stored state here covers the head.
bool PrefixExchange::is_here(const PromptHead& head) const {
  if (store_.states_of(head.owner.session).tier != Tier::none) return true;
  if (head.family == 0) return false;
  const auto match =
      store_.find({.family = head.family, .tenant = head.owner.tenant, .session = {}, .forked_from = {}}, head.tokens);
  return match && static_cast<std::size_t>(match->tokens_count) == head.tokens.size();
}

Task<std::optional<PromptHead>> PrefixExchange::look_up(kv::RecordPtr record, TenantId tenant, const ServedModel& served,
                                                        llm::AdapterSet adapters) {
  auto head = head_of(*record, tenant, *served.lanes.front(), adapters);
  if (head) co_await wait_for(*head);
  co_return head;
}

bool PrefixExchange::is_one_late() const {
  return std::ranges::any_of(lookups_, [now = clock_.now()](const auto& each) { return each.second.awaited_until <= now; });
}

Task<> PrefixExchange::wait_for(const PromptHead& head) {
  const SessionId id = head.owner.session;
  if (!lookups_.contains(id)) {
    const auto known = known_.find(id);
    const TimePoint now = clock_.now();
    if (known == known_.end() || now < known->second.look_up_from || is_one_late() || is_here(head)) co_return;
    known->second.look_up_from = now + kAgainAfter;
    lookups_[id].awaited_until = now + kv::kPrefixLookUpMax;
    tasks_.start(look_up_now(head));
  }
  const auto lookup = lookups_.find(id);
  if (lookup == lookups_.end() || lookup->second.awaited_until <= clock_.now()) co_return;
  (void)co_await tasks_.ask_until<Unit>(lookup->second.awaited_until,
                                        [&](Promise<Unit> reply) { lookup->second.replies.push_back(std::move(reply)); });
}

Task<> PrefixExchange::look_up_now(PromptHead head) {
  const SessionId id = head.owner.session;
  co_await ask(head.owner, head.identity);
  if (!head.owner.is_public && store_.states_of(id).tier == Tier::none) {
    // Another tenant's public session may have had it.
    co_await ask(kv::prefix_owner({}, true, head.tokens), head.identity);
  }
  auto ended = lookups_.extract(id);
  if (!ended) co_return;
  for (Promise<Unit>& reply : ended.mapped().replies) reply(Unit{});
}

Task<> PrefixExchange::ask(kv::StateOwner owner, std::string identity) {
  (void)co_await tasks_.ask<Unit>([&](Promise<Unit> reply) {
    store_.look_up_prefix(owner, std::move(identity), [reply = std::move(reply)]() mutable { reply(Unit{}); });
  });
}

// Whether the lane still exists; another one may have its address.
bool PrefixExchange::serves(const Lane* lane, const PromptHead& head) const {
  return std::ranges::any_of(models_.loaded(), [&](const ServedModel* served) {
    return std::ranges::contains(served->lanes, lane) && lane->state_identity() + head.adapters.identity == head.identity;
  });
}

void PrefixExchange::note_computed(PromptHead head, Lane* lane) {
  // One at a time, because each copy takes memory. The next conversation tries again.
  const auto known = known_.find(head.owner.session);
  const TimePoint now = clock_.now();
  if (!head.is_wanted || is_storing_ || known == known_.end() || now < known->second.store_from) return;
  if (store_.is_shared(head.owner.session)) return;
  known->second.store_from = now + kAgainAfter;
  is_storing_ = true;
  tasks_.start(store(std::move(head), lane));
}

Task<> PrefixExchange::store(PromptHead head, Lane* lane) {
  const SessionId id = head.owner.session;
  struct End {
    bool& is_storing;
    ~End() { is_storing = false; }
  } const end{is_storing_};
  // Another daemon may have stored it since this one has looked.
  co_await ask(head.owner, head.identity);
  if (store_.is_shared(id)) co_return;
  if (store_.states_of(id).tier == Tier::none && serves(lane, head)) {
    (void)co_await tasks_.ask<Unit>([&](Promise<Unit> reply) {
      lane->post(CopyPrefixCommand{.owner = std::move(head.owner),
                                   .tokens = std::move(head.tokens),
                                   .adapters = std::move(head.adapters),
                                   .then = [reply = std::move(reply)]() mutable { reply(Unit{}); }});
    });
  }
  (void)co_await tasks_.ask<Unit>(
      [&](Promise<Unit> reply) { store_.publish_prefix(id, [reply = std::move(reply)]() mutable { reply(Unit{}); }); });
}

}  // namespace uma::engine
