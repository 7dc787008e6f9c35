// Grammars of tool calls, from the notation of the model's family (family.h): for a reply that must call a tool, and for a call
// that the model begins by itself. Pure: any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "chat/reply/reply_parser.h"
#include "core/error.h"
#include "core/request.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"

namespace uma::chat {

// The GBNF of the replies that `options` force (ToolChoice): tool calls in the first form of the family and nothing else, after
// optional reasoning. Their arguments follow the schemas of the tools. Marks are spelled out, independent of their tokens.
// `prompt` may be its end alone; a mark that ends it and begins the first form is not written again.
// `left_out` gets the keywords of schemas that are not enforced. Requires: a family, a choice that is not automatic, and tools.
// Errors: E_PROTO_003 for an invalid schema, or a large one.
[[nodiscard]] Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options,
                                                 std::string_view prompt = {}, grammar::LeftOut* left_out = nullptr);

// The grammar of a tool call (ReplyParser::begun_call), from its mark to the end of all calls of this mark. It allows all
// forms, names and arguments in both orders, and the whitespace that models write. Arguments follow the schema of their tool;
// without a schema, or with one that is invalid or large, they are any object. Null: the tools are too many for a grammar.
// `left_out` gets the keywords of schemas that are not enforced, and "#" for a whole schema. Requires: a family and tools.
// Errors: E_PROTO_003 for such a schema or so many tools, if one of them is `strict` or nothing may be left out.
[[nodiscard]] Expected<std::shared_ptr<const grammar::Grammar>> begun_call_grammar(const ReplyFormat& format,
                                                                                   const ChatOptions& options,
                                                                                   grammar::LeftOut* left_out = nullptr);

// Whether one of the tools that may be called demands that its schema holds.
[[nodiscard]] bool has_strict_tool(const ChatOptions& options);

}  // namespace uma::chat
