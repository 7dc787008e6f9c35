#include "umad/config.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <format>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <utility>

#include <CLI/CLI.hpp>
#include <yaml-cpp/yaml.h>

#include "base/text.h"
#include "umad/config_value.h"

namespace uma::umad {
namespace {

// Stores the text's value in the configuration; returns what was expected where the text has none.
using Apply = std::function<std::optional<std::string>(Config& config, std::string_view text)>;

enum class Effect : std::uint8_t { works, not_yet, superseded };

// One setting and the names it has in each source. This table is all there is to know about settings: the YAML reader, the
// environment and the flags only walk it.
struct Setting {
  std::string_view section;  // of the YAML file; empty: top level
  std::string_view key;
  Apply apply;
  const char* environment = nullptr;
  const char* flag = nullptr;
  const char* help = nullptr;  // of the flag
  Effect effect = Effect::works;
  bool takes_list = false;  // of YAML: its values are joined, one a line

  [[nodiscard]] std::string name() const { return section.empty() ? std::string(key) : std::format("{}.{}", section, key); }
};

template <class T, class Field>
Apply store(Reader<T> read, Field field) {
  return [read = std::move(read), field](Config& config, std::string_view text) -> std::optional<std::string> {
    auto value = read(text);
    if (!value) return std::move(value.error());
    auto& target = field(config);
    target = static_cast<std::remove_reference_t<decltype(target)>>(*std::move(value));
    return std::nullopt;
  };
}

// For settings whose feature this version lacks: their values must be right all the same.
template <class T>
Apply check_only(Reader<T> read) {
  return [read = std::move(read)](Config&, std::string_view text) -> std::optional<std::string> {
    auto value = read(text);
    if (!value) return std::move(value.error());
    return std::nullopt;
  };
}

std::optional<std::string> apply_policy(Config& config, std::string_view text) {
  const auto policy = sched::parse_policy(text);
  if (!policy) return "continuous, static_batch, iterative, time_slice or sequential";
  config.policy.policy = *policy;
  return std::nullopt;
}

std::optional<std::string> apply_speculation(Config& config, std::string_view text) {
  auto word = one_of({"auto", "off"})(text);
  if (!word) return std::move(word.error());
  config.speculates = *word == "auto";
  return std::nullopt;
}

std::optional<std::string> apply_reproducible(Config& config, std::string_view text) {
  auto word = one_of({"off", "on", "strict"})(text);
  if (!word) return std::move(word.error());
  config.reproducible = *word == "on" ? Reproducible::on : *word == "strict" ? Reproducible::strict : Reproducible::off;
  return std::nullopt;
}

std::optional<std::string> apply_vision_urls(Config& config, std::string_view text) {
  auto word = one_of({"off", "on"})(text);
  if (!word) return std::move(word.error());
  config.vision_urls.allows_public = *word == "on";
  return std::nullopt;
}

std::optional<std::string> apply_lanes(Config& config, std::string_view text) {
  auto word = one_of({"auto", "split", "turns", "off"})(text);
  if (!word) return std::move(word.error());
  config.lanes = *word == "split"   ? Lanes::split
                 : *word == "turns" ? Lanes::turns
                 : *word == "off"   ? Lanes::off
                                    : Lanes::automatic;
  return std::nullopt;
}

std::optional<std::string> apply_boolean(bool& target, std::string_view text) {
  auto word = one_of({"true", "false"})(text);
  if (!word) return std::move(word.error());
  target = *word == "true";
  return std::nullopt;
}

std::optional<std::string> apply_kv_layout(Config& config, std::string_view text) {
  auto word = one_of({"auto", "split", "unified"})(text);
  if (!word) return std::move(word.error());
  config.kv_layout = *word == "split"     ? llm::KvLayout::split
                     : *word == "unified" ? llm::KvLayout::unified
                                          : llm::KvLayout::automatic;
  return std::nullopt;
}

std::optional<std::string> apply_kv_type(Config& config, std::string_view text) {
  auto word = one_of({"f16", "q8_0"})(text);
  if (!word) return std::move(word.error());
  config.kv_type = *word == "q8_0" ? llm::KvType::q8_0 : llm::KvType::f16;
  return std::nullopt;
}

std::optional<std::string> apply_flash_attention(Config& config, std::string_view text) {
  auto word = one_of({"auto", "on", "off"})(text);
  if (!word) return std::move(word.error());
  config.flash_attention = *word == "on"    ? llm::FlashAttention::on
                           : *word == "off" ? llm::FlashAttention::off
                                            : llm::FlashAttention::automatic;
  return std::nullopt;
}

std::optional<std::string> apply_weights(Config& config, std::string_view text) {
  auto word = one_of({"shared", "replicated"})(text);
  if (!word) return std::move(word.error());
  config.replicates_weights = *word == "replicated";
  return std::nullopt;
}

std::optional<std::string> apply_eviction(Config& config, std::string_view text) {
  auto word = one_of({"value", "lru"})(text);
  if (!word) return std::move(word.error());
  config.eviction = *word == "lru" ? kv::EvictionOrder::lru : kv::EvictionOrder::value;
  return std::nullopt;
}

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kPiB = std::int64_t{1} << 50;
constexpr std::int64_t kDayMs = 86'400'000;

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"", "model", store(path(), [](Config& c) -> auto& { return c.model; }), "UMA_MODEL", "--model",
       "model to serve: a GGUF file, or the name of one that uma-cli pull fetched (default: uma-tiny, which ships with umad)"},
      {"", "draft_model", store(path(), [](Config& c) -> auto& { return c.draft_model; }), "UMA_DRAFT_MODEL", "--draft-model",
       "a small model of the same vocabulary that guesses tokens; needs scheduler.speculation: auto (default: none)"},
      {"", "projector", store(path(), [](Config& c) -> auto& { return c.projector; }), "UMA_MMPROJ", "--mmproj",
       "the model's projector, which reads images (default: none)"},
      {.section = "vision",
       .key = "allowed_dirs",
       .apply = store(folders(), [](Config& c) -> auto& { return c.vision_allowed_dirs; }),
       .takes_list = true},
      {"vision", "cache_bytes_max", store(byte_count(0, kPiB), [](Config& c) -> auto& { return c.vision_cache_bytes_max; })},
      {"vision", "urls", apply_vision_urls},
      {.section = "vision",
       .key = "url_hosts",
       .apply = store(hosts(), [](Config& c) -> auto& { return c.vision_urls.hosts; }),
       .takes_list = true},
      {"vision", "url_bytes_max", store(byte_count(1, 32 << 20), [](Config& c) -> auto& { return c.vision_urls.bytes_max; })},
      {"vision", "url_timeout", store(duration(), [](Config& c) -> auto& { return c.vision_urls.time_max; })},
      {.section = "", .key = "models", .apply = store(path(), [](Config& c) -> auto& { return c.models_file; })},
      {.section = "",
       .key = "models_dirs",
       .apply = store(paths(), [](Config& c) -> auto& { return c.models_dirs; }),
       .takes_list = true},
      {"ipc", "uds_path", store(socket_path(), [](Config& c) -> auto& { return c.socket_path; }), "UMA_SOCKET", "--socket",
       "Unix socket to serve on (default /tmp/uma.sock)"},
      {"", "n_ctx", store(integer(0, 1 << 24), [](Config& c) -> auto& { return c.context_cells; }), "UMA_N_CTX", "--n-ctx",
       "tokens of KV cache per worker, shared by its slots (default 0: from the model)"},
      {"", "slots", store(integer(1, 256), [](Config& c) -> auto& { return c.slots; }), "UMA_SLOTS", "--slots",
       "conversations that one worker generates at the same time (default 8)"},
      {"", "threads", store(integer(0, 256), [](Config& c) -> auto& { return c.threads; }), "UMA_THREADS", "--threads",
       "compute threads of the whole daemon (default 0: the physical cores; one for models under 16 MiB)"},
      {"", "workers", store(integer(1, 64), [](Config& c) -> auto& { return c.workers; }), "UMA_WORKERS", "--workers",
       "workers, each with a context of its own (default 1)"},
      {"", "http", store(http_address(), [](Config& c) -> auto& { return c.http; }), "UMA_HTTP", "--http",
       "address and port of the HTTP door, or off (default 127.0.0.1:8642)"},
      {"http", "address", store(http_address(), [](Config& c) -> auto& { return c.http; })},
      {"http", "socket", store(socket_path(), [](Config& c) -> auto& { return c.http_socket; }), "UMA_HTTP_SOCKET",
       "--http-socket", "Unix socket to serve HTTP on too, for this user (default: none)"},
      {"http", "keys_file", store(path(), [](Config& c) -> auto& { return c.http_keys_file; }), "UMA_HTTP_KEYS", "--http-keys",
       "file of the keys that HTTP clients need (umad key new NAME makes one; default: none, only this machine is served)"},
      {"http", "tls_certificate", store(path(), [](Config& c) -> auto& { return c.http_tls_certificate; })},
      {"http", "tls_key", store(path(), [](Config& c) -> auto& { return c.http_tls_key; })},
      {"http", "insecure", [](Config& c, std::string_view text) { return apply_boolean(c.http_is_insecure, text); }},
      {"http", "metrics_without_key",
       [](Config& c, std::string_view text) { return apply_boolean(c.http_serves_metrics_without_key, text); }},
      {.section = "http",
       .key = "cors_origins",
       .apply = store(origins(), [](Config& c) -> auto& { return c.http_cors_origins; }),
       .takes_list = true},
      {"http", "access_log", store(path(), [](Config& c) -> auto& { return c.http_access_log; })},
      {"http", "connections_max", store(integer(1, 1'000'000), [](Config& c) -> auto& { return c.http_connections_max; })},
      {"limits", "max_tokens", store(integer(1, kInt32Max), [](Config& c) -> auto& { return c.limits.max_tokens; }),
       "UMA_MAX_TOKENS", "--max-tokens", "longest reply in tokens; requests for more get this many (default 2048)"},
      {"", "data_dir", store(path(), [](Config& c) -> auto& { return c.data_dir; }), "UMA_DATA_DIR", "--data-dir",
       "folder for what the daemon keeps (default $XDG_STATE_HOME/uma or ~/.local/state/uma)"},
      {"", "policy", apply_policy, nullptr, "--policy",
       "how requests share a worker: continuous (default), static_batch, iterative, time_slice, sequential"},

