#include "engine/model/grammar_cache.h"

#include <format>
#include <string_view>
#include <utility>

#include "base/endable_work.h"
#include "base/sha256.h"
#include "chat/calls/call_grammar.h"
#include "grammar/json_pattern.h"
#include "grammar/json_schema.h"

namespace uma::engine {
namespace {

// The key of a cache entry: all inputs of the compilation, each with its length before it.
std::string key_of(const GenerateOptions& options) {
  Sha256 hash;
  const auto add = [&](std::string_view text) {
    hash.add(std::format("{}:", text.size()));
    hash.add(text);
  };
  const ChatOptions& chat = options.chat;
  for (const std::string_view text :
       {std::string_view(options.grammar), std::string_view(options.json_schema), std::string_view(options.pattern),
        options.schema_field, options.grammar_field, std::string_view(chat.tools), std::string_view(chat.tool_name),
        std::string_view(chat.template_arguments)}) {
    add(text);
  }
  for (const std::string& name : chat.allowed_tools) add(name);
  add(std::format("{} {} {} {} {}", std::to_underlying(chat.tool_choice), chat.has_parallel_calls, chat.splits_reasoning,
                  chat.thinking_budget == 0, options.strict_schema));
  return hash.hex();
}

using Compiled = Expected<std::shared_ptr<const grammar::Grammar>>;

std::unexpected<Error> refused(const Error& error, std::string_view field, std::string_view what) {
  return std::unexpected(Error{error.code, std::format("field \"{}\": {}{}", field, what, error.message), std::string(field)});
}

// A call is forced: a format is for a text, and there is none.
Expected<ReplyGrammars> compile_forced(const chat::ChatFormat& format, const GenerateOptions& options,
                                       grammar::LeftOut& left_out) {
  if (!options.grammar.empty()) {
    return std::unexpected(
        Error{ErrorCode::proto_field, "a forced \"tool_choice\" excludes a \"grammar\": send one of the two", "tool_choice"});
  }
  const auto gbnf = format.forced_grammar(options.chat, &left_out);
  if (!gbnf) return std::unexpected(gbnf.error());
  auto grammar = grammar::Grammar::parse(*gbnf);
  if (!grammar) return refused(grammar.error(), "tools", "their schemas cannot be combined into a grammar: ");
  ReplyGrammars made;
  made.whole = std::move(*grammar);
  return made;
}

// The grammar of the reply's text; null: it is free.
Compiled compile_text(const GenerateOptions& options, grammar::LeftOut& left_out) {
  if (!options.grammar.empty()) {
    auto grammar = grammar::Grammar::parse(options.grammar);
    if (!grammar) return refused(grammar.error(), options.grammar_field, "");
    return grammar;
  }
  if (!options.pattern.empty()) {
    const auto gbnf = grammar::pattern_gbnf(options.pattern);
    auto grammar = gbnf ? grammar::Grammar::parse(*gbnf) : Compiled(std::unexpected(gbnf.error()));
    if (!grammar) return refused(grammar.error(), options.grammar_field, "");
    return grammar;
  }
  if (options.json_schema.empty()) return nullptr;
  auto grammar = grammar::json_schema_grammar(options.json_schema, &left_out);
  left_out.set_field(options.schema_field);
  if (grammar) return grammar;
  return std::unexpected(Error{grammar.error().code, "the schema of the reply's format: " + grammar.error().message,
                               std::string(options.schema_field)});
}

// Without the tools.
Expected<ReplyGrammars> compile_constraints(const chat::ChatFormat& format, const GenerateOptions& options,
                                            grammar::LeftOut& left_out) {
  if (options.chat.tool_choice != ToolChoice::automatic) return compile_forced(format, options, left_out);
  ReplyGrammars made;
  auto text = compile_text(options, left_out);
  if (!text) return std::unexpected(text.error());
  made.whole = std::move(*text);
  if (!options.chat.tools.empty()) {
    auto calls = format.begun_call_grammar(options.chat, &left_out);
    if (!calls) return std::unexpected(calls.error());
    made.calls = std::move(*calls);
  }
  if (!made.whole) return made;
  made.is_json = !options.json_schema.empty();
  made.has_thoughts = format.has_thoughts(made.whole);
  auto answer = format.answer_grammar(options.chat, {.answer = *made.whole,
                                                     .calls = made.calls.get(),
                                                     .may_think = !made.has_thoughts,
                                                     .may_begin_with_blanks = made.is_json});
  if (!answer.has_calls) {
    if (left_out.refuses() || chat::has_strict_tool(options.chat)) {
      return std::unexpected(Error{ErrorCode::proto_field,
                                   "field \"tools\": their schemas and that of the reply are too large for one grammar",
                                   "tools"});
    }
    left_out.add("tools#", "");
  }
  made.answer = std::move(answer.grammar);
  made.calls = nullptr;  // They are a part of it.
  return made;
}

}  // namespace

bool needs_grammars(const GenerateOptions& options) {
  // A forced tool call has tools, too.
  return !options.chat.tools.empty() || !options.grammar.empty() || !options.json_schema.empty() || !options.pattern.empty();
}

Expected<ReplyGrammars> compile_grammars(const chat::ChatFormat& format, const GenerateOptions& options) {
  grammar::LeftOut left_out(options.strict_schema);
  auto compiled = compile_constraints(format, options, left_out);
  if (!compiled) return compiled;
  compiled->left_out = left_out.places();
  if (!options.chat.tools.empty()) {
    chat::Tools tools = chat::tools_of(options.chat.tools);
    std::erase_if(tools, [&](const auto& tool) { return !options.chat.may_call(tool.first); });
    compiled->tools = std::make_shared<const chat::Tools>(std::move(tools));
  }
  return compiled;
}

Expected<ReplyGrammars> GrammarCache::compile(const chat::ChatFormat& format, const GenerateOptions& options) {
  if (!needs_grammars(options)) return ReplyGrammars{};
  std::string key = key_of(options);
  {
    const MutexLock lock(mutex_);
    if (const auto known = found_.find(key); known != found_.end()) {
      entries_.splice(entries_.end(), entries_, known->second);
      return known->second->grammars;
    }
  }
  // Compiled without the lock; two threads may compile the same grammar once each.
  auto compiled = compile_grammars(format, options);
  // Marks that were not tokenized any more are missing in what was compiled.
  if (EndableWork::has_ended()) return fail(ErrorCode::limit_wait, "the request has ended");
  const std::size_t bytes = sizeof(Entry) + (compiled ? compiled->bytes() : compiled.error().message.size());
  const MutexLock lock(mutex_);
  if (bytes > bytes_max_ || found_.contains(key)) return compiled;
  bytes_ += bytes;
  found_[key] = entries_.insert(entries_.end(), {key, compiled, bytes});
  while (bytes_ > bytes_max_) {
    bytes_ -= entries_.front().bytes;
    found_.erase(entries_.front().key);
    entries_.pop_front();
  }
  return compiled;
}

}  // namespace uma::engine
