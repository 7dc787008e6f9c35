#include "pool/memory_governor.h"

#include <algorithm>
#include <deque>
#include <format>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"

namespace uma::pool {

namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// The sum, or the largest number on overflow.
std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return a > kNoLimit - b ? kNoLimit : a + b;
}

std::uint64_t fraction_of(double fraction, std::uint64_t bytes) {
  // The product of kNoLimit would not fit into 64 bits.
  return bytes == kNoLimit ? kNoLimit : static_cast<std::uint64_t>(fraction * static_cast<double>(bytes));
}

std::string numbers_of(const Claim& claim, std::uint64_t usable, std::uint64_t reserved) {
  return std::format("{} needs {} ({}), {} of {} are left", claim.model.empty() ? "something" : claim.model,
                     readable_bytes(claim.bytes), name_of(claim.kind), readable_bytes(usable - std::min(usable, reserved)),
                     readable_bytes(usable));
}

}  // namespace

namespace detail {

class Ledger {
 public:
  Ledger() { places_.push_back({.name = "memory", .usable = kNoLimit, .reserved_by_kind = {}}); }

  void set_places(std::uint64_t host_usable, std::span<const llm::DeviceMemory> devices, const GovernorOptions& options) {
    const MutexLock lock(mutex_);
    for (PlaceUse& place : places_) place.usable = 0;
    places_.front().usable = host_usable;
    for (const llm::DeviceMemory& device : devices) {
      PlaceUse& place = places_[find_or_add(device.name)];
      place.usable = usable_device_bytes(device.total, add(device.free, place.reserved()), options);
    }
  }
  [[nodiscard]] Place place_of(const std::string& device) {
    const MutexLock lock(mutex_);
    return find_or_add(device);
  }

  Expected<Unit> take(const Claim& claim) {
    const MutexLock lock(mutex_);
    if (missing(claim) > 0) {
      const PlaceUse& place = places_[claim.place];
      return fail(ErrorCode::limit_wait, std::format("{}: {}", place.name, numbers_of(claim, place.usable, place.reserved())));
    }
    change(claim, claim.bytes, 0);
    return Unit{};
  }
  void change_by(const Claim& claim, std::uint64_t added, std::uint64_t removed) {
    const MutexLock lock(mutex_);
    change(claim, added, removed);
  }
  [[nodiscard]] std::uint64_t shortage(const Claim& claim) const {
    const MutexLock lock(mutex_);
    return missing(claim);
  }
  [[nodiscard]] std::vector<PlaceUse> places() const {
    const MutexLock lock(mutex_);
    return places_;
  }
  [[nodiscard]] std::array<std::uint64_t, kMemoryKinds> held_by(const std::string& model, Place place) const {
    const MutexLock lock(mutex_);
    std::array<std::uint64_t, kMemoryKinds> held{};
    for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
      const auto found = held_.find({place, model, static_cast<MemoryKind>(kind)});
      if (found != held_.end()) held[kind] = found->second;
    }
    return held;
  }

  void note(Decision decision) {
    const MutexLock lock(mutex_);
    decisions_.push_back(std::move(decision));
    ++decisions_total_;
    if (decisions_.size() > MemoryGovernor::kDecisionsKept) decisions_.pop_front();
  }
  [[nodiscard]] std::vector<Decision> decisions() const {
    const MutexLock lock(mutex_);
    return {decisions_.begin(), decisions_.end()};
  }
  [[nodiscard]] std::uint64_t decisions_total() const {
    const MutexLock lock(mutex_);
    return decisions_total_;
  }

 private:
  Place find_or_add(const std::string& device) REQUIRES_LOCK(mutex_) {
    const auto found =
        std::find_if(places_.begin() + 1, places_.end(), [&](const PlaceUse& place) { return place.name == device; });
    if (found == places_.end()) return places_.push_back({.name = device}), places_.size() - 1;
    return static_cast<Place>(found - places_.begin());
  }
  [[nodiscard]] std::uint64_t missing(const Claim& claim) const REQUIRES_LOCK(mutex_) {
    UMA_CHECK(claim.place < places_.size());
    const PlaceUse& place = places_[claim.place];
    const std::uint64_t wanted = add(place.reserved(), claim.bytes);
    return wanted > place.usable ? wanted - place.usable : 0;
  }
  void change(const Claim& claim, std::uint64_t added, std::uint64_t removed) REQUIRES_LOCK(mutex_) {
    std::uint64_t& of_kind = places_[claim.place].reserved_by_kind[static_cast<std::size_t>(claim.kind)];
    const auto key = std::tuple(claim.place, claim.model, claim.kind);
    std::uint64_t& held = held_[key];
    UMA_CHECK(held >= removed && of_kind >= removed);
    held += added - removed;
    of_kind += added - removed;
    if (held == 0) held_.erase(key);
  }

