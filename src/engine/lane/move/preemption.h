// Frees cells for the next calls: idle slots are evicted, and running sequences are swapped out if that is not enough. Streams
// do not wait for a whole state: beside them a sequence is swapped out piece by piece (StateMoves), and cells that are needed
// before that are taken from the end of what is not saved yet, which is computed again. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/move/state_transfer.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reply_sampler.h"
#include "engine/lane/run/reuse_check.h"
#include "engine/lane/sequence_ends.h"
#include "kv/snapshot.h"

namespace uma::engine {

// How long a sequence generates before another one that needs its cells gets them.
inline constexpr double kTurnMs = 10'000;

class Preemption {
 public:
  Preemption(const LaneParts& parts, SlotEviction& eviction, ReuseCheck& reuse_check, SequenceEnds& ends, ReplySampler& sampler)
      : parts_(parts), eviction_(eviction), reuse_check_(reuse_check), ends_(ends), sampler_(sampler) {}

  // Frees cells until at least `rows` are free. False: a sequence was swapped out for them, or is about to be, so the current
  // plan may be invalid.
  // `decode_rows`: those of streams, which will need as many cells in each of the next ticks.
  [[nodiscard]] bool free_cells(std::int64_t rows, std::int64_t decode_rows = 0);
  // A call for the sequence has found no free cells: frees some.
  void free_cells_for(Sequence& sequence);
  // Frees cells for a snapshot of `tokens` tokens that the sequence will load. False: not enough cells can be freed.
  [[nodiscard]] bool free_cells_of_others(const Sequence& sequence, std::int32_t tokens);
  // Swaps out the newest background sequence for a more important request. False: there is none that may be swapped out, or one
  // is still being saved.
  [[nodiscard]] bool swap_out_background(RequestId important, TimePoint now);
  // Swaps out sequences for a waiting one, so that at least `cells` more cells are free once idle slots are evicted: background
  // ones for an interactive one, and, once it has lacked cells for kTurnMs, those that are no more important and have generated
  // for as long, the longest first. Slot `spared` stays. False: they are not enough, or the states cannot be saved, or are
  // still being saved.
  [[nodiscard]] bool swap_out_for_cells(const Sequence& waiting, bool urgent, std::int64_t cells, std::size_t spared,
                                        TimePoint now);
  // Whether the waiting sequence lacks cells because of others that were placed before it began to, and that do not give way
  // yet. `cells`: those that it lacks.
  [[nodiscard]] bool must_wait_for_others(const Sequence& waiting, bool urgent, std::int64_t cells, TimePoint now) const;
  // The state of a sequence that is being swapped out is saved: takes it out of the context.
  void end_swap_out(Sequence& sequence);
  // The state of a sequence that is being swapped out cannot be saved: it stays if it may, and is computed again otherwise.
  void fail_swap_out(Sequence& sequence, const Error& error);
  // Takes the sequence out of the context; it resumes from the report's state. The first token of a whole prompt is sampled
  // now.
  void set_aside_prompt(Sequence& sequence, PrefillReport report);
  // Clears the context. Cells with values that are not finite spoil the computation beside them, even after they are freed. All
  // sequences leave the context, unsound ones without their cells, and the context begins with zeros.
  void clear_context();

 private:
  [[nodiscard]] bool free_unused_cells(std::int64_t wanted);
  [[nodiscard]] bool drop_offloaded();
  [[nodiscard]] bool free_cells_of_leaving(std::size_t wanted);
  [[nodiscard]] Sequence* choose_victim() const;
  template <class T>
  [[nodiscard]] Sequence* newest_on() const;
  [[nodiscard]] Sequence* choose_background(TimePoint now) const;
  [[nodiscard]] bool gives_way_to(const Sequence& waiting, bool urgent, const Sequence& running, TimePoint now) const;
  [[nodiscard]] bool may_leave_slowly(const Sequence& sequence) const;
  bool swap_out(Sequence& sequence);
  [[nodiscard]] std::optional<bool> swap_out_saved(Sequence& sequence);
  [[nodiscard]] bool begin_swap_out(Sequence& sequence);
  void end_at_once(Sequence& sequence);
  void report_not_saved(const Sequence& sequence, const Error& error) const;
  // Takes the sequence out of the context; it resumes from `snapshot`, if there is one. `id`: the snapshot's in the store; 0:
  // it is not stored.
  void set_aside(Sequence& sequence, kv::SnapshotPtr snapshot, kv::StateId id = 0);
  [[nodiscard]] std::optional<SequenceSave> begin_save(Sequence& sequence);
  [[nodiscard]] kv::SnapshotPtr save(Sequence& sequence);
  void restart_unsound(Sequence& sequence);

  const LaneParts& parts_;
  SlotEviction& eviction_;
  ReuseCheck& reuse_check_;
  SequenceEnds& ends_;
  ReplySampler& sampler_;
};

}  // namespace uma::engine
