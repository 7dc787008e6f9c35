// Turns input into tokens away from the router, so that a megabyte of text holds up nobody's cancel.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "capability/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "engine/job_queue.h"
#include "kv/catalog.h"
#include "llm/model.h"

namespace uma::engine {

// What a session's record becomes when input is appended to it. A chat template can write the past differently than before:
// then the chain changes from the first difference on (docs/decisions/0021). `chat`: what the whole is written with from now
// on; null: what it was written with. Input may be empty where some is pending. Errors: E_PROTO_003 for messages or tools in a
// text session; those of the tokenizer and the chat template.
[[nodiscard]] Expected<kv::SessionRecord> append_to_record(const capability::ChatFormat& format,
                                                           const kv::SessionRecord& record, const Input& input,
                                                           const ChatOptions* chat = nullptr);

// What it becomes without its last turn's reply, whose input is pending again. `rewound` is the record without that turn.
// REQUIRES: a last turn. Errors: as append_to_record.
[[nodiscard]] Expected<kv::SessionRecord> reopen_last_turn(const capability::ChatFormat& format,
                                                           const kv::SessionRecord& record, const kv::SessionRecord& rewound,
                                                           const ChatOptions& chat);

// What it becomes without the message that it ends with: one that is pending, or else the reply of the last turn; `rewound` is
// the record without that turn. REQUIRES: one of the two. Errors: as append_to_record.
[[nodiscard]] Expected<kv::SessionRecord> without_last_message(const capability::ChatFormat& format,
                                                               const kv::SessionRecord& record,
                                                               const kv::SessionRecord& rewound);

// What it becomes when a response begins on it: with its instructions in the place of the last one's, and with its input
// pending. Other instructions and, where the template writes them there, other tools change the chain from its beginning.
// Errors: as append_to_record; E_PROTO_003 for a text session, and for on_full error where turns were dropped.
[[nodiscard]] Expected<kv::SessionRecord> begin_response(const capability::ChatFormat& format, const kv::SessionRecord& record,
                                                         const Input& input, const ResponseRequest& response,
                                                         const ChatOptions& chat);

// Long texts have a queue of their own, so that short ones do not wait for them; each queue is for a thread of its own.
class Preparer {
 public:
  static constexpr std::size_t kLongBytes = 32'768;

  // Any thread. `bytes` of text are read by the job.
  void post(TenantId tenant, std::size_t bytes, JobQueue::Job job) {
    queues_[bytes < kLongBytes ? 0 : 1].post(std::move(tenant), std::move(job));
  }
  void close() {
    for (JobQueue& queue : queues_) queue.close();
  }
  [[nodiscard]] std::span<JobQueue> queues() { return queues_; }
  // For whoever has no threads for the queues: a job of each. True when there was one.
  bool step() {
    bool any = false;
    for (JobQueue& queue : queues_) any |= queue.step();
    return any;
  }

 private:
  std::array<JobQueue, 2> queues_;
};

}  // namespace uma::engine
