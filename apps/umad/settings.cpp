#include "umad/settings.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <limits>
#include <type_traits>
#include <utility>

#include "image/image_header.h"
#include "umad/config_value.h"

namespace uma::umad {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kPiB = std::int64_t{1} << 50;
constexpr std::int64_t kDayMs = 86'400'000;

// `field(config)` refers to the member that has the value; `show` formats a value so that `read` accepts it.
template <class T, class Field, class ShowT>
Access store(Reader<T> read, Field field, ShowT show) {
  return {.apply = [read = std::move(read), field](Config& config, std::string_view text) -> std::optional<std::string> {
            auto value = read(text);
            if (!value) return std::move(value.error());
            auto& target = field(config);
            target = static_cast<std::remove_reference_t<decltype(target)>>(*std::move(value));
            return std::nullopt;
          },
          .show = [field, show](const Config& config) -> std::string { return show(field(config)); }};
}

template <class T, class Field>
Access store(Reader<T> read, Field field) {
  return store(std::move(read), field, [](const auto& value) { return show_value(value); });
}

template <class Field>
Access bytes(std::int64_t min, std::int64_t max, Field field) {
  return store(byte_count(min, max), field, [](auto value) { return show_bytes(static_cast<std::int64_t>(value)); });
}

template <class Field>
Access bytes_or_auto(Field field) {
  return store(byte_count_or_auto(0, kPiB), field,
               [](std::int64_t value) { return value < 0 ? std::string("auto") : show_bytes(value); });
}

// Names of values, in the order of error messages.
template <class T>
using Words = std::vector<std::pair<std::string_view, T>>;

template <class T, class Field>
Access words(Words<T> names, Field field) {
  const auto show = [names, field](const Config& config) {
    return std::string(std::ranges::find(names, field(config), &Words<T>::value_type::second)->first);
  };
  return {.apply = [names = std::move(names), field](Config& config, std::string_view text) -> std::optional<std::string> {
            std::string expected;
            for (const auto& [name, value] : names) {
              if (name == text) {
                field(config) = value;
                return std::nullopt;
              }
              const bool is_last = name == names.back().first;
              expected += std::format("{}{}", expected.empty() ? "" : is_last ? " or " : ", ", name);
            }
            return expected;
          },
          .show = show};
}

std::expected<llm::KvTypes, std::string> read_kv_types(std::string_view text) {
  const auto types = llm::kv_types_of(text);
  return types ? std::expected<llm::KvTypes, std::string>(*types) : std::unexpected(llm::kv_types_expected());
}

// A key of the section `rope`.
Access rope(const char* key) {
  return {.apply = [key](Config& config, std::string_view text) { return llm::set_rope(config.rope, key, text); },
          .show = [key](const Config& config) { return llm::rope_value(config.rope, key); }};
}

// For settings without a function in this version: their values are validated, but not stored.
template <class T>
Access check_only(Reader<T> read) {
  return {.apply = [read = std::move(read)](Config&, std::string_view text) -> std::optional<std::string> {
    auto value = read(text);
    if (!value) return std::move(value.error());
    return std::nullopt;
  }};
}

}  // namespace

