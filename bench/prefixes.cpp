// Measures the index of stored states (kv::PrefixIndex) at a million blocks of 16 tokens: how long it takes to add a state, and
// to find the one that shares the longest beginning with a prompt.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "base/random.h"
#include "kv/prefix_index.h"

namespace {

using namespace uma;

constexpr std::size_t kBlocks = 1'000'000;
constexpr std::size_t kBlockTokens = 16;

// States of `tokens` tokens each, the first `shared` of which are the same in all of them.
struct Load {
  const char* text;
  std::size_t tokens;
  std::size_t shared;
};

template <typename Work>
double us_each(std::size_t count, Work work) {
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) work(i);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - began;
  return spent.count() / static_cast<double>(count);
}

// Returns false if the index did not find the state that a prompt continues.
bool measure(const Load& load) {
  const std::size_t count = kBlocks * kBlockTokens / load.tokens;
  Random random(1);
  std::vector<std::vector<Token>> states(count, std::vector<Token>(load.tokens));
  for (std::vector<Token>& state : states) {
    for (std::size_t i = 0; i < state.size(); ++i)
      state[i] = i < load.shared ? 7 : static_cast<Token>(random.next_below(100'000));
  }
  kv::PrefixIndex index;
  const double add_us = us_each(count, [&](std::size_t i) { index.add(i + 1, "model", states[i]); });
  std::size_t found = 0;
  const std::size_t queries = 2000;
  const double find_us = us_each(queries, [&](std::size_t) {
    const std::size_t wanted = random.next_below(count);
    const auto match = index.longest_common("model", states[wanted]);
    found += match && match->tokens_count == load.tokens ? 1 : 0;
  });
  std::printf("%-52s %9zu %10.2f %10.2f\n", load.text, count, add_us, find_us);
  return found == queries;
}

}  // namespace

int main() {
  std::printf("%-52s %9s %10s %10s\n", "states", "number", "add, us", "find, us");
  bool found_all = true;
  for (const Load& load :
       {Load{"of 256 tokens, nothing in common", 256, 0}, Load{"of 256 tokens, 200 in common", 256, 200},
        Load{"of 4,096 tokens, 4,000 in common", 4096, 4000}, Load{"of 32,768 tokens, 32,000 in common", 32'768, 32'000}}) {
    found_all = measure(load) && found_all;
  }
  if (!found_all) std::fprintf(stderr, "prefixes: the index did not find a state that it has\n");
  return found_all ? 0 : 1;
}
