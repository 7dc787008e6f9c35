// The configuration of umad: defaults, then the YAML file, then the environment (UMA_…), then flags; the later one wins. Every
// source is read to its end, so that one start reports all mistakes of a file at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image.h"
#include "core/limits.h"
#include "image/image_header.h"
#include "kv/shared/shared_store.h"
#include "kv/tier_policy.h"
#include "llm/device/devices.h"
#include "llm/model.h"
#include "pool/unknown_model.h"
#include "sched/policy.h"
#include "umad/config_value.h"
#include "wire/own/administration.h"

namespace uma::umad {

// Options of `umad tune` that are not settings.
struct TuneOptions {
  double seconds = 90;
  bool allows_quantized_kv = false;
  bool even_if_busy = false;  // Measures and keeps the result even if other programs compute.
};

// Options of `umad check` that are not settings.
struct CheckOptions {
  bool is_json = false;
};

// Where prompts are computed while streams decode: in a lane with its own share of the threads (split), in a lane that takes
// turns with the streams (turns), or in chunks in the streams' context (off). Automatic: split, or turns if there is only one
// thread.
enum class Lanes : std::uint8_t { automatic, split, turns, off };

// Whether a request gets the same logits, bit for bit, regardless of other requests. on: as long as its state is kept; strict:
// also after its state was recomputed from the tokens, which is slower and excludes flash attention.
enum class Reproducible : std::uint8_t { off, on, strict };

// How models share the machine's memory.
struct PoolOptions {
  double usable_fraction = 0.8;        // Share of the machine's memory that models may use.
  std::uint64_t device_bytes_max = 0;  // Limit of what models and contexts take of each GPU; 0: only its memory limits them.
  std::uint64_t memory_bytes_max = 0;  // Limit of models, contexts and states together; 0: only usable_fraction limits them.
  std::size_t queue_depth_warn = 50;   // The log warns when one model has this many waiting requests.
  double maintenance_s = 10;           // Interval between checks of limits, idle models and queues.
  double min_loaded_s = 15;            // A model that was loaded or used within this time is not evicted for another model.
  double idle_unload_s = 0;            // A model that was unused for this time is unloaded; 0: never.
  pool::UnknownModel unknown = pool::UnknownModel::automatic;
  bool uses_stores = true;  // Models in the stores of other programs are served, too.
};

// Where the value of a setting comes from.
struct SettingOrigin {
  enum class Source : std::uint8_t { file, environment, flag, passed, derived };
  Source source = Source::file;
  std::string place;  // "FILE:LINE", the variable, the flag, who passed it, or the setting from which it follows.
};

struct Config {
  std::string model;        // A GGUF file, or a name in the models folder; empty: the model that ships with umad.
  std::string draft_model;  // Named like `model`; drafts tokens for it if `speculates` is set; empty: none.
  std::string projector;    // Named like `model`; reads images for it; empty: none.
  std::vector<std::string> vision_allowed_dirs;        // Folders of images that requests may name by path; empty: none.
  std::uint64_t vision_kept_bytes_max = 8ul << 30;     // Limit of the image files that sessions keep.
  std::uint64_t vision_cache_bytes_max = 128ul << 20;  // Limit of the cache of encoded images.
  std::int64_t vision_image_pixels_max = image::kImagePixelsMax;  // Larger images are refused.
  std::int32_t vision_image_tokens_max = 0;  // Larger images are scaled down; 0: the projector's limit (ProjectorOptions).
  ImageUrlRules vision_urls;                 // Rules for images that requests name by URL.
  std::string models_dir;  // The user's models: $XDG_DATA_HOME/uma/models, else ~/.local/share/uma/models; empty without HOME.
  // Path of models.yaml, which has settings of single models; default: $XDG_CONFIG_HOME/uma/models.yaml.
  std::string models_file;
  std::vector<std::string> models_dirs;  // More folders of models, searched before models_dir.
  PoolOptions pool;
  std::string catalog;  // Address of the PostgreSQL database that has the sessions; empty: a file in data_dir.
  std::chrono::milliseconds drain_delay{
      0};  // Between the signal that ends the daemon and the end of accepting; see Daemon::drain.
  std::chrono::milliseconds drain_limit = std::chrono::seconds(30);  // Limit for requests in flight, after drain_delay.
  std::string shared_states;        // Where daemons with one catalog find each other's states; empty: nowhere.
  std::string shared_password;      // For a server that `shared_states` names; never shown.
  std::string node;                 // The name of this daemon among those that share a catalog; default: the host's.
  std::string data_dir;             // Default: $XDG_STATE_HOME/uma, else ~/.local/state/uma.
  std::int32_t sequence_cells = 0;  // Most tokens of one conversation; 0: what the cells give each slot.
  std::int32_t kv_cells = 0;        // KV cells of one worker, shared by its slots; 0: chosen by model and free memory.
  std::int32_t slots = 8;           // Sequences per worker.
  std::int32_t threads = 0;         // Compute threads of the whole daemon; 0: the physical cores this process may use.
  std::int32_t workers = 1;
  bool replicates_weights = false;   // Each worker gets its own copy of the weights.
  std::int32_t prefill_threads = 0;  // Threads of a worker's calls with prompt tokens; 0: the same as for decoding.
  std::int32_t ubatch_rows = 512;    // Rows that the library computes at once.

