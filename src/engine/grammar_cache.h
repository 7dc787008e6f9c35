// What replies must follow, compiled once: clients send the same tools and schemas again and again, and all choices of a
// request have the same. Of one model. Any thread.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "capability/chat.h"
#include "core/error.h"
#include "core/request.h"
#include "llm/grammar.h"

namespace uma::engine {

// What a reply must follow; null: nothing.
struct ReplyGrammars {
  std::shared_ptr<const llm::Grammar> whole;  // its text: a grammar, a schema or a call that is forced
  std::shared_ptr<const llm::Grammar> calls;  // what comes behind the mark of a call that is not

  [[nodiscard]] std::size_t bytes() const { return (whole ? whole->bytes() : 0) + (calls ? calls->bytes() : 0); }
};

// Whether there is something that a reply must follow.
[[nodiscard]] bool needs_grammars(const GenerateOptions& options);
// Compiled anew. `schema_field` is what the request calls the schema of its reply. Errors: E_PROTO_003 with the field.
[[nodiscard]] Expected<ReplyGrammars> compile_grammars(const capability::ChatFormat& format, const GenerateOptions& options,
                                                       std::string_view schema_field);

class GrammarCache {
 public:
  explicit GrammarCache(std::size_t bytes_max = 16ul << 20) : bytes_max_(bytes_max) {}

  // As compile_grammars(), of the same format always. What was refused is refused again without being compiled.
  [[nodiscard]] Expected<ReplyGrammars> compile(const capability::ChatFormat& format, const GenerateOptions& options,
                                                std::string_view schema_field = "response_format.json_schema.schema");

 private:
  struct Entry {
    std::string key;
    Expected<ReplyGrammars> grammars;
    std::size_t bytes = 0;
  };

  const std::size_t bytes_max_;
  Mutex mutex_;
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // the last used one at the end
  std::unordered_map<std::string, std::list<Entry>::iterator> found_ GUARDED_BY(mutex_);
};

}  // namespace uma::engine
