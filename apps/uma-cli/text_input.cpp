#include "uma-cli/text_input.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"

namespace uma::cli {
namespace {

constexpr int kNoteAfterMs = 2000;

}  // namespace

bool is_piped(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
}

Result<std::string> read_whole(int fd, std::string_view what, bool note_waiting, Interrupts& interrupts) {
  std::string text;
  bool is_note_due = note_waiting;
  std::array<char, 65536> buffer{};
  while (true) {
    pollfd source{.fd = fd, .events = POLLIN, .revents = 0};
    const Wake wake = interrupts.wait({&source, 1}, is_note_due ? kNoteAfterMs : -1);
    if (wake == Wake::signal && interrupts.pending()) return interrupted();
    if (wake == Wake::timeout)
      std::cerr << "uma-cli: waiting for the prompt's text on standard input (add </dev/null if there is none)\n";
    is_note_due = is_note_due && wake == Wake::signal;
    if (wake != Wake::ready) continue;
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno != EINTR && errno != EAGAIN) {
      return fail(ExitCode::usage, std::format("cannot read {}: {}", what, std::strerror(errno)));
    }
    if (got == 0) break;
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kTextBytesMax)
      return fail(ExitCode::usage, std::format("{} has more than the 64 MiB that uma-cli reads: shorten it", what));
  }
  if (text.ends_with('\n')) text.pop_back();
  if (auto good = check_text(text, what); !good) return std::unexpected(good.error());
  return text;
}

Result<void> check_text(std::string_view text, std::string_view what) {
  if (!is_utf8(text)) return fail(ExitCode::usage, std::format("{} is not UTF-8 text: convert it first", what));
  if (text.contains('\0'))
    return fail(ExitCode::usage, std::format("{} has a NUL byte, which a prompt cannot contain: remove it", what));
  return {};
}

}  // namespace uma::cli
