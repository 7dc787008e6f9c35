// The table of all metrics: name, kind, unit, help and value of each. It feeds the `metrics` frame and Prometheus' text
// (wire/metrics_codec.h), the tables of docs/METRICS.md (tools/metrics_tables.py), and `uma-cli top`. Invariants: (1) Names and
// their order are part of the protocol and do not change. (2) A counter's name ends in _total.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/metrics_snapshot.h"

namespace uma {

enum class MetricKind {
  counter,  // Only grows, from 0 at the start of the daemon's process.
  gauge,
  text,
  list,  // A list of texts; not in Prometheus' text.
};

// A section of docs/METRICS.md.
enum class MetricGroup {
  daemon,
  requests,
  tokens,
  latency,
  calls,
  checks,
  kv,
  images,
  models,
  embeddings,
  pictures,
  health,
  workers,
  devices
};

// monostate: the value is unknown. Texts are borrowed from the snapshot.
using MetricValue =
    std::variant<std::monostate, std::int64_t, std::uint64_t, double, std::string_view, std::span<const std::string>>;

// A metric whose value `Owner` has. `help` is one line of Markdown: sentences, with names of settings in backquotes.
template <class Owner>
struct MetricRow {
  std::string_view name;
  MetricKind kind;
  MetricGroup group;
  std::string_view unit;
  std::string_view help;
  MetricValue (*read)(const Owner& owner);
};
using Metric = MetricRow<MetricsSnapshot>;
using WorkerMetric = MetricRow<WorkerMetrics>;
using DeviceMetric = MetricRow<DeviceMetrics>;

// One histogram of the family `uma_<name>_seconds`, distinguished from others by a label's value.
struct HistogramSeries {
  std::string_view label_value;
  HistogramSnapshot MetricsSnapshot::* member = nullptr;
};
struct HistogramFamily {
  std::string_view name;
  std::string_view label;  // Empty: the family has one series.
  std::string_view help;
  std::array<HistogramSeries, 4> places;

