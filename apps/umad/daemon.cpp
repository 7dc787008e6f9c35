#include "umad/daemon.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/system/descriptors.h"
#include "base/system/memory_info.h"
#include "base/system/program_path.h"
#include "core/file/edit_file.h"
#include "image/kept_images.h"
#include "kv/disk/cold_files.h"
#include "llm/file/gguf_header.h"
#include "llm/footprint.h"
#include "llm/llama_model.h"
#include "server/service_manager.h"
#include "umad/cpu_count.h"
#include "umad/data_dir.h"
#include "umad/machine.h"
#include "umad/model_path.h"
#include "umad/process/signals.h"
#include "umad/tune/compute.h"
#include "umad/tune/widths_file.h"
#include "wire/own/metrics_codec.h"

namespace uma::umad {
namespace {

// Time for the last answers of a daemon that could not load its model.
constexpr Duration kFlushLimit = std::chrono::seconds(1);
constexpr std::size_t kDescriptorParts = 3;  // For the Unix socket, for HTTP, and for everything else.
constexpr Duration kDrainStep = std::chrono::milliseconds(50);

constexpr std::uint64_t kColdAuto = std::uint64_t{32} << 30;

kv::StoreOptions store_options(const Config& config) {
  const auto warm =
      config.warm_bytes_max < 0 ? available_memory_bytes() / 4 : static_cast<std::uint64_t>(config.warm_bytes_max);
  const auto cold = config.cold_bytes_max < 0 ? std::min(free_bytes(config.data_dir) / 4, kColdAuto)
                                              : static_cast<std::uint64_t>(config.cold_bytes_max);
  return {.warm_bytes_max = warm,
          .cold_bytes_max = cold,
          .tenant_bytes_max = config.tenant_bytes_max,
          .eviction = config.eviction,
          .archive_after = config.archive_after,
          .ttl = config.state_ttl,
          .write_within = config.write_within,
          .day_bytes_max = config.day_bytes_max};
}

// The media that the projector of the configuration encodes. A file that cannot be read is reported by its load.
llm::Encoders default_encoders(const Config& config) {
  if (config.projector.empty()) return {};
  const auto path = find_named(config, config.projector);
  const auto header = path ? llm::read_gguf_header(*path) : Expected<llm::GgufHeader>(std::unexpected(path.error()));
  return header ? header->encoders : llm::Encoders{.images = true};
}

// uma-cli is installed beside umad.
std::string client_program() {
  return (program_path().parent_path() / "uma-cli").string();
}

std::int32_t engine_threads(const Config& config) {
  return config.threads > 0 ? config.threads : usable_physical_cores();
}

// The page at /. A daemon without it serves programs all the same.
server::PageFiles read_page(const Config& config) {
  if (!config.http_serves_page) return {};
  auto page = server::PageFiles::read(shipped_page(program_path()));
  if (page) return *std::move(page);
  log_warning("the page at / is not served: {}", page.error().message);
  return {};
}

void log_ready(const Config& config, Duration since_start) {
  const std::string socket_flag = config.is_given("ipc.uds_path") ? std::format(" --socket {}", config.socket_path) : "";
  log_info("ready after {:.2f} s: uma-cli{} --prompt \"Hello\"", to_ms(since_start) / 1000, socket_flag);
}

}  // namespace

engine::EngineOptions Daemon::engine_options() {
  engine::EngineOptions options;
  options.limits = config_.limits;
  options.threads = engine_threads(config_);
  options.tick_ms = config_.tick_ms;
  options.target_ttft_ms = config_.target_ttft_ms;
  options.target_tbt_ms = config_.target_tbt_ms;
  options.policy = config_.policy;
  options.bmt_budget_gbps = config_.bmt_budget_gbps;
  options.is_reproducible = config_.reproducible == Reproducible::on;
  options.speculates = config_.speculates;
  options.warms_up = true;
  options.verify_every = config_.verify_every;
  options.store = store_options(config_);
  options.image_encoder = {
      .allowed_dirs = config_.vision_allowed_dirs,
      .cache_bytes_max = config_.vision_cache_bytes_max,
      .pixels_max = config_.vision_image_pixels_max,
      .decode = [this](auto file, image::Turns turns, const auto& end) { return media_.decode_picture(file, turns, end); },
      .decode_sound = [this](auto file, std::int32_t rate, const auto& end) { return media_.decode_sound(file, rate, end); },
      .kept = images_};
  options.fetcher = fetcher_.get();
  options.queue_depth_warn = config_.pool.queue_depth_warn;
  if (supervised_) options.crashes = supervised_->record();
  options.on_loaded = [this](const Expected<ModelInfo>& result) { events_.push(result); };
  return options;
}

std::unique_ptr<engine::ModelLoader> Daemon::model_loader() {
  const auto seconds = [](double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); };
  const PoolOptions& settings = config_.pool;
  pool::PoolOptions options;
  options.default_model = models_.default_name;
  options.shipped_models = models_.shipped_names;
  options.unknown = settings.unknown;
  options.own_folder = config_.models_dir;
  options.default_encoders = default_encoders(config_);
  options.governor = {.usable_fraction = settings.usable_fraction,
                      .bytes_max = settings.memory_bytes_max,
                      .device_bytes_max = settings.device_bytes_max};
  options.maintenance = seconds(settings.maintenance_s);
  options.min_loaded = seconds(settings.min_loaded_s);
  options.cores = usable_physical_cores();
  options.idle_unload = seconds(settings.idle_unload_s);
  options.queue_depth_warn = static_cast<std::int64_t>(settings.queue_depth_warn);
  options.image_cache_bytes_max = config_.vision_cache_bytes_max;
  options.prepare = [this](const pool::RegisteredModel& model) { return load_options(model); };
  options.guard = &trials_;
  auto made = std::make_unique<pool::ModelPool>(std::move(options), models_.registry, clock_);
  pool_ = made.get();
  return made;
}

