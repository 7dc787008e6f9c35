// Properties: any grammar is compiled or refused within a bound of work, and never crashes; with a valid grammar, each byte of
// the text after the NUL leads to kNowhere or to a place, and a second reading leads to the same; and a unit of the reader's
// work, which bounds the wait of other streams (GrammarReader::limit_work), takes a bounded number of memory reads.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "grammar/grammar.h"
#include "read_count.h"

using uma::fuzz::allow_reads;
using uma::fuzz::reads_count;
using uma::fuzz::show_cost;
using uma::grammar::Grammar;
using uma::grammar::GrammarReader;

namespace {

// Three times the maximum that was found, plus the tables for each byte.
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
  // Work beyond the limit, to complete a started item, is small.
  allow_reads(2 * kReadsPerUnitMax * kUnitsMax);
  const GrammarReader::Place place = reader.next(GrammarReader::kStart, text);
  (void)reader.can_end(place);
  show_cost("units to read", reader.work());
  show_cost("reads to read", reads_count);
  UMA_CHECK(reads_count <= kReadsPerUnitMax * reader.work() + kReadsPerByteMax * (text.size() + 1));
  reader.limit_work(kUnitsMax);
  allow_reads(2 * kReadsPerUnitMax * kUnitsMax);
  if (reader.next(GrammarReader::kStart, text) != place) {
    // Only a look-up with more new work than allowed may fail.
    UMA_CHECK(place == GrammarReader::kNowhere && reader.work() >= kUnitsMax);
  }
  return 0;
}