  [[nodiscard]] constexpr std::span<const HistogramSeries> series() const {
    const auto end = std::ranges::find(places, nullptr, &HistogramSeries::member);
    return {places.begin(), end};
  }
};

namespace metrics_table_detail {

template <class T>
MetricValue value_of(const T& member) {
  if constexpr (std::is_same_v<T, std::optional<double>>) {
    return member ? MetricValue(*member) : MetricValue();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string_view(member);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return std::span<const std::string>(member);
  } else {
    return member;
  }
}

// Reads a member, or a member of a member.
template <auto kMember>
MetricValue read(const auto& owner) {
  return value_of(owner.*kMember);
}
template <auto kOuter, auto kInner>
MetricValue read_inner(const auto& owner) {
  return value_of(owner.*kOuter.*kInner);
}
// Reads a member of the last crash; unknown without a crash.
template <auto kMember>
MetricValue read_crash(const MetricsSnapshot& snapshot) {
  return snapshot.crashes.count == 0 ? MetricValue() : value_of(snapshot.crashes.*kMember);
}

template <CacheMissKind kKind>
MetricValue read_miss(const MetricsSnapshot& snapshot) {
  constexpr auto kIndex =
      std::ranges::find(kCacheMissKinds, kKind, [](const auto& each) { return each.first; }) - kCacheMissKinds.begin();
  return value_of(snapshot.cache_misses[kIndex]);
}

constexpr auto make_metrics() {
  using enum MetricKind;
  using enum MetricGroup;
  using S = MetricsSnapshot;
  return std::to_array<Metric>({
      {"model", text, daemon, "text", "Name of the model that is loaded at the start.", read<&S::model>},
      {"uptime_s", gauge, daemon, "s", "Time since the daemon's process started.", read<&S::uptime_s>},
      {"catalog_reachable", gauge, daemon, "0 or 1",
       "1 if the database of the sessions answers. Without it requests that change a session fail.",
       read<&S::catalog_reachable>},
      {"sessions", gauge, requests, "sessions", "Sessions that exist.", read<&S::sessions>},
      {"session_bytes", gauge, requests, "bytes",
       "Tokens and texts of all sessions, as stored. Limit of a tenant: `limits.tenant_bytes_max`.", read<&S::session_bytes>},
      {"requests_open", gauge, requests, "requests", "Requests that were received and have not ended.",
       read<&S::requests_open>},
      {"request_bytes", gauge, requests, "bytes",
       "Memory that requests hold, from their first byte to their end. Limit: `limits.queue_bytes_max`.",
       read<&S::request_bytes>},
      {"kept_image_bytes", gauge, images, "bytes", "Image files that sessions have. Limit: `vision.kept_bytes_max`.",
       read<&S::kept_image_bytes>},
      {"exceptions_total", counter, checks, "exceptions",
       "Unexpected exceptions; their requests ended with `E_RUNTIME_001`. Please report the lines of the log.",
       read<&S::exceptions_total>},
      {"requests_total", counter, requests, "requests", "Requests that were received: for replies, vectors and scores.",
       read<&S::requests_total>},
      {"requests_failed_total", counter, requests, "requests", "Requests that ended with an error, refused ones included.",
       read<&S::requests_failed_total>},
      {"requests_cancelled_total", counter, requests, "requests",
       "Requests that ended by a cancel or because the client disconnected.", read<&S::requests_cancelled_total>},
      {"tokens_total", counter, tokens, "tokens", "Tokens generated, without those that end a generation.",
       read<&S::tokens_total>},
      {"prompt_tokens_total", counter, tokens, "tokens", "Prompt tokens computed.", read<&S::prompt_tokens_total>},
      {"reused_tokens_total", counter, tokens, "tokens", "Prompt tokens found in the cache and not computed.",
       read<&S::reused_tokens_total>},
      {"avg_batch", gauge, calls, "sequences", "Decoding sequences per decode call, over the ticks with at least one.",
       read<&S::avg_batch>},
      {"p50_ms", gauge, latency, "ms", "Time between two tokens of a stream, as produced: median.", read<&S::p50_ms>},
      {"p95_ms", gauge, latency, "ms", "Time between two tokens of a stream: 95th percentile.", read<&S::p95_ms>},
      {"p99_ms", gauge, latency, "ms", "Time between two tokens of a stream: 99th percentile.", read<&S::p99_ms>},
      {"ttft_p50_ms", gauge, latency, "ms", "Time from receipt of a request to its first token: median.",
       read<&S::ttft_p50_ms>},
      {"ttft_p95_ms", gauge, latency, "ms", "Time from receipt of a request to its first token: 95th percentile.",
       read<&S::ttft_p95_ms>},
      {"per_token_latency_ms", gauge, latency, "ms", "Time between two tokens of a stream: mean.",
       read<&S::per_token_latency_ms>},
      {"decode_ms_avg", gauge, calls, "ms", "Time of a library call with decode rows: mean.", read<&S::decode_ms_avg>},
      {"prefill_ms_avg", gauge, calls, "ms", "Time of a library call with prefill rows: mean.", read<&S::prefill_ms_avg>},
      {"sample_ms_avg", gauge, calls, "ms", "Time of choosing all tokens of a tick: mean.", read<&S::sample_ms_avg>},
      {"queue_wait_ms_avg", gauge, latency, "ms", "Time from receipt of a request until its first token is in a batch: mean.",
       read<&S::queue_wait_ms_avg>},
      {"restore_ms_avg", gauge, kv, "ms", "Time of bringing a state into a context, from memory or disk: mean.",
       read<&S::restore_ms_avg>},
      {"batch_calls_total", counter, calls, "calls", "Library calls.", read<&S::batch_calls_total>},
      {"ticks_total", counter, calls, "ticks", "Ticks that had something to compute.", read<&S::ticks_total>},
      {"sequences_active", gauge, requests, "sequences", "Sequences that are in a context: prefilling or decoding.",
       read<&S::sequences_active>},
      {"queue_depth", gauge, requests, "requests", "Requests that were sent to a worker and are not yet in its context.",
       read<&S::queue_depth>},
      {"preemptions_total", counter, requests, "sequences", "Sequences that were swapped out because the cells were exhausted.",
       read<&S::preemptions_total>},
      {"moved_cells_total", counter, requests, "cells",
       "KV cells that were moved to the place of free ones, so that the streams have fewer cells to skip.",
       read<&S::moved_cells_total>},
      {"idle_stored_total", counter, requests, "states",
       "Idle conversations that left the context piece by piece, beside streams.", read<&S::idle_stored_total>},
      {"context_shifts_total", counter, requests, "times",
       "Times that a session with `on_full: shift` lost its oldest turns because its context was full.",
       read<&S::context_shifts_total>},
      {"adapter_requests_total", counter, requests, "requests", "Requests for replies that chose a LoRA adapter.",
       read<&S::adapter_requests_total>},
      {"adapter_changes_total", counter, requests, "calls",
       "Library calls with other LoRA adapters than the call before in the same context. Each costs up to some milliseconds.",
       read<&S::adapter_changes_total>},
      {"reuses_verified_total", counter, checks, "reuses",
       "Reuses of cached tokens that were computed again and compared (`scheduler.verify`).", read<&S::reuses_verified_total>},
      {"reuses_wrong_total", counter, checks, "reuses",
       "Verified reuses that gave other logits than their tokens. Anything but 0 is a bug or broken memory; the log has the "
       "tokens.",
       read<&S::reuses_wrong_total>},
      {"not_finite_total", counter, checks, "replies",
       "Replies whose logits were not finite. They are computed anew from their tokens, in cells that are cleared, and end "
       "with `E_RUNTIME_001` if that does not help. Anything but 0 is a forged session file, a broken model or broken memory.",
       read<&S::not_finite_total>},
      {"promises_kept_total", counter, latency, "tokens",
       "Tokens that came within the promised time after the one before. The promise is `scheduler.target_tbt_ms`; automatic: "
       "max(`scheduler.tick_ms`, 3 × a decode call). If `target_ttft_ms` is set, a first token within it counts too.",
       read<&S::promises_kept_total>},
      {"promises_broken_total", counter, latency, "tokens", "Tokens that came later than promised.",
       read<&S::promises_broken_total>},
      {"drafted_tokens_total", counter, tokens, "tokens",
       "Draft tokens that were verified (`scheduler.speculation`), from the text itself and from a draft model.",
       read<&S::drafted_tokens_total>},
      {"drafted_accepted_total", counter, tokens, "tokens", "Draft tokens that were accepted.",
       read<&S::drafted_accepted_total>},
      {"threads", gauge, calls, "threads",
       "Compute threads in use, of all workers. Fewer while other processes keep cores busy.", read<&S::threads>},
      {"handovers_total", counter, calls, "prompts", "Prompts that a prefill lane computed and the streams' context took over.",
       read<&S::handovers_total>},
      {"handover_ms_avg", gauge, calls, "ms", "Time of taking over a prompt, which the streams wait: mean.",
       read<&S::handover_ms_avg>},
      {"bmt_mb_per_token", gauge, calls, "10⁶ bytes",
       "Bytes moved per token, estimated for the last decode call: (weights, of a mixture's experts those its rows need, + "
       "cached KV of its sequences) ÷ its tokens.",
       read<&S::bmt_mb_per_token>},
      {"bmt_gbps", gauge, calls, "10⁹ bytes/s",
       "Bytes that library calls have moved, estimated, over the time they took, since the start.", read<&S::bmt_gbps>},
      {"copy_free_ratio", gauge, calls, "0 to 1",
       "Share of logits rows that are read in the library's own buffer. The others come with a prompt from the prefill lane.",
       read<&S::copy_free_ratio>},
      {"device_busy_ratio", gauge, calls, "0 to 1", "`busy_ratio` of the busiest device. `null`: there is none but the CPU.",
       read<&S::device_busy_ratio>},
      {"hot_sessions", gauge, kv, "sessions", "Sessions whose KV is in a context.", read<&S::hot_sessions>},
      {"hot_bytes", gauge, kv, "bytes", "Size of all cells in use.", read<&S::hot_bytes>},
      {"hot_hits_total", counter, kv, "requests", "Requests that found their KV in a context.", read<&S::hot_hits_total>},
      {"warm_sessions", gauge, kv, "states",
       "States in memory: of sessions, of one-shot requests and of sequences that were swapped out.", read<&S::warm_sessions>},
      {"warm_bytes", gauge, kv, "bytes", "Size of the states in memory.", read<&S::warm_bytes>},
      {"warm_hits_total", counter, kv, "requests", "Requests that went on from a state in memory.", read<&S::warm_hits_total>},
      {"warm_restore_ms_avg", gauge, kv, "ms", "Time of bringing a state from memory into a context: mean.",
       read<&S::warm_restore_ms_avg>},
      {"cold_sessions", gauge, kv, "states", "States on disk.", read<&S::cold_sessions>},
      {"cold_bytes", gauge, kv, "bytes", "Size of the states on disk.", read<&S::cold_bytes>},
      {"cold_hits_total", counter, kv, "requests", "Requests that went on from a state on disk.", read<&S::cold_hits_total>},
      {"cold_restore_ms_avg", gauge, kv, "ms", "Time of bringing a state from disk into a context, with reading it: mean.",
       read<&S::cold_restore_ms_avg>},
      {"shared_hits_total", counter, kv, "requests", "Requests that went on from a state of another node.",
       read<&S::shared_hits_total>},
      {"shared_restore_ms_avg", gauge, kv, "ms",
       "Time of bringing a state from `shared_states` into a context, with reading it: mean.", read<&S::shared_restore_ms_avg>},
      {"shared_lookups_total", counter, kv, "lookups",
       "Sessions and system prompts whose states were looked for in `shared_states`.", read<&S::shared_lookups_total>},
      {"shared_found_total", counter, kv, "lookups", "Lookups that found a state.", read<&S::shared_found_total>},
      {"shared_reads_total", counter, kv, "states", "States that were read from `shared_states`.",
       read<&S::shared_reads_total>},
      {"shared_read_bytes_total", counter, kv, "bytes", "Bytes that were read from `shared_states`.",
       read<&S::shared_read_bytes_total>},
      {"shared_writes_total", counter, kv, "states", "States that were written to `shared_states`.",
       read<&S::shared_writes_total>},
      {"shared_written_bytes_total", counter, kv, "bytes", "Bytes that were written to `shared_states`.",
       read<&S::shared_written_bytes_total>},
      {"shared_failed_total", counter, kv, "calls", "Reads and writes of `shared_states` that failed.",
       read<&S::shared_failed_total>},
      {"shared_refused_total", counter, kv, "states", "States of `shared_states` whose bytes were wrong; they are removed.",
       read<&S::shared_refused_total>},
      {"shared_prefix_lookups_total", counter, kv, "lookups", "System prompts that were looked for in `shared_states`.",
       read<&S::shared_prefix_lookups_total>},
      {"shared_prefixes_found_total", counter, kv, "lookups", "System prompts that another node had stored there.",
       read<&S::shared_prefixes_found_total>},
      {"shared_prefixes_written_total", counter, kv, "states", "System prompts that this node has stored there.",
       read<&S::shared_prefixes_written_total>},
      {"states_dropped_total", counter, kv, "states", "States given up for want of room or beyond `kv.tenant_bytes_max`.",
       read<&S::states_dropped_total>},
      {"states_expired_total", counter, kv, "states", "States removed because nobody had used them for `kv.ttl`.",
       read<&S::states_expired_total>},
      {"states_failed_total", counter, kv, "files", "Reads and writes of states' files that failed.",
       read<&S::states_failed_total>},
      {"save_ms_avg", gauge, kv, "ms", "Time of copying a state out of a context: mean.", read<&S::save_ms_avg>},
      {"cold_read_ms_avg", gauge, kv, "ms", "Time of reading a state's file: mean.", read<&S::cold_read_ms_avg>},
      {"cold_write_ms_avg", gauge, kv, "ms", "Time of writing a state's file: mean.", read<&S::cold_write_ms_avg>},
      {"saved_bytes_total", counter, kv, "bytes", "KV that was copied out of contexts into memory.",
       read<&S::saved_bytes_total>},
      {"cold_written_bytes_total", counter, kv, "bytes", "States that were written to disk.",
       read<&S::cold_written_bytes_total>},
      {"cold_written_day_bytes", gauge, kv, "bytes", "States that were written to disk in the last 24 hours.",
       read<&S::cold_written_day_bytes>},
      {"cold_read_bytes_total", counter, kv, "bytes", "States that were read from disk into memory.",
       read<&S::cold_read_bytes_total>},
      {"restored_bytes_total", counter, kv, "bytes",
       "KV that was copied from memory into contexts, that of prompts from the prefill lane included.",
       read<&S::restored_bytes_total>},
      {"images_encoded_total", counter, images, "images", "Images and clips of sound that the projector has encoded.",
       read<&S::images_encoded_total>},
      {"image_cache_hits_total", counter, images, "images", "Images that were needed and still in memory, encoded.",
       read<&S::image_cache_hits_total>},
      {"image_cache_bytes", gauge, images, "bytes", "Encoded images in memory. Limit: `vision.cache_bytes_max`.",
       read<&S::image_cache_bytes>},
      {"image_encode_ms_avg", gauge, images, "ms", "Time of encoding an image: mean.", read<&S::image_encode_ms_avg>},
      {"embed_queue_depth", gauge, embeddings, "requests",
       "Requests for vectors or scores that were sent to a model and have not ended. `pool.queue_depth_warn` of one model are "
       "a warning in the log.",
       read<&S::embed_queue_depth>},
      {"embed_texts_total", counter, embeddings, "texts", "Texts computed.", read<&S::embed_texts_total>},
      {"embed_tokens_total", counter, embeddings, "tokens", "Tokens of the texts computed.", read<&S::embed_tokens_total>},
      {"embed_calls_total", counter, embeddings, "calls", "Library calls for texts.", read<&S::embed_calls_total>},
      {"embed_texts_per_call", gauge, embeddings, "texts", "Texts per library call: mean.", read<&S::embed_texts_per_call>},
      {"embed_call_ms_avg", gauge, embeddings, "ms", "Time of a library call for texts: mean.", read<&S::embed_call_ms_avg>},
      {"embed_request_p50_ms", gauge, embeddings, "ms",
       "Time from receipt of a request for vectors or scores until it was done: median.", read<&S::embed_request_p50_ms>},
      {"embed_request_p95_ms", gauge, embeddings, "ms",
       "Time from receipt of a request for vectors or scores until it was done: 95th percentile.",
       read<&S::embed_request_p95_ms>},
      {"picture_queue_depth", gauge, pictures, "requests",
       "Requests for pictures that were sent to a model and have not ended. `pool.queue_depth_warn` of one model are a warning "
       "in the log.",
       read<&S::picture_queue_depth>},
      {"pictures_total", counter, pictures, "pictures", "Pictures drawn.", read<&S::pictures_total>},
      {"picture_steps_total", counter, pictures, "steps", "Steps of all pictures.", read<&S::picture_steps_total>},
      {"picture_calls_total", counter, pictures, "calls", "Library calls, each for a step of one or more pictures.",
       read<&S::picture_calls_total>},
      {"picture_call_ms_avg", gauge, pictures, "ms", "Time of a library call for pictures: mean.",
       read<&S::picture_call_ms_avg>},
      {"picture_request_p50_ms", gauge, pictures, "ms",
       "Time from receipt of a request for pictures until all were drawn: median.", read<&S::picture_request_p50_ms>},
      {"picture_request_p95_ms", gauge, pictures, "ms",
       "Time from receipt of a request for pictures until all were drawn: 95th percentile.", read<&S::picture_request_p95_ms>},
      {"rss_bytes", gauge, daemon, "bytes", "Resident memory of the daemon's process.", read<&S::rss_bytes>},
      {"kv_cache_utilization", gauge, kv, "0 to 1",
       "Cells in use, of all workers' cells. Cells of sessions that could be given up are in use too.",
       read<&S::kv_cache_utilization>},
      {"models_registered", gauge, models, "models", "Models that are known.", read<&S::models_registered>},
      {"models_loaded", gauge, models, "models", "Models that serve.", read<&S::models_loaded>},
      {"model_loads_total", counter, models, "times", "Loads of models.", read<&S::model_loads_total>},
      {"model_unloads_total", counter, models, "times", "Times that a model's contexts were freed.",
       read<&S::model_unloads_total>},
      {"memory_usable_bytes", gauge, models, "bytes", "Memory that models, contexts and stored states may take together.",
       read<&S::memory_usable_bytes>},
      {"memory_reserved_bytes", gauge, models, "bytes",
       "Memory reserved for models, contexts and what stored states may grow into.", read<&S::memory_reserved_bytes>},
      {"memory_decisions_total", counter, models, "times", "Times that memory was short.", read<&S::memory_decisions_total>},
      {"memory_decisions", list, models, "text", "What was done when memory was short: the last 8 times, oldest first.",
       read<&S::memory_decisions>},
      {"crashes_total", counter, health, "times",
       "Times that `umad --supervise` had to start the daemon again, since the supervisor began.",
       read_inner<&S::crashes, &CrashRecord::count>},
      {"last_crash", text, health, "text",
       "What ended the process that crashed last: `signal 11`, `status 99`. `null`: none has crashed, or there is no "
       "supervisor.",
       read_crash<&CrashRecord::last_cause>},
      {"last_crash_unix_s", gauge, health, "Unix time in s", "Time of the last crash.", read_crash<&CrashRecord::last_unix_s>},
      {"last_tick_s", gauge, health, "s", "Time since a library call ended. `null`: there was none yet.",
       read_inner<&S::progress, &ProgressSnapshot::last_tick_s>},
      {"last_decode_s", gauge, health, "s", "Time since a library call with decode rows ended. `null`: there was none yet.",
       read_inner<&S::progress, &ProgressSnapshot::last_decode_s>},
      {"oldest_waiting_s", gauge, health, "s",
       "Age of the oldest request that has no token in a batch yet. `null`: none is waiting.",
       read_inner<&S::progress, &ProgressSnapshot::oldest_waiting_s>},
      {"misses_model_total", counter, kv, "replies", "Cache misses by another model or other LoRA adapters.",
       read_miss<CacheMissKind::model>},
      {"misses_settings_total", counter, kv, "replies", "Cache misses by other options of the chat template.",
       read_miss<CacheMissKind::settings>},
      {"misses_system_total", counter, kv, "replies", "Cache misses by another system prompt.",
       read_miss<CacheMissKind::system>},
      {"misses_tools_total", counter, kv, "replies", "Cache misses by other tools.", read_miss<CacheMissKind::tools>},
      {"misses_text_total", counter, kv, "replies", "Cache misses by another text of a message.",
       read_miss<CacheMissKind::text>},
      {"misses_reasoning_total", counter, kv, "replies", "Cache misses by other reasoning.",
       read_miss<CacheMissKind::reasoning>},
      {"misses_call_total", counter, kv, "replies", "Cache misses by another tool call.", read_miss<CacheMissKind::call>},
      {"misses_result_total", counter, kv, "replies", "Cache misses by another result of a tool.",
       read_miss<CacheMissKind::result>},
      {"misses_image_total", counter, kv, "replies", "Cache misses by another image.", read_miss<CacheMissKind::image>},
      {"misses_template_total", counter, kv, "replies", "Cache misses by other words of the chat template, such as the date.",
       read_miss<CacheMissKind::template_text>},
      {"misses_tokens_total", counter, kv, "replies",
       "Cache misses by a reply that came back as the same text in other tokens.", read_miss<CacheMissKind::tokens>},
      {"misses_not_held_total", counter, kv, "replies", "Cache misses because KV was gone, or slower to read than to compute.",
       read_miss<CacheMissKind::not_held>},
      {"misses_not_found_total", counter, kv, "replies", "Replies that should be compared with one that is not known.",
       read_miss<CacheMissKind::not_found>},
      {"prompt_memory_bytes", gauge, kv, "bytes",
       "Memory of the prompts that new ones are compared with. Limit: 64 MiB, and 16 MiB for one tenant.",
       read<&S::prompt_memory_bytes>},
  });
}

constexpr auto make_worker_metrics() {
  using enum MetricKind;
  using enum MetricGroup;
  using S = WorkerMetrics;
  return std::to_array<WorkerMetric>({
      {"sequences_active", gauge, workers, "sequences", "Sequences in the worker's context: prefilling or decoding.",
       read<&S::sequences_active>},
      {"queue_depth", gauge, workers, "requests", "Requests that were sent to the worker and are not yet in its context.",
       read<&S::queue_depth>},
      {"cells_used", gauge, workers, "cells", "Cells of the worker's context in use.", read<&S::cells_used>},
      {"cells_total", gauge, workers, "cells", "Cells of the worker's context.", read<&S::cells_total>},
      {"tokens_total", counter, workers, "tokens", "Tokens that the worker generated.", read<&S::tokens_total>},
      {"batch_calls_total", counter, workers, "calls", "Library calls of the worker.", read<&S::batch_calls_total>},
  });
}

constexpr auto make_device_metrics() {
  using enum MetricKind;
  using enum MetricGroup;
  using S = DeviceMetrics;
  return std::to_array<DeviceMetric>({
      {"memory_usable_bytes", gauge, devices, "bytes", "Memory of the device that models and contexts may take.",
       read<&S::memory_usable_bytes>},
      {"memory_reserved_bytes", gauge, devices, "bytes", "Memory of the device reserved for models and contexts.",
       read<&S::memory_reserved_bytes>},
      {"weights_bytes", gauge, devices, "bytes", "Memory of the device reserved for weights.", read<&S::weights_bytes>},
      {"context_bytes", gauge, devices, "bytes", "Memory of the device reserved for contexts.", read<&S::context_bytes>},
      {"busy_s_total", counter, devices, "s",
       "Time in which calls that compute used the device. A call that also uses the CPU or another device counts as a whole; "
       "transfers of weights and states do not count.",
       read<&S::busy_s_total>},
      {"busy_ratio", gauge, devices, "0 to 1",
       "Busy share of the last 5 s, or of the time since the metrics were read last, if that is longer.", read<&S::busy_ratio>},
  });
}

}  // namespace metrics_table_detail

// In the order of the `metrics` frame.
inline constexpr auto kMetrics = metrics_table_detail::make_metrics();
// Metrics of each worker: `workers[]` of the frame, `uma_worker_<name>{worker,model}` in Prometheus' text.
inline constexpr auto kWorkerMetrics = metrics_table_detail::make_worker_metrics();
// Metrics of each device with memory of its own: `devices[]` of the frame, `uma_device_<name>{device}` in Prometheus' text.
inline constexpr auto kDeviceMetrics = metrics_table_detail::make_device_metrics();
// Histograms of times in seconds, in Prometheus' text only.
inline constexpr auto kHistograms = std::to_array<HistogramFamily>({
    {"ttft", "", "From receipt of a request to its first token.", {{{"", &MetricsSnapshot::ttft}}}},
    {"inter_token", "", "Between two tokens of a stream, as produced.", {{{"", &MetricsSnapshot::inter_token}}}},
    {"queue_wait",
     "",
     "From receipt of a request until its first token is in a batch.",
     {{{"", &MetricsSnapshot::queue_wait}}}},
    {"step",
     "kind",
     "One library call: with decode rows, with prefill rows, of an embedding model, with steps of pictures.",
     {{{"decode", &MetricsSnapshot::decode_call},
       {"prefill", &MetricsSnapshot::prefill_call},
       {"embed", &MetricsSnapshot::embed_call},
       {"draw", &MetricsSnapshot::picture_call}}}},
    {"embed_request",
     "",
     "From receipt of a request for vectors or scores until it was done.",
     {{{"", &MetricsSnapshot::embed_request}}}},
    {"picture_request",
     "",
     "From receipt of a request for pictures until all were drawn.",
     {{{"", &MetricsSnapshot::picture_request}}}},
    {"restore",
     "tier",
     "Bringing a state into a context: from memory, from disk or from `shared_states` with reading it.",
     {{{"warm", &MetricsSnapshot::warm_restore},
       {"cold", &MetricsSnapshot::cold_restore},
       {"shared", &MetricsSnapshot::shared_restore}}}},
});

// The metric of this name, looked up at compile time: an unknown name does not compile.
consteval const Metric& metric(std::string_view name) {
  const auto* found = std::ranges::find(kMetrics, name, &Metric::name);
  if (found == kMetrics.end()) throw "no such metric";
  return *found;
}

}  // namespace uma
