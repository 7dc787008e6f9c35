// A reply that must call: its grammar.
#pragma once

#include <string>

#include "capability/reply_parser.h"
#include "core/error.h"
#include "core/request.h"

namespace uma::capability {

// GBNF of the replies that `options` force (ToolChoice): calls in the notation of `format` and nothing else, after what the
// model thinks, where it can. Their arguments follow the schemas of the tools. Marks are spelled out, whatever tokens they
// have. REQUIRES: a choice that is not automatic, and tools. Errors: E_PROTO_003 for a schema that cannot be a grammar.
[[nodiscard]] Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options);

}  // namespace uma::capability
