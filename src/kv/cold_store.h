// Where states lie that no memory is spent on: written once, read back whole, forgotten by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/state_image.h"
#include "kv/state_owner.h"

namespace uma::kv {

// A stored state without its payload.
struct ColdHead {
  std::string name;  // made by the store from all of owner, identity and tokens: the same state has the same name
  StateOwner owner;
  std::string identity;  // the context it fits; whether that is one of today's is the caller's question
  std::vector<Token> tokens;
  std::uint64_t bytes = 0;       // what it takes in the store
  std::int64_t last_used_s = 0;  // Unix time
};

// One thread at a time; every call blocks on the disk. Names are those that write() and list() gave.
// Errors: E_IO_001 what the disk refused, E_RUNTIME_001 content that is not what was written. Both name the file.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // Keeps an image, in the place of the same state if that was stored; durable when it returns, nothing new on failure.
  [[nodiscard]] virtual Expected<ColdHead> write(const StateOwner& owner, const StateImage& image) = 0;
  // The image, every byte verified; takes ColdHead::bytes of memory from the pool. A state that is not `owner`'s is refused.
  // The name is a hash: whoever uses the image compares its tokens, and check_fits() its identity.
  [[nodiscard]] virtual Expected<StateImage> read(const std::string& name, const StateOwner& owner, BytePool& pool) = 0;
  // Forgets the state; that there is none is no error.
  [[nodiscard]] virtual Expected<Unit> remove(const std::string& name) = 0;
  // The state was used now.
  virtual void touch(const std::string& name) = 0;
  // All states whose heads are right, in no order; what is wrong with the others is logged. Payloads are verified by read().
  [[nodiscard]] virtual Expected<std::vector<ColdHead>> list() = 0;
};

}  // namespace uma::kv
