#include "engine/lane/lane_parts.h"

namespace uma::engine {

std::int64_t LaneParts::cells_reserved() const {
  return slots.cells_used() + cells_to_come();
}

std::int64_t LaneParts::cells_of_running() const {
  return slots.cells_of_running() + cells_to_come();
}

// Cells that are reserved for the prompts of running sequences and not used yet.
std::int64_t LaneParts::cells_to_come() const {
  std::int64_t cells = 0;
  for (const SequencePtr& sequence : sequences) {
    if (sequence->is_running()) cells += size_of(sequence->chain) - cached(*sequence);
  }
  return cells;
}

std::int64_t LaneParts::cells_expected() const {
  std::int64_t cells = slots.cells_used();
  for (const SequencePtr& sequence : sequences) {
    if (sequence->restoring) cells += sequence->restoring->tokens_loaded_at_end() - cached(*sequence);
  }
  return cells;
}

std::optional<ByteBudget::Share> LaneParts::reserve_at_once(std::uint64_t bytes) const {
  return options.store != nullptr ? options.store->make_room(bytes, kv::GiveWay::at_once) : pool.reserve(bytes);
}

kv::PrefixQuery LaneParts::prefix_query_of(const Sequence& sequence) const {
  return {.family = family,
          .tenant = TenantId{sequence.job.flow.tenant},
          .session = sequence.job.session,
          .forked_from = sequence.job.forked_from,
          .takes_others = !options.is_reproducible};
}

void LaneParts::recall(Sequence& sequence) const {
  prefill->cancel(sequence.job.id);
  sequence.is_offloaded = false;
}

std::string_view log_name(const SessionId& session) {
  return session.empty() ? std::string_view("-") : std::string_view(session.value);
}

}  // namespace uma::engine
