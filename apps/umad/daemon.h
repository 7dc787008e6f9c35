// The daemon of one process: engine, listeners and signals, from its start until the last request has ended.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/system/program_path.h"
#include "core/error.h"
#include "core/session_info.h"
#include "engine/engine.h"
#include "engine/model/model_loader.h"
#include "fetch/curl_image_fetcher.h"
#include "kv/catalog/postgres_keys.h"
#include "kv/disk/cold_store.h"
#include "pool/model_pool.h"
#include "server/http/handlers/api_keys.h"
#include "server/http/http_server.h"
#include "server/live_feed.h"
#include "server/passed_sockets.h"
#include "server/unix/unix_server.h"
#include "umad/config.h"
#include "umad/local_models.h"
#include "umad/model_choice.h"
#include "umad/open_catalog.h"
#include "umad/process/media_process.h"
#include "umad/process/model_trials.h"
#include "umad/process/supervised.h"
#include "umad/shared_store.h"

namespace uma::umad {

// Events that the main thread waits for.
struct SignalReceived {
  int number = 0;
  bool is_passed_on = false;  // Somebody sent the signal to the supervisor, which forwarded it.
};
using LoadFinished = Expected<ModelInfo>;
using DaemonEvent = std::variant<SignalReceived, LoadFinished>;

class Daemon {
 public:
  Daemon(const Config& config, server::PassedSockets passed, const std::optional<Supervised>& supervised, Models models,
         OpenedCatalog opened)
      : config_(config),
        images_(std::move(opened.images)),
        supervised_(supervised),
        passed_(std::move(passed)),
        models_(std::move(models)),
        trials_(config.data_dir, same_program(), supervised.has_value(), supervised && supervised->ended_by_fault()),
        media_(same_program()),
        fetcher_(image_fetcher()),
        engine_(engine_options(), model_loader(), std::move(opened.catalog), cold_store(), clock_,
                open_shared_states(config_, clock_)),
        library_(library_options(), *pool_) {}

  // Returns the exit code.
  int run();

 private:
  engine::EngineOptions engine_options();
  std::unique_ptr<engine::ModelLoader> model_loader();
  LocalModelsOptions library_options() const;
  Expected<engine::LoadWorkersOptions> load_options(const pool::RegisteredModel& model) const;
  std::unique_ptr<kv::ColdStore> cold_store() const;
  std::unique_ptr<ImageFetcher> image_fetcher() const;

  // Handles events until the daemon should stop; returns its exit code.
  int serve();
  int give_up(const Error& error);
  Expected<std::unique_ptr<server::UnixServer>> open_socket();
  // Returns false if a requested listener cannot be opened.
  bool open_http();
  [[nodiscard]] Expected<std::vector<server::ApiKey>> read_keys();
  void stop_accepting();
  bool wait_idle(Duration limit);
  void drain(const SignalReceived& first);
  bool is_second_signal_heard(std::array<int, 2>& counts, TimePoint until);
  // Describes the owner of the daemon's sockets, for the log.
  [[nodiscard]] const char* holder() const { return supervised_ ? ", kept by the supervisor" : ", from the service manager"; }
  void write_metrics() const;
  void preload_models();
  void reload_models();

  const Config& config_;
  const std::shared_ptr<image::KeptImages> images_;  // Shared with the engine and the catalog.
  const std::optional<Supervised> supervised_;
  server::PassedSockets passed_;  // Sockets that no server has taken yet.
  const Models models_;
  const SteadyClock clock_;
  const TimePoint started_ = clock_.now();
  Mailbox<DaemonEvent> events_;
  std::vector<DaemonEvent> taken_;
  ModelTrials trials_;
  MediaProcesses media_;
  pool::ModelPool* pool_ = nullptr;              // Owned by the engine.
  const std::unique_ptr<ImageFetcher> fetcher_;  // Null: URLs of images are not allowed.
  engine::Engine engine_;
  LocalModels library_;
  server::LiveFeed live_{engine_};
  std::unique_ptr<kv::PostgresKeys> shared_keys_;  // Null: no daemon shares the API keys.
  // The servers use engine_, library_, live_ and shared_keys_, and are destroyed before them.
  Published<std::string> http_url_;  // Where this machine reaches HTTP; nothing: it is off.
  std::unique_ptr<server::UnixServer> server_;
  std::unique_ptr<server::HttpServer> http_;  // Null: HTTP is off, or the default port is in use.
};

}  // namespace uma::umad
