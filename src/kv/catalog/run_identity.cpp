#include "kv/catalog/run_identity.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <string_view>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/log.h"
#include "base/random.h"
#include "base/system/boot_id.h"

namespace uma::kv {
namespace {

constexpr std::size_t kIncarnationDigits = 32;
constexpr std::size_t kLockFileBytesMax = 256;

// The text behind the incarnation in the lock file; empty: the system does not tell.
std::string place_of(const UniqueFd& lock) {
  struct stat status{};
  if (::fstat(lock.get(), &status) != 0) return "";
  const std::string boot = boot_id();
  if (boot.empty()) return "";
  return std::format(" boot {} device {} inode {}\n", boot, status.st_dev, status.st_ino);
}

}  // namespace

std::string dead_incarnation(const UniqueFd& lock) {
  std::array<char, kLockFileBytesMax> bytes{};
  const ssize_t count = ::pread(lock.get(), bytes.data(), bytes.size(), 0);
  const std::string text(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::string place = place_of(lock);
  const std::string_view digits = std::string_view(text).substr(0, kIncarnationDigits);
  const bool is_complete = digits.size() == kIncarnationDigits && digits.find_first_not_of("0123456789abcdef") == digits.npos;
  if (!is_complete || place.empty() || text.substr(kIncarnationDigits) != place) return "";
  return std::string(digits);
}

// Not synced: after a crash of the machine it is another boot, and what is in the file does not count.
std::string begin_incarnation(const UniqueFd& lock) {
  std::string incarnation = std::format("{:016x}{:016x}", secure_u64(), secure_u64());
  const std::string place = place_of(lock);
  if (place.empty()) return incarnation;
  const std::string text = incarnation + place;
  const bool is_written =
      ::ftruncate(lock.get(), 0) == 0 && ::pwrite(lock.get(), text.data(), text.size(), 0) == std::ssize(text);
  if (!is_written) {
    log_warning("data folder: {}: after a crash the sessions of this run are free only when its lease has ended",
                std::strerror(errno));
  }
  return incarnation;
}

}  // namespace uma::kv
