#include "umad/tune/tune_measure.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/random.h"
#include "umad/tune/tuner.h"

namespace uma::umad {
namespace {

constexpr std::size_t kPromptColumn = kStreams.size();
constexpr std::int32_t kCalibrationRows = 64;
constexpr double kRepetitionsPlanned = 8;  // Planned repetitions of everything in the given time.
// Allowed factor over the given time, for a busy machine where few repetitions would prove nothing.
constexpr double kOvertime = 1.3;
constexpr double kUbatchUntil = 0.45;  // The share of the time at which the comparison of ubatches ends.
constexpr std::int32_t kUbatchRows[] = {64, 128, 256, 512};
// A GPU computes more rows at once, up to what the library takes in a call.
constexpr std::int32_t kUbatchRowsOnDevices[] = {128, 256, 512, 1024, 2048};

constexpr Workload kWorkloads[] = {{512, 12}, {512, 8}, {256, 8}, {128, 6}, {64, 4}};

std::unexpected<Error> was_interrupted() {
  return fail(ErrorCode::runtime_decode, "interrupted");
}

}  // namespace

std::vector<std::size_t> Tuner::decode_columns() const {
  std::vector<std::size_t> columns;
  for (std::size_t i = 0; i < kStreams.size(); ++i) {
    if (kStreams[i] <= streams_max()) columns.push_back(i);
  }
  return columns;
}

std::vector<std::size_t> Tuner::all_columns() const {
  std::vector<std::size_t> columns = decode_columns();
  columns.push_back(kPromptColumn);
  return columns;
}

Expected<Unit> Tuner::compute(llm::Context& context, std::span<const llm::BatchRow> rows) {
  if (interrupted_.load()) return was_interrupted();
  auto status = context.decode(rows, &interruption_);
  if (!status) return std::unexpected(status.error());
  if (*status == llm::DecodeStatus::interrupted) return was_interrupted();
  if (*status == llm::DecodeStatus::out_of_cells)
    return fail(ErrorCode::runtime_decode, "the KV cells ran out during the measurement");
  return Unit{};
}

Expected<double> Tuner::feed(llm::Context& context, std::int32_t sequence, std::span<const Token> tokens) {
  const TimePoint begin = clock_.now();
  std::vector<llm::BatchRow> rows;
  std::int32_t position = context.sequence_length(sequence);
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), static_cast<std::size_t>(context.shape().batch_rows_max));
    rows.clear();
    for (const Token token : tokens.first(count)) rows.push_back({token, position++, sequence, false});
    rows.back().wants_logits = count == tokens.size();
    if (auto done = compute(context, rows); !done) return std::unexpected(done.error());
    tokens = tokens.subspan(count);
  }
  return to_ms(clock_.now() - begin);
}

Expected<double> Tuner::decode_once(llm::Context& context, std::int32_t streams) {
  std::vector<llm::BatchRow> rows;
  for (std::int32_t i = 0; i < streams; ++i) {
    const std::int32_t position = context.sequence_length(i);
    rows.push_back({tokens_[static_cast<std::size_t>(position + i) % tokens_.size()], position, i, true});
  }
  const TimePoint begin = clock_.now();
  if (auto done = compute(context, rows); !done) return std::unexpected(done.error());
  return to_ms(clock_.now() - begin);
}

Expected<std::unique_ptr<llm::Context>> Tuner::make_context(const Candidate& candidate, std::int32_t sequences,
                                                            std::int32_t tokens) {
  constexpr std::int32_t kCellsStep = 256;
  llm::ContextOptions options = candidate.options;
  options.sequences = sequences;
  options.cells = sequences * ((tokens + kCellsStep - 1) / kCellsStep * kCellsStep);
  options.threads = candidate.decode_threads;
  options.threads_batch = candidate.prefill_threads;
  // `automatic` could choose differently for this small context than for the daemon's context.
  if (options.layout == llm::KvLayout::automatic) {
    options.layout = result_.shape.is_unified ? llm::KvLayout::unified : llm::KvLayout::split;
  }
  return models_[candidate.model].model->new_context(options);
}

