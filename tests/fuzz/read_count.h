// Counts the reads of memory in sources that are compiled with -fsanitize-coverage=trace-loads (CMakeLists.txt lists them),
// their loops over the standard library's containers included: a measure of the work they do that depends on no clock and no
// machine. For one source file of a program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/check.h"

namespace uma::fuzz {

inline std::uint64_t reads_count = 0;
inline std::uint64_t reads_max = std::numeric_limits<std::uint64_t>::max();  // the program ends beyond so many

// Compiling a grammar: five times the most that was found, which takes a tenth of a second in a release build.
inline constexpr std::uint64_t kGrammarReadsMax = 100'000'000;

// From now on.
inline void allow_reads(std::uint64_t count) {
  reads_count = 0;
  reads_max = count;
}

// For who sets a bound: UMA_FUZZ_COST=1 shows what an input costs.
inline void show_cost(const char* what, std::uint64_t count) {
  if (std::getenv("UMA_FUZZ_COST") != nullptr) std::fprintf(stderr, "%s: %llu\n", what, static_cast<unsigned long long>(count));
}

}  // namespace uma::fuzz

// Their names are the compiler's.
// NOLINTBEGIN(bugprone-reserved-identifier)
#define UMA_COUNT_READS_OF(bytes)                                                                         \
  extern "C" __attribute__((no_sanitize("all"))) void __sanitizer_cov_load##bytes(const void* /*place*/); \
  void __sanitizer_cov_load##bytes(const void* /*place*/) {                                               \
    UMA_CHECK(++uma::fuzz::reads_count <= uma::fuzz::reads_max);                                          \
  }
UMA_COUNT_READS_OF(1)
UMA_COUNT_READS_OF(2)
UMA_COUNT_READS_OF(4)
UMA_COUNT_READS_OF(8)
UMA_COUNT_READS_OF(16)
#undef UMA_COUNT_READS_OF
// NOLINTEND(bugprone-reserved-identifier)
