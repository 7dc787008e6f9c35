#include "umad/machine.h"

#include <array>
#include <fstream>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

#include "base/system/cpu_load.h"
#include "llm/llama_model.h"
#include "umad/cpu_count.h"

namespace uma::umad {
namespace {

std::string value_of(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {};
  std::string value;
  for (const char c : line.substr(colon + 1)) {
    const bool is_kept = c > ' ' && c <= '~' && c != '"' && c != '\\';
    if (is_kept) value += c;
    if (!is_kept && !value.empty() && value.back() != ' ') value += ' ';
  }
  while (value.ends_with(' ')) value.pop_back();
  return value;
}

}  // namespace

std::string host_name() {
  constexpr std::size_t kBytesMax = 64;
  std::array<char, kBytesMax + 1> name{};
  if (::gethostname(name.data(), kBytesMax) != 0 || name[0] == '\0') return "umad";
  std::string clean(name.data());
  for (char& c : clean) {
    const bool is_allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    if (!is_allowed) c = '-';
  }
  return clean;
}

std::string cpu_name(const std::filesystem::path& cpuinfo) {
  std::ifstream file(cpuinfo);
  std::string line;
  std::string parts;
  while (std::getline(file, line) && !line.empty()) {  // Reads the paragraph of the first processor.
    if (line.starts_with("model name")) {
      if (std::string name = value_of(line); !name.empty()) return name;
    }
    if (line.starts_with("CPU implementer") || line.starts_with("CPU part")) {
      parts += (parts.empty() ? "" : " ") + value_of(line);
    }
  }
  return parts.empty() ? "unknown" : parts;
}

double busy_cpu_s() {
  return busy_processors_s(processor_stat_path(), Stolen::counted).value_or(0);
}

double process_cpu_s() {
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Machine this_machine() {
  return {.cpu = this_cpu_name(), .cores = usable_physical_cores(), .library = llm::llama_version_text()};
}

}  // namespace uma::umad
