#include "uma-cli/session_files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <functional>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/base64.h"
#include "base/clock.h"
#include "base/system/new_file.h"
#include "base/system/unique_fd.h"
#include "uma-cli/fields.h"
#include "uma-cli/print.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

constexpr std::size_t kPartBytes = 384u << 10;  // 512 KiB as base64, which fits a frame of the default limit.

std::unexpected<Failure> file_failure(const std::string& path, int error_number) {
  return fail(ExitCode::server, std::format("{}: {}", path, std::strerror(error_number)));
}

// The next frame of the request in flight.
Result<boost::json::object> next_frame(Client& client, Interrupts& interrupts) {
  while (true) {
    auto frame = client.receive();
    if (!frame) return std::unexpected(frame.error());
    if (interrupts.pending()) {
      client.disconnect();
      return interrupted();
    }
    if (!*frame) continue;
    if (text_field(**frame, "event") == "error") return std::unexpected(failure_of(**frame));
    return std::move(**frame);
  }
}

using TakePart = std::function<Result<void>(std::span<const std::byte>)>;

// Requests the session and passes its parts to `take`. Ensures: all parts arrived.
Result<void> receive_file(Client& client, const ExportWanted& wanted, Interrupts& interrupts, const TakePart& take) {
  const auto id = client.send({{"type", "export_session"}, {"session_id", wanted.session}, {"kv", wanted.with_kv}}, "exported");
  if (!id) return std::unexpected(id.error());
  std::size_t received = 0;
  while (true) {
    const auto frame = next_frame(client, interrupts);
    if (!frame) return std::unexpected(frame.error());
    if (!client.in_flight(*id)) {
      if (static_cast<std::size_t>(int_field(*frame, "bytes")) == received) return {};
      return fail(ExitCode::protocol,
                  std::format("the daemon sent {} bytes, but announced {}", received, int_field(*frame, "bytes")));
    }
    const auto part = decode_base64(text_field(*frame, "data"));
    if (!part) return fail(ExitCode::protocol, "the daemon sent a part that is not valid base64");
    received += part->size();
    if (auto taken = take(*part); !taken) {
      client.disconnect();
      return taken;
    }
  }
}

// The next part of the file; only the last one is shorter than kPartBytes.
Result<Bytes> read_part(int file, const std::string& path, Interrupts& interrupts) {
  Bytes part(kPartBytes);
  std::size_t size = 0;
  while (size < part.size()) {
    pollfd source{.fd = file, .events = POLLIN, .revents = 0};
    if (interrupts.wait({&source, 1}) != Wake::ready) {
      if (interrupts.pending()) return interrupted();
      continue;
    }
    const ssize_t got = ::read(file, part.data() + size, part.size() - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return file_failure(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  part.resize(size);
  return part;
}

}  // namespace

Result<void> export_session(Client& client, const ExportWanted& wanted, Output& output, Interrupts& interrupts) {
  if (wanted.path.empty()) {
    if (output.is_terminal())
      return fail(ExitCode::usage, "an exported session is binary data: give a FILE, or redirect the output");
    return receive_file(client, wanted, interrupts, [&](std::span<const std::byte> part) {
      return print(output, {reinterpret_cast<const char*>(part.data()), part.size()});
    });
  }
  struct stat facts{};
  if (::stat(wanted.path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode)) {
    return fail(ExitCode::server, std::format("{} is not a regular file: leave it out and redirect the output", wanted.path));
  }
  NewFile file(wanted.path);
  const auto result = [&](int problem) -> Result<void> {
    if (problem == 0) return {};
    return file_failure(wanted.path, problem);
  };
  if (file.problem() != 0) return result(file.problem());
  const auto received = receive_file(client, wanted, interrupts, [&](std::span<const std::byte> part) {
    file.write(part);
    return result(file.problem());
  });
  if (!received) return received;
  file.sync();
  return result(file.publish());
}

Result<void> import_session(Client& client, const std::string& path, std::string_view name, Output& output,
                            Interrupts& interrupts) {
  const std::string shown = path.empty() ? "standard input" : path;
  UniqueFd opened;
  if (!path.empty()) {
    opened = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.is_open()) return file_failure(path, errno);
  }
  const int file = path.empty() ? STDIN_FILENO : opened.get();
  boost::json::object request = {{"type", "import_session"}};
  if (!name.empty()) request["name"] = name;
  const auto id = client.send(std::move(request), "session");
  if (!id) return std::unexpected(id.error());
  for (bool is_last = false; !is_last;) {
    const auto part = read_part(file, shown, interrupts);
    if (!part) {
      client.disconnect();
      return std::unexpected(part.error());
    }
    is_last = part->size() < kPartBytes;
    std::string data;
    append_base64(data, *part);
    const auto sent = client.send({{"type", "import_data"}, {"target", *id}, {"data", data}, {"last", is_last}}, "ack");
    if (!sent) return std::unexpected(sent.error());
    while (client.in_flight(*sent)) {
      if (auto frame = next_frame(client, interrupts); !frame) return std::unexpected(frame.error());
    }
  }
  const auto session = next_frame(client, interrupts);
  if (!session) return std::unexpected(session.error());
  const bool is_made_anew = session->contains("tokens_kept") && !bool_field(*session, "tokens_kept");
  std::string note = is_made_anew ? "its model had other tokens: the conversation was tokenized again\n" : "";
  if (text_field(*session, "kv") == "refused") note += "its KV does not fit this daemon: the first reply computes it again\n";
  return print(output, session_text(*session, unix_time_s()) + note);
}

}  // namespace uma::cli
