// Responses that are made without a connection (`background`), as clients see them before they are stored. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/reply.h"
#include "core/tenant_budget.h"
#include "server/server_state.h"
#include "wire/response_encoder.h"

namespace uma::server {

class BackgroundResponses {
 public:
  // The JSON of a response of the tenant that is in progress, or has ended without being stored; empty: there is none.
  [[nodiscard]] std::string find(const std::string& id, const TenantId& tenant) const;
  void begin(const std::string& id, TenantId tenant, std::string json);
  // The response is stored, so that everybody finds it there.
  void remove(const std::string& id);
  // The response has ended without being stored: with an error, or cancelled before its first token. Such responses are kept up
  // to 16 MiB, each as at least 64 KiB. Beyond that the tenant that holds the most loses its oldest one.
  void keep_ended(const std::string& id, std::string json);
  // Removes a response of the tenant that has ended without being stored. False: there is none.
  bool forget_ended(const std::string& id, const TenantId& tenant);

 private:
  struct Entry {
    TenantId tenant;
    std::string json;
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

  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);  // By the response's id.
  std::unordered_map<TenantId, Ended> ended_ GUARDED_BY(mutex_);       // Without tenants that have none.
  std::size_t ended_bytes_ GUARDED_BY(mutex_) = 0;
};

// Follows one generation. `on_begun` gets the response as soon as it has a place, or the error that it ended with before.
class BackgroundSink final : public EventSink {
 public:
  // Until the generation has ended, `busy` counts it, and `share` is charged for it.
  BackgroundSink(std::shared_ptr<BackgroundResponses> responses, std::shared_ptr<BusyCount> busy, RequestShare share,
                 TenantId tenant, wire::ResponseEncoder encoder, Reply<std::string> on_begun);
  ~BackgroundSink() override { busy_->add(-1); }
  BackgroundSink(const BackgroundSink&) = delete;
  BackgroundSink& operator=(const BackgroundSink&) = delete;

  bool deliver(const Event& event) override;

 private:
  void end(const EosEvent& eos);

  const std::shared_ptr<BackgroundResponses> responses_;  // Shared with the server.
  const std::shared_ptr<BusyCount> busy_;                 // The same.
  const RequestShare share_;
  const TenantId tenant_;
  wire::ResponseEncoder encoder_;
  Reply<std::string> on_begun_;
  bool has_begun_ = false;
};

}  // namespace uma::server
