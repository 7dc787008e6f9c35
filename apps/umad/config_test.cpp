#include "umad/config.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/shared/redis_address.h"
#include "umad/settings.h"

namespace uma::umad {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Environment variables(std::map<std::string, std::string> values) {
  values.try_emplace("HOME", "/home/someone");
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::expected<Config, Exit> load(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  return load_config(arguments, variables(std::move(environment)));
}

// A file that lives as long as this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view text)
      : path_(std::filesystem::temp_directory_path() /
              ("uma_config_test_" + std::to_string(::getpid()) + "_" + std::to_string(++count) + ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  static inline int count = 0;
  std::filesystem::path path_;
};

TEST(Config, HasTheDefaultsOfTheContract) {
  const auto config = load({"--model", "m.gguf"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->model, "m.gguf");
  EXPECT_EQ(config->socket_path, "/tmp/uma.sock");
  EXPECT_EQ(config->http, (HttpAddress{.address = "127.0.0.1", .port = 8642}));
  EXPECT_EQ(config->backlog, 1024);
  EXPECT_EQ(config->idle_timeout, std::chrono::seconds(300));
  EXPECT_EQ(config->sequence_cells, 0);
  EXPECT_EQ(config->kv_cells, 0);
  EXPECT_EQ(config->slots, 8);
  EXPECT_EQ(config->threads, 0);
  EXPECT_EQ(config->workers, 1);
  EXPECT_EQ(config->policy.policy, sched::Policy::continuous);
  EXPECT_EQ(config->limits.max_tokens, 0);
  EXPECT_EQ(config->limits.max_sessions, 100'000U);
  EXPECT_EQ(config->limits.max_prompt_bytes, 16'777'216U);
  EXPECT_EQ(config->limits.max_frame_bytes, 16'777'216U);
  EXPECT_EQ(config->limits.tx_bytes_max, 262'144U);
  EXPECT_EQ(config->limits.transfer_bytes_max, 1U << 30);
  EXPECT_EQ(config->limits.queue_max, 0U);
  EXPECT_EQ(config->limits.queue_bytes_max, 268'435'456U);
  EXPECT_EQ(config->limits.deadline_ms, 0);
  EXPECT_EQ(config->tick_ms, 30);
  EXPECT_EQ(config->target_tbt_ms, 0);
  EXPECT_EQ(config->kv_layout, llm::KvLayout::automatic);
  EXPECT_EQ(config->kv_types, llm::KvTypes());
  EXPECT_EQ(config->flash_attention, llm::FlashAttention::automatic);
  EXPECT_EQ(config->ubatch_rows, 512);
  EXPECT_EQ(config->prefill_threads, 0);
  EXPECT_FALSE(config->replicates_weights);
  EXPECT_FALSE(config->tune);
  EXPECT_EQ(config->data_dir, "/home/someone/.local/state/uma");
}

TEST(Config, ReadsHttpAsAnAddressOrASection) {
  Config config;
  EXPECT_THAT(apply_yaml(config, "http: 127.0.0.1:80", "f"), IsEmpty());
  EXPECT_EQ(config.http.port, 80);
  EXPECT_THAT(apply_yaml(config, R"(
http:
  address: "[::1]:81"
  socket: /run/uma/http.sock
  keys_file: /etc/uma/keys
  insecure: true
  local_users: true
  metrics_without_key: true
  page: off
  cors_origins: [https://chat.example, "http://localhost:3000"]
  access_log: /var/log/uma/access.log
  connections_max: 6000
)",
                         "f"),
              IsEmpty());
  EXPECT_EQ(config.http, (HttpAddress{.address = "::1", .port = 81}));
  EXPECT_EQ(config.http_socket, "/run/uma/http.sock");
  EXPECT_EQ(config.http_keys_file, "/etc/uma/keys");
  EXPECT_TRUE(config.http_is_insecure);
  EXPECT_TRUE(config.http_serves_local_users);
  EXPECT_TRUE(config.http_serves_metrics_without_key);
  EXPECT_FALSE(config.http_serves_page);
  EXPECT_EQ(config.http_cors_origins, (std::vector<std::string>{"https://chat.example", "http://localhost:3000"}));
  EXPECT_EQ(config.http_access_log, "/var/log/uma/access.log");
  EXPECT_EQ(config.http_connections_max, 6000U);
  for (const char* wrong :
       {"http: {cors_origins: ['*']}", "http: {cors_origins: [[a]]}", "http: {cors_origins: https://a.example/}",
        "http: {address: [1]}", "http: {insecure: maybe}", "http: {local_users: some}", "http: [off]", "http: {port: 80}"}) {
    EXPECT_THAT(apply_yaml(config, wrong, "f"), SizeIs(1)) << wrong;
  }
}

TEST(Config, ImagesHaveLimits) {
  Config config;
  EXPECT_THAT(apply_yaml(config, "vision: {image_pixels_max: 1000000, image_tokens_max: 512}", "f"), IsEmpty());
  EXPECT_EQ(config.vision_image_pixels_max, 1'000'000);
  EXPECT_EQ(config.vision_image_tokens_max, 512);
  for (const char* wrong : {"vision: {image_pixels_max: 0}", "vision: {image_pixels_max: 64000001}",
                            "vision: {image_tokens_max: -1}", "vision: {image_tokens_max: many}"}) {
    EXPECT_THAT(apply_yaml(config, wrong, "f"), SizeIs(1)) << wrong;
  }
}

TEST(Config, ImagesAreFetchedFromUrlsOnlyWhereItSaysSo) {
  Config config;
  EXPECT_FALSE(config.vision_urls.allow_any());
  EXPECT_THAT(
      apply_yaml(config, "vision: {url_hosts: ['Images.local:8080', '[::1]:80'], url_bytes_max: 1M, url_timeout: 2s}", "f"),
      IsEmpty());
  EXPECT_EQ(config.vision_urls.hosts, (std::vector<std::string>{"images.local:8080", "[::1]:80"}));
  EXPECT_FALSE(config.vision_urls.allows_public);
  EXPECT_EQ(config.vision_urls.bytes_max, 1u << 20);
  EXPECT_EQ(config.vision_urls.time_max, std::chrono::seconds(2));
  EXPECT_THAT(apply_yaml(config, "vision: {urls: on}", "f"), IsEmpty());
  EXPECT_TRUE(config.vision_urls.allows_public);
  for (const char* wrong : {"vision: {urls: yes}", "vision: {url_hosts: [localhost]}", "vision: {url_hosts: ['http://a:1']}",
                            "vision: {url_hosts: ['a:1/x']}", "vision: {url_hosts: ['a:0']}", "vision: {url_hosts: ['a@b:1']}",
                            "vision: {url_hosts: ['*:80']}", "vision: {url_bytes_max: 33M}", "vision: {url_timeout: soon}"}) {
    EXPECT_THAT(apply_yaml(config, wrong, "f"), SizeIs(1)) << wrong;
  }
}

TEST(Config, ServesOtherMachinesOnlyWithKeysAndOnPurpose) {
  EXPECT_FALSE(load({"--http", "0.0.0.0:8642"}));
  EXPECT_FALSE(load({"--http", "[::]:8642"}));
  EXPECT_FALSE(load({"--http", "0.0.0.0:8642", "--http-keys", "keys"}));
  const TemporaryFile file("http: {insecure: true}\n");
  EXPECT_FALSE(load({"--config", file.path(), "--http", "0.0.0.0:8642"}));
  EXPECT_TRUE(load({"--config", file.path(), "--http", "0.0.0.0:8642", "--http-keys", "keys"}));
  EXPECT_TRUE(load({"--http-keys", "keys"}));
  // Keys in a database need one, and then no file.
  EXPECT_FALSE(load({"--http-shared-keys"}));
  EXPECT_TRUE(load({"--http-shared-keys", "--catalog", "postgresql://uma@db/uma"}));
  EXPECT_TRUE(
      load({"--config", file.path(), "--http", "0.0.0.0:8642", "--http-shared-keys", "--catalog", "postgresql://uma@db/uma"}));
  const TemporaryFile tls("http: {tls_certificate: c.pem, tls_key: k.pem}\n");
  EXPECT_TRUE(load({"--config", tls.path(), "--http", "0.0.0.0:8642", "--http-keys", "keys"}));
  const TemporaryFile half("http: {tls_certificate: c.pem}\n");
  EXPECT_FALSE(load({"--config", half.path()}));
}

TEST(Config, ServesHttpOnAddressesOfThisMachineAlone) {
  const auto http_of = [](const std::string& text) -> std::optional<HttpAddress> {
    const auto config = load({"--http", text});
    if (!config) return std::nullopt;
    return config->http;
  };
  EXPECT_EQ(http_of("off"), HttpAddress{});
  EXPECT_EQ(http_of("127.0.0.1:0"), (HttpAddress{.address = "127.0.0.1", .port = 0}));
  EXPECT_EQ(http_of("localhost:80"), (HttpAddress{.address = "127.0.0.1", .port = 80}));
  EXPECT_EQ(http_of("127.9.0.1:65535"), (HttpAddress{.address = "127.9.0.1", .port = 65'535}));
  EXPECT_EQ(http_of("[::1]:8642"), (HttpAddress{.address = "::1", .port = 8642}));
  for (const char* wrong :
       {"", "8642", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "0.0.0.0:8642", "[::]:8642",
        "192.168.0.1:8642", "example.com:8642", "on", "127.0.0.1:80:90", "127.0.0.1:8642/v1"}) {
    EXPECT_EQ(http_of(wrong), std::nullopt) << wrong;
  }
}

TEST(Config, ServesOllamasPortIfItIsTold) {
  EXPECT_EQ(load({})->ollama, HttpAddress{});
  const HttpAddress usual{.address = "127.0.0.1", .port = 11'434};
  EXPECT_EQ(load({"--ollama"})->ollama, usual);
  EXPECT_EQ(load({"--ollama", "--slots", "3"})->ollama, usual);
  EXPECT_EQ(load({"--ollama", "--slots", "3"})->slots, 3);
  EXPECT_EQ(load({"--ollama", "127.0.0.1:0"})->ollama, (HttpAddress{.address = "127.0.0.1", .port = 0}));
  EXPECT_EQ(load({}, {{"UMA_OLLAMA", "on"}})->ollama, usual);
  EXPECT_EQ(load({"--ollama", "off"}, {{"UMA_OLLAMA", "on"}})->ollama, HttpAddress{});
  const TemporaryFile file("http: {ollama: on}\n");
  EXPECT_EQ(load({"--config", file.path()})->ollama, usual);
  EXPECT_FALSE(load({"--ollama", "0.0.0.0:11434"}));
  EXPECT_FALSE(load({"--ollama", "11434"}));
}

TEST(Config, KnowsWhetherTheHttpAddressWasNamed) {
  EXPECT_FALSE(load({})->is_given("http"));
  EXPECT_TRUE(load({}, {{"UMA_HTTP", "127.0.0.1:8642"}})->is_given("http.address"));
}

TEST(Config, FlagsWinOverTheEnvironmentAndThatOverTheFile) {
  const TemporaryFile file("model: file.gguf\nslots: 2\nthreads: 3\nworkers: 4\n");
  const auto config = load({"--config", file.path(), "--workers", "7"}, {{"UMA_THREADS", "6"}, {"UMA_WORKERS", "5"}});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->slots, 2);
  EXPECT_EQ(config->threads, 6);
  EXPECT_EQ(config->workers, 7);
}

TEST(Config, EverySettingOfTheEnvironmentArrives) {
  const TemporaryFile file("backlog_is_elsewhere: 1\n");
  const auto config = load({}, {{"UMA_MODEL", "e.gguf"},
                                {"UMA_SOCKET", "/run/e.sock"},
                                {"UMA_N_CTX", "4096"},
                                {"UMA_SLOTS", "16"},
                                {"UMA_THREADS", "2"},
                                {"UMA_WORKERS", "3"},
                                {"UMA_MAX_TOKENS", "99"},
                                {"UMA_DATA_DIR", "/var/lib/uma"},
                                {"UMA_CONFIG", ""}});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->model, "e.gguf");
  EXPECT_EQ(config->socket_path, "/run/e.sock");
  EXPECT_EQ(config->sequence_cells, 4096);
  EXPECT_EQ(config->slots, 16);
  EXPECT_EQ(config->threads, 2);
  EXPECT_EQ(config->workers, 3);
  EXPECT_EQ(config->limits.max_tokens, 99);
  EXPECT_EQ(config->data_dir, "/var/lib/uma");
  // The variable names the file when the flag does not.
  EXPECT_FALSE(load({"--model", "m"}, {{"UMA_CONFIG", file.path()}}));
}

TEST(Config, ReadsEveryKeyOfTheContract) {
  Config config;
  EXPECT_THAT(apply_yaml(config, R"(
model: path/to/m.gguf
draft_model: small
n_ctx: 8192
slots: 4
threads: 2
workers: 2
policy: time_slice
data_dir: /tmp/d
ipc:       {uds_path: /tmp/u.sock, backlog: 32, idle_timeout_s: 10}
limits:    {max_sessions: 10, tenant_sessions_max: 3, tenant_tokens_max: 5000, tenant_bytes_max: 2G, max_prompt_bytes: 2K, max_tokens: 5, max_frame_bytes: 4096, tx_bytes_max: 64KiB, transfer_bytes_max: 3M, queue_max: 7, queue_bytes_max: 256M, deadline_ms: 1}
scheduler: {tick_ms: 12.5, target_tbt_ms: 40, target_ttft_ms: 900, static_batch_wait_ms: 15, slice_ms: 250, speculation: auto, bmt_budget_gbps: 2.5, weights: replicated, prefill_threads: 3, ubatch: 128}
kv:        {type: q8_0, flash_attention: on, warm_bytes_max: auto, cold_bytes_max: 1T, tenant_bytes_max: 2G, archive_after: 90m, write_within: 3s, day_bytes_max: 9G, eviction: lru, ttl: 7d, layout: unified}
pool:      {usable_fraction: 0.5, memory_bytes_max: 12G, device_bytes_max: 6G, queue_depth_warn: 7, maintenance_s: 2.5, min_loaded_s: 30, idle_unload_s: 600}
models: /etc/uma/models.yaml
models_dirs: [/srv/models, "/home/someone/my models"]
metrics:   {tick_interval_ms: 1000}
)",
                         "c.yaml"),
              IsEmpty());
  EXPECT_EQ(config.model, "path/to/m.gguf");
  EXPECT_EQ(config.draft_model, "small");
  EXPECT_EQ(config.sequence_cells, 8192);
  EXPECT_EQ(config.data_dir, "/tmp/d");
  EXPECT_EQ(config.socket_path, "/tmp/u.sock");
  EXPECT_EQ(config.backlog, 32);
  EXPECT_EQ(config.idle_timeout, std::chrono::seconds(10));
  EXPECT_EQ(config.limits.max_sessions, 10U);
  EXPECT_EQ(config.limits.max_prompt_bytes, 2048U);
  EXPECT_EQ(config.limits.max_tokens, 5);
  EXPECT_EQ(config.limits.max_frame_bytes, 4096U);
  EXPECT_EQ(config.limits.tx_bytes_max, 65'536U);
  EXPECT_EQ(config.limits.transfer_bytes_max, 3U << 20);
  EXPECT_EQ(config.limits.queue_max, 7U);
  EXPECT_EQ(config.limits.queue_bytes_max, 268'435'456U);
  EXPECT_EQ(config.limits.deadline_ms, 1);
  EXPECT_EQ(config.tick_ms, 12.5);
  EXPECT_EQ(config.target_ttft_ms, 900);
  EXPECT_EQ(config.bmt_budget_gbps, 2.5);
  EXPECT_EQ(config.target_tbt_ms, 40);
  EXPECT_EQ(config.policy.policy, sched::Policy::time_slice);
  EXPECT_EQ(config.policy.static_batch_wait_ms, 15);
  EXPECT_EQ(config.policy.slice_ms, 250);
  EXPECT_TRUE(config.speculates);
  EXPECT_EQ(config.kv_layout, llm::KvLayout::unified);
  EXPECT_EQ(config.kv_types, llm::KvTypes::both(llm::KvType::q8_0));
  EXPECT_EQ(config.flash_attention, llm::FlashAttention::on);
  EXPECT_EQ(config.ubatch_rows, 128);
  EXPECT_EQ(config.prefill_threads, 3);
  EXPECT_TRUE(config.replicates_weights);
  EXPECT_EQ(config.warm_bytes_max, -1);
  EXPECT_EQ(config.cold_bytes_max, std::int64_t{1} << 40);
  EXPECT_EQ(config.tenant_bytes_max, std::uint64_t{2} << 30);
  EXPECT_EQ(config.limits.tenant_sessions_max, 3u);
  EXPECT_EQ(config.limits.tenant_tokens_max, 5000u);
  EXPECT_EQ(config.limits.tenant_bytes_max, 2ul << 30);
  EXPECT_EQ(config.archive_after, std::chrono::minutes(90));
  EXPECT_EQ(config.write_within, std::chrono::seconds(3));
  EXPECT_EQ(config.day_bytes_max, std::uint64_t{9} << 30);
  EXPECT_EQ(config.state_ttl, std::chrono::days(7));
  EXPECT_EQ(config.eviction, kv::EvictionOrder::lru);
  EXPECT_EQ(config.models_file, "/etc/uma/models.yaml");
  EXPECT_EQ(config.models_dirs, (std::vector<std::string>{"/srv/models", "/home/someone/my models"}));
  EXPECT_EQ(config.pool.usable_fraction, 0.5);
  EXPECT_EQ(config.pool.memory_bytes_max, std::uint64_t{12} << 30);
  EXPECT_EQ(config.pool.device_bytes_max, std::uint64_t{6} << 30);
  EXPECT_EQ(config.pool.queue_depth_warn, 7u);
  EXPECT_EQ(config.pool.maintenance_s, 2.5);
  EXPECT_EQ(config.pool.min_loaded_s, 30);
  EXPECT_EQ(config.pool.idle_unload_s, 600);
  EXPECT_THAT(config.keys_without_effect, ElementsAre("metrics.tick_interval_ms"));
}

TEST(Config, AcceptsTheFirstDesignsFileAndNamesWhatWasSuperseded) {
  Config config;
  EXPECT_THAT(apply_yaml(config, R"(model: "/models/qwen-coder-30b-q8.gguf"
ipc:
  uds_path: "/tmp/uma.sock"
  backlog: 64
limits:
  max_sessions: 32
  max_prompt_bytes: 65536
  max_tokens: 2048
scheduler:
  max_merge: 2
  latency_cap: 1.20
metrics:
  tick_interval_ms: 1000
)",
                         "seed.yaml"),
              IsEmpty());
  EXPECT_EQ(config.model, "/models/qwen-coder-30b-q8.gguf");
  EXPECT_EQ(config.limits.max_sessions, 32U);
  EXPECT_THAT(config.keys_superseded, ElementsAre("scheduler.max_merge", "scheduler.latency_cap"));
}

TEST(Config, ReproducibleDecidesTheLayoutOfTheCache) {
  const auto load = [](const std::string& yaml) {
    const std::string path = ::testing::TempDir() + "reproducible.yaml";
    std::ofstream(path) << yaml;
    const std::vector<std::string> arguments{"--config", path, "--data-dir", "/tmp"};
    return load_config(arguments, [](const char*) { return std::nullopt; });
  };
  const auto config = load("scheduler: {reproducible: on}\n");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->kv_layout, llm::KvLayout::split);
  EXPECT_EQ(config->flash_attention, llm::FlashAttention::automatic);
  EXPECT_TRUE(config->speculates);
  EXPECT_TRUE(config->is_given("kv.layout")) << "no profile may pool the cells";
  EXPECT_EQ(load("scheduler: {reproducible: strict}\n")->flash_attention, llm::FlashAttention::off);
  EXPECT_FALSE(load("scheduler: {reproducible: on, speculation: off}\n")->speculates);
  for (const auto& [way, conflict] : {std::pair("on", "layout: unified"), std::pair("strict", "layout: unified"),
                                      std::pair("strict", "flash_attention: on"), std::pair("on", "type: q8_0")}) {
    const auto refused = load(std::format("scheduler: {{reproducible: {}}}\nkv: {{{}}}\n", way, conflict));
    ASSERT_FALSE(refused) << conflict;
    EXPECT_NE(refused.error().text.find(std::format("scheduler.reproducible: {}", way)), std::string::npos)
        << refused.error().text;
  }
  EXPECT_TRUE(load("scheduler: {reproducible: on}\nkv: {flash_attention: on}\n"));
  EXPECT_FALSE(config->devices.are_used());
  EXPECT_TRUE(load("scheduler: {reproducible: on}\ndevices: [Vulkan0]\ngpu_layers: 0\n"));
  EXPECT_THAT(load("scheduler: {reproducible: on}\ndevices: [Vulkan0]\n").error().text, HasSubstr("needs devices: none"));
}

TEST(Config, AnEmptyFileOrSectionChangesNothing) {
  Config config;
  EXPECT_THAT(apply_yaml(config, "", "c"), IsEmpty());
  EXPECT_THAT(apply_yaml(config, "# only a remark\nlimits:\n", "c"), IsEmpty());
  EXPECT_EQ(config.limits.max_tokens, 0);
}

TEST(Config, AMistakeInASettingThatMayHaveAPasswordDoesNotShowIt) {
  Config config;
  for (const std::string name : {"catalog", "shared_states"}) {
    const auto problems = apply_yaml(config, name + ": 'host=db password=geheim'\n", "u.yaml");
    ASSERT_EQ(problems.size(), 1U) << name;
    EXPECT_THAT(problems[0], HasSubstr(name + ": expected"));
    EXPECT_THAT(problems[0], testing::Not(HasSubstr("geheim")));
  }
}

TEST(Config, ReportsAllMistakesOfAFileWithTheirPlaces) {
  Config config;
  const auto problems = apply_yaml(config,
                                   "model: m\n"
                                   "slotz: 3\n"
                                   "limits:\n"
                                   "  max_tokens: many\n"
                                   "  max_sesions: 3\n"
                                   "ipc: 7\n"
                                   "slots: 257\n"
                                   "threads: [1, 2]\n"
                                   "workers:\n"
                                   "workers: 2\n",
                                   "u.yaml");
  ASSERT_EQ(problems.size(), 8U);
  EXPECT_THAT(
      problems[0],
      HasSubstr("u.yaml:2:1: unknown key \"slotz\"; known: model, draft_model, projector, vision, models, models_dirs, ipc,"));
  EXPECT_EQ(problems[1], "u.yaml:4:15: limits.max_tokens: expected an integer from 0 to 2147483647, got \"many\"");
  EXPECT_THAT(problems[2], HasSubstr("u.yaml:5:3: unknown key \"max_sesions\" in limits; known: max_tokens, max_sessions,"));
  EXPECT_EQ(problems[3], "u.yaml:6:6: ipc: expected keys and values");
  EXPECT_EQ(problems[4], "u.yaml:7:8: slots: expected an integer from 1 to 256, got \"257\"");
  EXPECT_EQ(problems[5], "u.yaml:8:10: threads: expected one value, got a list");
  EXPECT_THAT(problems[6], HasSubstr("workers: expected one value, got nothing"));
  EXPECT_EQ(problems[7], "u.yaml:10:1: workers is set twice");
}

TEST(Config, WhatIsNotYamlIsAMistakeWithItsPlace) {
  Config config;
  EXPECT_THAT(apply_yaml(config, "model: m\nlimits: {max_tokens: 3\n", "u.yaml"), ElementsAre(HasSubstr("u.yaml:")));
  EXPECT_THAT(apply_yaml(config, "- a\n- b\n", "u.yaml"), ElementsAre(HasSubstr("u.yaml:1:1: expected keys and values")));
  EXPECT_THAT(apply_yaml(config, "{[1]: 2}", "u.yaml"), ElementsAre(HasSubstr("expected the name of a setting as key")));
  EXPECT_THAT(apply_yaml(config, "a: &x {b: *x}\n", "u.yaml"), ElementsAre(HasSubstr("unknown key \"a\"")));
  EXPECT_THAT(apply_yaml(config, std::string(5000, '['), "u.yaml"), ::testing::SizeIs(1));
}

TEST(Config, ValuesOutsideTheirRangeAreRefusedInEverySource) {
  struct Case {
    const char* yaml;
    const char* message;
  };
  for (const Case& wrong : {
           Case{"slots: 0", "slots: expected an integer from 1 to 256, got \"0\""},
           Case{"workers: 65", "workers: expected an integer from 1 to 64"},
           Case{"threads: -1", "threads: expected an integer from 0 to 256"},
           Case{"n_ctx: 1e3", "n_ctx: expected an integer"},
           Case{"policy: fastest",
                "policy: expected continuous, static_batch, iterative, time_slice or sequential, got \"fastest\""},
           Case{"ipc: {idle_timeout_s: 5m}", "ipc.idle_timeout_s: expected an integer"},
           Case{"scheduler: {tick_ms: nan}", "scheduler.tick_ms: expected a number from 0 to 10000"},
           Case{"limits: {queue_bytes_max: 256Q}", "limits.queue_bytes_max: expected a size"},
           Case{"limits: {queue_bytes_max: 99999999999999T}", "limits.queue_bytes_max: expected a size"},
           Case{"kv: {warm_bytes_max: some}", "kv.warm_bytes_max: expected auto, or a size"},
           Case{"kv: {archive_after: 60 minutes}", "kv.archive_after: expected a duration such as"},
           Case{"kv: {ttl: -1s}", "kv.ttl: expected none, or a duration"},
           Case{"kv: {eviction: random}", "kv.eviction: expected value or lru"},
           Case{"kv: {layout: paged}", "kv.layout: expected auto, split or unified"},
           Case{"devices: []", "devices: expected auto, none, or names of devices"},
           Case{"devices: [none, Vulkan0]", "devices: expected auto, none, or names of devices"},
           Case{"devices: {a: b}", "devices: expected one value, got a map"},
           Case{"gpu_layers: all", "gpu_layers: expected auto or an integer from 0 to 10000, got \"all\""},
           Case{"gpu_layers: 99999999999", "gpu_layers: expected auto or an integer"},
           Case{"split: [1, most]", "split: expected auto, or numbers from 0 on"},
           Case{"main_device: none", "main_device: expected auto, or the name of a device"},
           Case{"kv: {type: q3_0}", "kv.type: expected f16, q8_0, q5_1, q5_0, q4_1, q4_0, or two of them as KEYS/VALUES"},
           Case{"kv: {flash_attention: yes}", "kv.flash_attention: expected auto, on or off"},
           Case{"scheduler: {weights: copied}", "scheduler.weights: expected shared or replicated"},
           Case{"scheduler: {ubatch: 8}", "scheduler.ubatch: expected an integer from 16 to 2048"},
           Case{"pool: {usable_fraction: 1.5}", "pool.usable_fraction: expected a number from 0.01 to 1"},
           Case{"pool: {memory_bytes_max: -1}", "pool.memory_bytes_max: expected a size"},
           Case{"pool: {min_loaded_s: -1}", "pool.min_loaded_s: expected a number from 0 to 86400"},
           Case{"models_dirs: [[a]]", "models_dirs: expected one value, got a list"},
           Case{"models_dirs: ['']", "models_dirs: expected one value, got a list"},
           Case{"model: ''", "model: expected a path"},
       }) {
    Config config;
    EXPECT_THAT(apply_yaml(config, wrong.yaml, "c"), ElementsAre(HasSubstr(wrong.message))) << wrong.yaml;
  }
  const auto refused = load({"--model", "m", "--slots", "many", "--policy", "fifo"}, {{"UMA_WORKERS", "0"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 1);
  EXPECT_THAT(refused.error().text, HasSubstr("3 errors"));
  EXPECT_THAT(refused.error().text, HasSubstr("UMA_WORKERS: expected an integer from 1 to 64, got \"0\""));
  EXPECT_THAT(refused.error().text, HasSubstr("--slots: expected an integer from 1 to 256, got \"many\""));
  EXPECT_THAT(refused.error().text,
              HasSubstr("--policy: expected continuous, static_batch, iterative, time_slice or sequential, got \"fifo\""));
}

TEST(Config, ASocketPathMustFitIntoAnAddress) {
  const auto refused = load({"--model", "m", "--socket", "/" + std::string(200, 's')});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("--socket: expected a path of at most 107 bytes"));
}

TEST(Config, HelpAndVersionAreAnswersAndUnknownFlagsAreNot) {
  const auto help = load({"--help"});
  ASSERT_FALSE(help);
  EXPECT_EQ(help.error().status, 0);
  EXPECT_THAT(help.error().text, HasSubstr("--n-ctx"));
  EXPECT_THAT(help.error().text, HasSubstr("UMA_MODEL"));

  const auto version = load({"--version"});
  ASSERT_FALSE(version);
  EXPECT_EQ(version.error().status, 0);
  EXPECT_THAT(version.error().text, ::testing::StartsWith("umad "));

  const auto unknown = load({"--model", "m", "--turbo"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().status, 1);
  EXPECT_THAT(unknown.error().text, HasSubstr("--turbo"));

  EXPECT_FALSE(load({"--model"}));
  EXPECT_FALSE(load({"m.gguf"}));
}

TEST(Config, EverySettingIsWrittenAsItIsRead) {
  for (const Setting& setting : settings()) {
    if (setting.access.show == nullptr) continue;
    Config config;
    const std::string shown = setting.access.show(config);
    if (shown.empty()) {
      EXPECT_TRUE(setting.flag == nullptr || setting.unset != nullptr) << setting.name() << ": --help has no default to show";
      continue;
    }
    EXPECT_EQ(setting.access.apply(config, shown), std::nullopt) << setting.name() << ": " << shown;
    EXPECT_EQ(setting.access.show(config), shown) << setting.name();
  }
}

TEST(Config, PrintsWhatWouldCountAsAFileThatGivesTheSame) {
  const TemporaryFile file(R"(
projector: "a b: c.gguf"
devices: [Vulkan0, CUDA1]
gpu_layers: 7
split: [3, 1.5]
main_device: CUDA1
models_dirs: [/srv/models, "/home/someone/my \"models\""]
vision: {allowed_dirs: [/a, /b], url_hosts: ["images.local:8080"], url_timeout: 1500ms}
http: {address: "[::1]:80", keys_file: /k, cors_origins: ["https://chat.example"], insecure: true}
limits: {max_prompt_bytes: 2000, tx_bytes_max: 64K}
scheduler: {tick_ms: 12.5, lanes: turns, speculation: off}
kv: {warm_bytes_max: 0, cold_bytes_max: 3G, ttl: 7d, archive_after: 90m}
)");
  const auto printed = load({"--config", file.path(), "--slots", "3", "--print-config"}, {{"UMA_VERIFY", "5"}});
  ASSERT_FALSE(printed);
  EXPECT_EQ(printed.error().status, 0);
  for (const char* line :
       {"\nslots: 3 ", "\nn_ctx: 0 ", "\n# model: not set ", "\n# data_dir: /home/someone/.local/state/uma ",
        "\n  tick_ms: 12.5\n", "\ndevices: [Vulkan0, CUDA1] ", "\ngpu_layers: 7 ", "\nsplit: [3, 1.5] ",
        "\nmain_device: CUDA1 ", "\n  verify: 5 ", "\n  address: \"[::1]:80\" ", "\n  max_prompt_bytes: 2000\n"}) {
    EXPECT_THAT(printed.error().text, HasSubstr(line));
  }
  const TemporaryFile copy(printed.error().text);
  const auto again = load({"--config", copy.path(), "--print-config"});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().text, printed.error().text);

  EXPECT_THAT(load({"--print-config"}, {{"UMA_SLOTS", "0"}}).error().text, HasSubstr("UMA_SLOTS")) << "mistakes come first";
  EXPECT_THAT(load({"--http", "off", "--print-config"}).error().text, HasSubstr("\n  address: off "));
}

TEST(Config, RopeIsReadFromEverySourceAndChecked) {
  const TemporaryFile file("rope: {scaling: yarn, scale: 2, yarn_orig_ctx: 4096}\n");
  const auto config = load({"--config", file.path(), "--rope-scale", "4"}, {{"UMA_YARN_ORIG_CTX", "32768"}});
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->rope, (llm::RopeOptions{.scaling = llm::RopeScaling::yarn, .scale = 4, .yarn_orig_ctx = 32'768}));
  EXPECT_FALSE(load({})->rope.is_given());
  EXPECT_THAT(load({"--config", file.path(), "--print-config"}).error().text, HasSubstr("\nrope:\n  scaling: yarn "));
  const auto printed = load({"--config", file.path(), "--print-config"});
  const TemporaryFile copy(printed.error().text);
  EXPECT_EQ(load({"--config", copy.path(), "--print-config"}).error().text, printed.error().text);
  EXPECT_EQ(load({"tune", "--rope-scaling", "linear", "--rope-scale", "2"})->rope.scale, 2);

  const auto problem = [](std::vector<std::string> arguments) { return load(arguments).error().text; };
  EXPECT_THAT(problem({"--rope-scaling", "yarn"}), HasSubstr("rope: expected scale with scaling yarn"));
  EXPECT_THAT(problem({"--rope-scale", "0.5"}), HasSubstr("--rope-scale: expected a number from 1 to 1000, got \"0.5\""));
  EXPECT_THAT(problem({"--rope-freq-base", "nan"}), HasSubstr("--rope-freq-base: expected a number from 2 to"));
  EXPECT_THAT(problem({"--yarn-orig-ctx", "1.5"}), HasSubstr("--yarn-orig-ctx: expected an integer from 128 to"));
  EXPECT_THAT(problem({"--rope-scaling", "longrope"}), HasSubstr("expected auto, none, linear or yarn"));
}

TEST(Config, KnowsWhatWasGivenAndWhatIsADefault) {
  const TemporaryFile file("slots: 8\nkv: {type: f16}\n");
  const auto config = load({"--config", file.path(), "--n-ctx", "0"}, {{"UMA_THREADS", "0"}});
  ASSERT_TRUE(config);
  EXPECT_THAT(config->keys_given, ::testing::UnorderedElementsAre("slots", "kv.type", "threads", "n_ctx"))
      << "the value of a default counts too";
  EXPECT_TRUE(config->is_given("kv.type"));
  EXPECT_FALSE(config->is_given("kv.layout"));
}

TEST(Config, QuantizedKeysAndValuesNeedFlashAttention) {
  const TemporaryFile file("kv: {type: q8_0, flash_attention: off}\n");
  const auto refused = load({"--config", file.path()});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("kv.type q8_0 needs flash attention"));
}

TEST(Config, TuneHasFlagsOfItsOwn) {
  const auto plain = load({"tune", "--model", "m", "--slots", "4"});
  ASSERT_TRUE(plain && plain->tune);
  EXPECT_EQ(plain->model, "m");
  EXPECT_EQ(plain->slots, 4);
  EXPECT_EQ(plain->tune->seconds, 90);
  EXPECT_FALSE(plain->tune->allows_quantized_kv);
  EXPECT_FALSE(plain->tune->even_if_busy);
  const auto all = load({"tune", "--seconds", "2.5", "--allow-quantized-kv", "--even-if-busy"});
  ASSERT_TRUE(all && all->tune);
  EXPECT_EQ(all->tune->seconds, 2.5);
  EXPECT_TRUE(all->tune->allows_quantized_kv);
  EXPECT_TRUE(all->tune->even_if_busy);

  EXPECT_FALSE(load({"tune", "--socket", "/tmp/s"})) << "it serves nobody";
  EXPECT_FALSE(load({"tune", "--seconds", "0"}));
  EXPECT_FALSE(load({"--seconds", "3"}));
  const auto help = load({"tune", "--help"});
  ASSERT_FALSE(help);
  EXPECT_EQ(help.error().status, 0);
  EXPECT_THAT(help.error().text, HasSubstr("--allow-quantized-kv"));
}

TEST(Config, NoModelIsNeeded) {
  const auto config = load({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->model, "");
}

TEST(Config, AFileThatCannotBeReadIsAMistake) {
  const auto missing = load({"--model", "m", "--config", "/nonexistent/u.yaml"});
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().text, HasSubstr("/nonexistent/u.yaml: No such file or directory"));
  const auto folder = load({"--model", "m", "--config", "/"});
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().text, HasSubstr("/: not a regular file"));
}

TEST(Config, TheSocketIsInTheUsersRuntimeFolderIfThereIsOne) {
  std::string folder = std::filesystem::temp_directory_path() / "uma_config_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  EXPECT_EQ(load({"--model", "m"}, {{"XDG_RUNTIME_DIR", folder}})->socket_path, folder + "/uma.sock");
  EXPECT_EQ(load({"--model", "m", "--socket", "/s"}, {{"XDG_RUNTIME_DIR", folder}})->socket_path, "/s");
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  for (const std::string& none : {std::string(), std::string("relative"), std::string("/nonexistent"), folder}) {
    EXPECT_EQ(load({"--model", "m"}, {{"XDG_RUNTIME_DIR", none}})->socket_path, "/tmp/uma.sock") << none;
  }
  std::filesystem::remove(folder);
}

TEST(Config, TheDataFolderFollowsTheXdgRules) {
  EXPECT_EQ(load({"--model", "m"}, {{"XDG_STATE_HOME", "/state"}})->data_dir, "/state/uma");
  EXPECT_EQ(load({"--model", "m"}, {{"XDG_STATE_HOME", "relative"}})->data_dir, "/home/someone/.local/state/uma");
  EXPECT_EQ(load({"--model", "m", "--data-dir", "here"})->data_dir, "here");
  EXPECT_FALSE(load({"--model", "m"}, {{"HOME", ""}}));
}

TEST(Config, TheModelsFolderFollowsTheXdgRules) {
  EXPECT_EQ(load({}, {{"XDG_DATA_HOME", "/share"}})->models_dir, "/share/uma/models");
  EXPECT_EQ(load({}, {{"XDG_DATA_HOME", "relative"}})->models_dir, "/home/someone/.local/share/uma/models");
  EXPECT_EQ(load({}, {})->models_file, "/home/someone/.config/uma/models.yaml");
  EXPECT_EQ(load({}, {{"XDG_CONFIG_HOME", "/etc/xdg"}})->models_file, "/etc/xdg/uma/models.yaml");
}

TEST(PassedAddresses, TakeThePlaceOfWhatTheSourcesSay) {
  const std::vector<std::string> flags = {"--socket", "/tmp/other", "--http", "off"};
  const auto config = load_config(flags, variables({}), {.socket_path = "/run/s", .http = HttpAddress{"127.0.0.1", 80}});
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->socket_path, "/run/s");
  EXPECT_EQ(config->http, (HttpAddress{"127.0.0.1", 80}));
  const auto half = load_config(flags, variables({}), {.socket_path = "/run/s", .http = {}});
  ASSERT_TRUE(half) << half.error().text;
  EXPECT_EQ(half->http.address, "");
}

// A setting's value, source and place.
std::string shown(const Config& config, std::string_view key) {
  for (const wire::SettingValue& setting : setting_values(config)) {
    if (setting.key == key) return setting.value + "|" + setting.source + "|" + setting.place;
  }
  return "missing";
}

TEST(SettingValues, SayWhereEachValueComesFrom) {
  const TemporaryFile file("slots: 4\nhttp: off\nkv:\n  type: q8_0\n  eviction: lru\nvision:\n  allowed_dirs: [/a, /b]\n");
  const auto config = load({"--config", file.path(), "--slots", "3"}, {{"UMA_THREADS", "2"}, {"UMA_SLOTS", "5"}});
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(shown(*config, "slots"), "3|flag|--slots");
  EXPECT_EQ(shown(*config, "threads"), "2|environment|UMA_THREADS");
  EXPECT_EQ(shown(*config, "kv.type"), "q8_0|file|" + file.path() + ":4");
  EXPECT_EQ(shown(*config, "kv.layout"), "auto|default|");
  EXPECT_EQ(shown(*config, "http.address"), "off|file|" + file.path() + ":2") << "a value of the section's name";
  EXPECT_EQ(shown(*config, "http"), "missing");
  EXPECT_EQ(shown(*config, "http.keys_file"), "|default|");
  EXPECT_EQ(shown(*config, "vision.allowed_dirs"), "[/a, /b]|file|" + file.path() + ":7");
  EXPECT_EQ(shown(*config, "metrics.tick_interval_ms"), "missing") << "it has no effect";
}

TEST(SettingValues, TellWhatFollowsFromOtherSettings) {
  const TemporaryFile file("scheduler: {reproducible: strict}\nkv: {flash_attention: off}\n");
  const auto config = load({"--config", file.path()});
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(shown(*config, "kv.layout"), "split|derived|scheduler.reproducible");
  EXPECT_EQ(shown(*config, "kv.flash_attention"), "off|file|" + file.path() + ":2");
}

TEST(SettingValues, ThatWereReplacedByASocketSaySo) {
  const std::vector<std::string> flags = {"--socket", "/run/s", "--http", "off"};
  const auto config = load_config(flags, variables({}), {.socket_path = "/run/s", .http = HttpAddress{"127.0.0.1", 80}});
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(shown(*config, "ipc.uds_path"), "/run/s|flag|--socket");
  EXPECT_EQ(shown(*config, "http.address"), "127.0.0.1:80|passed|who opened the socket");
}

TEST(PassedAddresses, ThatOtherMachinesReachNeedKeys) {
  const auto config = load_config({}, variables({}), {.socket_path = {}, .http = HttpAddress{"::", 8642}});
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().text, HasSubstr("so clients need keys"));
}

TEST(SharedStates, AreInAFolderOrAServer) {
  const std::vector<std::string> catalog = {"--catalog", "postgresql://db/uma", "--shared-states"};
  const auto with = [&](const std::string& place) {
    std::vector<std::string> arguments = catalog;
    arguments.push_back(place);
    return load(arguments);
  };
  for (const char* place : {"/mnt/states", "redis://cache.example", "redis://uma@[::1]:7000/3"}) {
    const auto config = with(place);
    ASSERT_TRUE(config) << config.error().text;
    EXPECT_EQ(config->shared_states, place);
  }
  for (const char* place : {"states", "http://cache.example", "redis://", "redis://cache.example/x"}) {
    const auto refused = with(place);
    ASSERT_FALSE(refused) << place;
    EXPECT_THAT(refused.error().text, HasSubstr("redis://"));
  }
  EXPECT_EQ(with("rediss://cache.example").has_value(), kv::redis_has_tls());
}

TEST(SharedStates, NeedACatalogThatIsShared) {
  const auto refused = load({"--shared-states", "/mnt/states"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("set catalog, too"));
}

TEST(SharedStates, HaveTheirPasswordFromTheEnvironmentOrAFile) {
  const std::vector<std::string> arguments = {"--catalog", "postgresql://db/uma", "--shared-states", "redis://cache.example"};
  EXPECT_EQ(load(arguments)->shared_password, "");
  EXPECT_EQ(load(arguments, {{"UMA_SHARED_STATES_PASSWORD", "secret"}})->shared_password, "secret");
  const TemporaryFile file("from a file\n");
  EXPECT_EQ(load(arguments, {{"UMA_SHARED_STATES_PASSWORD_FILE", file.path()}})->shared_password, "from a file");
  const auto refused = load(arguments, {{"UMA_SHARED_STATES_PASSWORD_FILE", "/nowhere/password"}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("/nowhere/password"));
  const auto in_address = load({"--catalog", "postgresql://db/uma", "--shared-states", "redis://uma:secret@cache.example"});
  ASSERT_FALSE(in_address);
  EXPECT_THAT(in_address.error().text, HasSubstr("UMA_SHARED_STATES_PASSWORD"));
  EXPECT_THAT(in_address.error().text, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace uma::umad
