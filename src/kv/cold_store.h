// Where cold states lie: a folder here (cold_files.h); later perhaps something that several machines share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "kv/state_image.h"
#include "kv/state_owner.h"

namespace uma::kv {

// What a stored state is, without its payload.
struct ColdHead {
  std::string name;
  StateOwner owner;
  std::string identity;
  std::vector<Token> tokens;
  std::uint64_t bytes = 0;       // that it takes
  std::int64_t last_used_s = 0;  // Unix time
};

// One thread at a time; calls wait for the disk.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // Durable when it returns; on failure nothing is left behind.
  virtual Expected<ColdHead> write(const StateOwner& owner, const StateImage& image) = 0;
  // Verified: header, key, tokens and payload are those that were written.
  virtual Expected<StateImage> read(const std::string& name) = 0;
  // One that is not there is no error.
  virtual Expected<Unit> remove(const std::string& name) = 0;
  // It was used now.
  virtual void touch(const std::string& name) = 0;
  // All that can be used. Those that cannot are put aside and named in the log.
  virtual Expected<std::vector<ColdHead>> list() = 0;
};

}  // namespace uma::kv
