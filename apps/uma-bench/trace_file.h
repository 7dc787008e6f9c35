// Reads recorded loads for the scenario `trace`.
#pragma once

#include <cstdint>
#include <expected>
#include <istream>
#include <string>
#include <vector>

namespace uma::bench {

struct TraceRequest {
  double at_ms = 0;  // Time since the first request.
  int prompt_tokens = 0;
  int generated_tokens = 0;
  std::vector<std::uint64_t> blocks{};  // Ids of the prompt's blocks of kTraceBlockTokens; equal ids have equal text.
};

inline constexpr int kTraceBlockTokens = 512;

// The first `limit` requests of either form, told apart by its first line:
//   CSV    TIMESTAMP,ContextTokens,GeneratedTokens with times such as 2023-11-16 18:15:46.6805900
//   JSONL  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
// The error names the line that could not be read.
[[nodiscard]] std::expected<std::vector<TraceRequest>, std::string> read_trace(std::istream& in, std::size_t limit);

}  // namespace uma::bench
