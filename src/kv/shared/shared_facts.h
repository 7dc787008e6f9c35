// The facts of a store of shared states about itself, for `umad check`. A scratch entry is written, read and removed again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.h"
#include "kv/shared/redis.h"

namespace uma::kv {

struct SharedFolderFacts {
  double write_ms = 0;  // The time for a scratch file of 64 KiB, with its sync.
  double read_ms = 0;
  double clock_ahead_s = 0;  // How far the clock by which the file got its time is ahead of this machine's.
  std::uint64_t free_bytes = 0;
};

struct RedisFacts {
  std::string server;   // "Redis 7.0.15"; empty: it does not tell.
  double write_ms = 0;  // The time for a scratch key of 64 KiB.
  double read_ms = 0;
  bool has_time_to_live = false;  // The scratch key would have ended by itself.
  // Nullopt, empty: it does not tell.
  std::optional<std::uint64_t> memory_bytes_max;  // maxmemory; 0: no limit.
  std::string policy;                             // maxmemory_policy
  std::optional<bool> has_append_log;             // Everything is written to its disk, too.
};

// Errors: E_IO_001: the folder cannot be used, and why.
[[nodiscard]] Expected<SharedFolderFacts> read_shared_folder_facts(const std::string& folder);
// Errors: E_IO_001: the server cannot be used, and why.
[[nodiscard]] Expected<RedisFacts> read_redis_facts(const RedisOptions& options);

}  // namespace uma::kv
