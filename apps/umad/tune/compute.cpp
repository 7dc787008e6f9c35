#include "umad/tune/compute.h"

#include <algorithm>

#include "base/log.h"

namespace uma::umad {

std::int32_t default_threads(std::uintmax_t model_bytes, std::int32_t cores, std::int32_t workers) {
  constexpr std::uintmax_t kOneThreadModelBytes = 16 << 20;
  return model_bytes < kOneThreadModelBytes ? workers : cores;
}

Compute choose_compute(const Config& config, const std::optional<Profile>& profile, std::uintmax_t model_bytes,
                       std::int32_t cores) {
  Compute compute;
  const auto of_worker = [&](std::int32_t threads) { return std::max(1, threads / config.workers); };
  llm::ContextOptions& options = compute.context;
  options.cells = config.kv_cells;
  options.sequence_cells = config.sequence_cells;
  options.sequences = config.slots;
  options.has_spare = config.verify_every > 0;
  options.rope = config.rope;

  const bool takes_threads = profile && !config.is_given("threads");
  if (takes_threads) {
    options.threads = std::min(profile->decode_threads, of_worker(cores));
    options.threads_batch = std::min(profile->prefill_threads, of_worker(cores));
  } else {
    options.threads = of_worker(config.threads > 0 ? config.threads : default_threads(model_bytes, cores, config.workers));
  }
  if (config.is_given("scheduler.prefill_threads")) options.threads_batch = config.prefill_threads;

  options.ubatch_rows = profile && !config.is_given("scheduler.ubatch") ? profile->ubatch_rows : config.ubatch_rows;
  options.layout = profile && !config.is_given("kv.layout") ? profile->kv_layout : config.kv_layout;
  const bool is_flash_given = config.is_given("kv.flash_attention");
  const bool is_type_given = config.is_given("kv.type");
  options.flash_attention = profile && !is_flash_given ? profile->flash_attention : config.flash_attention;
  options.kv_types = profile && !is_type_given ? profile->kv_types : config.kv_types;
  // Quantized values need flash attention. If one of the two settings was given, it overrides the profile's value of the other.
  if (options.kv_types.is_quantized() && options.flash_attention == llm::FlashAttention::off) {
    if (is_flash_given) options.kv_types = {};
    if (is_type_given) options.flash_attention = llm::FlashAttention::automatic;
  }

  compute.uses_devices = !profile || profile->uses_devices || config.is_given("devices") || config.is_given("gpu_layers");
  compute.threads = std::max(options.threads, options.threads_batch);
  compute.lanes = config.lanes != Lanes::off;
  compute.decode_threads_beside_prefill = config.lanes == Lanes::turns ? 0 : compute.threads / 2;
  const bool takes_lanes = takes_threads && !config.is_given("scheduler.lanes") && config.workers == 1;
  if (takes_lanes) {
    compute.lanes = profile->lanes;
    compute.decode_threads_beside_prefill = std::min(profile->decode_threads_beside_prefill, compute.threads - 1);
  }
  return compute;
}

void limit_threads(Config& config, std::int32_t processors) {
  if (processors <= 0) return;
  const auto limit = [&](const char* key, std::int32_t& threads) {
    if (threads <= processors) return;
    log_warning("{}: {} are more than can compute at once: {} compute", key, threads, processors);
    threads = processors;
  };
  limit("threads", config.threads);
  limit("scheduler.prefill_threads", config.prefill_threads);
}

std::string given_over_profile(const Config& config) {
  std::string names;
  for (const char* key : {"threads", "scheduler.prefill_threads", "scheduler.ubatch", "kv.layout", "kv.flash_attention",
                          "kv.type", "scheduler.lanes", "devices", "gpu_layers"}) {
    if (config.is_given(key)) names += (names.empty() ? "" : ", ") + std::string(key);
  }
  return names;
}

}  // namespace uma::umad
