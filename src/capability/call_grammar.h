// The grammars of calls: of a reply that must call, and of a call that a model begins of its own accord.
#pragma once

#include <memory>
#include <string>

#include "capability/reply_parser.h"
#include "core/error.h"
#include "core/request.h"
#include "llm/grammar.h"

namespace uma::capability {

// GBNF of the replies that `options` force (ToolChoice): calls in the notation of `format` and nothing else, after what the
// model thinks, where it can. Their arguments follow the schemas of the tools. Marks are spelled out, whatever tokens they
// have. REQUIRES: a choice that is not automatic, and tools. Errors: E_PROTO_003 for a schema that cannot be a grammar.
[[nodiscard]] Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options);

// What follows the mark of a call (ReplyParser::begun_call), to the end of the calls that stand behind one mark: names and
// arguments in both orders and with the blanks that models write. Arguments follow the schema of their tool; those of a tool
// without one, or with one that can be no grammar, are any object. REQUIRES: tools. Errors: E_PROTO_003 where that schema is of
// a tool that is `strict`.
[[nodiscard]] Expected<std::shared_ptr<const llm::Grammar>> begun_call_grammar(const ReplyFormat& format,
                                                                               const ChatOptions& options);

}  // namespace uma::capability
