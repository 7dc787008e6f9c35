#include "uma-cli/client.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "base/check.h"
#include "base/system/descriptors.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

// A larger frame is a protocol failure. Lists of sessions are the largest.
constexpr std::size_t kFrameBytesMax = 64u << 20;

// Whether connect() failed because no daemon listens at the path.
bool is_nobody_there(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == ENOTSOCK || error == ENOTDIR;
}

// The group whose members may connect; empty if there is none.
std::string group_admitted_to(const std::string& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0 || (facts.st_mode & S_IWGRP) == 0) return "";
  const group* entry = ::getgrgid(facts.st_gid);
  return entry == nullptr ? std::format("{}", facts.st_gid) : entry->gr_name;
}

std::string not_admitted(const std::string& path) {
  const std::string group = group_admitted_to(path);
  if (group.empty()) return std::format("permission denied for {}: the daemon runs as another user", path);
  return std::format(
      "permission denied for {0}: only members of the group {1} may connect; run `sudo adduser USER {1}`, then log in again",
      path, group);
}

Failure connect_failure(const std::string& path, int error) {
  if (is_nobody_there(error)) {
    return {ExitCode::server, std::format("no daemon answers on {}: start one with `umad --model FILE`", path), ""};
  }
  if (error == EACCES || error == EPERM) return {ExitCode::server, not_admitted(path), ""};
  return {ExitCode::server, std::format("cannot connect to {}: {}", path, std::strerror(error)), ""};
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(std::string path, Interrupts& interrupts) {
  std::unique_ptr<Client> client(new Client(std::move(path), interrupts));
  if (auto good = client->open(); !good) return std::unexpected(good.error());
  return client;
}

Result<std::unique_ptr<Client>> Client::connect(const std::vector<std::string>& paths, Interrupts& interrupts) {
  UMA_CHECK(!paths.empty());
  std::string tried;
  std::optional<Failure> closed_to_us;  // The first daemon that exists, but refuses this user.
  for (const std::string& path : paths) {
    std::unique_ptr<Client> client(new Client(path, interrupts));
    const Result<int> error = client->try_open();
    if (!error) return std::unexpected(error.error());
    if (*error == 0) return client;
    if (!is_nobody_there(*error) && !closed_to_us) closed_to_us = connect_failure(path, *error);
    tried += std::format("{}{}", tried.empty() ? "" : &path == &paths.back() ? " or " : ", ", path);
  }
  if (closed_to_us) return std::unexpected(*closed_to_us);
  return fail(ExitCode::server, std::format("no daemon answers on {}: start one with `umad --model FILE`", tried));
}

Result<void> Client::open() {
  const Result<int> error = try_open();
  if (!error) return std::unexpected(error.error());
  if (*error != 0) return std::unexpected(connect_failure(path_, *error));
  return {};
}

Result<int> Client::try_open() {
  UMA_CHECK(fd_ < 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof(address.sun_path)) {
    return fail(ExitCode::usage,
                std::format("the socket path must have 1 to {} bytes: '{}'", sizeof(address.sun_path) - 1, path_));
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  fd_ = open_socket(AF_UNIX, SOCK_STREAM).release();
  if (fd_ < 0) return fail(ExitCode::server, std::format("cannot make a socket: {}", std::strerror(errno)));
  while (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    // connect() waits while the backlog is full; a signal ends the wait.
    if (error == EINTR && !interrupts_.pending()) continue;
    disconnect();
    if (error == EINTR) return interrupted();
    return error;
  }
  reader_.emplace(kFrameBytesMax);
  return 0;
}

void Client::disconnect() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  reader_.reset();
  last_events_.clear();
}

// Called only while nothing is in flight, when the daemon sends nothing: an end of the stream means that the daemon's idle
// timeout has passed, or that the daemon has stopped.
bool Client::is_closed_by_daemon() const {
  char byte = 0;
  const ssize_t got = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

Result<std::string> Client::send(boost::json::object request, std::string_view last_event) {
  if (fd_ >= 0 && last_events_.empty() && is_closed_by_daemon()) disconnect();
  if (fd_ < 0) {
    if (auto good = open(); !good) return std::unexpected(good.error());
  }
  std::string id = std::format("{}", ++sent_count_);
  request["id"] = id;
  std::string bytes;
  wire::append_frame(bytes, boost::json::serialize(request));
  last_events_.emplace(id, last_event);
  if (auto good = send_bytes(bytes); !good) {
    disconnect();
    return std::unexpected(good.error());
  }
  return id;
}

Result<void> Client::send_bytes(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd target{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (interrupts_.wait({&target, 1}) != Wake::ready) {
      if (interrupts_.pending()) return interrupted();
      continue;
    }
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);  // SIGPIPE is ignored (interrupts.h).
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return {};  // The daemon has closed the connection: receive() returns its last frames, or the failure.
    } else if (errno != EINTR && errno != EAGAIN) {
      return fail(ExitCode::server, std::format("cannot send to {}: {}", path_, std::strerror(errno)));
    }
  }
  return {};
}

