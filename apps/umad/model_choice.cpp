#include "umad/model_choice.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/system/program_path.h"
#include "llm/llama_model.h"
#include "umad/cpu_count.h"
#include "umad/model_path.h"
#include "umad/tune/profile.h"

namespace uma::umad {
namespace {

// Empty: it is not set.
std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path shipped_with_us() {
  return shipped_model(program_path());
}

// Folders in which models are found by name.
std::vector<std::string> model_folders(const Config& config) {
  std::vector<std::string> folders = config.models_dirs;
  if (!config.models_dir.empty()) folders.push_back(config.models_dir);
  folders.push_back(shipped_with_us().parent_path());
  return folders;
}

// The measured profile of this model on this machine. A profile that cannot be read is logged.
std::optional<Profile> find_profile(const Config& config, const std::string& model_path) {
  const auto identity = llm::model_identity(model_path);
  if (!identity) return std::nullopt;  // The load reports the problem of the file.
  const Machine machine = this_machine();
  const std::string path = profile_path(config.data_dir, *identity, machine);
  auto profile = read_profile(path, *identity, machine);
  if (!profile) {
    log_warning("profile {} is ignored: {}", path, profile.error());
    return std::nullopt;
  }
  if (!*profile) return std::nullopt;
  const std::string given = given_over_profile(config);
  log_info("profile {}{}{}", path, given.empty() ? "" : "; overridden by settings: ", given);
  return *std::move(profile);
}

Expected<std::shared_ptr<const pool::ModelRegistry>> read_registry(const Config& config, const std::string& model_path) {
  pool::RegistryOptions options{.cards_file = config.models_file,
                                .needs_cards_file = config.is_given("models") || config.is_given("models.file"),
                                .model_path = model_path,
                                .folders = model_folders(config),
                                .aliases_file = aliases_path(config)};
  if (config.pool.uses_stores) options.stores = pool::usual_stores(environment_variable);
  auto registry = pool::ModelRegistry::read(std::move(options));
  if (registry) return *std::move(registry);
  for (const std::string& problem : registry.error()) log_error("{}", problem);
  return fail(ErrorCode::model_unknown, "the list of models could not be read: see the errors above");
}

// The name of the registered model with this file; empty: there is none.
std::string name_of_file(const pool::ModelRegistry& registry, const std::filesystem::path& path) {
  const auto found = std::ranges::find_if(registry.models(), [&](const pool::RegisteredModel& model) {
    std::error_code problem;
    return model.path == path || std::filesystem::equivalent(model.path, path, problem);
  });
  return found == registry.models().end() ? "" : found->card.name;
}

// The names of the registered models whose files are in the folder.
std::vector<std::string> names_in(const pool::ModelRegistry& registry, const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const pool::RegisteredModel& model : registry.models()) {
    std::error_code problem;
    const std::filesystem::path parent = std::filesystem::path(model.path).parent_path();
    if (parent == folder || std::filesystem::equivalent(parent, folder, problem)) names.push_back(model.card.name);
  }
  return names;
}

}  // namespace

std::string aliases_path(const Config& config) {
  return config.data_dir + "/model_aliases";
}

Expected<std::string> find_named(const Config& config, const std::string& name) {
  const std::vector<std::string> folders = model_folders(config);
  return find_model(name, {folders.begin(), folders.end()});
}

Expected<std::string> choose_model(const Config& config) {
  std::error_code problem;
  const std::filesystem::path shipped = shipped_with_us();
  if (config.model.empty()) {
    if (std::filesystem::exists(shipped, problem)) return shipped.string();
    return fail(ErrorCode::model_unknown,
                std::format("no model: give --model FILE (the default model is missing at {})", shipped.string()));
  }
  return find_named(config, config.model);
}

Expected<std::string> choose_draft_model(const Config& config) {
  if (config.draft_model.empty()) return std::string();
  if (!config.speculates) {
    log_warning("draft_model is not loaded, because scheduler.speculation is off");
    return std::string();
  }
  return find_named(config, config.draft_model);
}

Compute choose_compute_here(const Config& config, const std::string& model_path) {
  std::error_code problem;
  const std::uintmax_t bytes = std::filesystem::file_size(model_path, problem);
  return choose_compute(config, find_profile(config, model_path), problem ? 0 : bytes, usable_physical_cores());
}

Expected<Models> find_models(const Config& config) {
  auto registry = read_registry(config, "");
  if (!registry) return std::unexpected(registry.error());
  const auto choice = [&](const std::string& name) {
    std::vector<std::string> shipped = names_in(**registry, shipped_with_us().parent_path());
    if (!config.model.empty()) std::erase(shipped, name);  // Its user has chosen it.
    return Models{.registry = *registry, .default_name = name, .shipped_names = std::move(shipped)};
  };
  if (!config.model.empty() && !config.model.contains('/')) {
    if (const auto found = (*registry)->find(config.model)) return choice((*found)->card.name);
  }
  auto path = choose_model(config);
  if (!path) return std::unexpected(path.error());
  if (registry = read_registry(config, *path); !registry) return std::unexpected(registry.error());
  const std::string name = name_of_file(**registry, *path);
  if (name.empty()) return fail(ErrorCode::model_unknown, std::format("{}: no such file", *path));
  return choice(name);
}

}  // namespace uma::umad
