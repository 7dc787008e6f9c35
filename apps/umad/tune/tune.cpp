#include "umad/tune/tune.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <format>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/system/memory_info.h"
#include "llm/file/gguf_files.h"
#include "llm/llama_model.h"
#include "pool/device_fit.h"
#include "pool/memory_governor.h"
#include "umad/process/signals.h"
#include "umad/tune/compute.h"

namespace uma::umad {
namespace {

constexpr int kNameWidth = 26;
constexpr int kFigureWidth = 16;

std::string heading(const Comparison& comparison, std::size_t column) {
  if (comparison.is_lanes) return column == 0 ? "worst tick" : "all done";
  if (column == kStreams.size()) return "prompt";
  return std::format("{} stream{}", kStreams[column], kStreams[column] == 1 ? "" : "s");
}

std::string figure(const Comparison& comparison, const Trial& trial, std::size_t column) {
  const double value = median(trial, column);
  if (value <= 0) return "-";
  if (!comparison.is_lanes && column == kStreams.size()) return std::format("{:.0f} tokens/s", 1000 / value);
  const int decimals = value < 1 ? 3 : value < 100 ? 2 : 0;
  return std::format("{:.{}f} ms", value, decimals);
}

std::string mebibytes(std::uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  return bytes == 0 ? "-" : std::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
}

std::string table(const Comparison& comparison) {
  std::string text = std::format("{:<{}}", comparison.title, kNameWidth);
  for (const std::size_t column : comparison.columns) text += std::format("{:>{}}", heading(comparison, column), kFigureWidth);
  if (!comparison.kv_bytes.empty()) text += std::format("{:>{}}", "KV memory", kFigureWidth);
  text += '\n';
  for (std::size_t i = 0; i < comparison.trials.size(); ++i) {
    const Trial& trial = comparison.trials[i];
    const char mark = i == comparison.choice.index ? '*' : ' ';
    const std::string name = std::format("{} {}{}", mark, trial.name, i == comparison.default_index ? " (default)" : "");
    if (!trial.impossible.empty()) {
      text += std::format("{:<{}}  {}\n", name, kNameWidth, trial.impossible);
      continue;
    }
    text += std::format("{:<{}}", name, kNameWidth);
    for (const std::size_t column : comparison.columns) {
      text += std::format("{:>{}}", figure(comparison, trial, column), kFigureWidth);
    }
    if (!comparison.kv_bytes.empty()) text += std::format("{:>{}}", mebibytes(comparison.kv_bytes[i]), kFigureWidth);
    text += '\n';
  }
  const std::size_t repetitions = comparison.trials[comparison.default_index].repetitions.size();
  text += std::format("  {}: {} ({} repetitions{}{})\n\n", comparison.trials[comparison.choice.index].name,
                      comparison.choice.reason, repetitions, comparison.remark.empty() ? "" : "; ", comparison.remark);
  return text;
}

std::string choices(const Profile& profile) {
  return std::format(
      "chosen: {}{} thread(s) for decoding, {} for prompts; ubatch {}; flash attention {}; KV layout {}, type {}; {}\n",
      profile.uses_devices ? "" : "on the CPU alone; ", profile.decode_threads, profile.prefill_threads, profile.ubatch_rows,
      word_of(profile.flash_attention), word_of(profile.kv_layout), llm::kv_types_text(profile.kv_types),
      profile.lanes ? std::format("lanes on, {} + {} threads while a prompt is computed beside streams",
                                  profile.decode_threads_beside_prefill, profile.prefill_threads_beside_decode)
                    : std::string("lanes off"));
}

constexpr std::chrono::milliseconds kWatched{1000};  // Observed before anything is measured.

// Measures, from construction on, how much other programs compute on this process's processors.
class OtherPrograms {
 public:
  explicit OtherPrograms(const Clock& clock) : clock_(clock), begin_(clock.now()), begin_s_(busy_cpu_s() - process_cpu_s()) {}
  [[nodiscard]] double cores() const {
    const double seconds = to_ms(clock_.now() - begin_) / 1000;
    return seconds > 0 ? (busy_cpu_s() - process_cpu_s() - begin_s_) / seconds : 0;
  }