LocalModelsOptions Daemon::library_options() const {
  return {.folder = config_.models_dir, .program = client_program(), .aliases_file = aliases_path(config_)};
}

// Combines the settings of the model's card with those of the configuration.
Expected<engine::LoadWorkersOptions> Daemon::load_options(const pool::RegisteredModel& model) const {
  const pool::ModelCard& card = model.card;
  Config config = config_;
  if (card.sequence_cells) config.sequence_cells = *card.sequence_cells;
  if (card.slots) config.slots = *card.slots;
  if (card.kv_types) {
    config.kv_types = *card.kv_types;
    config.keys_given.emplace_back("kv.type");  // It overrides the profile.
  }
  config.speculates = card.defaults.speculates.value_or(config.speculates);
  const bool is_default = card.name == models_.default_name;
  if (!is_default || !card.draft_model.empty()) config.draft_model = card.draft_model;
  // Rotation belongs to a model, like its draft model.
  config.rope = card.rope.value_or(is_default ? config.rope : llm::RopeOptions{});
  // Proportions and the main one belong to the devices that are named beside them.
  if (card.devices) config.devices = {.layers = config.devices.layers};
  config.devices.names = card.devices.value_or(config.devices.names);
  config.devices.split = card.split.value_or(config.devices.split);
  config.devices.main_device = card.main_device.value_or(config.devices.main_device);
  config.devices.layers = card.gpu_layers.value_or(config.devices.layers);
  if (config.reproducible != Reproducible::off) {
    if (config.devices.are_named())
      return fail(ErrorCode::model_load, "its card names devices, but scheduler.reproducible needs devices: none");
    config.devices.names.emplace();
  }
  config.replicates_weights = config.replicates_weights || card.replicates_weights;
  const auto draft_path = choose_draft_model(config);
  if (!draft_path) return fail(ErrorCode::model_load, std::format("draft model: {}", draft_path.error().message));
  // The projector of the card, else of the configuration, else the file beside the model.
  const bool is_configured = is_default && card.projector.empty() && !config.projector.empty();
  const auto projector_path = is_configured ? find_named(config, config.projector) : model.projector_path;
  if (!projector_path) return fail(ErrorCode::model_load, std::format("projector: {}", projector_path.error().message));
  const Compute compute = choose_compute_here(config, model.path);
  engine::LoadWorkersOptions options;
  options.path = model.path;
  options.capability = model.capability;
  options.projector_path = *projector_path;
  options.picture = model.picture;
  options.image_tokens_max = config.vision_image_tokens_max;
  options.draft_path = *draft_path;
  options.adapters = model.adapters;
  options.tasks = card.tasks;
  options.defaults = pool::defaults_of(model);
  options.workers = model.capability == Capability::text_to_image ? 1 : config.workers;
  options.context = compute.context;
  options.context.pooling = card.pooling;
  if (compute.uses_devices || card.devices || card.gpu_layers)
    options.devices = config.devices;
  else
    options.devices.names.emplace();
  // A step of pictures is as much work as a prompt.
  options.threads = model.capability == Capability::text_to_image ? engine_threads(config) : compute.threads;
  options.replicates = config.replicates_weights;
  options.lanes = compute.lanes;
  options.threads_beside_prefill = compute.decode_threads_beside_prefill;
  if (const auto identity = llm::model_identity(model.path)) {  // The load reports the problem of the file.
    options.widths =
        WidthsFile::of(config_.data_dir,
                       WidthsOrigin{.model_identity = *identity, .machine = this_machine(), .backends = llm::backends_text()});
  }
  return options;
}

