// The tenant of an HTTP caller, and its rate limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/ids.h"
#include "server/http/handlers/api_keys.h"

namespace uma::server {

// A token bucket. It holds at most one minute's allowance and fills evenly. Taking more than it holds creates a debt, which
// must be paid off before anything is left again. Over any time, the total use therefore exceeds the limit by at most one
// burst.
class RateLimit {
 public:
  // A limit of 0 means no limit.
  explicit RateLimit(std::int64_t per_minute) : per_minute_(per_minute), left_(static_cast<double>(per_minute)) {}

  [[nodiscard]] std::int64_t per_minute() const { return per_minute_; }
  // Whole units; never below 0.
  [[nodiscard]] std::int64_t left(TimePoint now) const;
  // Time until one unit is available; zero: now.
  [[nodiscard]] Duration until_one(TimePoint now) const;
  // Time until the bucket is full.
  [[nodiscard]] Duration until_full(TimePoint now) const;
  void take(std::int64_t units, TimePoint now);

 private:
  [[nodiscard]] double level(TimePoint now) const;
  [[nodiscard]] Duration until(double wanted, TimePoint now) const;

  std::int64_t per_minute_;
  double left_;
  TimePoint as_of_{};
};

// Slows down who sends bodies faster than anybody needs to, so that the thread that reads all bodies has time for others.
class BodyPace {
 public:
  // So many bytes were read. Returns how long to wait before the next ones.
  [[nodiscard]] Duration take(std::size_t bytes, TimePoint now);

 private:
  double ahead_bytes_ = 0;  // Read earlier than at the steady rate, as of `as_of_`.
  TimePoint as_of_{};
};

// Thread-safe: the listener queries and takes, engine threads charge the tokens of ended generations. Shared by the listener
// and by generations that outlive their connection.
class Account {
 public:
  // An account without limits, for a caller without a key.
  explicit Account(TenantId tenant) : tenant_(std::move(tenant)), requests_(0), tokens_(0) {}
  explicit Account(const ApiKey& key)
      : tenant_(key.tenant),
        key_name_(key.name),
        deadline_ms_(key.deadline_ms),
        is_admin_(key.is_admin),
        digest_(key.digest),
        requests_(key.requests_per_minute),
        tokens_(key.tokens_per_minute) {}

  [[nodiscard]] const TenantId& tenant() const { return tenant_; }
  [[nodiscard]] const std::string& key_name() const { return key_name_; }                 // Empty: no key.
  [[nodiscard]] std::optional<std::int64_t> deadline_ms() const { return deadline_ms_; }  // See ApiKey.

  [[nodiscard]] bool is_admin() const { return is_admin_; }  // See ApiKey.
  // The digest of the key; nullopt: no key.
  [[nodiscard]] const std::optional<Sha256Digest>& digest() const { return digest_; }

  // Takes one request. Returns nullopt if it is admitted, else the time to wait; then nothing is taken. With `uses_tokens`, a
  // request also waits until tokens are left.
  [[nodiscard]] std::optional<Duration> take_request(TimePoint now, bool uses_tokens = true);
  void charge_tokens(std::int64_t tokens, TimePoint now);
  // Each account has a pace of its own, whose wait this returns: BodyPace::take().
  [[nodiscard]] Duration take_body(std::size_t bytes, TimePoint now);
  // OpenAI's x-ratelimit-* headers, one per line; empty without limits.
  [[nodiscard]] std::string header(TimePoint now) const;

 private:
  const TenantId tenant_;
  const std::string key_name_;
  const std::optional<std::int64_t> deadline_ms_;
  const bool is_admin_ = false;
  const std::optional<Sha256Digest> digest_{};

  mutable Mutex mutex_;
  RateLimit requests_ GUARDED_BY(mutex_);
  RateLimit tokens_ GUARDED_BY(mutex_);
  BodyPace bodies_ GUARDED_BY(mutex_);
};

}  // namespace uma::server
