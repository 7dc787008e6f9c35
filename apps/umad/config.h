// The configuration of umad: defaults, then the YAML file, then the environment (UMA_…), then flags; the later one wins.
// Every source is checked to its end, so that one start reports every mistake of a file at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image.h"
#include "core/limits.h"
#include "kv/tier_policy.h"
#include "llm/model.h"
#include "sched/policy.h"
#include "umad/config_value.h"

namespace uma::umad {

// What `umad tune` was asked for beside the settings.
struct TuneOptions {
  double seconds = 90;
  bool allows_quantized_kv = false;
  bool even_if_busy = false;  // measure, and keep what was measured, though other programs compute
};

// How prompts are computed beside streams: in a lane of their own that has its part of the threads, or that takes turns with
// the streams, or in chunks in the streams' own context. Automatic: split, and turns where there is one thread to share.
enum class Lanes : std::uint8_t { automatic, split, turns, off };

// Whether a request's logits are the same bits whoever shares the machine: on, while its state is kept somewhere; strict, also
// where it is computed again from the tokens, without flash attention and slower.
enum class Reproducible : std::uint8_t { off, on, strict };

// How models share the machine's memory.
struct PoolOptions {
  double usable_fraction = 0.8;        // of the machine's memory
  std::uint64_t memory_bytes_max = 0;  // that models, contexts and states may take together; 0: the fraction only
  std::size_t queue_depth_warn = 50;   // waiting requests of one model, from which on the log warns
  double maintenance_s = 10;           // between two looks at limits, idle models and queues
  double min_loaded_s = 15;            // a model that was loaded or used so lately is not unloaded for another
  double idle_unload_s = 0;            // a model that nobody used for so long is unloaded; 0: none is
};

struct Config {
  std::string model;        // a GGUF file, or a name in the models folder; empty: the model that ships with umad
  std::string draft_model;  // named like `model`; guesses tokens for it where speculates is set; empty: none
  std::string projector;    // named likewise; reads images for `model`; empty: none
  std::vector<std::string> vision_allowed_dirs;        // of images that are named by a path; empty: none
  std::uint64_t vision_kept_bytes_max = 8ul << 30;     // files of sessions' images
  std::uint64_t vision_cache_bytes_max = 128ul << 20;  // of images that were encoded
  ImageUrlRules vision_urls;                           // of images that are named by a URL
  std::string models_dir;  // of the user: $XDG_DATA_HOME/uma/models, else ~/.local/share/uma/models; empty without HOME
  std::string
      models_file;  // models.yaml: what is said of models by name; where no source names it, $XDG_CONFIG_HOME/uma/models.yaml
  std::vector<std::string> models_dirs;  // more folders of models, searched before models_dir
  PoolOptions pool;
  std::string data_dir;            // absent from every source: $XDG_STATE_HOME/uma, else ~/.local/state/uma
  std::int32_t context_cells = 0;  // KV cells of one worker, shared by its slots; 0: from the model
  std::int32_t slots = 8;          // sequences per worker
  std::int32_t threads = 0;        // compute threads of the whole daemon; 0: the physical cores this process may use
  std::int32_t workers = 1;
  bool replicates_weights = false;   // each worker on a copy of its own
  std::int32_t prefill_threads = 0;  // of a worker's calls with prompt tokens; 0: as for decoding
  std::int32_t ubatch_rows = 512;    // rows the library computes at once

  std::string socket_path = "/tmp/uma.sock";
  HttpAddress http{.address = "127.0.0.1", .port = 8642};
  std::string http_socket;           // a Unix socket that speaks HTTP too; empty: none
  std::string http_keys_file;        // server/api_keys.h; empty: no keys, only its user and root on this machine are served
  std::string http_tls_certificate;  // PEM files; empty: no TLS
  std::string http_tls_key;
  bool http_is_insecure = false;         // other machines may send their keys unencrypted
  bool http_serves_local_users = false;  // without keys: every user of this machine
  bool http_serves_metrics_without_key = false;
  bool http_imports_kv = false;                // of session files, whose numbers nobody can check
  std::vector<std::string> http_cors_origins;  // of pages that may ask
  std::string http_access_log = "log";         // or off, or a file
  std::size_t http_connections_max = 1024;
  std::int32_t backlog = 1024;             // the kernel refuses what comes beyond it (EAGAIN) to clients that do not wait
  std::chrono::seconds idle_timeout{300};  // 0: never

  Limits limits;

  double tick_ms = 30;
  sched::PolicyOptions policy;
  Lanes lanes = Lanes::automatic;
  double bmt_budget_gbps = 0;  // 10^9 bytes a second that computing may move; 0: no limit
  Reproducible reproducible = Reproducible::off;
  bool speculates = false;
  std::int32_t verify_every = 0;  // of what is reused one in so many is computed again and compared; 0: none
  double target_ttft_ms = 0;      // until the first token of a request that asks for nothing else; 0: none
  double target_tbt_ms = 0;       // time between tokens of a stream; 0: automatic
  llm::KvLayout kv_layout = llm::KvLayout::automatic;
  llm::FlashAttention flash_attention = llm::FlashAttention::automatic;
  llm::KvType kv_type = llm::KvType::f16;
  std::int64_t warm_bytes_max = -1;    // of states in memory; -1: a quarter of what is available
  std::int64_t cold_bytes_max = -1;    // of states on disk; -1: a quarter of what is free, at most 32 GiB
  std::uint64_t tenant_bytes_max = 0;  // of one tenant's states, in memory and on disk together; 0: no quota
  std::chrono::milliseconds archive_after = std::chrono::minutes(60);
  std::chrono::milliseconds state_ttl{0};  // a state that was unused for so long is removed; 0: never
  kv::EvictionOrder eviction = kv::EvictionOrder::value;

  std::optional<TuneOptions> tune;               // measure instead of serving
  bool supervises = false;                       // a process of its own holds the sockets and starts the daemon again
  std::vector<std::string> keys_given;           // set by any source, as "section.key"; a profile decides about the others
  std::vector<std::string> keys_without_effect;  // set, valid, and read by no feature of this version
  std::vector<std::string> keys_superseded;      // of the first design; something better decides now

  [[nodiscard]] bool is_given(std::string_view key) const;
  // Any setting of HTTP is given: then an address that is taken is an error.
  [[nodiscard]] bool asks_for_http() const;
};

// What ends the program before it serves: help and version (status 0, for standard output), or mistakes (status 1, for standard
// error). The text is complete, with its last newline.
struct Exit {
  int status = 0;
  std::string text;
};

// Reads one environment variable; a test hands in its own.
using Environment = std::function<std::optional<std::string>(const char* name)>;
[[nodiscard]] Environment process_environment();

// Where the sockets listen that a service manager passed (server/passed_sockets.h). They take the place of what the sources say
// of `ipc.uds_path`, `http` and `http.socket`, and obey the same rules.
struct PassedAddresses {
  std::optional<std::string> socket_path = {};
  std::optional<HttpAddress> http = {};
  std::optional<std::string> http_socket = {};
};

// `arguments` without the program's name; a first one that is "tune" asks for that. Reads the YAML file named by --config or
// UMA_CONFIG, and no other file.
[[nodiscard]] std::expected<Config, Exit> load_config(std::span<const std::string> arguments, const Environment& environment,
                                                      const PassedAddresses& passed = {});

// Reads YAML text into `config`. Returns the mistakes, each as "NAME:LINE:COLUMN: what"; `name` is the file's.
[[nodiscard]] std::vector<std::string> apply_yaml(Config& config, const std::string& yaml, std::string_view name);

}  // namespace uma::umad