Expected<Measurement> Tuner::measure(const Candidate& candidate, Wanted wanted) {
  auto made = make_context(candidate, wanted.decode ? streams_max() : 1, tokens_in_sequence(work_));
  if (!made) return std::unexpected(made.error());
  llm::Context& context = **made;
  Measurement measurement(kStreams.size() + 1, 0);

  context.set_threads(candidate.prefill_threads);
  // A first call starts the threads and touches the memory.
  if (auto warm = feed(context, 0, std::span(tokens_).first(kCalibrationRows)); !warm) return std::unexpected(warm.error());
  (void)context.truncate(0, 0);
  const auto prompt_ms = feed(context, 0, prompt());
  if (!prompt_ms) return std::unexpected(prompt_ms.error());
  if (wanted.prompt) measurement[kPromptColumn] = *prompt_ms / work_.prompt_tokens;
  if (!wanted.decode) return measurement;

  // Every sequence gets the same tokens in its own cells.
  Bytes state;
  for (std::int32_t sequence = 1; sequence < streams_max(); ++sequence) {
    if (auto saved = context.save_state(0, 0, work_.prompt_tokens, state); !saved) return std::unexpected(saved.error());
    auto loaded = context.load_state(sequence, 0, work_.prompt_tokens, context.fit_state(state));
    if (!loaded) return std::unexpected(loaded.error());
  }
  context.set_threads(candidate.decode_threads);
  for (const std::size_t column : decode_columns()) {
    Trial calls;
    for (std::int32_t i = 0; i <= work_.decode_calls; ++i) {
      const auto ms = decode_once(context, kStreams[column]);
      if (!ms) return std::unexpected(ms.error());
      if (i > 0) calls.repetitions.push_back({*ms});  // The first call builds the graph.
    }
    measurement[column] = median(calls, 0);
  }
  return measurement;
}

bool Tuner::has_time(double repetition_s, std::size_t repetitions, double until_s) const {
  const double end_s = elapsed_s() + repetition_s;
  return end_s <= until_s || (repetitions < kRepetitionsMin && end_s <= kOvertime * settings_.seconds);
}

Expected<Unit> Tuner::repeat(Comparison& comparison, std::span<const Candidate> candidates, Wanted wanted, double until_share) {
  const double until_s = until_share * settings_.seconds;
  on_progress_(comparison.title);
  for (std::size_t repetition = 0; repetition < kRepetitionsMax; ++repetition) {
    const double begin_s = elapsed_s();
    std::vector<Measurement> all(candidates.size());
    for (std::size_t step = 0; step < candidates.size(); ++step) {
      // Alternates the direction, so that a drift of the machine affects all candidates alike.
      const std::size_t i = repetition % 2 == 0 ? step : candidates.size() - 1 - step;
      if (!comparison.trials[i].impossible.empty()) continue;
      auto measurement = measure(candidates[i], wanted);
      if (measurement) {
        all[i] = *std::move(measurement);
      } else if (measurement.error().code == ErrorCode::model_load && i != comparison.default_index) {
        comparison.trials[i].impossible = measurement.error().message;
      } else {
        return std::unexpected(measurement.error());
      }
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (comparison.trials[i].impossible.empty()) comparison.trials[i].repetitions.push_back(std::move(all[i]));
    }
    if (!has_time(elapsed_s() - begin_s, repetition + 1, until_s)) break;
  }
  return Unit{};
}

