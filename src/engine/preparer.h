// Turns input into tokens away from the router, so that a megabyte of text holds up nobody's cancel. Jobs run one after the
// other, in the order they came.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
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

// What a reply must follow; null: nothing.
struct ReplyGrammars {
  std::shared_ptr<const llm::Grammar> whole;  // its text: a grammar, a schema or a call that is forced
  std::shared_ptr<const llm::Grammar> calls;  // what comes behind the mark of a call that is not

  [[nodiscard]] bool is_empty() const { return whole == nullptr && calls == nullptr; }
};

// Whether there is something that a reply must follow.
[[nodiscard]] bool needs_grammars(const GenerateOptions& options);
// `schema_field` is what the request calls the schema of its reply. Errors: E_PROTO_003 with the field.
[[nodiscard]] Expected<ReplyGrammars> compile_grammars(const capability::ChatFormat& format, const GenerateOptions& options,
                                                       std::string_view schema_field = "response_format.json_schema.schema");

// What it becomes when a response begins on it: with its instructions in the place of the last one's, and with its input
// pending. Other instructions and, where the template writes them there, other tools change the chain from its beginning.
// Errors: as append_to_record; E_PROTO_003 for a text session, and for on_full error where turns were dropped.
[[nodiscard]] Expected<kv::SessionRecord> begin_response(const capability::ChatFormat& format, const kv::SessionRecord& record,
                                                         const Input& input, const ResponseRequest& response,
                                                         const ChatOptions& chat);

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
