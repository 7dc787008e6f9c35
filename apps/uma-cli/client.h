// One connection to the daemon: requests out, frames in. Used by one thread. Every request gets an id of this connection;
// a frame for an id that is not in flight is a protocol failure.
// The daemon may close an idle connection at any time (never a session): send() then connects again, if nothing is in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>

#include "uma-cli/interrupts.h"
#include "uma-cli/result.h"
#include "wire/frame.h"

namespace uma::cli {

class Client {
 public:
  // Fails with ExitCode::server when nobody answers on `path`. Borrows `interrupts` for its life.
  static Result<std::unique_ptr<Client>> connect(std::string path, Interrupts& interrupts);
  // Connects to the first of `paths` on which somebody answers. Requires at least one.
  static Result<std::unique_ptr<Client>> connect(const std::vector<std::string>& paths, Interrupts& interrupts);
  ~Client() { disconnect(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Sends `request` under a new id, which is returned. `last_event` is the event that ends it; `error` always does.
  // Blocks while the daemon does not read; a Ctrl-C ends that and the connection.
  Result<std::string> send(boost::json::object request, std::string_view last_event);

  // The next frame of a request in flight, within `timeout_ms` (-1: no limit). nullopt: a signal, the time, or `watched_fd` (an
  // output whose reader may leave) woke it. Frames that are here already come first.
  Result<std::optional<boost::json::object>> receive(int timeout_ms = -1, int watched_fd = -1);

  // Sends a request and waits for its one answer; nothing else may be in flight. An `error` frame is a Failure with its code,
  // a Ctrl-C an interrupted one (and the connection is given up, since the answer would still come).
  Result<boost::json::object> call(boost::json::object request, std::string_view last_event);

  [[nodiscard]] bool in_flight(std::string_view id) const { return last_events_.contains(id); }
  // Ends the connection; the daemon cancels what runs on it. The next send() connects again.
  void disconnect();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Client(std::string path, Interrupts& interrupts) : path_(std::move(path)), interrupts_(interrupts) {}

  Result<void> open();
  // As open(); 0, or the errno of connect() for a failure that is not yet told.
  Result<int> try_open();
  [[nodiscard]] bool is_closed_by_daemon() const;
  Result<void> send_bytes(std::string_view bytes);
  // A frame that has arrived whole, if there is one.
  Result<std::optional<boost::json::object>> next_frame();
  Result<boost::json::object> check_frame(std::string_view body);
  Result<void> read_more();

  const std::string path_;
  Interrupts& interrupts_;
  int fd_ = -1;
  std::optional<wire::FrameReader> reader_;  // of the open connection
  std::uint64_t sent_count_ = 0;
  std::map<std::string, std::string, std::less<>> last_events_;  // of each request in flight, by id
};

// The Failure that an `error` frame, or an `eos` with an error, stands for.
[[nodiscard]] Failure failure_of(const boost::json::object& frame);

}  // namespace uma::cli
