// The ledger of memory: what may be taken, who has taken how much, and what was decided when it ran short. Nothing large
// (weights, contexts, stored states, caches) is allocated before its bytes are reserved here, so that the sum of all never
// outgrows the machine. Any thread. Invariants: (1) reserve() and grow() never take the reserved bytes of a place above what is
// usable there. (2) Every reservation gives back exactly what it holds, when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory_info.h"
#include "core/error.h"
#include "llm/device_memory.h"
#include "pool/degrade_ladder.h"

namespace uma::pool {

enum class MemoryKind : std::uint8_t { weights, context, warm_kv, prefix_cache, image_cache };
inline constexpr std::size_t kMemoryKinds = 5;
[[nodiscard]] std::string_view name_of(MemoryKind kind);

// Where bytes are: the machine's memory, or that of device n at n.
using Place = std::size_t;
inline constexpr Place kHostMemory = 0;

struct Claim {
  std::string model;
  MemoryKind kind = MemoryKind::weights;
  std::uint64_t bytes = 0;
  Place place = kHostMemory;
};

namespace detail {
class Ledger;
}

// Bytes that somebody holds; given back when it ends. Movable; one owner at a time.
class Reservation {
 public:
  Reservation() = default;  // of nothing
  Reservation(Reservation&& other) noexcept : ledger_(std::move(other.ledger_)), claim_(std::exchange(other.claim_, {})) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }

  [[nodiscard]] std::uint64_t bytes() const { return claim_.bytes; }
  // Takes as much more; false, and nothing changed, where that does not fit. False for a reservation of nothing.
  [[nodiscard]] bool grow(std::uint64_t bytes);
  // What it really takes, now that this was measured: more than fits, too, for it is taken already.
  void correct(std::uint64_t bytes);
  void release();

 private:
  friend class MemoryGovernor;
  Reservation(std::shared_ptr<detail::Ledger> ledger, Claim claim) : ledger_(std::move(ledger)), claim_(std::move(claim)) {}

  std::shared_ptr<detail::Ledger> ledger_;  // shared with the governor: a reservation may end after it
  Claim claim_;
};

struct GovernorOptions {
  double usable_fraction = 0.8;
  std::uint64_t bytes_max = 0;  // of the machine's memory; 0: no limit of its own
};

// What one place has and who holds it.
struct PlaceUse {
  std::string name;          // "memory", or the device's
  std::uint64_t usable = 0;  // may be reserved in all
  std::array<std::uint64_t, kMemoryKinds> reserved_by_kind{};

  [[nodiscard]] std::uint64_t reserved() const;
  // Negative: what was measured, or what other programs have taken since, is more than what is usable.
  [[nodiscard]] std::int64_t left() const;
};

// What was done about a claim that did not fit at once.
struct Decision {
  std::int64_t time_s = 0;  // Unix time
  Claim claim;
  std::uint64_t usable = 0;
  std::uint64_t reserved = 0;  // before
  LadderPlan plan;

  // "memory: assistant needs 4.00 GiB (weights), 1.10 GiB of 8.00 GiB are left: unload embedder (3.00 GiB)".
  [[nodiscard]] std::string text() const;
};

class MemoryGovernor {
 public:
  static constexpr std::size_t kDecisionsKept = 64;

  explicit MemoryGovernor(const GovernorOptions& options);

  // Takes the system's new figures. Of the machine's memory the fraction of the least of: what its control groups allow, what
  // it has, and what is available beside what this process could give up itself; of a device's, of what is free beside what is
  // reserved there. REQUIRES: the same devices in the same order, every time.
  void update(const MemoryInfo& host, std::span<const llm::DeviceMemory> devices);

  // Errors: E_LIMIT_003 with the numbers, where it does not fit now.
  [[nodiscard]] Expected<Reservation> reserve(Claim claim);
  // The bytes that must be freed before such a claim fits; 0: it does.
  [[nodiscard]] std::uint64_t shortage(const Claim& claim) const;
  // By how much more is reserved than is usable: 0, but after corrections and when other programs take memory.
  [[nodiscard]] std::uint64_t excess(Place place) const;

  // By place: the machine's memory, then the devices.
  [[nodiscard]] std::vector<PlaceUse> use() const;
  // What a model holds, by kind.
  [[nodiscard]] std::array<std::uint64_t, kMemoryKinds> held_by(const std::string& model, Place place) const;

  // What to do about a claim that does not fit: plan_relief() for its shortage. The decision is kept, and in the log.
  [[nodiscard]] LadderPlan decide(const Claim& claim, std::span<const ModelView> models, const LadderOptions& options,
                                  std::int64_t time_s);
  // The latest ones, oldest first.
  [[nodiscard]] std::vector<Decision> decisions() const;
  [[nodiscard]] std::uint64_t decisions_total() const;

 private:
  const GovernorOptions options_;
  const std::shared_ptr<detail::Ledger> ledger_;  // shared with reservations, which may end later
};

// What may be reserved in the machine's memory, given the system's figures.
[[nodiscard]] std::uint64_t usable_bytes(const MemoryInfo& host, const GovernorOptions& options);

}  // namespace uma::pool
