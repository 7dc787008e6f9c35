#include "umad/check.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <format>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/text.h"
#include "kv/catalog/catalog_lock.h"
#include "kv/catalog/postgres.h"
#include "kv/catalog/postgres_facts.h"
#include "kv/catalog/run_identity.h"
#include "kv/shared/redis_address.h"
#include "kv/shared/shared_facts.h"
#include "llm/llama_model.h"
#include "server/http/handlers/api_keys.h"
#include "server/http/tls_files.h"
#include "server/tcp_listener.h"
#include "umad/data_dir.h"
#include "umad/shared_store.h"

namespace uma::umad {
namespace {

// Collects what is found, topic by topic.
class Check {
 public:
  explicit Check(const Config& config) : config_(config) {}

  std::vector<Finding> run() {
    // In this order: later checks use what earlier ones have found.
    check_settings();
    check_models();
    check_data_dir();
    check_listeners();
    if (!config_.catalog.empty()) check_database();
    if (!config_.shared_states.empty()) check_shared_states();
    return std::move(findings_);
  }

 private:
  using enum Finding::Level;

  void add(Finding::Level level, std::string_view topic, std::string text) {
    findings_.push_back({level, std::string(topic), std::move(text)});
  }

  void check_settings() {
    constexpr std::string_view kTopic = "settings";
    add(good, kTopic, std::format("{} of them are given, and none has a mistake", config_.origins.size()));
    const auto list = [&](const std::vector<std::string>& keys, std::string_view what) {
      for (const std::string& key : keys) add(note, kTopic, std::format("{} {}", key, what));
    };
    list(config_.keys_superseded, "is obsolete and ignored");
    list(config_.keys_without_effect, "has no effect in this version");
    const auto check_folders = [&](const std::vector<std::string>& folders, std::string_view key) {
      for (const std::string& folder : folders) {
        std::error_code problem_code;
        if (!std::filesystem::is_directory(folder, problem_code))
          add(problem, kTopic, std::format("{}: {} is not a folder", key, folder));
      }
    };
    check_folders(config_.models_dirs, "models.dirs");
    check_folders(config_.vision_allowed_dirs, "vision.allowed_dirs");
  }

  void check_models() {
    constexpr std::string_view kTopic = "models";
    auto models = find_models(config_);
    if (!models) return add(problem, kTopic, models.error().message);
    for (const std::string& remark : models->registry->remarks()) add(note, kTopic, remark);
    compared_ = compared_models(*models);
    add(good, kTopic, std::format("{} are registered; the default one is {}", compared_.size(), models->default_name));
    for (const pool::RegisteredModel& model : models->registry->models()) {
      const bool is_default = model.card.name == models->default_name;
      if (!model.problem.empty())
        add(is_default ? problem : note, kTopic, std::format("{} cannot be loaded: {}", model.card.name, model.problem));
      if (is_default && ::access(model.path.c_str(), R_OK) != 0)
        add(problem, kTopic, std::format("{} cannot be read: {}", model.path, std::strerror(errno)));
    }
    if (const auto draft = choose_draft_model(config_); !draft) add(problem, kTopic, "draft_model: " + draft.error().message);
    if (config_.projector.empty()) return;
    if (const auto found = find_named(config_, config_.projector); !found)
      add(problem, kTopic, "vision.projector: " + found.error().message);
  }

  void check_data_dir() {
    constexpr std::string_view kTopic = "data folder";
    const std::string& folder = config_.data_dir;
    struct stat facts{};
    if (::stat(folder.c_str(), &facts) != 0) {
      if (errno != ENOENT) return add(problem, kTopic, std::format("{}: {}", folder, std::strerror(errno)));
      std::filesystem::path parent = folder;
      std::error_code problem_code;
      while (!std::filesystem::exists(parent, problem_code) && parent.has_relative_path()) parent = parent.parent_path();
      if (::access(parent.c_str(), W_OK | X_OK) != 0)
        return add(problem, kTopic, std::format("{} does not exist, and {} cannot be written", folder, parent.string()));
      add(good, kTopic, std::format("{} does not exist yet: umad makes it when it starts", folder));
      return findings_.push_back(judge_space(parent, free_bytes(parent)));
    }
    if (!S_ISDIR(facts.st_mode)) return add(problem, kTopic, std::format("{} is not a folder", folder));
    if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
      return add(problem, kTopic, std::format("{} cannot be written by this user: {}", folder, std::strerror(errno)));
    if (facts.st_uid != ::geteuid())
      add(note, kTopic,
          std::format("{} belongs to user {}, and this check runs as user {}", folder, facts.st_uid, ::geteuid()));
    if ((facts.st_mode & 077) != 0)
      add(note, kTopic, std::format("other users may enter {}, which has conversations: chmod 700 it", folder));
    findings_.push_back(judge_space(folder, free_bytes(folder)));
    check_lock(folder + "/catalog.db");
  }

  void check_lock(const std::string& catalog) {
    // Without the file nobody has the lock.
    if (::access((catalog + ".lock").c_str(), F_OK) == 0) {
      const auto lock = kv::take_catalog_lock(catalog);
      is_running_ = !lock.has_value();
      if (lock) dead_incarnation_ = kv::dead_incarnation(*lock);
    }
    add(good, "data folder", is_running_ ? "a umad uses it now" : "no umad uses it now");
  }

