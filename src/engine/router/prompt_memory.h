// The prompts that were computed lately, and what a new prompt has in common with them: it says where a prompt leaves what was
// known. It keeps tokens and no texts, and a tenant's prompts are compared with its own only. The oldest ones go first. Owned
// by the router's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "core/cache_miss.h"
#include "core/ids.h"
#include "core/prompt_outline.h"
#include "core/usage.h"
#include "llm/model.h"

namespace uma::engine {

inline constexpr std::size_t kPromptMemoryBytesMax = 64ul << 20;
inline constexpr std::size_t kPromptMemoryTenantBytesMax = 16ul << 20;
inline constexpr std::size_t kPromptLinesMax = 1024;  // Conversations of one tenant.
inline constexpr std::size_t kPromptRepliesMax = 64;  // Replies that can be named of one conversation.

// A prompt that is about to be computed. Borrowed for a call.
struct PromptFacts {
  std::string_view model;      // With the adapters: equal texts mean equal KV.
  TimePoint loaded_at{};       // Time of the model's load.
  SessionId session{};         // Empty: a one-shot request.
  bool is_private = false;     // Only the session may use its KV.
  std::uint64_t settings = 0;  // A hash of the template's options.
  std::span<const Token> tokens;
  const llm::Vocab& vocab;
};

// The result of compare().
struct PromptComparison {
  CacheMiss miss;
  PromptOutline outline{};        // Outline of the whole prompt.
  std::int32_t known_prefix = 0;  // Tokens at the beginning that were computed before with this model.
  bool is_branch = false;         // The prompt that has them goes on differently.
  bool is_reloaded = false;       // The model was loaded again since.
  bool is_named = false;          // The request names the earlier reply.
};

struct PromptReply {
  std::string id;  // Comparison::id
  std::span<const Token> generated;
  std::int32_t reasoning_tokens = 0;  // The first ones.
  std::int32_t message = 0;           // The index of the reply among the messages.
  Usage usage;
};

class PromptMemory {
 public:
  explicit PromptMemory(std::size_t bytes_max = kPromptMemoryBytesMax,
                        std::size_t tenant_bytes_max = kPromptMemoryTenantBytesMax)
      : bytes_max_(bytes_max), tenant_bytes_max_(tenant_bytes_max) {}

  // Compares the prompt with that of the reply `with` or, if that is empty, with the one that has the longest common prefix.
  // `outline` may lack the first tokens, which continue a session's chain. O(bytes of the tenant's prompts).
  [[nodiscard]] PromptComparison compare(const TenantId& tenant, const PromptFacts& prompt, const PromptOutline& outline,
                                         std::string_view with);
  // Remembers a prompt whose KV is computed now, with its reply. `outline` is PromptComparison's.
  void note(const TenantId& tenant, const PromptFacts& prompt, PromptOutline outline, PromptReply reply);
  // The usage of a reply by its id or its session, or of the last one if `name` is empty; null: it is not known any more.
  [[nodiscard]] const Usage* find(const TenantId& tenant, std::string_view name) const;
  // Forgets the conversation of a session that has ended.
  void forget(const TenantId& tenant, const SessionId& session);
  // Counts the miss of a receipt, if it cost tokens.
  void count(const CacheMiss& miss);

  // --- Any thread.
  [[nodiscard]] std::int64_t bytes() const { return bytes_.value(); }
  // Misses of the kind kCacheMissKinds[index].
  [[nodiscard]] std::uint64_t misses(std::size_t index) const { return misses_[index].value(); }

 private:
  struct Reply {
    std::string id;
    std::int32_t prompt_tokens = 0;
    std::int32_t known_tokens = 0;  // With the reply.
    std::uint64_t settings = 0;
    Usage usage;
  };
  // A conversation: prompts of which each one continues the one before.
  struct Line {
    std::string model;
    TimePoint loaded_at{};
    SessionId session{};
    bool is_private = false;
    std::vector<Token> tokens;
    PromptOutline outline;
    std::deque<Reply> replies;
    std::uint64_t age = 0;  // Grows with each use.
    [[nodiscard]] std::size_t bytes() const;
  };
  // A place at which prompts differ.
  struct Place {
    std::int32_t message = 0;
    std::int32_t token = 0;
    std::int32_t repeats = 0;
  };
  struct Tenant {
    std::list<Line> lines;  // The last used one first.
    std::deque<Place> places;
    std::size_t bytes = 0;
  };
  struct Named {
    const Line* line = nullptr;
    const Reply* reply = nullptr;
  };

  [[nodiscard]] static Named find_reply(const Tenant& tenant, std::string_view id);
  [[nodiscard]] static CacheMiss difference(const PromptFacts& prompt, const PromptOutline& outline, const Line& line,
                                            const Reply& reply, std::int32_t common);
  static void count_repeats(Tenant& tenant, CacheMiss& miss);
  void resize(Tenant& tenant, std::int64_t added);
  void make_room(Tenant& tenant);
  void drop_last(Tenant& tenant);

  const std::size_t bytes_max_;
  const std::size_t tenant_bytes_max_;
  std::unordered_map<std::string, Tenant> tenants_;  // By the tenant's name; none without lines.
  std::uint64_t age_ = 0;
  Gauge bytes_;
  std::array<Counter, kCacheMissKinds.size()> misses_;
};

// The miss that the receipt states: the difference, or that KV of known tokens was not there, whichever cost more; for a reply
// that the request names, the difference. `can_cut`: the model's context can be cut back anywhere.
[[nodiscard]] CacheMiss final_miss(const PromptComparison& found, const Usage& usage, bool can_cut);

// The number of tokens of `prompt` that are in runs which `known` has, too; of long prompts it counts a part only. O(tokens).
[[nodiscard]] std::int32_t tokens_in_common(std::span<const Token> known, std::span<const Token> prompt);

}  // namespace uma::engine