  std::string socket_path = "/tmp/uma.sock";  // In XDG_RUNTIME_DIR, where there is one.
  HttpAddress http{.address = "127.0.0.1", .port = 8642};
  HttpAddress ollama;       // A second listener for HTTP, where Ollama's clients look for one.
  std::string http_socket;  // A Unix socket for HTTP, in addition to the TCP port; empty: none.
  // See server/http/api_keys.h; empty: no keys, and only this user and root on this machine are served.
  std::string http_keys_file;
  bool http_shares_keys = false;     // The keys are in the database of the catalog; the file is for the first start.
  std::string http_tls_certificate;  // The TLS files are PEM; empty: no TLS.
  std::string http_tls_key;
  bool http_is_insecure = false;         // Other machines may send their keys unencrypted.
  bool http_serves_local_users = false;  // Without keys, every user of this machine is served.
  bool http_serves_metrics_without_key = false;
  bool http_imports_kv = false;  // Clients may import KV in session files, whose contents cannot be verified.
  bool http_serves_page = true;
  std::vector<std::string> http_allowed_hosts;  // Names of this machine in Host headers, besides localhost.
  std::string http_access_log = "log";          // "log", "off", or a file.
  std::size_t http_connections_max = 1024;
  std::int32_t backlog = 1024;             // The kernel refuses further non-blocking connections (EAGAIN).
  std::chrono::seconds idle_timeout{300};  // 0: never

  Limits limits;

  double tick_ms = 30;
  sched::PolicyOptions policy;
  Lanes lanes = Lanes::automatic;
  double bmt_budget_gbps = 0;  // Limit of memory traffic in 10^9 bytes per second; 0: no limit.
  Reproducible reproducible = Reproducible::off;
  bool speculates = true;
  std::int32_t verify_every = 0;  // One of this many reused states is recomputed and compared; 0: none.
  double target_ttft_ms = 0;      // Default target for the time to the first token; 0: none.
  double target_tbt_ms = 0;       // Target for the time between two tokens of a stream; 0: automatic.
  llm::KvLayout kv_layout = llm::KvLayout::automatic;
  llm::FlashAttention flash_attention = llm::FlashAttention::automatic;
  llm::KvTypes kv_types{};
  llm::DeviceOptions devices{};                                  // Options of all models whose cards have no others.
  std::chrono::milliseconds rpc_timeout = llm::kRpcAnswerLimit;  // Time limit of RPC servers among the devices.
  llm::RopeOptions rope{};                                       // Options of the model that `model` names.
  std::int64_t warm_bytes_max = -1;    // Limit of states in memory; -1: a quarter of the available memory.
  std::int64_t cold_bytes_max = -1;    // Limit of states on disk; -1: a quarter of the free space, at most 32 GiB.
  std::uint64_t tenant_bytes_max = 0;  // Limit of one tenant's states in memory and on disk together; 0: no quota.
  std::chrono::milliseconds archive_after = std::chrono::minutes(60);
  std::chrono::milliseconds write_within = std::chrono::seconds(5);  // See kv::StoreOptions; 0: never.
  std::uint64_t day_bytes_max = std::uint64_t{200} << 30;
  std::chrono::milliseconds state_ttl{0};  // A state that was unused for this time is removed; 0: never.
  kv::SharedBounds shared_bounds{};        // Bounds of `shared_states`, but for the time to live.
  std::chrono::milliseconds shared_ttl = std::chrono::hours(24);
  kv::EvictionOrder eviction = kv::EvictionOrder::value;

  std::optional<TuneOptions> tune;      // Set: measure instead of serving.
  std::optional<CheckOptions> check;    // Set: examine the installation instead of serving.
  bool supervises = false;              // A supervisor process holds the sockets and restarts the daemon after a crash.
  std::vector<std::string> keys_given;  // Set by any source, as "section.key"; a profile decides about the others.
  std::map<std::string, SettingOrigin, std::less<>> origins;  // By "section.key"; those that are missing are defaults.
  std::vector<std::string> keys_without_effect;  // Settings that were given and are valid, but have no effect in this version.
  std::vector<std::string> keys_superseded;      // Settings of the first design that a better mechanism has replaced.
  std::vector<std::string> http_cors_origins;    // Origins of web pages that may send requests.

  [[nodiscard]] bool is_given(std::string_view key) const;
  // Whether any HTTP setting was given; if so, an address in use is an error.
  [[nodiscard]] bool asks_for_http() const;
};

// Ends the program before it serves: help and version (status 0, for standard output), or mistakes (status 1, for standard
// error). The text is complete and ends with a newline.
struct Exit {
  int status = 0;
  std::string text;
};

// Reads one environment variable; tests pass their own function.
using Environment = std::function<std::optional<std::string>(const char* name)>;
[[nodiscard]] Environment process_environment();

// Addresses of the sockets that a service manager passed (server/passed_sockets.h). They replace `ipc.uds_path`, `http` and
// `http.socket` of all sources and obey the same rules.
struct PassedAddresses {
  std::optional<std::string> socket_path = {};
  std::optional<HttpAddress> http = {};
  std::optional<std::string> http_socket = {};
};

// `arguments` excludes the program's name; a leading "tune" or "check" selects that mode. Reads only the YAML file named by
// --config or UMA_CONFIG.
[[nodiscard]] std::expected<Config, Exit> load_config(std::span<const std::string> arguments, const Environment& environment,
                                                      const PassedAddresses& passed = {});

// Every setting with its value and where that comes from, in the order of the table.
[[nodiscard]] std::vector<wire::SettingValue> setting_values(const Config& config);

// Reads YAML text into `config`. Returns the mistakes, each as "NAME:LINE:COLUMN: message"; `name` is the name of the file.
[[nodiscard]] std::vector<std::string> apply_yaml(Config& config, const std::string& yaml, std::string_view name);

// The daemon's name among those that share a catalog.
[[nodiscard]] std::string node_of(const Config& config);

}  // namespace uma::umad
