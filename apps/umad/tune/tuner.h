// The measurements of `umad tune`, each of which builds on the choices of those before.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "llm/model.h"
#include "umad/tune/tune_choice.h"
#include "umad/tune/tune_measure.h"

namespace uma::umad {

inline constexpr std::size_t kRepetitionsMax = 15;

// Amount of work per repetition.
struct Workload {
  std::int32_t prompt_tokens = 0;
  std::int32_t decode_calls = 0;  // Decode calls for each number of streams.
};
// A context's options, and the threads of decode calls and of prefill calls.
struct Candidate {
  llm::ContextOptions options;
  std::int32_t decode_threads = 1;
  std::int32_t prefill_threads = 1;
  std::size_t model = 0;
};

class Interruption final : public llm::CallMonitor {
 public:
  explicit Interruption(const std::atomic<bool>& interrupted) : interrupted_(interrupted) {}
  bool wants_end() override { return interrupted_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>& interrupted_;
};

// The measurements of one repetition.
struct Wanted {
  bool decode = true;
  bool prompt = true;
};

class Tuner {
 public:
  Tuner(std::span<const PlacedModel> models, const TuneSettings& settings, const Clock& clock,
        const std::atomic<bool>& interrupted, const std::function<void(const std::string&)>& on_progress)
      : models_(models),
        settings_(settings),
        clock_(clock),
        interrupted_(interrupted),
        interruption_(interrupted),
        on_progress_(on_progress),
        started_(clock.now()) {}

  Expected<TuneResult> run();

 private:
  Expected<Unit> calibrate();
  Expected<Unit> compare_devices();
  Expected<Unit> compare_threads();
  Expected<Unit> compare_ubatch();
  Expected<Unit> compare_flash_attention();
  Expected<Unit> compare_layout();
  Expected<Unit> compare_types();
  Expected<Unit> compare_lanes();

  // Repeats all candidates in turn until the comparison's share of the time is used. A candidate whose context cannot be
  // created is marked impossible; for the default candidate that is an error.
  Expected<Unit> repeat(Comparison& comparison, std::span<const Candidate> candidates, Wanted wanted, double until_share);
  Expected<Measurement> measure(const Candidate& candidate, Wanted wanted);
  Expected<Measurement> storm_in_chunks(const Candidate& candidate);
  Expected<Measurement> storm_in_lanes(const Candidate& candidate, std::int32_t decode_threads);

  // Appends the tokens to a sequence, in calls as large as the context takes. Returns the duration in milliseconds.
  Expected<double> feed(llm::Context& context, std::int32_t sequence, std::span<const Token> tokens);
  // Decodes one token for each of the first `streams` sequences. Returns the duration in milliseconds.
  Expected<double> decode_once(llm::Context& context, std::int32_t streams);
  Expected<Unit> compute(llm::Context& context, std::span<const llm::BatchRow> rows);
  Expected<std::unique_ptr<llm::Context>> make_context(const Candidate& candidate, std::int32_t sequences, std::int32_t tokens);

  [[nodiscard]] Candidate chosen() const {
    return {result_.context, result_.decode_threads, result_.prefill_threads, result_.model};
  }
  [[nodiscard]] bool is_on_devices(std::size_t model) const { return models_[model].model->facts().is_on_devices; }
  [[nodiscard]] std::span<const Token> prompt() const {
    return std::span(tokens_).first(static_cast<std::size_t>(work_.prompt_tokens));
  }
  [[nodiscard]] std::int32_t streams_max() const { return std::min(kStreams.back(), settings_.base.sequences); }
  // Tokens of a sequence at the end of measure().
  [[nodiscard]] static std::int32_t tokens_in_sequence(const Workload& work) {
    return work.prompt_tokens + static_cast<std::int32_t>(kStreams.size()) * (work.decode_calls + 1);
  }
  [[nodiscard]] double elapsed_s() const { return to_ms(clock_.now() - started_) / 1000; }
  // Whether another repetition that takes `repetition_s` fits.
  [[nodiscard]] bool has_time(double repetition_s, std::size_t repetitions, double until_s) const;
  [[nodiscard]] Workload long_prompts(std::size_t candidates) const;
  [[nodiscard]] std::vector<std::size_t> decode_columns() const;
  [[nodiscard]] std::vector<std::size_t> all_columns() const;

  const std::span<const PlacedModel> models_;
  const TuneSettings& settings_;
  const Clock& clock_;
  const std::atomic<bool>& interrupted_;
  Interruption interruption_;
  const std::function<void(const std::string&)>& on_progress_;
  const TimePoint started_;

  TuneResult result_;
  Workload work_;
  std::vector<Token> tokens_;
  std::int32_t storm_ticks_ = 8;
};

}  // namespace uma::umad
