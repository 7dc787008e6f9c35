// Properties: any schema is compiled or refused within a bound of work, and never crashes; the resulting GBNF has a bounded
// length, is valid, and compiles within its own bound; and each byte of a text leads to kNowhere or to a place. The input is a
// schema, followed by a NUL and this text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "read_count.h"

using uma::fuzz::allow_reads;
using uma::fuzz::reads_count;
using uma::fuzz::show_cost;
using uma::grammar::Grammar;
using uma::grammar::GrammarReader;

namespace {

// Twice the maximum that was found: merging up to the budget takes two tenths of a second in a release build.
constexpr std::uint64_t kSchemaReadsMax = 200'000'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  allow_reads(kSchemaReadsMax);
  const auto gbnf = uma::grammar::json_schema_gbnf(bytes.substr(0, end));
  show_cost("reads to write it as GBNF", reads_count);
  if (!gbnf) {
    UMA_CHECK(!gbnf.error().message.empty());
    return 0;
  }
  show_cost("bytes of GBNF", gbnf->size());
  UMA_CHECK(gbnf->size() <= uma::grammar::kSchemaBytesMax);
  allow_reads(uma::fuzz::kGrammarReadsMax);
  const auto grammar = Grammar::parse(*gbnf);
  show_cost("reads to compile that", reads_count);
  if (!grammar) {
    // Other errors would be about our own GBNF.
    const std::string_view message = grammar.error().message;
    UMA_CHECK(message.contains("no finite text") || message.contains("too large") || message.contains("at most"));
    return 0;
  }
  GrammarReader reader(*grammar);
  constexpr std::uint64_t kUnitsMax = 1u << 19;  // As for one token (TokenConstraint).
  reader.limit_work(kUnitsMax);
  allow_reads(1'000 * kUnitsMax);
  UMA_CHECK(reader.can_go_on(GrammarReader::kStart));  // No JSON text is empty.
  if (end != std::string_view::npos) (void)reader.can_end(reader.next(GrammarReader::kStart, bytes.substr(end + 1)));
  return 0;
}
