// Edits of a session's record that tokenize or render: appending input, reopening a turn, beginning a response. Pure. Each
// takes as long as its text needs, so the work pool runs it. record_edits.h has the edits without text.
#pragma once

#include "chat/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "kv/catalog/catalog.h"

namespace uma::engine {

// The record with appended input. If the chat template writes earlier messages differently now, the chain changes from the
// first difference on (docs/decisions/0021). `chat`: the tools and template arguments that the whole conversation is written
// with from now on; null: they stay. `replies`: what the model has written for the tenant. The input may be empty if some is
// pending. Errors: E_PROTO_003 for messages or tools in a text session; those of the tokenizer and the chat template. If
// `outline` is not null, it gets ChatTokens::outline here and in the other edits.
[[nodiscard]] Expected<kv::SessionRecord> append_to_record(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                                           const Input& input, const ChatOptions* chat = nullptr,
                                                           const chat::OwnReplies& replies = {},
                                                           PromptOutline* outline = nullptr);

// The record without the last reply, whose input is pending again. `rewound` is the record without the last turn. Requires: a
// last turn. Errors: as append_to_record.
[[nodiscard]] Expected<kv::SessionRecord> reopen_last_turn(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                                           const kv::SessionRecord& rewound, const ChatOptions& chat,
                                                           PromptOutline* outline = nullptr);

// The record without its last message: a pending one, or else the reply of the last turn. `rewound` is the record without the
// last turn. Requires: the record has such a message. Errors: as append_to_record.
[[nodiscard]] Expected<kv::SessionRecord> without_last_message(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                                               const kv::SessionRecord& rewound);

// The record at the beginning of a response: the response's instructions replace the earlier ones, and its input is pending.
// Other instructions change the chain from its beginning, and so do other tools if the template writes them there. Errors: as
// append_to_record; E_PROTO_003 for a text session, and for on_full `error` if turns were dropped.
[[nodiscard]] Expected<kv::SessionRecord> begin_response(const chat::ChatFormat& format, const kv::SessionRecord& record,
                                                         const Input& input, const ResponseRequest& response,
                                                         const ChatOptions& chat, const chat::OwnReplies& replies = {},
                                                         PromptOutline* outline = nullptr);

}  // namespace uma::engine