// Null: states are kept in memory only.
std::unique_ptr<kv::ColdStore> Daemon::cold_store() const {
  if (config_.cold_bytes_max == 0) return nullptr;
  auto opened = kv::ColdFiles::open(config_.data_dir + "/kv");
  if (opened) return std::move(*opened);
  log_warning("kv: states are kept in memory only: {}", opened.error().message);
  return nullptr;
}

std::unique_ptr<ImageFetcher> Daemon::image_fetcher() const {
  if (!config_.vision_urls.allow_any()) return nullptr;
  return std::make_unique<fetch::CurlImageFetcher>(config_.vision_urls, config_.limits.queue_bytes_max);
}

int Daemon::run() {
  const SignalThread signals([this](int number, pid_t sender) {
    events_.push(SignalReceived{.number = number, .is_passed_on = supervised_ && sender == supervised_->supervisor});
  });
  // Beside what follows, because the load waits for it.
  const auto preload = models_.registry->find(models_.default_name);
  if (preload && (*preload)->capability != Capability::text_to_image) trials_.begin_early((*preload)->path);
  // The socket is opened before the model is loaded: a second daemon fails early, and clients may connect at once.
  const bool is_passed = passed_.unix_socket.has_value();
  auto server = open_socket();
  if (!server) {
    log_error("{}", server.error().message);
    return 1;
  }
  server_ = std::move(*server);
  log_info("socket  {}{}", config_.socket_path, is_passed ? holder() : "");
  if (!open_http()) return 1;
  engine_.start();
  live_.start();
  const int status = serve();
  library_.stop();
  if (http_) http_->stop();
  server_->stop();
  engine_.stop();
  server_.reset();
  http_.reset();
  if (status == 0) log_info("stopped");
  if (engine_.is_left_hanging()) {
    log_warning("a call of the shared store does not return: umad ends without it");
    std::_Exit(status);
  }
  return status;
}

Expected<std::unique_ptr<server::UnixServer>> Daemon::open_socket() {
  const server::UnixServerOptions options{.path = config_.socket_path,
                                          .backlog = config_.backlog,
                                          .connections_max = descriptors_max() / kDescriptorParts,
                                          .idle_timeout = config_.idle_timeout,
                                          .limits = config_.limits,
                                          .library = &library_,
                                          .live = &live_,
                                          .http_url = &http_url_};
  if (!passed_.unix_socket) return server::UnixServer::start(options, engine_);
  // A socket made by a service manager has permissions that the administrator chose; they decide who may connect.
  const bool is_ours = supervised_ && supervised_->made_socket;
  server::ListeningSocket listening{
      .fd = std::move(passed_.unix_socket->fd), .file = std::nullopt, .serves_other_users = !is_ours};
  return server::UnixServer::start(options, std::move(listening), engine_);
}

// The API keys of the file, or of the database that other daemons share. With a database that has never had any, those of the
// file are stored there.
Expected<std::vector<server::ApiKey>> Daemon::read_keys() {
  if (!config_.http_shares_keys) {
    if (config_.http_keys_file.empty()) return std::vector<server::ApiKey>();
    return server::read_api_keys(config_.http_keys_file);
  }
  auto store = kv::PostgresKeys::open(config_.catalog, node_of(config_));
  if (!store) return std::unexpected(store.error());
  if (!config_.http_keys_file.empty()) {
    const auto first = server::read_api_keys(config_.http_keys_file);
    if (!first) return std::unexpected(first.error());
    const auto text = read_text_file(config_.http_keys_file, {});
    if (!text) return std::unexpected(text.error());
    const auto is_first = (*store)->begin_with(*text);
    if (!is_first) return std::unexpected(is_first.error());
    if (*is_first) log_info("keys    the {} keys of {} are in the database now", first->size(), config_.http_keys_file);
    if (!*is_first) log_info("keys    those of the database count; {} is not used", config_.http_keys_file);
  }
  auto text = (*store)->read_changes();
  if (!text) return std::unexpected(text.error());
  auto keys = server::parse_api_keys(text->value_or(""));
  if (keys && keys->empty()) {
    return fail(ErrorCode::proto_field,
                "the database has no keys: make one with umad key new NAME --admin, and name the file with its line in "
                "http.keys_file (--http-keys) for one start");
  }
  shared_keys_ = std::move(*store);
  return keys;
}

