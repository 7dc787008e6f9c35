// A cache of compiled grammars and tools for one model: clients send the same tools and schemas again and again, and all
// choices of a request share theirs. Any thread.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "chat/calls/tool_format.h"
#include "chat/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "grammar/grammar.h"

namespace uma::engine {

// The grammars of a reply, where null is no constraint, and the tools that it may call.
struct ReplyGrammars {
  std::shared_ptr<const grammar::Grammar> whole;  // For the whole text: a grammar, a schema or a forced tool call.
  // For a reply to a chat in which thoughts, marks or calls may be beside the text of `whole` (chat/answer_grammar.h).
  std::shared_ptr<const grammar::Grammar> answer;
  std::shared_ptr<const grammar::Grammar> calls;  // For the text behind the mark of an optional tool call.
  std::shared_ptr<const chat::Tools> tools;       // Null: there are none.
  bool has_thoughts = false;                      // The texts of `whole` may have thoughts themselves.
  bool is_json = false;                           // The texts of `whole` are JSON, so blanks before them do not count.
  std::vector<std::string> left_out{};            // Keywords of schemas that no grammar enforces (Usage::schema_left_out).

  [[nodiscard]] std::size_t bytes() const {
    std::size_t bytes = tools ? chat::bytes_of(*tools) : 0;
    for (const auto& grammar : {whole, answer, calls}) bytes += grammar ? grammar->bytes() : 0;
    return bytes;
  }
};

// Whether a reply with these options needs a grammar.
[[nodiscard]] bool needs_grammars(const GenerateOptions& options);
// Compiles the grammars. Errors: E_PROTO_003 with the field.
[[nodiscard]] Expected<ReplyGrammars> compile_grammars(const chat::ChatFormat& format, const GenerateOptions& options);

class GrammarCache {
 public:
  explicit GrammarCache(std::size_t bytes_max = 16ul << 20) : bytes_max_(bytes_max) {}

  // The result of compile_grammars(), which is cached. Requires: the same format in every call. Errors are cached, too.
  [[nodiscard]] Expected<ReplyGrammars> compile(const chat::ChatFormat& format, const GenerateOptions& options);

 private:
  struct Entry {
    std::string key;
    Expected<ReplyGrammars> grammars;
    std::size_t bytes = 0;
  };

  const std::size_t bytes_max_;
  Mutex mutex_;
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // Least recently used first.
  std::unordered_map<std::string, std::list<Entry>::iterator> found_ GUARDED_BY(mutex_);
};

}  // namespace uma::engine
