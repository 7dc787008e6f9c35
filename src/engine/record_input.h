// Edits of a session's record that tokenize or render: input that is appended, a turn that is opened again, a response that
// begins. Pure; each takes as long as its text is, so each is a job for the preparer. Edits without text: record_edits.h.
#pragma once

#include "capability/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "kv/catalog.h"

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

}  // namespace uma::engine
