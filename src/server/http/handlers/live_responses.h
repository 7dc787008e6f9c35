// Responses that are being written, and those that have ended without being stored, as clients see them. Any thread. Its
// lock is taken before those of logs.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "core/ids.h"
#include "core/work/tenant_budget.h"
#include "server/http/reply_log.h"

namespace uma::server {

class LiveResponses {
 public:
  // The events of all responses together, apart from their tails; a tenant may hold at most as much as it leaves free.
  static constexpr std::uint64_t kLogBytesMax = std::uint64_t{128} << 20;

  // A log for a response of the tenant.
  [[nodiscard]] std::shared_ptr<ReplyLog> make_log(TenantId tenant);

  // The JSON of a response of the tenant that is in progress, or has ended without being stored; empty: there is none.
  [[nodiscard]] std::string find(const std::string& id, const TenantId& tenant) const;
  // The events of such a response; null: there is none.
  [[nodiscard]] std::shared_ptr<ReplyLog> find_log(const std::string& id, const TenantId& tenant) const;
  void begin(const std::string& id, TenantId tenant, std::string json, std::shared_ptr<ReplyLog> log);
  // The response is stored, so that everybody finds it there, or nobody shall find it. Requires: it is in progress.
  void remove(const std::string& id);
  // The response has ended without being stored: with an error, or cancelled before its first token. Such responses are kept up
  // to 16 MiB, each as at least 64 KiB. Beyond that the tenant that holds the most loses its oldest one. Requires: its log has
  // ended, and so has its size.
  void keep_ended(const std::string& id, std::string json);
  // Removes a response of the tenant that has ended without being stored. False: there is none.
  bool forget_ended(const std::string& id, const TenantId& tenant);

 private:
  struct Entry {
    TenantId tenant;
    std::string json;
    std::shared_ptr<ReplyLog> log;  // Shared with its sink and readers.
    bool has_ended = false;
  };
  // The ended responses of a tenant.
  struct Ended {
    std::deque<std::string> ids;  // The oldest first.
    std::size_t bytes = 0;
  };

  static constexpr std::size_t kEndedBytesMax = std::size_t{16} << 20;
  static constexpr std::size_t kEndedBytesMin = std::size_t{64} << 10;

  [[nodiscard]] static std::size_t bytes_of(const Entry& entry);
  void drop_oldest() REQUIRES_LOCK(mutex_);
  void drop_ended(const std::string& id) REQUIRES_LOCK(mutex_);

  const std::shared_ptr<TenantBudget> memory_ =
      std::make_shared<TenantBudget>(kLogBytesMax, "responses that are being written", "LiveResponses::kLogBytesMax");
  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);  // By the response's id.
  std::unordered_map<TenantId, Ended> ended_ GUARDED_BY(mutex_);       // Without tenants that have none.
  std::size_t ended_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::server
