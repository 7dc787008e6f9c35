// Writes the states of a context to disk while they stay there, so that a crash costs seconds (docs/decisions/0094): piece by
// piece, beside the streams, without those that the disk has. One state at a time, and one part of it in memory. Owned by the
// lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "core/ids.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/state_transfer.h"
#include "engine/lane/run/context_calls.h"

namespace uma::engine {

class EarlyWriter {
 public:
  EarlyWriter(const LaneParts& parts, ContextCalls& calls, std::shared_ptr<Mailbox<LaneCommand>> inbox)
      : parts_(parts), calls_(calls), inbox_(std::move(inbox)) {}
  EarlyWriter(const EarlyWriter&) = delete;
  ~EarlyWriter() { give_up(); }

  // Saves for a few ms. True: there is more to do at once.
  bool advance();
  // Goes on behind what the disk has written.
  void accept(const WrittenReport& report);
  // When advance() has something to do; kNever: nothing is due.
  [[nodiscard]] TimePoint next_wake() const;
  // The session has ended.
  void forget(const SessionId& session);
  void give_up();

 private:
  struct Writing {
    std::size_t slot = 0;
    kv::StateOwner owner;
    llm::AdapterSet adapters;
    std::vector<Token> tokens;
    std::vector<std::int32_t> ends;  // Ends of its pieces, in tokens.
    std::uint64_t id = 0;
    std::size_t pieces = 0;   // So many are on disk, or on their way.
    bool is_on_way = false;   // The disk writes.
    TimePoint waits_until{};  // For memory.
    std::optional<SequenceSave> save{};
  };

  [[nodiscard]] std::optional<std::size_t> next_due() const;
  [[nodiscard]] bool begin(TimePoint now);
  [[nodiscard]] bool work(TimePoint now);
  [[nodiscard]] bool begin_save(TimePoint now);
  void end(TimePoint again);
  void end_failed();
  [[nodiscard]] bool is_in_slot() const;
  [[nodiscard]] std::uint64_t reservation_bytes(std::int32_t count, std::int32_t sequence) const;

  const LaneParts& parts_;
  ContextCalls& calls_;
  const std::shared_ptr<Mailbox<LaneCommand>> inbox_;  // The lane's, for reports of the disk.
  std::optional<Writing> writing_;
};

}  // namespace uma::engine