bool Daemon::open_http() {
  const HttpAddress& http = config_.http;
  if (http.address.empty() && config_.ollama.address.empty() && config_.http_socket.empty()) return true;
  auto read = read_keys();
  if (!read) {
    log_error("keys    {}", read.error().message);
    return false;
  }
  std::vector<server::ApiKey> keys = std::move(*read);
  const std::size_t keys_count = keys.size();
  const bool is_passed = passed_.tcp.has_value();
  server::PageFiles page = read_page(config_);
  const bool has_page = !page.empty();
  auto opened = server::HttpServer::start(
      {.address = http.address,
       .port = http.port,
       .tls_certificate = config_.http_tls_certificate,
       .tls_key = config_.http_tls_key,
       .socket_path = config_.http_socket,
       .ollama_address = config_.ollama.address,
       .ollama_port = config_.ollama.port,
       .backlog = config_.backlog,
       .connections_max = std::min(config_.http_connections_max, descriptors_max() / kDescriptorParts),
       .limits = config_.limits,
       .keys = std::move(keys),
       .keys_file = config_.http_keys_file,
       .shared_keys = shared_keys_.get(),
       .serves_local_users = config_.http_serves_local_users,
       .serves_metrics_without_key = config_.http_serves_metrics_without_key,
       .imports_kv = config_.http_imports_kv,
       .allowed_hosts = config_.http_allowed_hosts,
       .cors_origins = config_.http_cors_origins,
       .access_log = config_.http_access_log,
       .version = UMA_VERSION,
       .node = config_.catalog.empty() ? "" : node_of(config_),
       .settings = setting_values(config_),
       .page = std::move(page),
       .library = &library_,
       .live = &live_},
      engine_, is_passed ? std::move(passed_.tcp->fd) : UniqueFd(),
      passed_.http_socket ? std::move(passed_.http_socket->fd) : UniqueFd(), std::move(passed_.tcp_twin));
  if (opened) {
    http_ = std::move(*opened);
    const std::string whom = keys_count > 0                    ? std::format(" for {} keys", keys_count)
                             : config_.http_serves_local_users ? " for every user of this machine"
                                                               : "";
    const auto url = [&](const HttpAddress& configured, std::uint16_t port) {
      const HttpAddress address{.address = configured.address, .port = port};
      return std::format("{}://{}", config_.http_tls_certificate.empty() ? "http" : "https", show_value(address));
    };
    if (!http.address.empty()) {
      HttpAddress near = http;
      if (near.address == "0.0.0.0") near.address = "127.0.0.1";
      if (near.address == "::") near.address = "::1";
      http_url_.publish(std::make_shared<const std::string>(url(near, http_->port())));
      log_info("http    {}/v1{}{}", url(http, http_->port()), whom, is_passed ? holder() : "");
      if (has_page) log_info("page    {}/", url(http, http_->port()));
    }
    if (!config_.ollama.address.empty()) log_info("ollama  {}{}", url(config_.ollama, http_->ollama_port()), whom);
    if (!config_.http_socket.empty()) log_info("http    {}", config_.http_socket);
    return true;
  }
  // If HTTP was not requested explicitly, another program on the default port is no error.
  if (is_passed || config_.asks_for_http()) {
    log_error("{}", opened.error().message);
    return false;
  }
  log_warning("{}: HTTP is off; choose another port with --http ADDRESS:PORT", opened.error().message);
  return true;
}

void Daemon::stop_accepting() {
  live_.close();
  server_->stop_accepting();
  if (http_) http_->stop_accepting();
}

