// Turns input into tokens away from the router, so that a megabyte of text holds up nobody's cancel. Jobs run one after the
// other, in the order they came.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/mailbox.h"
#include "capability/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "kv/catalog.h"
#include "llm/grammar.h"
#include "llm/model.h"

namespace uma::engine {

// What a session's record becomes when input is appended to it. A chat template can write the past differently than before:
// then the chain changes from the first difference on (docs/decisions/0021). Errors: E_PROTO_003 for messages in a text
// session; those of the tokenizer and the chat template.
[[nodiscard]] Expected<kv::SessionRecord> append_to_record(const capability::ChatFormat& format,
                                                           const kv::SessionRecord& record, const Input& input);

// What it becomes without its last turn's reply, whose input is pending again. `rewound` is the record without that turn.
// REQUIRES: a last turn. Errors: those of the tokenizer and the chat template.
[[nodiscard]] Expected<kv::SessionRecord> reopen_last_turn(const capability::ChatFormat& format,
                                                           const kv::SessionRecord& record, const kv::SessionRecord& rewound);

// What the text of the reply must follow; null: nothing. Errors: E_PROTO_003 with the field.
[[nodiscard]] Expected<std::shared_ptr<const llm::Grammar>> compile_grammar(const GenerateOptions& options);

class Preparer {
 public:
  using Job = std::move_only_function<void()>;

  // Any thread.
  void post(Job job) { inbox_.push(std::move(job)); }
  void close() { inbox_.close(); }
  // Owner thread: runs what waits, without blocking. True when there was something.
  bool step();
  // Owner thread: waits for work; false once closed and empty.
  bool wait() { return inbox_.wait_drain(taken_, kNever); }

 private:
  Mailbox<Job> inbox_;
  std::vector<Job> taken_;
};

}  // namespace uma::engine