  mutable Mutex mutex_;
  std::vector<PlaceUse> places_ GUARDED_BY(mutex_);
  std::map<std::tuple<Place, std::string, MemoryKind>, std::uint64_t> held_ GUARDED_BY(mutex_);
  std::deque<Decision> decisions_ GUARDED_BY(mutex_);
  std::uint64_t decisions_total_ GUARDED_BY(mutex_) = 0;
};

}  // namespace detail

std::string_view name_of(MemoryKind kind) {
  static constexpr std::array<std::string_view, kMemoryKinds> kNames = {"weights", "context", "warm_kv", "prefix_cache",
                                                                        "image_cache"};
  return kNames[static_cast<std::size_t>(kind)];
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    ledger_ = std::move(other.ledger_);
    claim_ = std::exchange(other.claim_, {});
  }
  return *this;
}

bool Reservation::grow(std::uint64_t bytes) {
  if (!ledger_) return false;
  Claim more = claim_;
  more.bytes = bytes;
  if (!ledger_->take(more)) return false;
  claim_.bytes += bytes;
  return true;
}

void Reservation::correct(std::uint64_t bytes) {
  if (!ledger_) return;
  ledger_->change_by(claim_, bytes, claim_.bytes);
  claim_.bytes = bytes;
}

Reservation Reservation::empty_at(Place place) const {
  Claim none = claim_;
  none.bytes = 0;
  none.place = place;
  return Reservation(ledger_, std::move(none));
}

void Reservation::release() {
  if (ledger_) ledger_->change_by(claim_, 0, claim_.bytes);
  ledger_.reset();
  claim_.bytes = 0;
}

std::uint64_t Holding::bytes(Place place) const {
  const auto found = parts_.find(place);
  return found == parts_.end() ? 0 : found->second.bytes();
}

std::uint64_t Holding::bytes_everywhere() const {
  std::uint64_t sum = 0;
  for (const auto& [place, reservation] : parts_) sum += reservation.bytes();
  return sum;
}

std::uint64_t PlaceUse::reserved() const {
  return std::accumulate(reserved_by_kind.begin(), reserved_by_kind.end(), std::uint64_t{0});
}

std::int64_t PlaceUse::left() const {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t held = reserved();
  return held <= usable ? static_cast<std::int64_t>(std::min(usable - held, kMost))
                        : -static_cast<std::int64_t>(std::min(held - usable, kMost));
}

std::string Decision::text() const {
  std::string done = plan.outcome == Outcome::fits ? text_of(plan.steps)
                     : plan.outcome == Outcome::wait
                         ? std::format("it waits, because {} are in use or were used just now", readable_bytes(plan.bytes_held))
                         : std::string("refused: it would not fit even if everything else were freed");
  for (const std::string& held : plan.holds) done += std::format("; {} accepts no new background requests", held);
  return std::format("{}: {}: {}", place, numbers_of(claim, usable, reserved), done);
}

MemoryGovernor::MemoryGovernor(const GovernorOptions& options)
    : options_(options), ledger_(std::make_shared<detail::Ledger>()) {
  UMA_CHECK(options.usable_fraction > 0 && options.usable_fraction <= 1);
  update({}, {});
}

void MemoryGovernor::update(const MemoryInfo& host, std::span<const llm::DeviceMemory> devices) {
  ledger_->set_places(usable_bytes(host, options_), devices, options_);
}

Expected<Reservation> MemoryGovernor::reserve(Claim claim) {
  if (auto taken = ledger_->take(claim); !taken) return std::unexpected(taken.error());
  return Reservation(ledger_, std::move(claim));
}

