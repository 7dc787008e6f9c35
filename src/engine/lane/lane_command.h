// The commands that other threads send to a lane.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/generation_job.h"
#include "engine/lane/run/encode_image.h"
#include "engine/lane/run/prefill_lane.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"
#include "kv/state_store.h"
#include "llm/adapters.h"

namespace uma::engine {

struct StartCommand {
  GenerationJob job;
};
struct CancelCommand {
  RequestId id;
};
// The session has ended; its cells are freed.
struct ForgetCommand {
  SessionId session;
};
// Copies the session's cells to the store piece by piece, beside the streams, if there is memory for it or `how` finds some,
// and unless a reply begins in them meanwhile; then calls `then`.
struct CopyCommand {
  SessionId session;
  kv::GiveWay how = kv::GiveWay::by_disk;
  MoveOnlyFunction<void()> then;
};
// Copies the KV of these tokens, which prompts in the lane begin with, to the store as a state of `owner`
// (kv::prefix_owner()), if a slot has them and there is memory (PrefixCopy); then calls `then`.
struct CopyPrefixCommand {
  kv::StateOwner owner;
  std::vector<Token> tokens;
  llm::AdapterSet adapters;
  MoveOnlyFunction<void()> then;
};
// The stored state that a waiting request resumes from has been read, or reading has failed.
struct FetchReport {
  RequestId id;
  kv::StateId state = 0;
  Expected<kv::SnapshotPtr> snapshot;
};
// A part of a state that stays in the context is on disk, or could not be written (EarlyWriter).
struct WrittenReport {
  std::uint64_t id = 0;
  bool is_written = false;
};
using LaneCommand = std::variant<StartCommand, CancelCommand, ForgetCommand, CopyCommand, CopyPrefixCommand, PrefillReport,
                                 FetchReport, EncodedReport, WrittenReport>;

}  // namespace uma::engine
