// Copies the KV of a prompt's first tokens to the store, for other daemons: of a system prompt that several conversations begin
// with. Any slot that has these tokens will do, also one in use: KV of the same tokens is the same, and cells that are computed
// do not change. A unified context saves them piece by piece, beside the streams. In a split one only whole sequences are
// saved, so an empty slot gets a copy, which is cut; if there is none, the idle one that is worth least. A context that cannot
// be cut has no KV of the tokens alone. Beside streams a split context copies only what takes a few ms, and empties no slot.
// Owned by the lane's thread.
#pragma once

#include <cstddef>
#include <optional>

#include "base/clock.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/move/state_transfer.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reuse_check.h"

namespace uma::engine {

class PrefixCopy {
 public:
  PrefixCopy(const LaneParts& parts, ContextCalls& calls, SlotEviction& eviction, const ReuseCheck& reuse_check)
      : parts_(parts), calls_(calls), eviction_(eviction), reuse_check_(reuse_check) {}

  // Begins a copy, in place of one that has not ended. Gives up at once if no slot has the tokens, or there is no place for the
  // copy.
  void begin(CopyPrefixCommand command);
  // Copies for a few ms. After the last piece the state is in the store. False: there is nothing to copy.
  bool advance();
  // Calls back, as at every end.
  void give_up();

 private:
  struct Copying {
    CopyPrefixCommand command;
    SequenceSave save;
  };
  // The shortest slot with the tokens, whose KV may be used by all requests that will find the copy.
  [[nodiscard]] std::optional<std::size_t> find_slot(const CopyPrefixCommand& command) const;
  void work(TimePoint until);
  [[nodiscard]] Expected<kv::Snapshot> copy_by_slot(const CopyPrefixCommand& command, std::size_t from);
  void put(CopyPrefixCommand command, kv::Snapshot snapshot);

  const LaneParts& parts_;
  ContextCalls& calls_;
  SlotEviction& eviction_;
  const ReuseCheck& reuse_check_;
  std::optional<Copying> copying_;
};

}  // namespace uma::engine
