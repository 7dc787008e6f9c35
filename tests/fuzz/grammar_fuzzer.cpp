// Properties: whatever the grammar, it is compiled or refused within a bound of work, and never crashes; along one that is good
// the text behind the NUL leads nowhere or on, twice to the same place; and a unit of work that the reader counts, which is
// what streams beside it wait for (GrammarReader::limit_work), is at most so many reads of memory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "llm/grammar.h"
#include "read_count.h"

using uma::fuzz::allow_reads;
using uma::fuzz::reads_count;
using uma::fuzz::show_cost;
using uma::llm::Grammar;
using uma::llm::GrammarReader;

namespace {

// Following it: three times the most that was found, and the tables that are filled for each byte.
constexpr std::uint64_t kReadsPerUnitMax = 100;
constexpr std::uint64_t kReadsPerByteMax = 4'000;
// As for one token (TokenConstraint).
constexpr std::uint64_t kUnitsMax = 1u << 19;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  allow_reads(uma::fuzz::kGrammarReadsMax);
  const auto grammar = Grammar::parse(bytes.substr(0, end));
  show_cost("reads to compile", reads_count);
  if (!grammar) {
    UMA_CHECK(!grammar.error().message.empty());
    return 0;
  }
  const std::string_view text = end == std::string_view::npos ? "aaa" : bytes.substr(end + 1);
  GrammarReader reader(*grammar);
  reader.limit_work(kUnitsMax);
  // What is done beyond its limit, to the end of what it has begun, is small.
  allow_reads(2 * kReadsPerUnitMax * kUnitsMax);
  const GrammarReader::Place place = reader.next(GrammarReader::kStart, text);
  (void)reader.can_end(place);
  show_cost("units to read", reader.work());
  show_cost("reads to read", reads_count);
  UMA_CHECK(reads_count <= kReadsPerUnitMax * reader.work() + kReadsPerByteMax * (text.size() + 1));
  reader.limit_work(kUnitsMax);
  allow_reads(2 * kReadsPerUnitMax * kUnitsMax);
  if (reader.next(GrammarReader::kStart, text) != place) {
    // More was found out this time than there was work left for before.
    UMA_CHECK(place == GrammarReader::kNowhere && reader.work() >= kUnitsMax);
  }
  return 0;
}
