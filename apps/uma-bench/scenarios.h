// The loads of the bench. Each function drives one server through a Run and returns what its table shows (bench/README.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "measure.h"
#include "run.h"
#include "trace_file.h"

namespace uma::bench {

struct Outcome {
  Figures figures{};
  std::vector<Failure> failures{};
  std::string csv{};  // with its header line
};

// All streams start together, each with its own prompt.
struct BurstOptions {
  int streams = 4;
  int prompt_words = 31;  // with the token that begins a text: 32
  int tokens = 64;
};
[[nodiscard]] Outcome run_burst(Run& run, const BurstOptions& options);

// Streams decode; once each has had its quiet tokens, long prompts arrive together.
struct StormOptions {
  int streams = 2;
  int prompt_words = 30;
  int tokens = 400;  // per stream, quiet ones included
  int quiet_tokens = 100;
  int long_prompts = 4;
  int long_words = 1900;
  int long_tokens = 16;
};
[[nodiscard]] Outcome run_storm(Run& run, const StormOptions& options);

// A long document to summarise, in class background, and short interactive prompts that come one after the other beside it.
struct MixedOptions {
  int short_prompts = 3;
  int short_words = 24;
  int short_tokens = 64;
  int long_words = 1500;
  int long_tokens = 128;
  double delay_ms = 200;  // between arrivals
};
[[nodiscard]] Outcome run_mixed(Run& run, const MixedOptions& options);

// Users talk in turns, all at once; there may be more of them than slots.
struct ChatOptions {
  int users = 12;
  int turns = 3;
  int first_words = 640;
  int words = 24;  // of every later turn
  int tokens = 24;
  // If set, called before everybody's last turn, when nobody is connected: the server may be started again meanwhile.
  std::function<void()> before_last_turn = nullptr;
};
[[nodiscard]] Outcome run_chat(Run& run, const ChatOptions& options);

// One stream at a time, at each context length; speed of decoding at that depth.
struct LongContextOptions {
  std::vector<int> contexts{16384, 32768};
  int tokens = 64;
};
[[nodiscard]] Outcome run_long_ctx(Run& run, const LongContextOptions& options);

// Short requests one after the other: what the way to the model costs.
struct IpcOverheadOptions {
  int rounds = 50;
  int prompt_words = 7;
  int tokens = 32;
};
// The same kind of request over each door in turn, one of each a round; who begins changes. The outcomes are in the doors'
// order; those after the first have the medians of the rounds' ratios to it.
[[nodiscard]] std::vector<Outcome> run_ipc_overhead(std::span<Run* const> doors, const IpcOverheadOptions& options);

// Requests arrive as recorded, `speedup` times as fast.
struct TraceOptions {
  double speedup = 1;
  int prompt_words_max = 0;  // longer prompts are cut; 0: none are
  int tokens_max = 0;        // likewise
};
[[nodiscard]] Outcome run_trace(Run& run, const TraceOptions& options, std::span<const TraceRequest> requests);

}  // namespace uma::bench