Expected<Holding> MemoryGovernor::reserve(const std::string& model, MemoryKind kind, std::uint64_t host,
                                          const llm::DeviceBytes& devices) {
  Holding held;
  const auto add = [&](Place place, std::uint64_t bytes) -> Expected<Unit> {
    auto part = reserve({.model = model, .kind = kind, .bytes = bytes, .place = place});
    if (!part) return std::unexpected(part.error());
    held.parts_.insert_or_assign(place, std::move(*part));
    return Unit{};
  };
  if (auto added = add(kHostMemory, host); !added) return std::unexpected(added.error());
  for (const auto& [device, bytes] : devices.by_device()) {
    if (auto added = add(place_of(device), bytes); !added) return std::unexpected(added.error());
  }
  return held;
}

void MemoryGovernor::correct(Holding& held, std::uint64_t host, const llm::DeviceBytes& devices) {
  if (held.is_empty()) return;
  std::map<Place, std::uint64_t> bytes_in = {{kHostMemory, host}};
  for (const auto& [device, bytes] : devices.by_device()) bytes_in[place_of(device)] += bytes;
  for (const auto& [place, bytes] : bytes_in) held.parts_.try_emplace(place, held.parts_.at(kHostMemory).empty_at(place));
  for (auto& [place, part] : held.parts_) part.correct(bytes_in[place]);
}

Place MemoryGovernor::place_of(const std::string& device) const {
  return ledger_->place_of(device);
}

std::uint64_t MemoryGovernor::shortage(const Claim& claim) const {
  return ledger_->shortage(claim);
}

std::uint64_t MemoryGovernor::excess(Place place) const {
  return ledger_->shortage({.model = "", .kind = MemoryKind::weights, .bytes = 0, .place = place});
}

std::vector<PlaceUse> MemoryGovernor::use() const {
  return ledger_->places();
}

std::array<std::uint64_t, kMemoryKinds> MemoryGovernor::held_by(const std::string& model, Place place) const {
  return ledger_->held_by(model, place);
}

EvictionPlan MemoryGovernor::decide(const Claim& claim, std::span<const ModelView> models, const EvictionOptions& options,
                                    std::int64_t time_s) {
  const std::uint64_t short_of = ledger_->shortage(claim);
  if (short_of == 0) return {};
  const PlaceUse place = ledger_->places()[claim.place];
  Decision decision{.time_s = time_s,
                    .claim = claim,
                    .place = place.name,
                    .usable = place.usable,
                    .reserved = place.reserved(),
                    .plan = plan_evictions(short_of, models, options)};
  // A wait concerns one request only; other decisions affect all.
  decision.plan.outcome == Outcome::wait ? log_debug("{}", decision.text()) : log_info("{}", decision.text());
  EvictionPlan plan = decision.plan;
  ledger_->note(std::move(decision));
  return plan;
}

std::vector<Decision> MemoryGovernor::decisions() const {
  return ledger_->decisions();
}

std::uint64_t MemoryGovernor::decisions_total() const {
  return ledger_->decisions_total();
}

std::uint64_t usable_bytes(const MemoryInfo& host, const GovernorOptions& options) {
  std::uint64_t bytes = host.group_limit;
  if (host.total > 0) bytes = std::min(bytes, host.total);
  // Mapped files already count as available; a control group counts them as its own.
  if (host.available > 0) bytes = std::min(bytes, add(host.available, host.own_anonymous));
  bytes = std::min(bytes, add(host.group_left, host.own_resident));
  bytes = fraction_of(options.usable_fraction, bytes);
  return options.bytes_max > 0 ? std::min(bytes, options.bytes_max) : bytes;
}

std::uint64_t usable_device_bytes(std::uint64_t total, std::uint64_t free, const GovernorOptions& options) {
  if (total == 0) return options.device_bytes_max > 0 ? options.device_bytes_max : kNoLimit;
  constexpr std::uint64_t kMarginMin = std::uint64_t{256} << 20;
  const std::uint64_t margin = std::max(total / 10, std::min(kMarginMin, total / 4));
  const std::uint64_t there = std::min(total, free);
  const std::uint64_t bytes = there - std::min(there, margin);
  return options.device_bytes_max > 0 ? std::min(bytes, options.device_bytes_max) : bytes;
}

}  // namespace uma::pool
