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
#include "wire/response_encoder.h"

namespace uma::server {

class BackgroundResponses {
 public:
  // The JSON of a response of the tenant that is in progress, or has ended without being stored; empty: there is none.
  [[nodiscard]] std::string find(const std::string& id, const TenantId& tenant) const;
  void begin(const std::string& id, TenantId tenant, std::string json);
  // The response is stored, so that everybody finds it there.
  void remove(const std::string& id);
  // The response has ended with an error. The last few hundred are kept, within 16 MiB.
  void keep_failed(const std::string& id, std::string json);

 private:
  struct Entry {
    TenantId tenant;
    std::string json;
  };

  static constexpr std::size_t kFailedMax = 256;
  static constexpr std::size_t kFailedBytesMax = std::size_t{16} << 20;

  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);  // By the response's id.
  std::deque<std::string> failed_ GUARDED_BY(mutex_);                  // The oldest first.
  std::size_t failed_bytes_ GUARDED_BY(mutex_) = 0;
};

// Follows one generation. `on_begun` gets the response as soon as it has a place, or the error that it ended with before.
class BackgroundSink final : public EventSink {
 public:
  BackgroundSink(std::shared_ptr<BackgroundResponses> responses, TenantId tenant, wire::ResponseEncoder encoder,
                 Reply<std::string> on_begun);

  bool deliver(const Event& event) override;

 private:
  void end(const EosEvent& eos);

  const std::shared_ptr<BackgroundResponses> responses_;  // Shared with the server.
  const TenantId tenant_;
  wire::ResponseEncoder encoder_;
  Reply<std::string> on_begun_;
  bool has_begun_ = false;
};

}  // namespace uma::server