Expected<Unit> Tuner::calibrate() {
  on_progress_("the daemon's context");
  {
    // A context as large as the daemon's: a lack of memory shows now, and the layout that depends on the size is known.
    auto context = models_.front().model->new_context(settings_.base);
    if (!context) return std::unexpected(context.error());
    result_.shape = (*context)->shape();
  }
  const std::int32_t length_max = result_.shape.sequence_cells_max;
  work_ = kWorkloads[std::size(kWorkloads) - 1];
  if (tokens_in_sequence(work_) > length_max) {
    return fail(ErrorCode::model_load,
                std::format("sessions of {} tokens are too short to measure: give a larger --n-ctx", length_max));
  }
  result_.context = settings_.base;
  result_.decode_threads = settings_.base.threads;
  result_.prefill_threads = settings_.base.threads_batch > 0 ? settings_.base.threads_batch : settings_.base.threads;

  Random random(1);
  const std::int32_t vocabulary = models_.front().model->vocab().size();
  for (std::int32_t i = 0; i < kUbatchRowsOnDevices[std::size(kUbatchRowsOnDevices) - 1]; ++i) {
    tokens_.push_back(static_cast<Token>(random.next_below(static_cast<std::uint64_t>(vocabulary))));
  }
  const TimePoint begin = clock_.now();
  auto made = make_context(chosen(), 1, 2 * kCalibrationRows);
  if (!made) return std::unexpected(made.error());
  const double make_ms = to_ms(clock_.now() - begin);
  llm::Context& context = **made;
  const std::span<const Token> rows = std::span(tokens_).first(kCalibrationRows);
  if (auto warm = feed(context, 0, rows); !warm) return std::unexpected(warm.error());
  (void)context.truncate(0, 0);
  const auto rows_ms = feed(context, 0, rows);
  if (!rows_ms) return std::unexpected(rows_ms.error());
  if (auto warm = decode_once(context, 1); !warm) return std::unexpected(warm.error());
  const auto decode_ms = decode_once(context, 1);
  if (!decode_ms) return std::unexpected(decode_ms.error());

  // The largest workload that leaves time for the repetitions. A decode call of 8 rows costs about 5 calls of one row.
  const double contexts = static_cast<double>(thread_counts(settings_.cores).size()) + 6 + 4 + 2;
  for (const Workload& work : kWorkloads) {
    const double repetition_ms = contexts * (make_ms + *rows_ms * (1.0 + 1.0 * work.prompt_tokens / kCalibrationRows)) +
                                 (contexts - 4) * work.decode_calls * 8.5 * *decode_ms;
    if (tokens_in_sequence(work) > length_max || kRepetitionsPlanned * repetition_ms > 1000 * settings_.seconds) continue;
    work_ = work;
    break;
  }
  result_.prompt_tokens = work_.prompt_tokens;
  // About as many ticks as fit beside the prompt.
  const double ticks = *rows_ms * work_.prompt_tokens / kCalibrationRows / (1.5 * std::max(*decode_ms, 0.001));
  storm_ticks_ = static_cast<std::int32_t>(std::clamp(ticks, 8.0, static_cast<double>(work_.prompt_tokens)));
  return Unit{};
}

Expected<Unit> Tuner::compare_devices() {
  if (models_.size() < 2) return Unit{};
  Comparison comparison{.title = "devices"};
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    comparison.trials.push_back({.name = models_[i].name});
    candidates.push_back(chosen());
    candidates.back().model = i;
    if (is_on_devices(i)) candidates.back().decode_threads = candidates.back().prefill_threads = 1;
  }
  if (auto done = repeat(comparison, candidates, {}, 0.20); !done) return done;
  comparison.columns = all_columns();
  comparison.choice = choose(comparison.trials, comparison.default_index, comparison.columns);
  result_.model = comparison.choice.index;
  result_.uses_devices = !models_[result_.model].model->facts().devices.empty();
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

Expected<Unit> Tuner::compare_threads() {
  if (is_on_devices(result_.model)) {
    result_.decode_threads = result_.prefill_threads = 1;
    return Unit{};
  }
  std::vector<std::int32_t> counts = thread_counts(settings_.cores);
  for (const std::int32_t threads : {result_.decode_threads, result_.prefill_threads}) {
    if (!std::ranges::contains(counts, threads)) counts.push_back(threads);
  }
  std::ranges::sort(counts);
  Comparison comparison{.title = "threads"};
  std::vector<Candidate> candidates;
  for (const std::int32_t threads : counts) {
    comparison.trials.push_back({.name = std::format("{}", threads)});
    candidates.push_back({result_.context, threads, threads, result_.model});
  }
  const auto index_of = [&](std::int32_t threads) {
    return static_cast<std::size_t>(std::ranges::find(counts, threads) - counts.begin());
  };
  comparison.default_index = index_of(result_.decode_threads);
  if (auto done = repeat(comparison, candidates, {}, 0.30); !done) return done;

  Comparison prompts = comparison;
  comparison.title = "decode threads";
  comparison.columns = decode_columns();
  comparison.choice = choose(comparison.trials, comparison.default_index, comparison.columns);
  result_.decode_threads = counts[comparison.choice.index];
  prompts.title = "prompt threads";
  prompts.default_index = index_of(result_.prefill_threads);
  prompts.columns = {kPromptColumn};
  prompts.choice = choose(prompts.trials, prompts.default_index, prompts.columns);
  result_.prefill_threads = counts[prompts.choice.index];
  result_.comparisons.push_back(std::move(comparison));
  result_.comparisons.push_back(std::move(prompts));
  return Unit{};
}

