// Compares streams that decode while a prompt arrives: with one context that computes the prompt in chunks, and with two.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <format>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/system/thread_name.h"
#include "umad/tune/tuner.h"

namespace uma::umad {
namespace {

constexpr std::int32_t kChunkRows = 64;  // The smallest chunk that the library computes efficiently (docs/decisions/0005).
constexpr std::int32_t kStormStreams = 2;
constexpr std::int32_t kStormTokens = 64;  // Tokens cached at first for each of these streams.

}  // namespace

// One context that decodes a token for every stream and computes a chunk of the prompt in turn.
Expected<Measurement> Tuner::storm_in_chunks(const Candidate& candidate) {
  auto made = make_context(candidate, kStormStreams + 1, std::max(work_.prompt_tokens, kStormTokens + storm_ticks_) + 1);
  if (!made) return std::unexpected(made.error());
  llm::Context& context = **made;
  for (std::int32_t stream = 0; stream < kStormStreams; ++stream) {
    auto fed = feed(context, stream, std::span(tokens_).first(kStormTokens));
    if (!fed) return std::unexpected(fed.error());
  }
  std::span<const Token> rest = prompt();
  double worst_ms = 0;
  const TimePoint begin = clock_.now();
  for (std::int32_t tick = 0; tick < storm_ticks_ || !rest.empty(); ++tick) {
    const TimePoint tick_begin = clock_.now();
    const bool has_streams = tick < storm_ticks_;
    if (has_streams) {
      context.set_threads(candidate.decode_threads);
      if (auto ms = decode_once(context, kStormStreams); !ms) return std::unexpected(ms.error());
    }
    if (!rest.empty()) {
      const std::size_t rows = has_streams ? std::min<std::size_t>(kChunkRows, rest.size()) : rest.size();
      context.set_threads(candidate.prefill_threads);
      if (auto ms = feed(context, kStormStreams, rest.first(rows)); !ms) return std::unexpected(ms.error());
      rest = rest.subspan(rows);
    }
    if (has_streams) worst_ms = std::max(worst_ms, to_ms(clock_.now() - tick_begin));
  }
  return Measurement{worst_ms, to_ms(clock_.now() - begin)};
}

// Two contexts with separate threads and cores. The finished prompt is handed over between two ticks.
Expected<Measurement> Tuner::storm_in_lanes(const Candidate& candidate, std::int32_t decode_threads) {
  Candidate beside = candidate;
  beside.decode_threads = decode_threads;
  beside.prefill_threads = std::max(1, settings_.cores - decode_threads);
  const std::int32_t tokens = std::max(work_.prompt_tokens, kStormTokens + storm_ticks_) + 1;
  auto streams = make_context(beside, kStormStreams + 1, tokens);
  if (!streams) return std::unexpected(streams.error());
  auto reader = make_context(beside, 1, tokens);
  if (!reader) return std::unexpected(reader.error());
  llm::Context& context = **streams;
  for (std::int32_t stream = 0; stream < kStormStreams; ++stream) {
    auto fed = feed(context, stream, std::span(tokens_).first(kStormTokens));
    if (!fed) return std::unexpected(fed.error());
  }
  // A first call starts the prompt lane's threads and touches its memory.
  (*reader)->set_threads(beside.prefill_threads);

  Bytes state;
  Expected<Unit> read = Unit{};
  std::atomic<bool> is_read{false};
  const TimePoint begin = clock_.now();
  std::jthread thread([&] {
    set_thread_name("uma-tune-read");
    const auto fed = feed(**reader, 0, prompt());
    if (fed) {
      read = (*reader)->save_state(0, 0, work_.prompt_tokens, state);
    } else {
      read = std::unexpected(fed.error());
    }
    is_read.store(true);
    is_read.notify_all();
  });

  double worst_ms = 0;
  bool is_handed_over = false;
  context.set_threads(beside.decode_threads);
  for (std::int32_t tick = 0; tick < storm_ticks_ || !is_handed_over; ++tick) {
    const TimePoint tick_begin = clock_.now();
    const bool has_streams = tick < storm_ticks_;
    if (has_streams) {
      if (auto ms = decode_once(context, kStormStreams); !ms) return std::unexpected(ms.error());
    } else {
      is_read.wait(false);
    }
    if (!is_handed_over && is_read.load()) {
      if (!read) return std::unexpected(read.error());
      auto loaded = context.load_state(kStormStreams, 0, work_.prompt_tokens, context.fit_state(state));
      if (!loaded) return std::unexpected(loaded.error());
      is_handed_over = true;
      context.set_threads(candidate.decode_threads);
    }
    if (has_streams) worst_ms = std::max(worst_ms, to_ms(clock_.now() - tick_begin));
  }
  return Measurement{worst_ms, to_ms(clock_.now() - begin)};
}

Expected<Unit> Tuner::compare_lanes() {
  result_.lanes = false;
  if (is_on_devices(result_.model)) return Unit{};  // There, two contexts would only take turns.
  Comparison comparison{.title = "prompts beside streams", .is_lanes = true, .columns = {0, 1}};
  comparison.trials.push_back({.name = "chunks"});
  // Without a setting, half of the threads decode beside a prompt.
  std::vector<std::int32_t> decode_threads;
  for (const std::int32_t threads : {settings_.cores / 2, settings_.cores / 4, 1}) {
    if (threads >= 1 && settings_.cores >= 2 && !std::ranges::contains(decode_threads, threads))
      decode_threads.push_back(threads);
  }
  for (const std::int32_t threads : decode_threads) {
    comparison.trials.push_back({.name = std::format("lanes {} + {}", threads, settings_.cores - threads)});
  }
  if (decode_threads.empty()) {
    comparison.choice = {.index = 0, .gain = 0, .reason = "lanes need two cores"};
    result_.comparisons.push_back(std::move(comparison));
    return Unit{};
  }
  comparison.default_index = 1;
  on_progress_(comparison.title);
  for (std::size_t repetition = 0; repetition < kRepetitionsMax; ++repetition) {
    const double begin_s = elapsed_s();
    for (std::size_t step = 0; step < comparison.trials.size(); ++step) {
      const std::size_t i = repetition % 2 == 0 ? step : comparison.trials.size() - 1 - step;
      auto measurement = i == 0 ? storm_in_chunks(chosen()) : storm_in_lanes(chosen(), decode_threads[i - 1]);
      if (!measurement) return std::unexpected(measurement.error());
      comparison.trials[i].repetitions.push_back(*std::move(measurement));
    }
    if (!has_time(elapsed_s() - begin_s, repetition + 1, settings_.seconds)) break;
  }
  comparison.choice = choose_lanes(comparison.trials, comparison.default_index);
  comparison.remark = std::format("{} streams of {} tokens each while a prompt of {} arrives; chunks of {}", kStormStreams,
                                  storm_ticks_, work_.prompt_tokens, kChunkRows);
  if (comparison.choice.index > 0) {
    result_.lanes = true;
    result_.decode_threads_beside_prefill = decode_threads[comparison.choice.index - 1];
    result_.prefill_threads_beside_decode = settings_.cores - result_.decode_threads_beside_prefill;
  }
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

}  // namespace uma::umad
