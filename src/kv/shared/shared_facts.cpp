#include "kv/shared/shared_facts.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <hiredis/hiredis.h>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/random.h"
#include "base/system/file_calls.h"
#include "base/system/unique_fd.h"
#include "kv/disk/state_file_io.h"
#include "kv/shared/shared_folder.h"

namespace uma::kv {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
constexpr std::string_view kScratchLife_s = "60";

// Other text each time, so that nobody reads that of another check.
std::string scratch_text(const std::string& number) {
  std::string text;
  while (text.size() < kScratchBytes) text += number;
  text.resize(kScratchBytes);
  return text;
}

std::string scratch_number() {
  return std::format("{:016x}{:016x}", secure_u64(), secure_u64());
}

class Stopwatch {
 public:
  // Since the last call, or the begin.
  double lap_ms() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(begin_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A file that is removed at the end.
struct ScratchFile {
  explicit ScratchFile(std::string where) : path(std::move(where)) {}
  ~ScratchFile() { ::unlink(path.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  const std::string path;
};

// The value of a line "name:value" of INFO's answer; empty: there is none.
std::string_view info_value(std::string_view info, std::string_view name) {
  while (!info.empty()) {
    std::string_view line = info.substr(0, info.find('\n'));
    info.remove_prefix(std::min(info.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') return line.substr(name.size() + 1);
  }
  return {};
}

std::string_view reply_text(const redisReply& reply) {
  // An array or an integer has no text.
  return reply.str == nullptr ? std::string_view() : std::string_view(reply.str, reply.len);
}

// A user of the server may lack the right to ask.
void read_info(RedisConnection& connection, RedisFacts& facts) {
  const auto reply = connection.call({"INFO"});
  if (!reply) return;
  const std::string_view info = reply_text(**reply);
  if (const auto version = info_value(info, "valkey_version"); !version.empty()) {
    facts.server = std::format("Valkey {}", version);
  } else if (const auto other = info_value(info, "redis_version"); !other.empty()) {
    facts.server = std::format("Redis {}", other);
  }
  const std::string_view bytes = info_value(info, "maxmemory");
  std::uint64_t number = 0;
  if (!bytes.empty() && std::from_chars(bytes.data(), bytes.data() + bytes.size(), number).ptr == bytes.data() + bytes.size())
    facts.memory_bytes_max = number;
  facts.policy = info_value(info, "maxmemory_policy");
  if (const auto log = info_value(info, "aof_enabled"); !log.empty()) facts.has_append_log = log == "1";
}

}  // namespace

Expected<SharedFolderFacts> read_shared_folder_facts(const std::string& folder) {
  if (auto usable = check_shared_folder(folder); !usable) return std::unexpected(usable.error());
  const std::string number = scratch_number();
  const std::string text = scratch_text(number);
  SharedFolderFacts facts;
  Stopwatch watch;
  const ScratchFile scratch(std::format("{}/{}.tmp", folder, number));
  const UniqueFd file(::open(scratch.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_open()) return io_failure(scratch.path, errno);
  errno = 0;
  if (::pwrite(file.get(), text.data(), text.size(), 0) != std::ssize(text))
    return io_failure(scratch.path, errno == 0 ? ENOSPC : errno);
  if (const int problem = sync_file_bytes(file.get()); problem != 0) return io_failure(scratch.path, problem);
  facts.write_ms = watch.lap_ms();
  std::string found(kScratchBytes, '\0');
  const UniqueFd again(::open(scratch.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!again.is_open() || ::pread(again.get(), found.data(), found.size(), 0) < 0) return io_failure(scratch.path, errno);
  if (found != text) return fail(ErrorCode::io_failed, std::format("{}: what was written is not what is read", folder));
  facts.read_ms = watch.lap_ms();
  struct stat status{};
  if (::fstat(again.get(), &status) != 0) return io_failure(scratch.path, errno);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  facts.clock_ahead_s = 1e-9 * static_cast<double>(modified_ns(status)) - std::chrono::duration<double>(now).count();
  std::error_code problem;
  facts.free_bytes = std::filesystem::space(folder, problem).available;
  if (problem) return io_failure(folder, problem.value());
  return facts;
}

Expected<RedisFacts> read_redis_facts(const RedisOptions& options) {
  RedisConnection connection(options);
  const std::string number = scratch_number();
  const std::string key = std::format("uma:1:check:{}", number);
  const std::string text = scratch_text(number);
  if (auto answers = connection.call({"GET", key}); !answers) return std::unexpected(answers.error());  // Connects.
  RedisFacts facts;
  Stopwatch watch;
  if (auto stored = connection.call({"SET", key, text, "EX", kScratchLife_s}); !stored) return std::unexpected(stored.error());
  facts.write_ms = watch.lap_ms();
  const auto found = connection.call({"GET", key});
  facts.read_ms = watch.lap_ms();
  const auto left = connection.call({"TTL", key});
  const auto removed = connection.call({"DEL", key});
  for (const auto* reply : {&found, &left, &removed}) {
    if (!*reply) return std::unexpected(reply->error());
  }
  if (reply_text(**found) != text)
    return fail(ErrorCode::io_failed, std::format("{}: what was written is not what is read", connection.text()));
  facts.has_time_to_live = (*left)->type == REDIS_REPLY_INTEGER && (*left)->integer >= 0;
  read_info(connection, facts);
  return facts;
}

}  // namespace uma::kv