      {"ipc", "backlog", store(integer(1, 65'535), [](Config& c) -> auto& { return c.backlog; })},
      {"ipc", "idle_timeout_s", store(integer(0, kInt32Max), [](Config& c) -> auto& { return c.idle_timeout; })},

      {"limits", "max_sessions", store(integer(1, 100'000'000), [](Config& c) -> auto& { return c.limits.max_sessions; })},
      {"limits", "tenant_sessions_max",
       store(integer(0, 100'000'000), [](Config& c) -> auto& { return c.limits.tenant_sessions_max; })},
      {"limits", "tenant_tokens_max", store(integer(0, kPiB), [](Config& c) -> auto& { return c.limits.tenant_tokens_max; })},
      {"limits", "max_prompt_bytes", store(byte_count(1, kGiB), [](Config& c) -> auto& { return c.limits.max_prompt_bytes; })},
      {"limits", "max_frame_bytes", store(byte_count(1024, kGiB), [](Config& c) -> auto& { return c.limits.max_frame_bytes; })},
      {"limits", "tx_bytes_max", store(byte_count(1024, kGiB), [](Config& c) -> auto& { return c.limits.tx_bytes_max; })},
      {"limits", "transfer_bytes_max",
       store(byte_count(1024, kPiB), [](Config& c) -> auto& { return c.limits.transfer_bytes_max; })},
      {"limits", "queue_max", store(integer(0, kInt32Max), [](Config& c) -> auto& { return c.limits.queue_max; })},
      {"limits", "queue_bytes_max", store(byte_count(1024, kPiB), [](Config& c) -> auto& { return c.limits.queue_bytes_max; })},
      {"limits", "deadline_ms", store(integer(0, kInt32Max), [](Config& c) -> auto& { return c.limits.deadline_ms; })},

      {"scheduler", "tick_ms", store(number(0, 10'000), [](Config& c) -> auto& { return c.tick_ms; })},
      {"scheduler", "target_tbt_ms", store(number(0, 60'000), [](Config& c) -> auto& { return c.target_tbt_ms; })},
      {"scheduler", "target_ttft_ms", store(number(0, kDayMs), [](Config& c) -> auto& { return c.target_ttft_ms; })},
      {"scheduler", "static_batch_wait_ms",
       store(number(0, kDayMs), [](Config& c) -> auto& { return c.policy.static_batch_wait_ms; })},
      {"scheduler", "lanes", apply_lanes},
      {"scheduler", "speculation", apply_speculation},
      {"scheduler", "reproducible", apply_reproducible},
      {"scheduler", "verify", store(integer(0, kInt32Max), [](Config& c) -> auto& { return c.verify_every; }), "UMA_VERIFY"},
      {"scheduler", "slice_ms", store(number(0, kDayMs), [](Config& c) -> auto& { return c.policy.slice_ms; })},
      {"scheduler", "weights", apply_weights},
      {"scheduler", "prefill_threads", store(integer(0, 256), [](Config& c) -> auto& { return c.prefill_threads; })},
      {"scheduler", "ubatch", store(integer(16, 2048), [](Config& c) -> auto& { return c.ubatch_rows; })},
      {"scheduler", "bmt_budget_gbps", store(number(0, 1e6), [](Config& c) -> auto& { return c.bmt_budget_gbps; })},
      {.section = "scheduler", .key = "max_merge", .apply = check_only(integer(0, kInt32Max)), .effect = Effect::superseded},
      {.section = "scheduler", .key = "latency_cap", .apply = check_only(number(0, 1e6)), .effect = Effect::superseded},

      {"kv", "layout", apply_kv_layout},
      {"kv", "type", apply_kv_type},
      {"kv", "flash_attention", apply_flash_attention},
      {"kv", "warm_bytes_max", store(byte_count_or_auto(0, kPiB), [](Config& c) -> auto& { return c.warm_bytes_max; })},
      {"kv", "cold_bytes_max", store(byte_count_or_auto(0, kPiB), [](Config& c) -> auto& { return c.cold_bytes_max; })},
      {"kv", "tenant_bytes_max", store(byte_count(0, kPiB), [](Config& c) -> auto& { return c.tenant_bytes_max; })},
      {"kv", "archive_after", store(duration(), [](Config& c) -> auto& { return c.archive_after; })},
      {"kv", "eviction", apply_eviction},
      {"kv", "ttl", store(duration_or_none(), [](Config& c) -> auto& { return c.state_ttl; })},

      {.section = "pool",
       .key = "usable_fraction",
       .apply = store(number(0.01, 1), [](Config& c) -> auto& { return c.pool.usable_fraction; })},
      {.section = "pool",
       .key = "memory_bytes_max",
       .apply = store(byte_count(0, kPiB), [](Config& c) -> auto& { return c.pool.memory_bytes_max; })},
      {.section = "pool",
       .key = "queue_depth_warn",
       .apply = store(integer(0, kInt32Max), [](Config& c) -> auto& { return c.pool.queue_depth_warn; })},
      {.section = "pool",
       .key = "maintenance_s",
       .apply = store(number(0.1, 86'400), [](Config& c) -> auto& { return c.pool.maintenance_s; })},
      {.section = "pool",
       .key = "min_loaded_s",
       .apply = store(number(0, 86'400), [](Config& c) -> auto& { return c.pool.min_loaded_s; })},
      {.section = "pool",
       .key = "idle_unload_s",
       .apply = store(number(0, 1e9), [](Config& c) -> auto& { return c.pool.idle_unload_s; })},
      {.section = "metrics", .key = "tick_interval_ms", .apply = check_only(integer(1, kDayMs)), .effect = Effect::not_yet},
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
    // At the top level the sections are keys too.
    if (section.empty() && !setting.section.empty() && std::ranges::find(names, setting.section) == names.end()) {
      names.push_back(setting.section);
    }
  }
  std::string text;
  for (const std::string_view name : names) text += std::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

std::string mismatch(std::string_view expected, std::string_view text) {
  return std::format("expected {}, got \"{}\"", expected, text.substr(0, 100));
}

// Stores the text's value; returns what was expected where the text has none.
std::optional<std::string> accept(Config& config, const Setting& setting, std::string_view text) {
  if (auto expected = setting.apply(config, text)) return expected;
  config.keys_given.push_back(setting.name());
  return std::nullopt;
}

void note_effect(Config& config, const Setting& setting) {
  if (setting.effect == Effect::not_yet) config.keys_without_effect.push_back(setting.name());
  if (setting.effect == Effect::superseded) config.keys_superseded.push_back(setting.name());
}

// Walks the two levels of a configuration file. Aliases need no care: nothing below the second level is followed.
class YamlReader {
 public:
  YamlReader(Config& config, std::string_view file) : config_(config), file_(file) {}

  std::vector<std::string> read(const std::string& text) {
    try {
      const YAML::Node root = YAML::Load(text);
      if (!root.IsNull()) read_map(root, "");
    } catch (const YAML::Exception& problem) {
      report(problem.mark, problem.msg);
    }
    return std::move(problems_);
  }

 private:
  void read_map(const YAML::Node& map, std::string_view section) {
    if (!map.IsMap()) {
      report(map.Mark(), section.empty() ? std::string("expected keys and values, as in `model: path`")
                                         : std::format("{}: expected keys and values", section));
      return;
    }
    std::vector<std::string> seen;
    for (const auto& entry : map) {
      const YAML::Node& key = entry.first;
      if (!key.IsScalar()) {
        report(key.Mark(), "expected a name as key");
        continue;
      }
      if (std::ranges::find(seen, key.Scalar()) != seen.end()) {
        report(key.Mark(), std::format("{} is set twice", full_name(section, key.Scalar())));
        continue;
      }
      seen.push_back(key.Scalar());
      read_entry(section, key, entry.second);
    }
  }

  void read_entry(std::string_view section, const YAML::Node& key, const YAML::Node& value) {
    const Setting* setting = find_setting(section, key.Scalar());
    // `http` is both: an address alone, or a section.
    if (section.empty() && is_section(key.Scalar()) && (setting == nullptr || !value.IsScalar())) {
      if (!value.IsNull()) read_map(value, key.Scalar());
      return;
    }
    if (setting == nullptr) {
      report(key.Mark(), std::format("unknown key \"{}\"{}; known: {}", key.Scalar().substr(0, 100),
                                     section.empty() ? "" : std::format(" in {}", section), known_keys(section)));
      return;
    }
    read_value(*setting, value);
  }

  void read_value(const Setting& setting, const YAML::Node& value) {
    std::string list;
    const bool is_list = setting.takes_list && value.IsSequence() &&
                         std::ranges::all_of(value, [](const auto& item) { return item.IsScalar() && !item.Scalar().empty(); });
    if (is_list) {
      for (const YAML::Node& item : value) list += std::format("{}{}", list.empty() ? "" : "\n", item.Scalar());
    }
    const std::string_view kind = is_list              ? ""
                                  : value.IsNull()     ? "nothing"
                                  : value.IsMap()      ? "a map"
                                  : value.IsSequence() ? "a list"
                                                       : "";
    if (!kind.empty()) {
      report(value.Mark(), std::format("{}: expected one value, got {}", setting.name(), kind));
      return;
    }
    const std::string& text = is_list ? list : value.Scalar();
    if (const auto expected = accept(config_, setting, text)) {
      report(value.Mark(), std::format("{}: {}", setting.name(), mismatch(*expected, text)));
      return;
    }
    note_effect(config_, setting);
  }

  static std::string full_name(std::string_view section, std::string_view key) {
    return section.empty() ? std::string(key) : std::format("{}.{}", section, key);
  }

  void report(const YAML::Mark& mark, std::string_view what) {
    problems_.push_back(mark.is_null() ? std::format("{}: {}", file_, what)
                                       : std::format("{}:{}:{}: {}", file_, mark.line + 1, mark.column + 1, what));
  }

  Config& config_;
  std::string_view file_;
  std::vector<std::string> problems_;
};

std::vector<std::string> apply_file(Config& config, const std::string& path) {
  constexpr std::int64_t kBytesMax = 1 << 20;
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) return {std::format("{}: {}", path, std::strerror(errno))};
  // A pipe could wait for ever and a device never end.
  if (!S_ISREG(facts.st_mode)) return {std::format("{}: not a regular file", path)};
  if (facts.st_size > kBytesMax) return {std::format("{}: {} bytes are too many for a configuration", path, facts.st_size)};
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return {std::format("{}: {}", path, std::strerror(errno))};
  return apply_yaml(config, text.str(), path);
}

void apply_environment(Config& config, const Environment& environment, std::vector<std::string>& problems) {
  for (const Setting& setting : settings()) {
    if (setting.environment == nullptr) continue;
    const std::optional<std::string> value = environment(setting.environment);
    if (!value || value->empty()) continue;  // an empty variable counts as unset
    if (const auto expected = accept(config, setting, *value)) {
      problems.push_back(std::format("{}: {}", setting.environment, mismatch(*expected, *value)));
    }
  }
}

constexpr const char* kFooter =
    "\nOrder: defaults, then the YAML file, then the environment, then flags; the later one wins.\n"
    "Environment: UMA_MODEL UMA_DRAFT_MODEL UMA_MMPROJ UMA_SOCKET UMA_HTTP UMA_HTTP_KEYS UMA_HTTP_SOCKET\n"
    "             UMA_N_CTX UMA_SLOTS UMA_THREADS UMA_WORKERS UMA_MAX_TOKENS UMA_DATA_DIR UMA_CONFIG (the YAML file)\n"
    "             UMA_VERIFY (scheduler.verify) UMA_DEBUG=1 (log more)\n"
    "Signals:     TERM and INT finish what runs, then end; a second one ends at once. USR1 writes metrics.json to the data "
    "folder.\n"
    "\nExample: umad, then in another terminal: uma-cli chat\n"
    "         umad tune measures what suits this model and machine (umad tune --help)\n"
    "         umad key new NAME makes a key for HTTP clients";

constexpr const char* kTuneFooter =
    "\nMeasures thread counts, ubatch, flash attention, layout and type of the KV cache, and prompts in a lane beside the "
    "streams;\n"
    "prints what it found, and keeps the choice in the data folder, where umad reads it at start for what is not set "
    "otherwise.\n"
    "It needs a machine with nothing else to do. Ctrl-C ends it, and keeps nothing.\n"
    "\nExit codes: 0 measured and kept, 1 a mistake, no such model, no memory, a busy machine, 130 interrupted.";

// The settings that `umad tune` has flags for.
constexpr std::array<std::string_view, 5> kTuneKeys = {"model", "n_ctx", "slots", "threads", "data_dir"};

// What the command line said: the text of each setting's flag, in the order of settings().
struct Flags {
  std::vector<std::pair<const Setting*, std::string>> values;
  std::string config_path;
  std::optional<TuneOptions> tune;
};

std::expected<Flags, Exit> parse_flags(std::span<const std::string> arguments) {
  const bool is_tune = !arguments.empty() && arguments.front() == "tune";
  if (is_tune) arguments = arguments.subspan(1);
  CLI::App app{is_tune ? "umad tune: measures what suits this model on this machine."
                       : "umad: serves language models to many conversations at once, over a Unix socket and HTTP.",
               is_tune ? "umad tune" : "umad"};
  if (!is_tune) app.set_version_flag("--version", "umad " UMA_VERSION);
  app.footer(is_tune ? kTuneFooter : kFooter);
  app.get_formatter()->column_width(24);

  Flags flags;
  if (is_tune) {
    flags.tune.emplace();
    app.add_option("--seconds", flags.tune->seconds, "time for measuring (default 90)")
        ->type_name("SECONDS")
        ->check(CLI::Range(1.0, 3600.0));
    app.add_flag("--allow-quantized-kv", flags.tune->allows_quantized_kv,
                 "let K/V type q8_0 be chosen: half the memory, slightly different answers");
    app.add_flag("--even-if-busy", flags.tune->even_if_busy,
                 "measure though other programs compute: what is chosen then suits a machine that is shared like this");
  }
  app.add_option("--config", flags.config_path, "configuration file (YAML)")->type_name("FILE");
  std::vector<std::pair<CLI::Option*, const Setting*>> options;
  for (const Setting& setting : settings()) {
    if (setting.flag == nullptr || (is_tune && !std::ranges::contains(kTuneKeys, setting.key))) continue;
    options.emplace_back(app.add_option(setting.flag, setting.help)->type_name("VALUE")->expected(1), &setting);
  }

  // CLI11 reads a vector from its back.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    std::ostringstream text;
    const bool is_question = app.exit(problem, text, text) == 0;
    return std::unexpected(Exit{is_question ? 0 : 1, text.str()});
  }
  for (const auto& [option, setting] : options) {
    if (!option->empty()) flags.values.emplace_back(setting, option->as<std::string>());
  }
  return flags;
}

// A base folder of the XDG rules, which ask to ignore relative paths; empty where there is none.
std::string folder_of(const Environment& environment, const char* variable, std::string_view in_home) {
  return xdg_folder(environment(variable).value_or(""), environment("HOME").value_or(""), in_home);
}

std::string error_text(const std::vector<std::string>& problems) {
  std::string text = problems.size() == 1 ? "umad: the configuration has an error\n"
                                          : std::format("umad: the configuration has {} errors\n", problems.size());
  for (const std::string& problem : problems) text += std::format("  {}\n", problem);
  return text;
}

}  // namespace

bool Config::is_given(std::string_view key) const {
  return std::ranges::contains(keys_given, key);
}

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::vector<std::string> apply_yaml(Config& config, const std::string& yaml, std::string_view name) {
  return YamlReader(config, name).read(yaml);
}

namespace {

// What an address needs that other machines reach.
void check_open_http(const Config& config, std::vector<std::string>& problems) {
  if (config.http_keys_file.empty()) {
    problems.push_back(
        std::format("http: {} is not this machine's alone, so clients need keys: give --http-keys FILE "
                    "(umad key new NAME makes one)",
                    config.http.address));
  } else if (!config.http_is_insecure && config.http_tls_certificate.empty()) {
    problems.push_back(
        std::format("http: at {} keys and texts would cross the network unencrypted: put a proxy with TLS before "
                    "an address of this machine, or set http.insecure: true where the network is safe",
                    config.http.address));
  }
}

// What the same bits need (docs/decisions/0014). Guessed tokens change nothing then, so they are tried.
void make_reproducible(Config& config, std::vector<std::string>& problems) {
  const bool is_strict = config.reproducible == Reproducible::strict;
  const auto refuse = [&](std::string_view why) {
    problems.push_back(std::format("scheduler.reproducible: {} {}", is_strict ? "strict" : "on", why));
  };
  if (config.is_given("kv.layout") && config.kv_layout == llm::KvLayout::unified) {
    refuse("needs split KV: leave out kv.layout: unified");
  }
  if (is_strict && config.is_given("kv.flash_attention") && config.flash_attention == llm::FlashAttention::on) {
    refuse("works without flash attention: leave out kv.flash_attention: on");
  }
  if (config.kv_type != llm::KvType::f16) refuse("needs kv.type: f16");
  if (!config.draft_model.empty()) refuse("guesses tokens from the text only: leave out draft_model");
  config.kv_layout = llm::KvLayout::split;
  if (is_strict) config.flash_attention = llm::FlashAttention::off;
  for (const char* key : {"kv.layout", "kv.flash_attention", "kv.type"}) {
    if (!config.is_given(key)) config.keys_given.emplace_back(key);  // no profile decides otherwise
  }
  if (!config.is_given("scheduler.speculation")) config.speculates = true;
}

}  // namespace

std::expected<Config, Exit> load_config(std::span<const std::string> arguments, const Environment& environment,
                                        const PassedAddresses& passed) {
  std::expected<Flags, Exit> flags = parse_flags(arguments);
  if (!flags) return std::unexpected(std::move(flags.error()));

  Config config;
  config.tune = flags->tune;
  std::vector<std::string> problems;
  const std::string config_path =
      flags->config_path.empty() ? environment("UMA_CONFIG").value_or(std::string()) : flags->config_path;
  if (!config_path.empty()) problems = apply_file(config, config_path);
  apply_environment(config, environment, problems);
  for (const auto& [setting, text] : flags->values) {
    if (const auto expected = accept(config, *setting, text)) {
      problems.push_back(std::format("{}: {}", setting->flag, mismatch(*expected, text)));
    }
  }
  if (passed.socket_path) config.socket_path = *passed.socket_path;
  if (passed.http) config.http = *passed.http;
  if (config.kv_type == llm::KvType::q8_0 && config.flash_attention == llm::FlashAttention::off) {
    problems.emplace_back("kv.type q8_0 needs flash attention: leave out kv.flash_attention, or use kv.type f16");
  }
  if (!config.http.address.empty() && !is_loopback(config.http)) check_open_http(config, problems);
  if (config.http_tls_certificate.empty() != config.http_tls_key.empty()) {
    problems.emplace_back("http: TLS needs both http.tls_certificate and http.tls_key");
  }
  if (config.reproducible != Reproducible::off) make_reproducible(config, problems);
  if (config.data_dir.empty()) {
    if (const std::string state = folder_of(environment, "XDG_STATE_HOME", ".local/state"); !state.empty()) {
      config.data_dir = state + "/uma";
    }
  }
  if (const std::string data = folder_of(environment, "XDG_DATA_HOME", ".local/share"); !data.empty()) {
    config.models_dir = data + "/uma/models";
  }
  if (config.models_file.empty()) {
    if (const std::string folder = folder_of(environment, "XDG_CONFIG_HOME", ".config"); !folder.empty()) {
      config.models_file = folder + "/uma/models.yaml";
    }
  }
  if (config.data_dir.empty()) {
    problems.emplace_back("no data folder: neither HOME nor XDG_STATE_HOME is set; give --data-dir FOLDER");
  }
  if (!problems.empty()) return std::unexpected(Exit{1, error_text(problems)});
  return config;
}

}  // namespace uma::umad
