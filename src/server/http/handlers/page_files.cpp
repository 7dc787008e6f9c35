#include "server/http/handlers/page_files.h"

#include <array>
#include <format>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "server/http/rules.h"

namespace uma::server {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPageFilesMax = 256;
constexpr std::uintmax_t kPageBytesMax = 16 << 20;  // Limit of all files together.

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {{
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".txt", "text/plain; charset=utf-8"},
}};

std::string_view content_type_of(std::string_view name) {
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return "";
}

Expected<std::string> read_whole(const fs::path& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return fail(ErrorCode::io_failed, std::format("{}: cannot be read", path.string()));
  return std::move(text).str();
}

// The paths of a folder's files of known types, below `prefix`, with their places on the disk.
Expected<std::map<std::string, fs::path>> list_files(const fs::path& folder, const std::string& prefix) {
  std::map<std::string, fs::path> found;
  std::error_code problem;
  for (auto entry = fs::directory_iterator(folder, problem); !problem && entry != fs::directory_iterator();
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (!content_type_of(name).empty()) found.emplace(prefix + name, entry->path());
  }
  if (problem && problem != std::errc::no_such_file_or_directory) {
    return fail(ErrorCode::io_failed, std::format("{}: {}", folder.string(), problem.message()));
  }
  return found;
}

Expected<PageFile> read_file(const fs::path& path) {
  auto bytes = read_whole(path);
  if (!bytes) return std::unexpected(std::move(bytes.error()));
  PageFile file{.bytes = *std::move(bytes), .gzip = {}, .content_type = content_type_of(path.string()), .etag = {}};
  const fs::path compressed = path.string() + ".gz";
  if (fs::exists(compressed)) {
    auto gzip = read_whole(compressed);
    if (!gzip) return std::unexpected(std::move(gzip.error()));
    file.gzip = *std::move(gzip);
  }
  file.etag = etag_of(file.bytes);
  return file;
}

}  // namespace

Expected<PageFiles> PageFiles::read(const fs::path& folder) {
  PageFiles page;
  std::uintmax_t bytes = 0;
  for (const auto& [place, prefix] :
       {std::pair(folder, std::string("/")), std::pair(folder / "chunks", std::string("/chunks/"))}) {
    const auto paths = list_files(place, prefix);
    if (!paths) return std::unexpected(paths.error());
    for (const auto& [path, on_disk] : *paths) {
      std::error_code problem;
      bytes += fs::file_size(on_disk, problem);
      if (problem || bytes > kPageBytesMax || page.files_.size() >= kPageFilesMax) {
        return fail(ErrorCode::io_failed, std::format("{}: more or larger files than a page has", folder.string()));
      }
      auto file = read_file(on_disk);
      if (!file) return std::unexpected(std::move(file.error()));
      file->is_permanent = prefix != "/";
      page.files_.emplace(path == "/index.html" ? "/" : path, *std::move(file));
    }
  }
  if (!page.files_.contains("/")) page.files_.clear();
  return page;
}

const PageFile* PageFiles::find(std::string_view path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : &found->second;
}

}  // namespace uma::server
