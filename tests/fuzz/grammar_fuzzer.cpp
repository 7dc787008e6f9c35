// Property: whatever the grammar, reading it ends soon and never crashes; along one that is good the text behind the NUL leads
// nowhere or on, twice to the same place.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "llm/grammar.h"

using uma::llm::Grammar;
using uma::llm::GrammarReader;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = bytes.find('\0');
  const auto grammar = Grammar::parse(bytes.substr(0, end));
  if (!grammar) {
    UMA_CHECK(!grammar.error().message.empty());
    return 0;
  }
  const std::string_view text = end == std::string_view::npos ? "aaa" : bytes.substr(end + 1);
  GrammarReader reader(*grammar);
  const GrammarReader::Place place = reader.next(GrammarReader::kStart, text);
  (void)reader.can_end(place);
  UMA_CHECK(reader.next(GrammarReader::kStart, text) == place);
  return 0;
}
