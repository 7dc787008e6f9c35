// Without systemd there is no service manager, but umad's supervisor passes sockets in the same way.
#include "server/service_manager.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace uma::server {
namespace {

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos; colon = text.find(':')) {
    parts.emplace_back(text.substr(0, colon));
    text.remove_prefix(colon + 1);
  }
  parts.emplace_back(text);
  return parts;
}

std::expected<std::vector<std::string>, int> read_passed_names() {
  const char* const process = std::getenv("LISTEN_PID");
  const char* const count = std::getenv("LISTEN_FDS");
  const char* const names = std::getenv("LISTEN_FDNAMES");
  if (process == nullptr || count == nullptr) return {};
  const std::optional<int> process_number = number_in(process);
  if (!process_number) return std::unexpected(EINVAL);
  if (*process_number != ::getpid()) return {};
  const std::optional<int> descriptors = number_in(count);
  constexpr int kDescriptorsMax = 64;
  if (!descriptors || *descriptors < 0 || *descriptors > kDescriptorsMax) return std::unexpected(EINVAL);
  const auto size = static_cast<std::size_t>(*descriptors);
  std::vector<std::string> found = names == nullptr ? std::vector<std::string>(size, "unknown") : parts_of(names);
  if (size == 0) return {};
  if (found.size() != size) return std::unexpected(EINVAL);
  for (int i = 0; i < *descriptors; ++i) {
    if (::fcntl(kFirstPassedDescriptor + i, F_SETFD, FD_CLOEXEC) != 0) return std::unexpected(errno);
  }
  return found;
}

}  // namespace

std::expected<std::vector<std::string>, int> take_passed_names() {
  auto names = read_passed_names();
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(variable);
  return names;
}

void tell_service_manager(const char* /*state*/) {}

}  // namespace uma::server