 private:
  const Clock& clock_;
  const TimePoint begin_;
  const double begin_s_;
};

// An idle desktop uses less. With more, synchronized threads would wait for other programs.
double cores_of_others_max(const Machine& machine) {
  return std::max(0.3, 0.05 * machine.cores);
}

std::string busy_message(double cores) {
  return std::format(
      "other programs use {:.1f} core(s), and settings for a busy machine are slow on a quiet one: try again when they "
      "are done, or give --even-if-busy if the machine is always this busy",
      cores);
}

// The devices that the model would be loaded on if it were loaded alone.
Expected<llm::DeviceOptions> fitted_devices(const Config& config, const std::string& model_path,
                                            const llm::ContextOptions& context) {
  engine::LoadWorkersOptions options{.path = model_path, .draft_path = "", .context = context};
  options.devices.names.emplace();
  const auto devices = llm::devices_of(config.devices);
  if (!devices) return std::unexpected(devices.error());
  const auto header = llm::read_model_header(model_path);
  if (!header) return std::unexpected(header.error());
  const pool::GovernorOptions limits{.device_bytes_max = config.pool.device_bytes_max};
  std::vector<pool::RoomOnDevice> rooms;
  for (const llm::Device& device : *devices) rooms.push_back({.name = device.name, .bytes = available_memory_bytes()});
  for (const llm::DeviceMemory& memory : llm::gpu_memory()) {
    const auto room = std::ranges::find(rooms, memory.name, &pool::RoomOnDevice::name);
    if (room != rooms.end()) room->bytes = pool::usable_device_bytes(memory.total, memory.free, limits);
  }
  if (rooms.empty()) return options.devices;
  auto fit = pool::fit_devices(*header, config.devices, rooms, [&](const llm::DeviceOptions& some) {
    options.devices = some;
    return pool::estimate_need(options, 0);
  });
  if (!fit) return std::unexpected(fit.error());
  return std::move(fit->devices);
}

// Loads the model on the devices that it fits on, and on the CPU alone to compare the two.
Expected<std::vector<PlacedModel>> load_placed(const Config& config, const std::string& model_path,
                                               const llm::ContextOptions& context, const std::atomic<bool>& interrupted) {
  const auto fitted = fitted_devices(config, model_path, context);
  if (!fitted) return std::unexpected(fitted.error());
  std::vector<llm::DeviceOptions> placements = {{.names = std::vector<std::string>()}};
  if (fitted->are_used()) placements.insert(placements.begin(), *fitted);
  std::vector<PlacedModel> models;
  for (const llm::DeviceOptions& devices : placements) {
    auto model =
        llm::load_llama_model(model_path, {.on_progress = [&](double) { return !interrupted.load(); }, .devices = devices});
    if (!model) return std::unexpected(model.error());
    const std::string& where = (*model)->facts().devices;
    models.push_back({.name = where.empty() ? "on the CPU" : where, .model = *std::move(model)});
  }
  return models;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::string tune_report(const TuneResult& result) {
  std::string text = std::format(
      "Medians. Streams: time of a decode call in which each of them, with {} tokens cached, gets a token. Prompt: of {} "
      "tokens.\n"
      "* is chosen; a gain below {:.0f} % of the time keeps the default.\n\n",
      result.prompt_tokens, result.prompt_tokens, 100 * kGainMin);
  for (const Comparison& comparison : result.comparisons) text += table(comparison);
  return text;
}

Profile profile_of(const TuneResult& result, const llm::ModelFacts& model, const Machine& machine) {
  return {.model_identity = model.identity,
          .model_name = model.name,
          .machine = machine,
          .decode_threads = result.decode_threads,
          .prefill_threads = result.prefill_threads,
          .ubatch_rows = result.context.ubatch_rows,
          .flash_attention = result.context.flash_attention,
          .kv_layout = result.context.layout,
          .kv_types = result.context.kv_types,
          .uses_devices = result.uses_devices,
          .lanes = result.lanes,
          .decode_threads_beside_prefill = result.decode_threads_beside_prefill,
          .prefill_threads_beside_decode = result.prefill_threads_beside_decode};
}

int run_tune(const Config& config, const std::string& model_path) {
  std::atomic<int> signal{0};
  std::atomic<bool> interrupted{false};
  const SignalThread signals([&](int number, pid_t) {
    if (number != SIGINT && number != SIGTERM) return;
    signal.store(number);
    interrupted.store(true);
  });
  const auto give_up = [&](const Error& error) {
    if (interrupted.load()) {
      log_info("{}: stopped; no profile was written", signal.load() == SIGINT ? "INT" : "TERM");
      return 128 + signal.load();
    }
    log_error("{}", error.message);
    return 1;
  };
  const SteadyClock clock;
  const Machine machine = this_machine();

  const OtherPrograms before(clock);
  for (int i = 0; i < 10 && !interrupted.load(); ++i) std::this_thread::sleep_for(kWatched / 10);
  if (before.cores() > cores_of_others_max(machine) && !config.tune->even_if_busy) {
    return give_up({ErrorCode::model_load, busy_message(before.cores())});
  }

  log_info("loading {}", model_path);
  Config one_worker = config;
  one_worker.workers = 1;
  std::error_code problem;
  TuneSettings settings;
  settings.cores = config.threads > 0 ? config.threads : machine.cores;
  settings.base =
      choose_compute(one_worker, std::nullopt, std::filesystem::file_size(model_path, problem), machine.cores).context;
  settings.seconds = config.tune->seconds;
  settings.allows_quantized_kv = config.tune->allows_quantized_kv;
  const auto models = load_placed(config, model_path, settings.base, interrupted);
  if (!models) return give_up(models.error());
  const llm::ModelFacts& facts = models->front().model->facts();
  if (facts.capability != Capability::chat) {
    return give_up({ErrorCode::model_capability, std::format("model {} is a model for {}: only chat models can be tuned",
                                                             facts.name, capability_name(facts.capability))});
  }
  log_info("measuring for about {:.0f} s; Ctrl-C stops without writing a profile", settings.seconds);

  const OtherPrograms meanwhile(clock);
  const auto result =
      tune(*models, settings, clock, interrupted, [](const std::string& what) { log_info("measuring: {}", what); });
  if (!result) return give_up(result.error());
  const double others = meanwhile.cores();
  const Profile profile = profile_of(*result, facts, machine);
  print(std::format("{} ({}) on {}, {} core(s), {}\n{}{}", facts.name, facts.description, machine.cpu, machine.cores,
                    machine.library, tune_report(*result), choices(profile)));
  if (others > cores_of_others_max(machine) && !config.tune->even_if_busy) {
    return give_up({ErrorCode::model_load, "no profile was written: " + busy_message(others)});
  }
  if (interrupted.load()) return give_up({});

  const std::string path = profile_path(config.data_dir, facts.identity, machine);
  if (const auto written = write_profile(path, profile); !written) return give_up(written.error());
  print(std::format("profile written to {}; umad uses it from its next start on\n", path));
  return 0;
}

}  // namespace uma::umad
