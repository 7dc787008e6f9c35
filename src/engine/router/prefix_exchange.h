// Exchanges the KV of system prompts with other daemons. A prompt's head is its system prompt with the tools, up to the first
// other message (chat::ChatTokens::head_tokens). A daemon that meets a head for the first time looks whether another one has
// stored its KV (kv/shared_prefix.h), and the lane then takes it like any stored state. A daemon stores the KV of a head that
// two conversations had, or a public session. So prompts of one conversation alone stay here.
//
// Owned by the router's thread. A request waits 500 ms at most, and once for a head: what was looked for is known for a minute,
// and while a lookup is late no other one begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/lane/lane.h"
#include "engine/model/model_table.h"
#include "kv/catalog/catalog.h"
#include "kv/checksum.h"
#include "kv/state_owner.h"
#include "kv/state_store.h"
#include "llm/adapters.h"

namespace uma::engine {

// The head of a prompt that is about to be computed.
struct PromptHead {
  kv::StateOwner owner;  // kv::prefix_owner()
  std::vector<Token> tokens;
  llm::AdapterSet adapters;
  std::string identity;     // Identity of its state.
  kv::FamilyId family = 0;  // Family of its state; 0: it is not known.
  bool is_wanted = false;   // Its KV should be stored for other daemons.
};

class PrefixExchange {
 public:
  // The references outlive this object. `is_enabled`: there is a shared store, and lanes take KV that another conversation has
  // computed.
  PrefixExchange(kv::StateStore& store, TaskRunner& tasks, const ModelTable& models, const Clock& clock, bool is_enabled)
      : store_(store), tasks_(tasks), models_(models), clock_(clock), is_enabled_(is_enabled) {}

  // Waits until it is known whether another daemon has stored the KV of the head of this conversation's first prompt, which is
  // pending; the lane then finds it like a state of this daemon. Nullopt: the conversation has no head that is exchanged.
  // O(tokens).
  [[nodiscard]] Task<std::optional<PromptHead>> look_up(kv::RecordPtr record, TenantId tenant, const ServedModel& served,
                                                        llm::AdapterSet adapters);
  // `lane` has computed a prompt with this head: stores the head's KV for other daemons if it is wanted.
  void note_computed(PromptHead head, Lane* lane);

 private:
  // The facts that are known of a head.
  struct Known {
    TimePoint last_used{};
    TimePoint look_up_from{};      // Before, the result of the last lookup counts.
    TimePoint store_from{};        // Before, it is not tried again to store it.
    std::size_t tokens_count = 0;  // Length of the first conversation's prompt, which had the checksum.
    kv::Checksum conversation;
  };
  struct Lookup {
    TimePoint awaited_until{};  // Later the lookup is late, and nobody waits for it.
    std::vector<Promise<Unit>> replies;
  };

  [[nodiscard]] std::optional<PromptHead> head_of(const kv::SessionRecord& record, const TenantId& tenant, const Lane& lane,
                                                  const llm::AdapterSet& adapters);
  [[nodiscard]] Task<> wait_for(const PromptHead& head);
  [[nodiscard]] Known& know(const SessionId& head, const std::vector<Token>& prompt);
  [[nodiscard]] bool is_here(const PromptHead& head) const;
  [[nodiscard]] bool serves(const Lane* lane, const PromptHead& head) const;
  [[nodiscard]] Task<> look_up_now(PromptHead head);
  [[nodiscard]] Task<> ask(kv::StateOwner owner, std::string identity);
  [[nodiscard]] Task<> store(PromptHead head, Lane* lane);
  [[nodiscard]] bool is_one_late() const;

  kv::StateStore& store_;
  TaskRunner& tasks_;
  const ModelTable& models_;
  const Clock& clock_;
  const bool is_enabled_;
  std::unordered_map<SessionId, Known> known_;  // By the session of the head's owner.
  std::unordered_map<SessionId, Lookup> lookups_;
  bool is_storing_ = false;
};

}  // namespace uma::engine