const std::vector<Setting>& settings() {
  using enum sched::Policy;
  const Words<bool> boolean = {{"true", true}, {"false", false}};
  const Words<bool> on_off = {{"off", false}, {"on", true}};
  const Words<sched::Policy> policies = {{"continuous", continuous},
                                         {"static_batch", static_batch},
                                         {"iterative", iterative},
                                         {"time_slice", time_slice},
                                         {"sequential", sequential}};
  const Words<Lanes> lanes = {
      {"auto", Lanes::automatic}, {"split", Lanes::split}, {"turns", Lanes::turns}, {"off", Lanes::off}};
  const Words<Reproducible> reproducible = {
      {"off", Reproducible::off}, {"on", Reproducible::on}, {"strict", Reproducible::strict}};
  const Words<llm::KvLayout> layouts = {
      {"auto", llm::KvLayout::automatic}, {"split", llm::KvLayout::split}, {"unified", llm::KvLayout::unified}};
  const Words<llm::FlashAttention> flash = {
      {"auto", llm::FlashAttention::automatic}, {"on", llm::FlashAttention::on}, {"off", llm::FlashAttention::off}};
  const Words<kv::EvictionOrder> evictions = {{"value", kv::EvictionOrder::value}, {"lru", kv::EvictionOrder::lru}};
  const Words<pool::UnknownModel> unknown = {{"auto", pool::UnknownModel::automatic},
                                             {"default", pool::UnknownModel::use_default},
                                             {"refuse", pool::UnknownModel::refuse}};
  static const std::vector<Setting> all = {
      {"", "model", store(path(), [](auto& c) -> auto& { return c.model; }), "UMA_MODEL", "--model",
       "model to serve: a GGUF file, or the name of a model downloaded by uma-cli pull", "uma-tiny, which ships with umad"},
      {"", "draft_model", store(path(), [](auto& c) -> auto& { return c.draft_model; }), "UMA_DRAFT_MODEL", "--draft-model",
       "small model with the same vocabulary that drafts tokens, unless scheduler.speculation is off", "none"},
      {"", "projector", store(path(), [](auto& c) -> auto& { return c.projector; }), "UMA_MMPROJ", "--mmproj",
       "projector file that lets the model read images", "none"},
      {.section = "vision",
       .key = "allowed_dirs",
       .access = store(folders(), [](auto& c) -> auto& { return c.vision_allowed_dirs; }),
       .takes_list = true},
      {"vision", "kept_bytes_max", bytes(0, kPiB, [](auto& c) -> auto& { return c.vision_kept_bytes_max; })},
      {"vision", "cache_bytes_max", bytes(0, kPiB, [](auto& c) -> auto& { return c.vision_cache_bytes_max; })},
      {"vision", "image_pixels_max",
       store(integer(1, image::kImagePixelsMax), [](auto& c) -> auto& { return c.vision_image_pixels_max; })},
      {"vision", "image_tokens_max", store(integer(0, 1 << 16), [](auto& c) -> auto& { return c.vision_image_tokens_max; })},
      {"vision", "urls", words(on_off, [](auto& c) -> auto& { return c.vision_urls.allows_public; })},
      {.section = "vision",
       .key = "url_hosts",
       .access = store(hosts(), [](auto& c) -> auto& { return c.vision_urls.hosts; }),
       .takes_list = true},
      {"vision", "url_bytes_max", bytes(1, 32 << 20, [](auto& c) -> auto& { return c.vision_urls.bytes_max; })},
      {"vision", "url_timeout", store(duration(), [](auto& c) -> auto& { return c.vision_urls.time_max; })},
      {.section = "", .key = "models", .access = store(path(), [](auto& c) -> auto& { return c.models_file; })},
      {.section = "models", .key = "file", .access = store(path(), [](auto& c) -> auto& { return c.models_file; })},
      {"models", "unknown", words(unknown, [](auto& c) -> auto& { return c.pool.unknown; })},
      {"models", "stores", words(on_off, [](auto& c) -> auto& { return c.pool.uses_stores; }), "UMA_MODEL_STORES",
       "--model-stores", "on: also serve models that Ollama, LM Studio, llama.cpp and huggingface_hub have stored"},
      {.section = "",
       .key = "models_dirs",
       .access = store(paths(), [](auto& c) -> auto& { return c.models_dirs; }),
       .takes_list = true},
      {"ipc", "uds_path", store(socket_path(), [](auto& c) -> auto& { return c.socket_path; }), "UMA_SOCKET", "--socket",
       "Unix socket to serve on"},
      {"", "n_ctx", store(integer(0, 1 << 24), [](auto& c) -> auto& { return c.sequence_cells; }), "UMA_N_CTX", "--n-ctx",
       "most tokens of one conversation; 0: what the model was trained for, as memory allows"},
      {"", "slots", store(integer(1, 256), [](auto& c) -> auto& { return c.slots; }), "UMA_SLOTS", "--slots",
       "conversations that one worker generates at the same time"},
      {.section = "",
       .key = "devices",
       .access = store(
           Reader<llm::DeviceNames>(llm::device_names_of), [](auto& c) -> auto& { return c.devices.names; },
           llm::device_names_text),
       .environment = "UMA_DEVICES",
       .flag = "--devices",
       .help = "GPUs that compute: auto, none, names from umad devices, or rpc://HOST:PORT",
       .takes_list = true},
      {"", "rpc_timeout", store(duration(), [](auto& c) -> auto& { return c.rpc_timeout; }), "UMA_RPC_TIMEOUT", "--rpc-timeout",
       "silence of an RPC server that has something to answer, after which it counts as lost"},
      {"", "gpu_layers",
       store(
           Reader<llm::DeviceLayers>(llm::device_layers_of), [](auto& c) -> auto& { return c.devices.layers; },
           llm::device_layers_text),
       "UMA_GPU_LAYERS", "--gpu-layers", "most layers of a model on the GPUs, from its end; auto: all that fit"},
      {.section = "",
       .key = "split",
       .access = store(
           Reader<llm::DeviceSplit>(llm::device_split_of), [](auto& c) -> auto& { return c.devices.split; },
           llm::device_split_text),
       .environment = "UMA_SPLIT",
       .flag = "--split",
       .help = "proportions in which several GPUs have a model's layers; auto: by their free memory",
       .takes_list = true},
      {"", "main_device",
       store(
           Reader<std::string>(llm::main_device_of), [](auto& c) -> auto& { return c.devices.main_device; },
           llm::main_device_text),
       "UMA_MAIN_DEVICE", "--main-device", "GPU that has a model alone if it fits there"},
      {"", "threads", store(integer(0, 256), [](auto& c) -> auto& { return c.threads; }), "UMA_THREADS", "--threads",
       "compute threads of the whole daemon; 0: the physical cores, or one for models under 16 MiB"},
      {"", "workers", store(integer(1, 64), [](auto& c) -> auto& { return c.workers; }), "UMA_WORKERS", "--workers",
       "number of workers; each has its own context"},
      {"", "http", store(http_address(), [](auto& c) -> auto& { return c.http; })},
      {"http", "address", store(http_address(), [](auto& c) -> auto& { return c.http; }), "UMA_HTTP", "--http",
       "address and port of the HTTP listener, or off"},
      {"http", "socket", store(socket_path(), [](auto& c) -> auto& { return c.http_socket; }), "UMA_HTTP_SOCKET",
       "--http-socket", "Unix socket of a second HTTP listener, for this user", "none"},
      {.section = "http",
       .key = "ollama",
       .access = store(ollama_address(), [](auto& c) -> auto& { return c.ollama; }),
       .environment = "UMA_OLLAMA",
       .flag = "--ollama",
       .help = "serve HTTP also where Ollama's clients look: 127.0.0.1:11434, or another address and port",
       .alone = "on"},
      {"http", "keys_file", store(path(), [](auto& c) -> auto& { return c.http_keys_file; }), "UMA_HTTP_KEYS", "--http-keys",
       "file with the API keys of HTTP clients (umad key new NAME makes a key)",
       "no keys, and only this user on this machine is served"},
      {.section = "http",
       .key = "shared_keys",
       .access = words(boolean, [](auto& c) -> auto& { return c.http_shares_keys; }),
       .environment = "UMA_HTTP_SHARED_KEYS",
       .flag = "--http-shared-keys",
       .help = "keep the API keys in the catalog's database, for all umads that share it; --http-keys is for the first start",
       .alone = "true"},
      {"http", "tls_certificate", store(path(), [](auto& c) -> auto& { return c.http_tls_certificate; })},
      {"http", "tls_key", store(path(), [](auto& c) -> auto& { return c.http_tls_key; })},
      {"http", "insecure", words(boolean, [](auto& c) -> auto& { return c.http_is_insecure; })},
      {"http", "local_users", words(boolean, [](auto& c) -> auto& { return c.http_serves_local_users; })},
      {"http", "import_kv", words(boolean, [](auto& c) -> auto& { return c.http_imports_kv; })},
      {"http", "metrics_without_key", words(boolean, [](auto& c) -> auto& { return c.http_serves_metrics_without_key; })},
      {"http", "page", words(on_off, [](auto& c) -> auto& { return c.http_serves_page; })},
      {.section = "http",
       .key = "allowed_hosts",
       .access = store(host_names(), [](auto& c) -> auto& { return c.http_allowed_hosts; }),
       .takes_list = true},
      {.section = "http",
       .key = "cors_origins",
       .access = store(origins(), [](auto& c) -> auto& { return c.http_cors_origins; }),
       .takes_list = true},
      {"http", "access_log", store(path(), [](auto& c) -> auto& { return c.http_access_log; })},
      {"http", "connections_max", store(integer(1, 1'000'000), [](auto& c) -> auto& { return c.http_connections_max; })},
      {"limits", "max_tokens", store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.limits.max_tokens; }),
       "UMA_MAX_TOKENS", "--max-tokens", "limit of a reply in tokens; 0: none, a reply ends when its context is full"},
      {"", "data_dir", store(path(), [](auto& c) -> auto& { return c.data_dir; }), "UMA_DATA_DIR", "--data-dir",
       "folder for sessions, KV states and profiles", "$XDG_STATE_HOME/uma, or ~/.local/state/uma"},
      {"", "catalog", store(database_address(), [](auto& c) -> auto& { return c.catalog; }), "UMA_CATALOG", "--catalog",
       "PostgreSQL database of the sessions, which several umads share", "a file in the data folder"},
      {"", "shared_states", store(shared_store(), [](auto& c) -> auto& { return c.shared_states; }), "UMA_SHARED_STATES",
       "--shared-states",
       "where umads with one catalog find each other's KV: a folder that all mount, or redis://HOST:PORT/DATABASE",
       "KV stays on its machine"},
      {"", "node", store(node_name(), [](auto& c) -> auto& { return c.node; }), "UMA_NODE", "--node",
       "name of this umad among those that share a catalog", "the host's name"},
      {"", "drain_delay", store(duration(), [](auto& c) -> auto& { return c.drain_delay; }), "UMA_DRAIN_DELAY", "--drain-delay",
       "time after SIGTERM in which everything is still served and /ready is 503, so that a balancer sees it"},
      {"", "drain_limit", store(duration(), [](auto& c) -> auto& { return c.drain_limit; }), "UMA_DRAIN_LIMIT", "--drain-limit",
       "time that running requests have to finish after that"},
      {"", "policy", words(policies, [](auto& c) -> auto& { return c.policy.policy; }), nullptr, "--policy",
       "how requests share a worker: continuous, static_batch, iterative, time_slice or sequential"},

      {"ipc", "backlog", store(integer(1, 65'535), [](auto& c) -> auto& { return c.backlog; })},
      {"ipc", "idle_timeout_s", store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.idle_timeout; })},

      {"limits", "max_sessions", store(integer(1, 100'000'000), [](auto& c) -> auto& { return c.limits.max_sessions; })},
      {"limits", "tenant_sessions_max",
       store(integer(0, 100'000'000), [](auto& c) -> auto& { return c.limits.tenant_sessions_max; })},
      {"limits", "tenant_tokens_max", store(integer(0, kPiB), [](auto& c) -> auto& { return c.limits.tenant_tokens_max; })},
      {"limits", "tenant_bytes_max", bytes(0, kPiB, [](auto& c) -> auto& { return c.limits.tenant_bytes_max; })},
      {"limits", "max_prompt_bytes", bytes(1, kGiB, [](auto& c) -> auto& { return c.limits.max_prompt_bytes; })},
      {"limits", "max_frame_bytes", bytes(1024, kGiB, [](auto& c) -> auto& { return c.limits.max_frame_bytes; })},
      {"limits", "tx_bytes_max", bytes(1024, kGiB, [](auto& c) -> auto& { return c.limits.tx_bytes_max; })},
      {"limits", "transfer_bytes_max", bytes(1024, kPiB, [](auto& c) -> auto& { return c.limits.transfer_bytes_max; })},
      {"limits", "queue_max", store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.limits.queue_max; })},
      {"limits", "queue_bytes_max", bytes(1024, kPiB, [](auto& c) -> auto& { return c.limits.queue_bytes_max; })},
      {"limits", "deadline_ms", store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.limits.deadline_ms; })},

      {"scheduler", "tick_ms", store(number(0, 10'000), [](auto& c) -> auto& { return c.tick_ms; })},
      {"scheduler", "target_tbt_ms", store(number(0, 60'000), [](auto& c) -> auto& { return c.target_tbt_ms; })},
      {"scheduler", "target_ttft_ms", store(number(0, kDayMs), [](auto& c) -> auto& { return c.target_ttft_ms; })},
      {"scheduler", "static_batch_wait_ms",
       store(number(0, kDayMs), [](auto& c) -> auto& { return c.policy.static_batch_wait_ms; })},
      {"scheduler", "lanes", words(lanes, [](auto& c) -> auto& { return c.lanes; })},
      {"scheduler", "speculation",
       words<bool>({{"auto", true}, {"off", false}}, [](auto& c) -> auto& { return c.speculates; })},
      {"scheduler", "reproducible", words(reproducible, [](auto& c) -> auto& { return c.reproducible; })},
      {"scheduler", "verify", store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.verify_every; }), "UMA_VERIFY"},
      {"scheduler", "slice_ms", store(number(0, kDayMs), [](auto& c) -> auto& { return c.policy.slice_ms; })},
      {"scheduler", "weights",
       words<bool>({{"shared", false}, {"replicated", true}}, [](auto& c) -> auto& { return c.replicates_weights; })},
      {"scheduler", "prefill_threads", store(integer(0, 256), [](auto& c) -> auto& { return c.prefill_threads; })},
      {"scheduler", "ubatch", store(integer(16, 2048), [](auto& c) -> auto& { return c.ubatch_rows; })},
      {"scheduler", "bmt_budget_gbps", store(number(0, 1e6), [](auto& c) -> auto& { return c.bmt_budget_gbps; })},
      {.section = "scheduler", .key = "max_merge", .access = check_only(integer(0, kInt32Max)), .effect = Effect::superseded},
      {.section = "scheduler", .key = "latency_cap", .access = check_only(number(0, 1e6)), .effect = Effect::superseded},

      {"kv", "cells", store(integer(0, 1 << 24), [](auto& c) -> auto& { return c.kv_cells; }), "UMA_KV_CELLS", "--kv-cells",
       "KV cells of one worker, which its conversations share; 0: chosen by model and free memory"},
      {"kv", "layout", words(layouts, [](auto& c) -> auto& { return c.kv_layout; })},
      {"kv", "type",
       store(
           Reader<llm::KvTypes>(read_kv_types), [](auto& c) -> auto& { return c.kv_types; }, llm::kv_types_text)},
      {"kv", "flash_attention", words(flash, [](auto& c) -> auto& { return c.flash_attention; })},
      {"kv", "warm_bytes_max", bytes_or_auto([](auto& c) -> auto& { return c.warm_bytes_max; })},
      {"kv", "cold_bytes_max", bytes_or_auto([](auto& c) -> auto& { return c.cold_bytes_max; })},
      {"kv", "shared_bytes_max", bytes(1, kPiB, [](auto& c) -> auto& { return c.shared_bounds.bytes_max; })},
      {"kv", "shared_state_bytes_max", bytes(1, kPiB, [](auto& c) -> auto& { return c.shared_bounds.state_bytes_max; })},
      {"kv", "shared_ttl", store(duration(), [](auto& c) -> auto& { return c.shared_ttl; })},
      {"kv", "tenant_bytes_max", bytes(0, kPiB, [](auto& c) -> auto& { return c.tenant_bytes_max; })},
      {"kv", "archive_after", store(duration(), [](auto& c) -> auto& { return c.archive_after; })},
      {"kv", "write_within",
       store(
           duration_or_none(), [](auto& c) -> auto& { return c.write_within; }, show_duration_or_none)},
      {"kv", "day_bytes_max", bytes(0, kPiB, [](auto& c) -> auto& { return c.day_bytes_max; })},
      {"kv", "eviction", words(evictions, [](auto& c) -> auto& { return c.eviction; })},
      {"kv", "ttl",
       store(
           duration_or_none(), [](auto& c) -> auto& { return c.state_ttl; }, show_duration_or_none)},

      {"rope", "scaling", rope("scaling"), "UMA_ROPE_SCALING", "--rope-scaling",
       "how positions beyond the trained context are scaled: none, linear, yarn, or auto for what the model's file says"},
      {"rope", "scale", rope("scale"), "UMA_ROPE_SCALE", "--rope-scale", "how many times longer scaling makes the context",
       "what the model's file says"},
      {"rope", "freq_scale", rope("freq_scale"), "UMA_ROPE_FREQ_SCALE", "--rope-freq-scale", "1 / --rope-scale, in its place",
       "what the model's file says"},
      {"rope", "freq_base", rope("freq_base"), "UMA_ROPE_FREQ_BASE", "--rope-freq-base",
       "base of the frequencies of rotary positions", "what the model's file says"},
      {"rope", "yarn_orig_ctx", rope("yarn_orig_ctx"), "UMA_YARN_ORIG_CTX", "--yarn-orig-ctx",
       "tokens that the model was trained for before YaRN", "what the model's file says"},
      {"rope", "yarn_ext_factor", rope("yarn_ext_factor"), "UMA_YARN_EXT_FACTOR", "--yarn-ext-factor",
       "share of the high frequencies that YaRN leaves unscaled, 0 to 1", "1"},
      {"rope", "yarn_attn_factor", rope("yarn_attn_factor"), "UMA_YARN_ATTN_FACTOR", "--yarn-attn-factor",
       "factor of the attention's magnitude; needs --yarn-ext-factor 0", "computed from the scale"},
      {"rope", "yarn_beta_slow", rope("yarn_beta_slow"), "UMA_YARN_BETA_SLOW", "--yarn-beta-slow",
       "rotations in the original context below which YaRN scales a frequency fully", "1"},
      {"rope", "yarn_beta_fast", rope("yarn_beta_fast"), "UMA_YARN_BETA_FAST", "--yarn-beta-fast",
       "rotations in the original context above which YaRN does not scale a frequency", "32"},

      {.section = "pool",
       .key = "usable_fraction",
       .access = store(number(0.01, 1), [](auto& c) -> auto& { return c.pool.usable_fraction; })},
      {.section = "pool",
       .key = "memory_bytes_max",
       .access = bytes(0, kPiB, [](auto& c) -> auto& { return c.pool.memory_bytes_max; })},
      {.section = "pool",
       .key = "device_bytes_max",
       .access = bytes(0, kPiB, [](auto& c) -> auto& { return c.pool.device_bytes_max; })},
      {.section = "pool",
       .key = "queue_depth_warn",
       .access = store(integer(0, kInt32Max), [](auto& c) -> auto& { return c.pool.queue_depth_warn; })},
      {.section = "pool",
       .key = "maintenance_s",
       .access = store(number(0.1, 86'400), [](auto& c) -> auto& { return c.pool.maintenance_s; })},
      {.section = "pool",
       .key = "min_loaded_s",
       .access = store(number(0, 86'400), [](auto& c) -> auto& { return c.pool.min_loaded_s; })},
      {.section = "pool",
       .key = "idle_unload_s",
       .access = store(number(0, 1e9), [](auto& c) -> auto& { return c.pool.idle_unload_s; })},
      {.section = "metrics", .key = "tick_interval_ms", .access = check_only(integer(1, kDayMs)), .effect = Effect::not_yet},
  };
  return all;
}

const Setting* find_setting(std::string_view section, std::string_view key) {
  for (const Setting& setting : settings()) {
    if (setting.section == section && setting.key == key) return &setting;
  }
  return nullptr;
}

bool is_section(std::string_view name) {
  for (const Setting& setting : settings()) {
    if (!setting.section.empty() && setting.section == name) return true;
  }
  return false;
}

std::string known_keys(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Setting& setting : settings()) {
    if (setting.section == section) names.push_back(setting.key);
    // At the top level, sections are keys, too.
    if (section.empty() && !setting.section.empty() && std::ranges::find(names, setting.section) == names.end()) {
      names.push_back(setting.section);
    }
  }
  std::string text;
  for (const std::string_view name : names) text += std::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace uma::umad
