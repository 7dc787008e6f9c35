// The scenarios of the bench. Each function drives one server through a Run and returns the rows of its table
// (bench/README.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "uma-bench/measure.h"
#include "uma-bench/run.h"
#include "uma-bench/trace_file.h"

namespace uma::bench {

struct Outcome {
  Figures figures{};
  std::vector<Failure> failures{};
  std::string csv{};  // With a header line.
};

// All streams start together, each with its own prompt.
struct BurstOptions {
  int streams = 4;
  int prompt_words = 31;  // 32 with the token that begins a text.
  int tokens = 64;
};
[[nodiscard]] Outcome run_burst(Run& run, const BurstOptions& options);

// Streams decode. Once each stream has generated its quiet tokens, long prompts arrive together.
struct StormOptions {
  int streams = 2;
  int prompt_words = 30;
  int tokens = 400;  // Per stream, including the quiet ones.
  int quiet_tokens = 100;
  int long_prompts = 4;
  int long_words = 1900;
  int long_tokens = 16;
};
[[nodiscard]] Outcome run_storm(Run& run, const StormOptions& options);

// A long document is summarised in class background, beside a series of short interactive prompts.
struct MixedOptions {
  int short_prompts = 3;
  int short_words = 24;
  int short_tokens = 64;
  int long_words = 1500;
  int long_tokens = 128;
  double delay_ms = 200;  // Time between arrivals.
};
[[nodiscard]] Outcome run_mixed(Run& run, const MixedOptions& options);

// Users chat in turns, all at once. There may be more users than slots.
struct ChatOptions {
  int users = 12;
  int turns = 3;
  int first_words = 640;
  int words = 24;  // Words of each later turn.
  int tokens = 24;
  // Called before the last turn of all users, while no client is connected: the server may be restarted meanwhile.
  std::function<void()> before_last_turn = nullptr;
};
[[nodiscard]] Outcome run_chat(Run& run, const ChatOptions& options);

// One stream at a time at each context length; measures the decoding speed at that depth.
struct LongContextOptions {
  std::vector<int> contexts{16384, 32768};
  int tokens = 64;
};
[[nodiscard]] Outcome run_long_ctx(Run& run, const LongContextOptions& options);

// Short requests in sequence; measures the overhead of the protocol.
struct IpcOverheadOptions {
  int rounds = 50;
  int prompt_words = 7;
  int tokens = 32;
};
// Sends the same kind of request over each protocol in turn, one of each per round, in alternating order. The outcomes have the
// order of `listeners`; all but the first have the medians of the rounds' ratios to the first.
[[nodiscard]] std::vector<Outcome> run_ipc_overhead(std::span<Run* const> listeners, const IpcOverheadOptions& options);

// Requests arrive as recorded, `speedup` times as fast.
struct TraceOptions {
  double speedup = 1;
  int prompt_words_max = 0;  // Longer prompts are cut; 0: no limit.
  int tokens_max = 0;        // Longer answers are cut; 0: no limit.
};
[[nodiscard]] Outcome run_trace(Run& run, const TraceOptions& options, std::span<const TraceRequest> requests);

}  // namespace uma::bench