Result<std::optional<boost::json::object>> Client::receive(int timeout_ms, int watched_fd, short events) {
  auto frame = next_frame();
  if (!frame || *frame) return frame;
  std::array<pollfd, 2> fds = {
      {{.fd = fd_, .events = POLLIN, .revents = 0}, {.fd = watched_fd, .events = events, .revents = 0}}};
  if (interrupts_.wait(fds, timeout_ms) != Wake::ready || fds[0].revents == 0) return std::nullopt;
  if (auto good = read_more(); !good) return std::unexpected(good.error());
  return next_frame();
}

Result<void> Client::read_more() {
  std::array<char, 65536> buffer{};
  const ssize_t got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got > 0) {
    reader_->append({buffer.data(), static_cast<std::size_t>(got)});
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    disconnect();
    return fail(ExitCode::server, std::format("the daemon on {} closed the connection before its answer was complete", path_));
  }
  return {};
}

Result<std::optional<boost::json::object>> Client::next_frame() {
  UMA_CHECK(fd_ >= 0);
  auto body = reader_->next();
  if (!body) {
    disconnect();
    return fail(ExitCode::protocol, std::format("the daemon sent an invalid frame: {}", body.error().message));
  }
  if (!*body) return std::nullopt;
  auto frame = check_frame(**body);
  if (frame) return std::move(*frame);
  disconnect();
  return std::unexpected(frame.error());
}

Result<boost::json::object> Client::check_frame(std::string_view body) {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(body, error);
  if (error || !value.is_object()) return fail(ExitCode::protocol, "the daemon sent a frame that is not a JSON object");
  boost::json::object& frame = value.get_object();
  const boost::json::value* id = frame.if_contains("id");
  const std::string event = text_field(frame, "event");
  if (id != nullptr && id->is_null() && event == "error") return std::unexpected(failure_of(frame));
  if (event.empty() || id == nullptr || !id->is_string()) {
    return fail(ExitCode::protocol, "the daemon sent a frame that lacks an id or an event");
  }
  const auto last_event = last_events_.find(std::string_view(id->get_string()));
  if (last_event == last_events_.end()) {
    return fail(ExitCode::protocol, std::format("the daemon answered an unknown request (id {})", boost::json::serialize(*id)));
  }
  if (event == "error" || event == last_event->second) last_events_.erase(last_event);
  return std::move(frame);
}

Result<boost::json::object> Client::call(boost::json::object request, std::string_view last_event) {
  UMA_CHECK(last_events_.empty());
  auto id = send(std::move(request), last_event);
  if (!id) return std::unexpected(id.error());
  while (true) {
    auto frame = receive();
    if (!frame) return std::unexpected(frame.error());
    if (interrupts_.pending()) {
      disconnect();
      return interrupted();
    }
    if (!*frame || in_flight(*id)) continue;
    if (text_field(**frame, "event") == "error") return std::unexpected(failure_of(**frame));
    return std::move(**frame);
  }
}

Failure failure_of(const boost::json::object& frame) {
  std::string code = text_field(frame, "code");
  std::string message = text_field(frame, "message");
  if (message.empty()) message = "the daemon reported an error without a message";
  return {ExitCode::server, std::move(message), std::move(code)};
}

}  // namespace uma::cli
