#include "base/log.h"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/printable.h"

namespace uma {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>("uma", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
    created->set_level(spdlog::level::info);
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *instance;
}

}  // namespace

void init_log(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

bool log_shows(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

void log_line(LogLevel level, std::string_view text) {
  // Texts of files, clients and libraries may be in it.
  const std::string line = printable_line(text);
  logger().log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace uma
