#include "pool/stores/model_stores.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <functional>
#include <iomanip>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "pool/stores/ollama_store.h"
#include "pool/stores/repository_files.h"

namespace uma::pool {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHub = "Hugging Face";
constexpr std::string_view kLmStudio = "LM Studio";
constexpr std::string_view kLlamaCpp = "llama.cpp";
constexpr int kSnapshotDepth = 2;  // Quantizations are often in folders of their own.

// The folders in a folder, which is noted.
std::vector<fs::path> folders_in(const fs::path& folder, StoreContents& contents) {
  std::vector<fs::path> folders;
  std::error_code problem;
  if (!note_folder(folder.string(), contents)) return folders;
  for (auto entry = fs::directory_iterator(folder, problem); !problem && entry != fs::directory_iterator();
       entry.increment(problem)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) folders.push_back(entry->path());
  }
  std::ranges::sort(folders);
  return folders;
}

// The commit that a name such as "main" means in the cache; else the one that came last.
std::optional<fs::path> current_snapshot(const fs::path& repository, StoreContents& contents) {
  constexpr int kCommitBytesMax = 128;
  const fs::path main = repository / "refs" / "main";
  std::string commit;
  std::error_code problem;
  if (fs::is_regular_file(main, problem)) std::ifstream(main) >> std::setw(kCommitBytesMax) >> commit;
  const std::vector<fs::path> all = folders_in(repository / "snapshots", contents);
  const auto named = std::ranges::find_if(all, [&](const fs::path& snapshot) { return snapshot.filename() == commit; });
  if (named != all.end()) return *named;
  const auto age = [](const fs::path& snapshot) {
    std::error_code unknown;
    return fs::last_write_time(snapshot, unknown);
  };
  const auto newest = std::ranges::max_element(all, {}, age);
  return newest == all.end() ? std::nullopt : std::optional(*newest);
}

// The cache names the content of a large file by its hash.
std::string hash_in_cache(const std::string& path) {
  std::error_code problem;
  const std::string name = fs::read_symlink(path, problem).filename().string();
  return is_sha256(name) ? name : "";
}

void read_hub(const std::string& folder, StoreContents& contents) {
  constexpr std::string_view kModels = "models--";
  for (const fs::path& repository : folders_in(folder, contents)) {
    std::string name = repository.filename().string();
    if (!name.starts_with(kModels)) continue;
    name.erase(0, kModels.size());
    if (const std::size_t owner_end = name.find("--"); owner_end != std::string::npos) name.replace(owner_end, 2, "/");
    for (const char* part : {"refs", "blobs"}) note_folder((repository / part).string(), contents);
    const auto snapshot = current_snapshot(repository, contents);
    if (!snapshot) continue;
    const std::size_t known = contents.models.size();
    add_repository(kHub, name, "", files_below(snapshot->string(), kSnapshotDepth, contents), contents);
    for (StoredModel& model : std::span(contents.models).subspan(known)) model.sha256 = hash_in_cache(model.path);
  }
}

void read_lm_studio(const std::string& folder, StoreContents& contents) {
  for (const fs::path& owner : folders_in(folder, contents)) {
    for (const fs::path& repository : folders_in(owner, contents)) {
      const std::string name = std::format("{}/{}", owner.filename().string(), repository.filename().string());
      add_repository(kLmStudio, name, "", files_below(repository.string(), 0, contents), contents);
    }
  }
}

// "manifest=OWNER=NAME=TAG.json" says which repositories there are. Files of others have unknown ones.
void read_llama_cpp(const std::string& folder, StoreContents& contents) {
  const std::vector<std::string> files = files_below(folder, 0, contents);
  std::map<std::string, std::string, std::greater<>> repositories;  // By prefix; the longer of two that fit comes first.
  for (const std::string& file : files) {
    const std::string name = fs::path(file).filename().string();
    const std::size_t owner = name.find('=') + 1;
    const std::size_t repository = name.find('=', owner) + 1;
    const std::size_t end = name.find('=', repository);
    if (!name.starts_with("manifest=") || repository == 0 || end == std::string::npos) continue;
    const std::string of = name.substr(owner, repository - 1 - owner);
    const std::string called = name.substr(repository, end - repository);
    repositories.emplace(std::format("{}_{}_", of, called), std::format("{}/{}", of, called));
  }
  std::map<std::string, std::vector<std::string>> by_prefix;
  for (const std::string& file : files) {
    const std::string name = fs::path(file).filename().string();
    const auto found = std::ranges::find_if(repositories, [&](const auto& each) { return name.starts_with(each.first); });
    by_prefix[found == repositories.end() ? "" : found->first].push_back(file);
  }
  for (const auto& [prefix, of_repository] : by_prefix) {
    add_repository(kLlamaCpp, prefix.empty() ? "" : repositories.at(prefix), prefix, of_repository, contents);
  }
}

}  // namespace

StoreFolders usual_stores(const std::function<std::string(const char*)>& variable) {
  const std::string home = variable("HOME");
  const std::string cache = xdg_folder(variable("XDG_CACHE_HOME"), home, ".cache");
  const auto below = [](const std::string& folder, std::string_view rest) {
    return folder.starts_with('/') ? std::format("{}/{}", folder, rest) : std::string();
  };
  // A program that has a variable uses that folder only.
  const auto given_or = [&](const char* name, std::string usual) {
    const std::string given = variable(name);
    return given.empty() ? std::move(usual) : given;
  };
  const std::string hub_home = given_or("HF_HOME", below(cache, "huggingface"));
  StoreFolders stores{.hub = {given_or("HF_HUB_CACHE", below(hub_home, "hub"))},
                      .lm_studio = {below(home, ".lmstudio/models"), below(cache, "lm-studio/models")},  // Now, and once.
                      .llama_cpp = {given_or("LLAMA_CACHE", below(cache, "llama.cpp"))},
                      .ollama = {given_or("OLLAMA_MODELS", below(home, ".ollama/models"))}};
  if (variable("OLLAMA_MODELS").empty()) stores.ollama.push_back("/usr/share/ollama/.ollama/models");  // Its service's.
  for (auto* folders : {&stores.hub, &stores.lm_studio, &stores.llama_cpp, &stores.ollama}) std::erase(*folders, "");
  return stores;
}

StoreContents read_stores(const StoreFolders& stores) {
  StoreContents contents;
  for (const std::string& folder : stores.hub) read_hub(folder, contents);
  for (const std::string& folder : stores.lm_studio) read_lm_studio(folder, contents);
  for (const std::string& folder : stores.llama_cpp) read_llama_cpp(folder, contents);
  for (const std::string& folder : stores.ollama) read_ollama_store(folder, contents);
  return contents;
}

}  // namespace uma::pool
