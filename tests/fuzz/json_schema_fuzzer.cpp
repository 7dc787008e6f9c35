// Properties: whatever the schema, it is compiled or refused within a bound of work, and never crashes; what it makes is GBNF
// of a bounded length that we read, compiled within its own bound; and a text that is read along it, chosen from the input,
// leads nowhere or on. The input is a schema, and behind a NUL that text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "capability/json_schema.h"
#include "llm/grammar.h"
#include "read_count.h"

using uma::fuzz::allow_reads;
using uma::fuzz::reads_count;
using uma::fuzz::show_cost;
using uma::llm::Grammar;
using uma::llm::GrammarReader;

namespace {

// Twice the most that was found: as much merging as there is a budget for, two tenths of a second in a release build.
constexpr std::uint64_t kSchemaReadsMax = 200'000'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  allow_reads(kSchemaReadsMax);
  const auto gbnf = uma::capability::json_schema_gbnf(bytes.substr(0, end));
  show_cost("reads to write it as GBNF", reads_count);
  if (!gbnf) {
    UMA_CHECK(!gbnf.error().message.empty());
    return 0;
  }
  show_cost("bytes of GBNF", gbnf->size());
  UMA_CHECK(gbnf->size() <= uma::capability::kSchemaBytesMax);
  allow_reads(uma::fuzz::kGrammarReadsMax);
  const auto grammar = Grammar::parse(*gbnf);
  show_cost("reads to compile that", reads_count);
  if (!grammar) {
    // Only these: everything else in it is ours.
    const std::string_view message = grammar.error().message;
    UMA_CHECK(message.contains("no finite text") || message.contains("too large") || message.contains("at most"));
    return 0;
  }
  GrammarReader reader(*grammar);
  constexpr std::uint64_t kUnitsMax = 1u << 19;  // as for one token (TokenConstraint)
  reader.limit_work(kUnitsMax);
  allow_reads(1'000 * kUnitsMax);
  UMA_CHECK(reader.can_go_on(GrammarReader::kStart));  // no JSON text is empty
  if (end != std::string_view::npos) (void)reader.can_end(reader.next(GrammarReader::kStart, bytes.substr(end + 1)));
  return 0;
}
