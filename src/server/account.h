// What one caller of the HTTP door may do: its tenant and what is left of its limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/ids.h"
#include "server/api_keys.h"

namespace uma::server {

// A token bucket: holds at most what a minute brings, and fills evenly. What is taken may exceed what is there; then it is in
// debt, and has nothing until that is paid. So over any time no more is used than the limit, but for what one burst borrows.
class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(std::int64_t per_minute) : per_minute_(per_minute), left_(static_cast<double>(per_minute)) {}

  [[nodiscard]] std::int64_t per_minute() const { return per_minute_; }
  // Whole units; never below 0.
  [[nodiscard]] std::int64_t left(TimePoint now) const;
  // Until one unit is there; zero: now.
  [[nodiscard]] Duration until_one(TimePoint now) const;
  // Until nothing of it is used any more.
  [[nodiscard]] Duration until_full(TimePoint now) const;
  void take(std::int64_t units, TimePoint now);

 private:
  [[nodiscard]] double level(TimePoint now) const;
  [[nodiscard]] Duration until(double wanted, TimePoint now) const;

  std::int64_t per_minute_;
  double left_;
  TimePoint as_of_{};
};

// Thread-safe: the door asks and takes, engine threads charge the tokens of what has ended. Shared by the door and by
// generations that outlive their connection.
class Account {
 public:
  // Of a caller without a key: no limits.
  explicit Account(TenantId tenant) : tenant_(std::move(tenant)), requests_(0), tokens_(0) {}
  explicit Account(const ApiKey& key)
      : tenant_(key.tenant), key_name_(key.name), requests_(key.requests_per_minute), tokens_(key.tokens_per_minute) {}

  [[nodiscard]] const TenantId& tenant() const { return tenant_; }
  [[nodiscard]] const std::string& key_name() const { return key_name_; }  // empty: no key

  // Takes one request. Nothing: it is admitted; else how long to wait, and nothing is taken. `uses_tokens`: it waits until some
  // of those are left too.
  [[nodiscard]] std::optional<Duration> take_request(TimePoint now, bool uses_tokens = true);
  void charge_tokens(std::int64_t tokens, TimePoint now);
  // OpenAI's x-ratelimit-* headers, each line with its end; empty without limits.
  [[nodiscard]] std::string header(TimePoint now) const;

 private:
  const TenantId tenant_;
  const std::string key_name_;

  mutable Mutex mutex_;
  RateLimit requests_ GUARDED_BY(mutex_);
  RateLimit tokens_ GUARDED_BY(mutex_);
};

}  // namespace uma::server
