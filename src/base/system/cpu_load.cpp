#include "base/system/cpu_load.h"

#include <algorithm>
#include <chrono>
#include <sys/resource.h>

namespace uma {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

std::optional<CpuLoad::Sample> CpuLoad::read() const {
  const std::optional<double> all_s = busy_processors_s(stat_path_);
  rusage own{};
  if (!all_s || ::getrusage(RUSAGE_SELF, &own) != 0) return std::nullopt;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return Sample{.at_s = std::chrono::duration<double>(now).count(),
                .all_s = *all_s,
                .own_s = seconds(own.ru_utime) + seconds(own.ru_stime)};
}

std::optional<double> CpuLoad::others_since_last() {
  const auto now = read();
  const auto before = last_;
  last_ = now;
  if (!now || !before || now->at_s <= before->at_s) return std::nullopt;
  const double others_s = (now->all_s - before->all_s) - (now->own_s - before->own_s);
  return std::max(0.0, others_s / (now->at_s - before->at_s));
}

}  // namespace uma