// The work of a comparison of `candidates` by their prompts alone: the longest prompts that leave time for the repetitions that
// a choice needs, as the comparison of devices has measured them.
Workload Tuner::long_prompts(std::size_t candidates) const {
  if (result_.comparisons.empty()) return work_;
  const double token_ms = median(result_.comparisons.front().trials[result_.model], kPromptColumn);
  Workload work{.prompt_tokens = static_cast<std::int32_t>(tokens_.size()), .decode_calls = 0};
  const auto takes_too_long = [&] {
    const double ms = static_cast<double>(candidates * kRepetitionsMin) * token_ms * work.prompt_tokens;
    return tokens_in_sequence(work) > result_.shape.sequence_cells_max ||
           ms > 1000 * (kUbatchUntil * settings_.seconds - elapsed_s());
  };
  while (work.prompt_tokens > work_.prompt_tokens && takes_too_long()) work.prompt_tokens /= 2;
  return work.prompt_tokens > work_.prompt_tokens ? work : work_;
}

Expected<Unit> Tuner::compare_ubatch() {
  Comparison comparison{.title = "ubatch"};
  std::vector<Candidate> candidates;
  const Workload usual = work_;
  std::vector<std::int32_t> sizes(std::begin(kUbatchRows), std::end(kUbatchRows));
  if (is_on_devices(result_.model)) {
    sizes.assign(std::begin(kUbatchRowsOnDevices), std::end(kUbatchRowsOnDevices));
    work_ = long_prompts(sizes.size());
  }
  if (!std::ranges::contains(sizes, settings_.base.ubatch_rows)) sizes.push_back(settings_.base.ubatch_rows);
  // A ubatch larger than the prompt measures nothing.
  std::erase_if(sizes, [&](std::int32_t rows) { return rows > work_.prompt_tokens && rows != settings_.base.ubatch_rows; });
  for (const std::int32_t rows : sizes) {
    if (rows == settings_.base.ubatch_rows) comparison.default_index = candidates.size();
    comparison.trials.push_back({.name = std::format("{}", rows)});
    candidates.push_back(chosen());
    candidates.back().options.ubatch_rows = rows;
  }
  if (settings_.base.ubatch_rows > work_.prompt_tokens) {
    comparison.remark = std::format("prompts of {} tokens: larger ones take more --seconds", work_.prompt_tokens);
  } else if (work_.prompt_tokens != usual.prompt_tokens) {
    comparison.remark = std::format("prompts of {} tokens", work_.prompt_tokens);
  }
  const auto done = repeat(comparison, candidates, {.decode = false, .prompt = true}, kUbatchUntil);
  work_ = usual;
  if (!done) return done;
  comparison.columns = {kPromptColumn};
  comparison.choice = choose(comparison.trials, comparison.default_index, comparison.columns);
  result_.context.ubatch_rows = sizes[comparison.choice.index];
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

Expected<Unit> Tuner::compare_flash_attention() {
  Comparison comparison{.title = "flash attention"};
  const bool is_on = result_.shape.has_flash_attention;
  std::vector<Candidate> candidates;
  for (const bool on : {true, false}) {
    comparison.trials.push_back({.name = on ? "on" : "off"});
    candidates.push_back(chosen());
    // The default candidate keeps the configured value, since the library may choose per device.
    if (on != is_on) candidates.back().options.flash_attention = on ? llm::FlashAttention::on : llm::FlashAttention::off;
  }
  comparison.default_index = is_on ? 0 : 1;
  if (auto done = repeat(comparison, candidates, {}, 0.58); !done) return done;
  comparison.columns = all_columns();
  comparison.choice = choose(comparison.trials, comparison.default_index, comparison.columns);
  result_.context.flash_attention = candidates[comparison.choice.index].options.flash_attention;
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

Expected<Unit> Tuner::compare_layout() {
  Comparison comparison{.title = "KV layout"};
  std::vector<Candidate> candidates;
  for (const llm::KvLayout layout : {llm::KvLayout::split, llm::KvLayout::unified}) {
    comparison.trials.push_back({.name = layout == llm::KvLayout::split ? "split" : "unified"});
    candidates.push_back(chosen());
    candidates.back().options.layout = layout;
  }
  comparison.default_index = result_.shape.is_unified ? 1 : 0;
  if (auto done = repeat(comparison, candidates, {}, 0.71); !done) return done;
  comparison.columns = all_columns();
  comparison.choice = choose(comparison.trials, comparison.default_index, comparison.columns);
  if (comparison.default_index == 1 && comparison.choice.index == 0) {
    // The unified layout was chosen for capacity, not for speed (docs/decisions/0004).
    comparison.choice = {.index = 1,
                         .gain = 0,
                         .reason = std::format("kept: split would leave {} tokens to each of {} slots",
                                               result_.shape.cells / result_.shape.sequences, result_.shape.sequences)};
  }
  if (comparison.choice.index != comparison.default_index) {
    result_.context.layout = candidates[comparison.choice.index].options.layout;
  }
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

Expected<Unit> Tuner::compare_types() {
  Comparison comparison{.title = "KV type"};
  std::vector<Candidate> candidates;
  const auto cells = static_cast<std::uint64_t>(result_.shape.cells);
  // Another type than f16 is configured, or the one that costs least.
  const llm::KvTypes configured = settings_.base.kv_types;
  const llm::KvTypes quantized_types = configured.is_quantized() ? configured : llm::KvTypes::both(llm::KvType::q8_0);
  const std::string quantized_name = llm::kv_types_text(quantized_types);
  for (const llm::KvTypes types : {llm::KvTypes(), quantized_types}) {
    comparison.trials.push_back({.name = llm::kv_types_text(types)});
    candidates.push_back(chosen());
    candidates.back().options.kv_types = types;
    if (types.is_quantized() && candidates.back().options.flash_attention == llm::FlashAttention::off) {
      comparison.trials.back().impossible = "it needs flash attention, which is slower here";
    }
    comparison.kv_bytes.push_back(0);
    if (!comparison.trials.back().impossible.empty()) continue;
    auto context = make_context(candidates.back(), 1, kCalibrationRows);
    if (context) {
      comparison.kv_bytes.back() = cells * (*context)->shape().kv_bytes_per_token;
    } else if (types.is_quantized()) {
      comparison.trials.back().impossible = context.error().message;
    } else {
      return std::unexpected(context.error());
    }
  }
  comparison.default_index = configured.is_quantized() ? 1 : 0;
  if (auto done = repeat(comparison, candidates, {}, 0.84); !done) return done;
  comparison.columns = all_columns();
  if (comparison.default_index == 0) {
    const Trial& quantized = comparison.trials[1];
    const double gain = gain_of(quantized, comparison.trials[0], comparison.columns);
    if (!quantized.impossible.empty()) {
      comparison.choice = {.index = 0, .gain = 0, .reason = std::format("kept: {} does not work here", quantized_name)};
    } else if (!settings_.allows_quantized_kv) {
      comparison.choice = {
          .index = 0,
          .gain = 0,
          .reason = std::format("kept: {} ({:+.1f} % time) changes answers slightly; --allow-quantized-kv allows "
                                "it",
                                quantized_name, -100 * gain)};
    } else if (gain < -kGainMin) {
      comparison.choice = {
          .index = 0, .gain = 0, .reason = std::format("kept: {} takes {:.1f} % more time", quantized_name, -100 * gain)};
    } else {
      comparison.choice = {.index = 1, .gain = gain, .reason = "half the memory, not slower, and allowed"};
    }
  } else {
    comparison.choice = {.index = 1, .gain = 0, .reason = "kept: it was configured"};
  }
  result_.context.kv_types = candidates[comparison.choice.index].options.kv_types;
  result_.comparisons.push_back(std::move(comparison));
  return Unit{};
}

Expected<TuneResult> Tuner::run() {
  for (const auto step :
       {&Tuner::calibrate, &Tuner::compare_devices, &Tuner::compare_threads, &Tuner::compare_ubatch,
        &Tuner::compare_flash_attention, &Tuner::compare_layout, &Tuner::compare_types, &Tuner::compare_lanes}) {
    if (auto done = (this->*step)(); !done) return std::unexpected(done.error());
    if (interrupted_.load()) return was_interrupted();
  }
  return std::move(result_);
}

std::vector<std::int32_t> thread_counts(std::int32_t cores) {
  std::vector<std::int32_t> counts;
  for (std::int32_t threads = 1; threads < cores; threads *= 2) counts.push_back(threads);
  counts.push_back(cores);
  return counts;
}

Expected<TuneResult> tune(std::span<const PlacedModel> models, const TuneSettings& settings, const Clock& clock,
                          const std::atomic<bool>& interrupted, const std::function<void(const std::string&)>& on_progress) {
  return Tuner(models, settings, clock, interrupted, on_progress).run();
}

}  // namespace uma::umad
