#include "pool/stores/repository_files.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <format>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "core/model_file_name.h"

namespace uma::pool {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kFilesMax = 10'000;  // Files of one folder with all below it.

// 16-bit floats first: the encoder is small, and is read in this form by every backend.
int rank_of_projector(const std::string& path) {
  const std::string name = lower_ascii(fs::path(path).filename().string());
  if (name.contains("bf16")) return 1;
  if (name.contains("f16")) return 0;
  return name.contains("f32") ? 3 : 2;
}

void add_files_below(const fs::path& folder, int depth, StoreContents& contents, std::vector<std::string>& files) {
  std::error_code problem;
  if (!note_folder(folder.string(), contents)) return;
  for (auto entry = fs::directory_iterator(folder, problem); !problem && entry != fs::directory_iterator();
       entry.increment(problem)) {
    std::error_code unknown;
    if (files.size() >= kFilesMax) return;
    if (!entry->is_directory(unknown)) {
      files.push_back(entry->path().string());
    } else if (depth > 0) {
      add_files_below(entry->path(), depth - 1, contents, files);
    }
  }
}

}  // namespace

bool note_folder(const std::string& folder, StoreContents& contents) {
  constexpr std::size_t kFoldersMax = 10'000;  // Each costs a system call whenever the models are listed.
  if (contents.folders.size() >= kFoldersMax) return false;
  contents.folders.push_back(time_of(folder));
  return true;
}

std::vector<std::string> files_below(const std::string& folder, int depth, StoreContents& contents) {
  std::vector<std::string> files;
  add_files_below(folder, depth, contents, files);
  std::ranges::sort(files);
  return files;
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string_view quantization_in(std::string_view stem) {
  const std::string_view last = stem.substr(stem.find_last_of("-.") + 1);  // npos + 1 is 0.
  const std::string lower = lower_ascii(last);
  const std::size_t letters = lower.find_first_of("0123456789");
  const std::string_view kind = std::string_view(lower).substr(0, letters);
  const bool is_quantized = letters != std::string::npos && (kind == "q" || kind == "iq");
  const bool is_float = lower == "f16" || lower == "bf16" || lower == "f32" || lower == "fp16" || lower.starts_with("mxfp4");
  return is_quantized || is_float ? last : std::string_view();
}

void add_repository(std::string_view store, const std::string& repository, std::string_view prefix,
                    const std::vector<std::string>& files, StoreContents& contents) {
  std::vector<StoredModel> models;
  std::vector<std::string> projectors;
  for (const std::string& path : files) {
    const std::string name = fs::path(path).filename().string();
    if (!lower_ascii(name).ends_with(".gguf")) continue;
    const auto split = parse_split_name(path);
    if (split && split->index > 0) continue;  // The first file represents the model.
    if (lower_ascii(name).contains("mmproj")) {
      projectors.push_back(path);
      continue;
    }
    std::string stem = split ? fs::path(split->stem).filename().string() : fs::path(name).stem().string();
    if (stem.starts_with(prefix)) stem.erase(0, prefix.size());
    StoredModel model{.store = store, .names = {stem}, .path = path};
    const std::string_view quantization = quantization_in(stem);
    if (!repository.empty() && !quantization.empty()) model.names.push_back(std::format("{}:{}", repository, quantization));
    models.push_back(std::move(model));
  }
  std::ranges::stable_sort(projectors, {}, rank_of_projector);
  if (models.size() == 1 && !repository.empty()) models.front().names.push_back(repository);
  for (StoredModel& model : models) {
    model.projectors = projectors;
    contents.models.push_back(std::move(model));
  }
}

}  // namespace uma::pool