bool Daemon::wait_idle(Duration limit) {
  const TimePoint end = clock_.now() + limit;
  return server_->wait_idle(limit) && (!http_ || http_->wait_idle(end - clock_.now()));
}

int Daemon::serve() {
  while (true) {
    taken_.clear();
    events_.wait_drain(taken_, kNever);
    for (const DaemonEvent& event : taken_) {
      if (const auto* loaded = std::get_if<LoadFinished>(&event)) {
        if (!*loaded) return give_up(loaded->error());
        log_ready(config_, clock_.now() - started_);
        server::tell_service_manager("READY=1");
        if (supervised_) tell_ready(*supervised_);
        preload_models();
        continue;
      }
      const auto& received = std::get<SignalReceived>(event);
      if (received.number == SIGUSR1) {
        write_metrics();
      } else if (received.number == SIGHUP) {
        reload_models();
      } else {
        drain(received);
        return 0;
      }
    }
  }
}

// Stops a daemon whose model cannot be loaded, after waiting requests have been answered.
int Daemon::give_up(const Error& error) {
  log_error("{}", error.message);
  stop_accepting();
  (void)wait_idle(kFlushLimit);
  return 1;
}

// Serves on for the drain delay, then waits for requests in flight, until the time limit or a second TERM or INT. A signal that
// reaches both the supervisor and the daemon, as from a terminal or from a service manager that ends a whole group, counts
// once.
void Daemon::drain(const SignalReceived& first) {
  const std::string_view signal = first.number == SIGINT ? "INT" : "TERM";
  server::tell_service_manager("STOPPING=1");
  std::array<int, 2> counts{};
  ++counts[first.is_passed_on ? 1 : 0];
  // A balancer sends requests until it has asked again.
  if (http_) http_->announce_stop();
  if (config_.drain_delay > Duration::zero())
    log_info("{}: no longer ready; serving for {} more", signal, show_value(config_.drain_delay));
  const TimePoint served_until = clock_.now() + config_.drain_delay;
  bool is_hurried = false;
  while (!is_hurried && clock_.now() < served_until) is_hurried = is_second_signal_heard(counts, served_until);
  if (!is_hurried) {
    log_info("{}: finishing requests in flight, for at most {}; a second signal stops at once", signal,
             show_value(config_.drain_limit));
  }
  stop_accepting();
  library_.cancel();
  engine_.drain();
  const TimePoint limit = clock_.now() + config_.drain_limit;
  while (!wait_idle(kDrainStep)) {
    is_hurried = is_hurried || is_second_signal_heard(counts, clock_.now());
    if (is_hurried) return log_warning("second signal: cancelling requests in flight");
    if (clock_.now() >= limit) return log_warning("time limit reached: cancelling requests in flight");
  }
}

// Handles the signals that come until then; returns true at the second one that asks the daemon to end. `counts`: how many did
// so far, directly and through the supervisor.
bool Daemon::is_second_signal_heard(std::array<int, 2>& counts, TimePoint until) {
  taken_.clear();
  events_.wait_drain(taken_, until);
  bool is_heard = false;
  for (const DaemonEvent& event : taken_) {
    const auto* received = std::get_if<SignalReceived>(&event);
    if (received == nullptr) continue;
    if (received->number == SIGUSR1) write_metrics();
    const bool asks_for_end = received->number == SIGTERM || received->number == SIGINT;
    if (asks_for_end && ++counts[received->is_passed_on ? 1 : 0] > 1) is_heard = true;
  }
  return is_heard;
}

// Loads the models whose cards ask for it. A failure is logged, and the next request for that model tries again.
void Daemon::preload_models() {
  for (const pool::RegisteredModel& model : models_.registry->models()) {
    if (model.card.is_preloaded) engine_.load_model(model.card.name, [](const Expected<Unit>&) {});
  }
}

void Daemon::reload_models() {
  const auto count = pool_->reload();
  if (count) return log_info("HUP: {} models are registered", *count);
  for (const std::string& problem : count.error()) log_error("{}", problem);
  log_error("HUP: models.yaml has errors; the registered models are unchanged");
}

void Daemon::write_metrics() const {
  const std::string path = config_.data_dir + "/metrics.json";
  const auto written = write_file_atomically(path, wire::metrics_json(engine_.metrics()) + "\n");
  if (written) {
    log_info("USR1: wrote {}", path);
  } else {
    log_error("USR1: {}", written.error().message);
  }
}

}  // namespace uma::umad
