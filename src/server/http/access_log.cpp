#include "server/http/access_log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "server/http/rules.h"

namespace uma::server {
namespace {

std::string or_dash(std::string_view text) {
  return text.empty() ? "-" : loggable(text);
}

}  // namespace

std::string access_line(const AccessRecord& record) {
  std::string line =
      std::format("{} {} {} {}B {:.1f}ms tenant={} key={} id={}", or_dash(record.method), or_dash(record.path), record.status,
                  record.bytes, to_ms(record.took), or_dash(record.tenant), or_dash(record.key), or_dash(record.request_id));
  if (record.agent.is_known()) {
    const bool has_program = !record.agent.program.empty();
    line += std::format(" agent={}{}{}", record.agent.program, has_program ? ":" : "", loggable(Agent::shown(record.agent.id)));
  }
  if (record.tokens) line += std::format(" tokens={}+{}", record.tokens->prompt, record.tokens->completion);
  if (record.is_cut) line += " cut";
  return line;
}

Expected<AccessLog> AccessLog::open(const std::string& destination) {
  AccessLog log;
  log.is_off_ = destination == "off";
  if (destination == "off" || destination == "log") return log;
  log.file_ = UniqueFd(::open(destination.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  struct stat facts{};
  if (log.file_.get() < 0 || ::fstat(log.file_.get(), &facts) != 0) {
    return fail(ErrorCode::io_failed, std::format("access log {}: {}", destination, std::strerror(errno)));
  }
  if (S_ISDIR(facts.st_mode) || S_ISFIFO(facts.st_mode)) {
    return fail(ErrorCode::io_failed, std::format("access log {}: not a regular file", destination));
  }
  return log;
}

void AccessLog::write(const AccessRecord& record) {
  if (is_off_) return;
  if (file_.get() < 0) {
    log_info("http {}", access_line(record));
    return;
  }
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::string line = std::format("{:%FT%T}Z {}\n", now, access_line(record));
  // One write call per line, so that lines of two daemons in a shared file do not mix.
  const bool is_written = ::write(file_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!is_written && !is_failing_) log_warning("the access log cannot be written: {}", std::strerror(errno));
  is_failing_ = !is_written;
}

}  // namespace uma::server
