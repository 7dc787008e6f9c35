#include "umad/model_path.h"

#include <algorithm>
#include <format>
#include <set>
#include <system_error>

namespace uma::umad {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr std::size_t kNamesMax = 12;  // Most names in an error message.

std::set<std::string> models_in(const std::vector<fs::path>& folders) {
  std::set<std::string> names;
  for (const fs::path& folder : folders) {
    std::error_code problem;
    for (auto entry = fs::directory_iterator(folder, problem); !problem && entry != fs::directory_iterator();
         entry.increment(problem)) {
      if (entry->path().extension() == kExtension) names.insert(entry->path().stem());
    }
  }
  return names;
}

std::string join(const auto& items, std::string_view between) {
  std::string text;
  for (const auto& item : items) text += std::format("{}{}", text.empty() ? "" : between, std::string(item));
  return text;
}

fs::path shared_folder(const fs::path& executable) {
  return executable.parent_path().parent_path() / "share" / "uma-serve";
}

}  // namespace

fs::path shipped_model(const fs::path& executable) {
  return shared_folder(executable) / "models" / "uma-tiny.gguf";
}

fs::path shipped_page(const fs::path& executable) {
  return shared_folder(executable) / "page";
}

Expected<std::string> find_model(std::string_view name, const std::vector<fs::path>& folders) {
  std::error_code problem;
  if (name.contains('/') || fs::is_regular_file(name, problem)) return std::string(name);
  for (const fs::path& folder : folders) {
    for (const std::string_view extension : {kExtension, std::string_view()}) {
      const fs::path candidate = folder / std::format("{}{}", name, extension);
      if (fs::is_regular_file(candidate, problem)) return candidate.string();
    }
  }
  std::string message =
      std::format("no model \"{}\": there is no such file, neither as a path nor in {}", name, join(folders, " or "));
  const std::set<std::string> known = models_in(folders);
  if (!known.empty()) {
    std::vector<std::string> shown(known.begin(),
                                   std::next(known.begin(), static_cast<std::ptrdiff_t>(std::min(known.size(), kNamesMax))));
    if (shown.size() < known.size()) shown.emplace_back("...");
    message += std::format("; available: {}", join(shown, ", "));
  }
  return std::unexpected(Error{ErrorCode::model_unknown, std::move(message)});
}

}  // namespace uma::umad
