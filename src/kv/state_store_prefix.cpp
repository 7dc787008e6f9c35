// StateStore's functions for prefixes of prompts in the store that daemons share (kv/shared_prefix.h).
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/thrown.h"
#include "kv/shared/shared_prefix.h"
#include "kv/state_store.h"

namespace uma::kv {

void StateStore::look_up_prefix(const StateOwner& owner, std::string identity, MoveOnlyFunction<void()> then) {
  UMA_CHECK(is_prefix(owner.session));
  if (shared_ == nullptr) return then();
  stats_.prefix_lookups_total.add();
  std::vector<std::string> identities;
  identities.push_back(std::move(identity));
  shared_->reader.look_up(owner.tenant, owner.session, std::move(identities),
                          [this, owner, then = std::move(then)](std::vector<ColdHead> heads) mutable {
                            run_noting([&] {
                              // The name is a hash of the scope, and whoever writes to the store could put any state there.
                              std::erase_if(heads, [&](const ColdHead& head) {
                                return head.owner != owner || prefix_owner(owner.tenant, owner.is_public, head.tokens) != owner;
                              });
                              stats_.prefixes_found_total.add(heads.empty() ? 0 : 1);
                              add_shared(owner.session, std::move(heads));
                            });
                            then();
                          });
}

void StateStore::publish_prefix(const SessionId& prefix, MoveOnlyFunction<void()> then) {
  UMA_CHECK(is_prefix(prefix));
  if (is_shared(prefix)) return then();
  publish(prefix, SharedWriter::Urgency::when_idle, [this, prefix, then = std::move(then)]() mutable {
    stats_.prefixes_written_total.add(is_shared(prefix) ? 1 : 0);
    then();
  });
}

bool StateStore::is_shared(const SessionId& session) const {
  const MutexLock lock(mutex_);
  StateId id = 0;
  const Entry* const newest = newest_usable(session, id);
  return newest != nullptr && !newest->shared.empty();
}

}  // namespace uma::kv
