// The ledger of memory: the limits, all reservations, and the decisions taken when memory was short. Nothing large (weights,
// contexts, stored states, caches) is allocated before its bytes are reserved here, so that the sum never exceeds the machine.
// Any thread. Invariants: (1) reserve() and grow() never raise the reserved bytes of a place above its usable bytes. (2) Every
// reservation returns exactly its bytes when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/system/memory_info.h"
#include "core/error.h"
#include "llm/device/device_bytes.h"
#include "llm/device/devices.h"
#include "pool/eviction_plan.h"

namespace uma::pool {

enum class MemoryKind : std::uint8_t { weights, context, warm_kv, prefix_cache, image_cache };
inline constexpr std::size_t kMemoryKinds = 5;
[[nodiscard]] std::string_view name_of(MemoryKind kind);

// A kind of memory: 0 is the machine's memory, n is the memory of the n-th device that was seen.
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

// Reserved bytes, returned by the destructor. Movable; one owner at a time.
class Reservation {
 public:
  Reservation() = default;  // Holds nothing.
  Reservation(Reservation&& other) noexcept : ledger_(std::move(other.ledger_)), claim_(std::exchange(other.claim_, {})) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }

  [[nodiscard]] std::uint64_t bytes() const { return claim_.bytes; }
  // Reserves more bytes. Returns false, and changes nothing, if they do not fit or if the reservation is empty.
  [[nodiscard]] bool grow(std::uint64_t bytes);
  // Sets the measured size, even beyond the limit, because that memory is already in use.
  void correct(std::uint64_t bytes);
  // A reservation of no bytes of the same kind in another place.
  [[nodiscard]] Reservation empty_at(Place place) const;
  void release();

 private:
  friend class MemoryGovernor;
  Reservation(std::shared_ptr<detail::Ledger> ledger, Claim claim) : ledger_(std::move(ledger)), claim_(std::move(claim)) {}

  std::shared_ptr<detail::Ledger> ledger_;  // Shared with the governor, which may end first.
  Claim claim_;
};

// The memory of one owner, in the machine's memory and on devices.
class Holding {
 public:
  [[nodiscard]] std::uint64_t bytes(Place place) const;
  [[nodiscard]] std::uint64_t bytes_everywhere() const;
  [[nodiscard]] bool is_empty() const { return parts_.empty(); }
  void release() { parts_.clear(); }

 private:
  friend class MemoryGovernor;
  std::map<Place, Reservation> parts_;
};

struct GovernorOptions {
  double usable_fraction = 0.8;
  std::uint64_t bytes_max = 0;         // Limit of the machine's memory; 0: no separate limit.
  std::uint64_t device_bytes_max = 0;  // Limit of each device's memory; 0: no separate limit.
};

// The memory of one place and its holders.
struct PlaceUse {
  std::string name;          // "memory", or the device's.
  std::uint64_t usable = 0;  // Limit of all reservations together.
  std::array<std::uint64_t, kMemoryKinds> reserved_by_kind{};

  [[nodiscard]] std::uint64_t reserved() const;
  // Negative if measured sizes, or memory taken by other programs, exceed the usable bytes.
  [[nodiscard]] std::int64_t left() const;
};

// The decision about a claim that did not fit at once.
struct Decision {
  std::int64_t time_s = 0;  // Unix time.
  Claim claim;
  std::string place = "memory";  // Name of the claim's place.
  std::uint64_t usable = 0;
  std::uint64_t reserved = 0;  // Bytes reserved before the decision.
  EvictionPlan plan;

  // Text such as "memory: assistant needs 4.00 GiB (weights), 1.10 GiB of 8.00 GiB are left: unload embedder (3.00 GiB)".
  [[nodiscard]] std::string text() const;
};

class MemoryGovernor {
 public:
  static constexpr std::size_t kDecisionsKept = 64;

  explicit MemoryGovernor(const GovernorOptions& options);

  // Takes new figures of the system. Usable memory of the machine is a fraction of the smallest of: the limit of its control
  // groups, the installed memory, and the available memory plus the memory that this process could release. For a device, it is
  // the free plus the reserved memory, less usable_device_bytes()' margin. A device that is not given any more has no memory.
  void update(const MemoryInfo& host, std::span<const llm::DeviceMemory> devices);

  // Reserves the claim's bytes. Errors: E_LIMIT_003 with the numbers if they do not fit now.
  [[nodiscard]] Expected<Reservation> reserve(Claim claim);
  // Reserves bytes of the machine's memory and of devices, or nothing. Errors: as above.
  [[nodiscard]] Expected<Holding> reserve(const std::string& model, MemoryKind kind, std::uint64_t host,
                                          const llm::DeviceBytes& devices);
  // Sets the measured sizes, even beyond the limits.
  void correct(Holding& held, std::uint64_t host, const llm::DeviceBytes& devices);
  // The memory of a device. A device that was never seen counts as one without memory.
  [[nodiscard]] Place place_of(const std::string& device) const;
  // Bytes that must be freed before the claim fits; 0: it fits.
  [[nodiscard]] std::uint64_t shortage(const Claim& claim) const;
  // Bytes reserved beyond the usable bytes: 0, except after corrections and when other programs take memory.
  [[nodiscard]] std::uint64_t excess(Place place) const;

  // Use of each place: the machine's memory, then the devices.
  [[nodiscard]] std::vector<PlaceUse> use() const;
  // Bytes that a model holds, by kind.
  [[nodiscard]] std::array<std::uint64_t, kMemoryKinds> held_by(const std::string& model, Place place) const;

  // Decides about a claim that does not fit, with plan_evictions() for its shortage. Stores and logs the decision.
  [[nodiscard]] EvictionPlan decide(const Claim& claim, std::span<const ModelView> models, const EvictionOptions& options,
                                    std::int64_t time_s);
  // The latest decisions, oldest first.
  [[nodiscard]] std::vector<Decision> decisions() const;
  [[nodiscard]] std::uint64_t decisions_total() const;

 private:
  const GovernorOptions options_;
  const std::shared_ptr<detail::Ledger> ledger_;  // Shared with reservations, which may end later.
};

// Usable bytes of the machine's memory, given the system's figures.
[[nodiscard]] std::uint64_t usable_bytes(const MemoryInfo& host, const GovernorOptions& options);
// Usable bytes of a device of which `free` bytes are free or reserved here. A margin is left for what the driver and other
// programs take: a tenth, but at least 256 MiB, or a quarter if the device is small. A device of 0 bytes does not say how many
// it has.
[[nodiscard]] std::uint64_t usable_device_bytes(std::uint64_t total, std::uint64_t free, const GovernorOptions& options);

}  // namespace uma::pool
