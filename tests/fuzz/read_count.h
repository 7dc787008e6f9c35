// Counts the memory reads of sources compiled with -fsanitize-coverage=trace-loads (CMakeLists.txt lists them), including
// inlined loops of the standard library: a measure of work that is independent of time and machine. Include it in one source
// file of a program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/check.h"

namespace uma::fuzz {

inline std::uint64_t reads_count = 0;
inline std::uint64_t reads_max = std::numeric_limits<std::uint64_t>::max();  // The program ends after this number of reads.

// For compiling a grammar: five times the maximum that was found, which takes a tenth of a second in a release build.
inline constexpr std::uint64_t kGrammarReadsMax = 100'000'000;

// Sets the limit for the following reads.
inline void allow_reads(std::uint64_t count) {
  reads_count = 0;
  reads_max = count;
}

// Helps to choose a limit: UMA_FUZZ_COST=1 prints the cost of an input.
inline void show_cost(const char* what, std::uint64_t count) {
  if (std::getenv("UMA_FUZZ_COST") != nullptr) std::fprintf(stderr, "%s: %llu\n", what, static_cast<unsigned long long>(count));
}

}  // namespace uma::fuzz

// The names are the compiler's. NOLINTBEGIN(bugprone-reserved-identifier)
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
