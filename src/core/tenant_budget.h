// Bytes that tenants share: one may hold as much as is left free then, so that there is always room for another. Of requests
// that are under way (limits.queue_bytes_max) it counts all from their first byte at a door to the end of the last thing that
// was made of them: bodies, decoded requests, tokens. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"

namespace uma {

class TenantBudget : public std::enable_shared_from_this<TenantBudget> {
 public:
  // REQUIRES: it is owned by a shared pointer: shares keep it. `holders` and `setting` are what its errors call who holds
  // bytes, and the limit.
  TenantBudget(std::uint64_t bytes_max, std::string holders, std::string setting)
      : bytes_max_(bytes_max), holders_(std::move(holders)), setting_(std::move(setting)) {}
  [[nodiscard]] std::uint64_t bytes_used() const;

  // What one holder has; given back when it dies.
  class Share {
   public:
    Share(std::shared_ptr<TenantBudget> memory, TenantId tenant) : memory_(std::move(memory)), tenant_(std::move(tenant)) {}
    ~Share() { give_back(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // It holds so much more. Errors: E_LIMIT_003, and nothing changed.
    [[nodiscard]] Expected<Unit> grow(std::uint64_t bytes);
    // It holds so much. Errors: likewise; never for less than it has.
    [[nodiscard]] Expected<Unit> resize(std::uint64_t bytes);
    void give_back();

   private:
    friend class TenantBudget;
    const std::shared_ptr<TenantBudget> memory_;
    const TenantId tenant_;
    std::uint64_t bytes_ = 0;  // with memory_'s lock
  };

  [[nodiscard]] std::shared_ptr<Share> open(TenantId tenant) {
    return std::make_shared<Share>(shared_from_this(), std::move(tenant));
  }

 private:
  [[nodiscard]] Expected<Unit> take(Share& share, std::uint64_t bytes) REQUIRES_LOCK(mutex_);
  void give_back(Share& share, std::uint64_t bytes) REQUIRES_LOCK(mutex_);

  const std::uint64_t bytes_max_;
  const std::string holders_;
  const std::string setting_;
  mutable Mutex mutex_;
  std::uint64_t used_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<TenantId, std::uint64_t> used_by_ GUARDED_BY(mutex_);  // none is 0
};

// Shared by all that is made of a request; null: it is not counted.
using RequestShare = std::shared_ptr<TenantBudget::Share>;

}  // namespace uma
