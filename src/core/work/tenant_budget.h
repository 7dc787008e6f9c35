// A budget of bytes that tenants share. A tenant may hold at most as many bytes as it leaves free, so that another tenant
// always finds some. For requests (limits.queue_bytes_max) it counts everything from the first byte received to the end of the
// last object made from it: bodies, decoded requests, tokens. Any thread.
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
  // Requires: owned by a shared pointer, because shares keep it alive. Error messages call the holders of bytes `holders` and
  // the limit `setting`.
  TenantBudget(std::uint64_t bytes_max, std::string holders, std::string setting)
      : bytes_max_(bytes_max), holders_(std::move(holders)), setting_(std::move(setting)) {}
  [[nodiscard]] std::uint64_t bytes_used() const;

  // Bytes of one holder, returned by the destructor.
  class Share {
   public:
    Share(std::shared_ptr<TenantBudget> memory, TenantId tenant) : memory_(std::move(memory)), tenant_(std::move(tenant)) {}
    ~Share() { give_back(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Adds bytes. Errors: E_LIMIT_003; nothing changes then.
    [[nodiscard]] Expected<Unit> grow(std::uint64_t bytes);
    // Sets the number of bytes. Errors: E_LIMIT_003; never for a smaller number.
    [[nodiscard]] Expected<Unit> resize(std::uint64_t bytes);
    void give_back();
    // An empty share of the same tenant, for another holder.
    [[nodiscard]] std::shared_ptr<Share> open_another() const { return memory_->open(tenant_); }

   private:
    friend class TenantBudget;
    const std::shared_ptr<TenantBudget> memory_;
    const TenantId tenant_;
    std::uint64_t bytes_ = 0;  // Guarded by memory_'s lock.
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
  std::unordered_map<TenantId, std::uint64_t> used_by_ GUARDED_BY(mutex_);  // Bytes per tenant; a missing entry means 0.
};

// Shared by all objects made from a request; null: not counted.
using RequestShare = std::shared_ptr<TenantBudget::Share>;

}  // namespace uma
