// A shared store in a Redis or Valkey server (docs/CLUSTER.md).
//
//   uma:1:s:SESSION     hash: IDENTITY -> a StateKey as text, the state that counts
//   uma:1:h:UPLOAD      the head of the state's file (docs/STATE_FILE.md)
//   uma:1:c:UPLOAD:I    its payload, in chunks of 4 MiB
//   uma:1:index         sorted set: all states, by the time of their last use
//
// Every write has an UPLOAD number of its own, and counts when the session's hash names it, which is the last step. So writers
// do not disturb each other, and a reader finds a whole state or misses some of its keys, and then computes. Every key but the
// index ends with its time to live.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/disk/state_file.h"
#include "kv/shared/redis.h"
#include "kv/shared/shared_store.h"

namespace uma::kv {

inline constexpr std::size_t kRedisChunkBytes = std::size_t{4} << 20;

class SharedRedis final : public SharedStore {
 public:
  // Connects when it is first used. `unix_s` is the time by which states age.
  SharedRedis(RedisOptions options, SharedBounds bounds, std::function<std::int64_t()> unix_s);

  [[nodiscard]] Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) override;
  [[nodiscard]] Expected<std::vector<ColdHead>> find(const TenantId& tenant, const SessionId& session,
                                                     std::span<const std::string> identities) override;
  [[nodiscard]] Expected<std::optional<Snapshot>> read(const std::string& name, const StateOwner& owner, std::uint64_t bytes,
                                                       BytePool& pool) override;
  [[nodiscard]] Expected<Unit> remove(const TenantId& tenant, const SessionId& session) override;
  [[nodiscard]] Expected<std::size_t> clean() override;
  [[nodiscard]] std::string text() const override { return connection_.text(); }

 private:
  // Where a state is. Its text has these parts with ':' between them.
  struct StateKey {
    std::string session;  // Names as of shared_store.h.
    std::string identity;
    std::string state;  // state_name()
    std::string upload;
    std::uint64_t chunks = 0;
    std::uint64_t bytes = 0;  // Size of head and payload.

    [[nodiscard]] std::string text() const;
    [[nodiscard]] static std::optional<StateKey> of(std::string_view text);
  };

  [[nodiscard]] Expected<Unit> write_parts(const StateKey& key, std::span<const std::byte> head, const Snapshot& snapshot);
  [[nodiscard]] Expected<Unit> publish(const StateKey& key);
  [[nodiscard]] Expected<std::vector<StateKey>> states_of(const std::string& session);
  // The state's head; nullopt: it is gone.
  [[nodiscard]] Expected<std::optional<StateHead>> read_head(const StateKey& key);
  [[nodiscard]] Expected<Unit> remove(const StateKey& key);
  void refuse(const StateKey& key);
  void note_use(const StateKey& key);

  RedisConnection connection_;
  const SharedBounds bounds_;
  const std::function<std::int64_t()> unix_s_;
};

}  // namespace uma::kv
