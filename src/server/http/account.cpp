#include "server/http/account.h"

#include <algorithm>
#include <cmath>
#include <format>

namespace uma::server {
namespace {

constexpr double kMsPerMinute = 60'000;

// A duration in OpenAI's format, such as "1s" or "6m0s"; whole seconds, rounded up.
std::string duration_text(Duration wait) {
  const auto seconds = static_cast<std::int64_t>(std::ceil(to_ms(wait) / 1000));
  return seconds < 60 ? std::format("{}s", seconds) : std::format("{}m{}s", seconds / 60, seconds % 60);
}

void append_limit(std::string& out, const char* what, const RateLimit& limit, TimePoint now) {
  if (limit.per_minute() == 0) return;
  out += std::format(
      "x-ratelimit-limit-{0}: {1}\r\n"
      "x-ratelimit-remaining-{0}: {2}\r\n"
      "x-ratelimit-reset-{0}: {3}\r\n",
      what, limit.per_minute(), limit.left(now), duration_text(limit.until_full(now)));
}

}  // namespace

double RateLimit::level(TimePoint now) const {
  const double full = static_cast<double>(per_minute_);
  return std::min(full, left_ + full * to_ms(now - as_of_) / kMsPerMinute);
}

Duration RateLimit::until(double wanted, TimePoint now) const {
  const double missing = wanted - level(now);
  if (per_minute_ == 0 || missing <= 0) return Duration::zero();
  return from_ms(std::ceil(missing * kMsPerMinute / static_cast<double>(per_minute_)));
}

std::int64_t RateLimit::left(TimePoint now) const {
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(level(now))));
}

Duration RateLimit::until_one(TimePoint now) const {
  return until(1, now);
}

Duration RateLimit::until_full(TimePoint now) const {
  return until(static_cast<double>(per_minute_), now);
}

void RateLimit::take(std::int64_t units, TimePoint now) {
  left_ = level(now) - static_cast<double>(units);
  as_of_ = now;
}

Duration BodyPace::take(std::size_t bytes, TimePoint now) {
  constexpr double kBytesPerMs = (32 << 20) / 1000.0;  // 32 MiB in a second.
  constexpr double kBurstBytes = 16 << 20;
  const double earned = kBytesPerMs * to_ms(now - as_of_);
  ahead_bytes_ = std::max(0.0, ahead_bytes_ - earned) + static_cast<double>(bytes);
  as_of_ = now;
  return from_ms(std::max(0.0, ahead_bytes_ - kBurstBytes) / kBytesPerMs);
}

Duration Account::take_body(std::size_t bytes, TimePoint now) {
  const MutexLock lock(mutex_);
  return bodies_.take(bytes, now);
}

std::optional<Duration> Account::take_request(TimePoint now, bool uses_tokens) {
  const MutexLock lock(mutex_);
  const Duration wait = std::max(requests_.until_one(now), uses_tokens ? tokens_.until_one(now) : Duration::zero());
  if (wait > Duration::zero()) return wait;
  requests_.take(1, now);
  return std::nullopt;
}

void Account::charge_tokens(std::int64_t tokens, TimePoint now) {
  const MutexLock lock(mutex_);
  tokens_.take(tokens, now);
}

std::string Account::header(TimePoint now) const {
  const MutexLock lock(mutex_);
  std::string out;
  append_limit(out, "requests", requests_, now);
  append_limit(out, "tokens", tokens_, now);
  return out;
}

}  // namespace uma::server
