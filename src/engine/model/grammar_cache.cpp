#include "engine/model/grammar_cache.h"

#include <format>
#include <string_view>
#include <utility>

#include "base/sha256.h"
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
       {std::string_view(options.grammar), std::string_view(options.json_schema), options.schema_field,
        std::string_view(chat.tools), std::string_view(chat.tool_name), std::string_view(chat.template_arguments)}) {
    add(text);
  }
  add(std::format("{} {} {} {}", std::to_underlying(chat.tool_choice), chat.has_parallel_calls, chat.splits_reasoning,
                  options.strict_schema));
  return hash.hex();
}

// Without the tools.
Expected<ReplyGrammars> compile_constraints(const chat::ChatFormat& format, const GenerateOptions& options,
                                            grammar::LeftOut& left_out) {
  using Compiled = Expected<std::shared_ptr<const grammar::Grammar>>;
  const auto whole = [](const Compiled& grammar, std::string_view field,
                        std::string_view what = "") -> Expected<ReplyGrammars> {
    if (grammar) return ReplyGrammars{.whole = *grammar, .calls = nullptr, .tools = nullptr};
    const Error& error = grammar.error();
    return std::unexpected(
        Error{error.code, std::format("field \"{}\": {}{}", field, what, error.message), std::string(field)});
  };
  const bool is_forced = options.chat.tool_choice != ToolChoice::automatic;
  if (is_forced && !(options.grammar.empty() && options.json_schema.empty())) {
    return std::unexpected(Error{ErrorCode::proto_field,
                                 "a forced \"tool_choice\" excludes a grammar or a \"response_format\": send one of the two",
                                 "tool_choice"});
  }
  if (is_forced) {
    const auto gbnf = format.forced_grammar(options.chat, &left_out);
    if (!gbnf) return std::unexpected(gbnf.error());
    return whole(grammar::Grammar::parse(*gbnf), "tools", "their schemas cannot be combined into a grammar: ");
  }
  if (!options.grammar.empty()) return whole(grammar::Grammar::parse(options.grammar), "grammar");
  if (!options.json_schema.empty()) {
    const auto grammar = grammar::json_schema_grammar(options.json_schema, &left_out);
    left_out.set_field(options.schema_field);
    if (grammar) return ReplyGrammars{.whole = *grammar, .calls = nullptr, .tools = nullptr};
    return std::unexpected(Error{grammar.error().code, "the schema of the reply's format: " + grammar.error().message,
                                 std::string(options.schema_field)});
  }
  if (options.chat.tools.empty()) return ReplyGrammars{};
  auto calls = format.begun_call_grammar(options.chat, &left_out);
  if (!calls) return std::unexpected(calls.error());
  return ReplyGrammars{.whole = nullptr, .calls = std::move(*calls), .tools = nullptr};
}

}  // namespace

bool needs_grammars(const GenerateOptions& options) {
  // A forced tool call has tools, too.
  return !options.chat.tools.empty() || !options.grammar.empty() || !options.json_schema.empty();
}

Expected<ReplyGrammars> compile_grammars(const chat::ChatFormat& format, const GenerateOptions& options) {
  grammar::LeftOut left_out(options.strict_schema);
  auto compiled = compile_constraints(format, options, left_out);
  if (compiled) compiled->left_out = left_out.places();
  if (compiled && !options.chat.tools.empty())
    compiled->tools = std::make_shared<const chat::Tools>(chat::tools_of(options.chat.tools));
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
