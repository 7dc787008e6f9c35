// Property: whatever the schema, compiling it ends soon and never crashes, what it makes is GBNF that we read, and a text that
// is read along it, chosen from the input, leads nowhere or on. The input is a schema, and behind a NUL that text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "capability/json_schema.h"
#include "llm/grammar.h"

using uma::llm::Grammar;
using uma::llm::GrammarReader;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  const auto gbnf = uma::capability::json_schema_gbnf(bytes.substr(0, end));
  if (!gbnf) {
    UMA_CHECK(!gbnf.error().message.empty());
    return 0;
  }
  const auto grammar = Grammar::parse(*gbnf);
  if (!grammar) {
    // Only these: everything else in it is ours.
    const std::string_view message = grammar.error().message;
    UMA_CHECK(message.contains("no finite text") || message.contains("too large") || message.contains("at most"));
    return 0;
  }
  GrammarReader reader(*grammar);
  UMA_CHECK(reader.can_go_on(GrammarReader::kStart));  // no JSON text is empty
  if (end != std::string_view::npos) (void)reader.can_end(reader.next(GrammarReader::kStart, bytes.substr(end + 1)));
  return 0;
}
