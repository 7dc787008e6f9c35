// Loads snapshots into slots, a few pieces in each tick. Owned by the lane's thread.
#pragma once

#include "base/clock.h"
#include "engine/lane/context_calls.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/reply_sampler.h"
#include "engine/lane/reuse_check.h"
#include "engine/lane/sequence_ends.h"

namespace uma::engine {

class Restores {
 public:
  Restores(const LaneParts& parts, ContextCalls& calls, ReuseCheck& reuse_check, SequenceEnds& ends, ReplySampler& sampler)
      : parts_(parts), calls_(calls), reuse_check_(reuse_check), ends_(ends), sampler_(sampler) {}

  // Loads the snapshots: completely if no sequence waits for a token, else a piece or a few in each tick. Decoding sequences
  // have a tick before a loaded sequence joins it, so that they wait for the load and a tick of the earlier size, but not for a
  // larger tick. False: there was no snapshot to load.
  bool advance();

 private:
  void load(Sequence& sequence, TimePoint until);
  void refuse(Sequence& sequence, const Error& error);
  void end(Sequence& sequence);
  void count_restored(const Sequence& sequence, const Restore& restore);

  const LaneParts& parts_;
  ContextCalls& calls_;
  ReuseCheck& reuse_check_;
  SequenceEnds& ends_;
  ReplySampler& sampler_;
};

}  // namespace uma::engine
