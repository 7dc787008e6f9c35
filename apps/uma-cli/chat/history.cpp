#include "uma-cli/chat/history.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/system/new_file.h"
#include "base/system/unique_fd.h"

namespace uma::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLinesBeforeShortening = 4 * kHistoryLinesMax;

void make_private_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::exists(folder, ignored)) return;
  make_private_folders(folder.parent_path());
  mkdir(folder.c_str(), 0700);
}

// In one call, so that lines of two chats do not mix.
void append_bytes(const std::string& path, const std::string& bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600));
  if (file.get() >= 0) (void)!write(file.get(), bytes.data(), bytes.size());
}

void replace_history(const std::string& path, const std::vector<std::string>& lines) {
  NewFile file(path);
  for (const std::string& line : lines) file.write(line + '\n');
  (void)file.publish();
}

}  // namespace

std::string history_path() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/')
    return std::string(state) + "/uma/history";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.local/state/uma/history" : "";
}

std::vector<std::string> load_history(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const bool is_long = lines.size() > kLinesBeforeShortening;
  if (lines.size() > kHistoryLinesMax) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kHistoryLinesMax));
  if (is_long) replace_history(path, lines);
  return lines;
}

void append_history(const std::string& path, const std::string& line) {
  if (path.empty()) return;
  make_private_folders(fs::path(path).parent_path());
  append_bytes(path, line + '\n');
}

}  // namespace uma::cli
