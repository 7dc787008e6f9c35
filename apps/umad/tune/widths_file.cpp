#include "umad/tune/widths_file.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "base/log.h"
#include "umad/data_dir.h"
#include "umad/tune/profile.h"
#include "umad/yaml_map.h"

namespace uma::umad {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kCoresMax = 4096;
constexpr double kMsMin = 1e-4;  // The last digit that is written.
constexpr double kMsMax = 1e6;
constexpr double kRatioMax = 1e4;  // Limit for the largest time divided by the smallest.

std::expected<sched::WidthTimes, std::string> read_times(const YAML::Node& list) {
  sched::WidthTimes ms{};
  if (!list.IsSequence() || list.size() != ms.size()) return std::unexpected(std::format("ms: expected {} times", ms.size()));
  const auto time = number(kMsMin, kMsMax);
  for (std::size_t i = 0; i < ms.size(); ++i) {
    const auto read = list[i].IsScalar() ? time(list[i].Scalar()) : std::unexpected(std::string("a number"));
    if (!read) return std::unexpected(std::format("ms: expected times from {} to {:.0f}", kMsMin, kMsMax));
    ms[i] = *read;
  }
  const auto [least, most] = std::ranges::minmax(ms);
  if (most > kRatioMax * least) {
    return std::unexpected(std::format("ms: expected times that are less than {:.0f} times apart", kRatioMax));
  }
  return ms;
}

std::expected<std::vector<WidthsEntry>, std::string> read_root(const YAML::Node& root, WidthsOrigin& origin) {
  std::string problem;
  MapReader top(root, problem);
  if (auto checked = check_version(top, problem, kVersion); !checked) return std::unexpected(std::move(checked.error()));
  origin.model_identity = top.take("model", any_text());
  MapReader machine(root["machine"], problem);
  origin.machine = take_machine(machine, kCoresMax);
  origin.backends = machine.take("backends", any_text());
  machine.finish(0);
  std::vector<WidthsEntry> entries;
  const YAML::Node measured = root["measured"];
  if (problem.empty() && (!measured || !measured.IsSequence() || measured.size() > WidthsFile::kEntriesMax)) {
    problem = std::format("measured: expected a list of at most {} entries", WidthsFile::kEntriesMax);
  }
  for (std::size_t i = 0; problem.empty() && i < measured.size(); ++i) {
    MapReader reader(measured[i], problem);
    WidthsEntry& entry = entries.emplace_back();
    entry.context = reader.take("context", any_text());
    entry.threads = static_cast<std::int32_t>(reader.take("threads", integer(1, kCoresMax)));
    reader.finish(1);
    if (!problem.empty()) break;
    const auto times = read_times(measured[i]["ms"]);
    if (!times) problem = times.error();
    entry.ms = times.value_or(sched::WidthTimes());
  }
  top.finish(2);
  if (!problem.empty()) return std::unexpected("it is damaged: " + problem);
  return entries;
}

}  // namespace

std::string widths_path(const std::string& data_dir, const WidthsOrigin& origin) {
  return profile_stem(data_dir, origin.model_identity, origin.machine) + "-widths.yaml";
}

std::string widths_text(const WidthsOrigin& origin, const std::vector<WidthsEntry>& entries) {
  std::string text = std::format(
      "# Made by umad: the time in ms of decode calls with 1 to {} rows. Delete it, and umad measures again.\n"
      "version: {}\n"
      "model: {}\n"
      "machine:\n"
      "  cpu: {}\n"
      "  cores: {}\n"
      "  library: {}\n"
      "  backends: {}\n"
      "measured:\n",
      sched::WidthCosts::kWidths, kVersion, yaml_string(origin.model_identity), yaml_string(origin.machine.cpu),
      origin.machine.cores, yaml_string(origin.machine.library), yaml_string(origin.backends));
  for (const WidthsEntry& entry : entries) {
    text += std::format("  - context: {}\n    threads: {}\n    ms: [", yaml_string(entry.context), entry.threads);
    for (std::size_t i = 0; i < entry.ms.size(); ++i) text += std::format("{}{:.4f}", i == 0 ? "" : ", ", entry.ms[i]);
    text += "]\n";
  }
  return text;
}

std::expected<std::vector<WidthsEntry>, std::string> parse_widths(const std::string& text, const WidthsOrigin& origin) {
  WidthsOrigin found;
  std::expected<std::vector<WidthsEntry>, std::string> entries = std::unexpected(std::string());
  try {
    entries = read_root(YAML::Load(text), found);
  } catch (const YAML::Exception& problem) {
    return std::unexpected(std::format("it is damaged: {}", problem.msg));
  }
  if (!entries) return entries;
  if (auto checked = check_origin(found.model_identity, found.machine, origin.model_identity, origin.machine); !checked) {
    return std::unexpected(std::move(checked.error()));
  }
  if (found.machine.library != origin.machine.library) {
    return std::unexpected(std::format("it was measured with {}, this is {}", found.machine.library, origin.machine.library));
  }
  if (found.backends != origin.backends) {
    return std::unexpected(
        std::format("it was measured with other instructions or devices ({}), these are {}", found.backends, origin.backends));
  }
  return entries;
}

std::shared_ptr<WidthsFile> WidthsFile::of(const std::string& data_dir, const WidthsOrigin& origin) {
  struct Open {
    Mutex mutex;
    std::map<std::string, std::weak_ptr<WidthsFile>> files GUARDED_BY(mutex);
  };
  static Open open;
  const MutexLock lock(open.mutex);
  std::erase_if(open.files, [](const auto& file) { return file.second.expired(); });
  std::weak_ptr<WidthsFile>& known = open.files[widths_path(data_dir, origin)];
  std::shared_ptr<WidthsFile> file = known.lock();
  if (!file) known = file = std::make_shared<WidthsFile>(data_dir, origin);
  return file;
}

WidthsFile::WidthsFile(const std::string& data_dir, WidthsOrigin origin)
    : path_(widths_path(data_dir, origin)), origin_(std::move(origin)) {
  const auto text = read_small_file(path_);
  if (text && !*text) return;
  auto entries = text ? parse_widths(**text, origin_) : std::unexpected(text.error());
  if (!entries) {
    log_warning("{} is ignored, and decode calls are measured again: {}", path_, entries.error());
    return;
  }
  const MutexLock lock(mutex_);
  entries_ = std::move(*entries);
}

std::optional<sched::WidthTimes> WidthsFile::find(const std::string& context, std::int32_t threads) const {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      entries_, [&](const WidthsEntry& entry) { return entry.context == context && entry.threads == threads; });
  return found == entries_.end() ? std::nullopt : std::optional(found->ms);
}

void WidthsFile::keep(const std::string& context, std::int32_t threads, const sched::WidthTimes& ms) {
  const MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const WidthsEntry& entry) { return entry.context == context && entry.threads == threads; });
  if (entries_.size() == kEntriesMax) entries_.erase(entries_.begin());
  entries_.push_back({context, threads, ms});
  auto written = prepare_data_dir(std::filesystem::path(path_).parent_path().string());
  if (written) written = write_file_atomically(path_, widths_text(origin_, entries_));
  if (written) return log_info("the times of decode calls with {} thread(s) are kept in {}", threads, path_);
  if (!std::exchange(has_failed_, true)) {
    log_warning("the times of decode calls are measured again at the next start: {}", written.error().message);
  }
}

}  // namespace uma::umad