  void check_listeners() {
    constexpr std::string_view kTopic = "listeners";
    check_address("http", config_.http, config_.asks_for_http());
    check_address("http.ollama", config_.ollama, true);
    for (const std::string& path : {config_.socket_path, config_.http_socket}) {
      if (path.empty()) continue;
      const std::string folder = std::filesystem::absolute(path).parent_path();
      if (::access(folder.c_str(), W_OK | X_OK) != 0)
        add(problem, kTopic, std::format("the socket {} cannot be made: {}: {}", path, folder, std::strerror(errno)));
    }
    if (!config_.http_keys_file.empty()) check_keys();
    if (config_.http_tls_certificate.empty()) return;
    const auto days = tls_days_left();
    if (!days) return add(problem, kTopic, days.error().message);
    findings_.push_back(judge_certificate(config_.http_tls_certificate, *days));
  }

  [[nodiscard]] Expected<double> tls_days_left() const {
    return server::tls_days_left(config_.http_tls_certificate, config_.http_tls_key);
  }

  void check_address(std::string_view key, const HttpAddress& address, bool is_needed) {
    if (address.address.empty()) return;
    constexpr int kBacklog = 1;
    const std::string shown = show_value(address);
    const auto opened = server::listen_at_address(address.address, address.port, kBacklog);
    if (opened) return add(good, "listeners", std::format("{}: {} is free", key, shown));
    if (is_running_)
      return add(good, "listeners", std::format("{}: {} is taken, as expected of the umad that runs", key, shown));
    add(is_needed ? problem : note, "listeners", std::format("{}: {}", key, opened.error().message));
  }

  void check_keys() {
    const std::string& path = config_.http_keys_file;
    const auto keys = server::read_api_keys(path);
    if (!keys) return add(problem, "listeners", std::format("http.keys_file: {}", keys.error().message));
    if (keys->empty()) return add(problem, "listeners", std::format("http.keys_file: {} has no key (umad key new NAME)", path));
    add(good, "listeners", std::format("{} has {} keys", path, keys->size()));
    struct stat facts{};
    if (::stat(path.c_str(), &facts) == 0 && (facts.st_mode & 022) != 0)
      add(problem, "listeners", std::format("other users may write {}, and so make keys: chmod 600 it", path));
  }

  void check_database() {
    const std::string shown = kv::shown_address(config_.catalog);
    const auto facts = kv::read_database_facts(config_.catalog);
    if (!facts) return add(problem, "database", std::format("{}: {}", shown, facts.error().message));
    const auto append = [&](std::vector<Finding> found) { std::ranges::move(found, std::back_inserter(findings_)); };
    add(good, "database", std::format("{} answers", shown));
    append(judge_database(*facts, kv::own_schema_versions()));
    append(judge_members(*facts, {.node = node_of(config_),
                                  .version = UMA_VERSION,
                                  .models = std::move(compared_),
                                  .is_running = is_running_,
                                  .dead_incarnation = dead_incarnation_,
                                  .shared_states = shared_states_text(config_)}));
  }

  void check_shared_states() {
    constexpr std::string_view kTopic = "shared states";
    OwnSharing own{.store = shared_states_text(config_),
                   .has_password = !config_.shared_password.empty(),
                   .bytes_max = config_.shared_bounds.bytes_max};
    const auto append = [&](std::vector<Finding> found) { std::ranges::move(found, std::back_inserter(findings_)); };
    if (const auto address = kv::parse_redis_address(config_.shared_states)) {
      own.is_encrypted = address->is_encrypted;
      own.is_local = address->host == "localhost" || address->host == "::1" || address->host.starts_with("127.");
      const auto facts = kv::read_redis_facts({.address = *address, .password = config_.shared_password});
      if (!facts) return add(problem, kTopic, facts.error().message);
      append(judge_redis(*facts, own));
    } else {
      const auto facts = kv::read_shared_folder_facts(config_.shared_states);
      if (!facts) return add(problem, kTopic, facts.error().message);
      append(judge_shared_folder(*facts, own));
    }
    add(good, kTopic, std::format("a state that nobody uses ends after {}", show_value(config_.shared_ttl)));
  }

  const Config& config_;
  std::vector<Finding> findings_;
  std::vector<ComparedModel> compared_;
  bool is_running_ = false;
  std::string dead_incarnation_;
};

int print(std::span<const Finding> findings, bool is_json) {
  std::fputs((is_json ? report_json(findings) : report_text(findings)).c_str(), stdout);
  return is_well(findings) ? 0 : 1;
}

}  // namespace

bool is_check(std::span<const std::string> arguments) {
  return !arguments.empty() && arguments.front() == "check";
}

int run_check(const Config& config) {
  return print(Check(config).run(), config.check->is_json);
}

int report_mistakes(const Exit& mistakes, std::span<const std::string> arguments) {
  std::vector<Finding> findings;
  for (const std::string_view line : lines_of(mistakes.text)) {
    // Mistakes in values stand below a heading; those of the command line stand alone.
    if (line.starts_with("umad: ") || trim(line).empty()) continue;
    findings.push_back({Finding::Level::problem, "settings", std::string(trim(line))});
  }
  return print(findings, std::ranges::contains(arguments, "--json"));
}

std::vector<ComparedModel> compared_models(const Models& models) {
  std::vector<ComparedModel> compared;
  for (const pool::RegisteredModel& model : models.registry->models()) {
    ComparedModel& entry = compared.emplace_back(model.card.name, model.file ? model.file->bytes : 0);
    if (model.card.name != models.default_name) continue;
    // A file that cannot be read is reported by its load.
    entry.identity = llm::model_identity(model.path).value_or("");
  }
  return compared;
}

}  // namespace uma::umad
