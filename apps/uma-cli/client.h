// One connection to the daemon: sends requests, receives frames. Used by one thread. Each request gets an id that is unique on
// this connection; a frame with an id that is not in flight is a protocol failure. The daemon may close an idle connection at
// any time without ending a session; send() then connects again if nothing is in flight.
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
#include "wire/own/frame.h"

namespace uma::cli {

class Client {
 public:
  // Fails with ExitCode::server if no daemon listens on `path`. Borrows `interrupts` for its lifetime.
  static Result<std::unique_ptr<Client>> connect(std::string path, Interrupts& interrupts);
  // Connects to the first of `paths` that has a listening daemon. Requires at least one path.
  static Result<std::unique_ptr<Client>> connect(const std::vector<std::string>& paths, Interrupts& interrupts);
  ~Client() { disconnect(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Sends `request` under a new id and returns the id. `last_event` is the event that ends the request; `error` always ends it.
  // Blocks while the daemon does not read; a Ctrl-C ends the wait and the connection.
  Result<std::string> send(boost::json::object request, std::string_view last_event);

  // The next frame of a request in flight, within `timeout_ms` (-1: no limit). Returns nullopt if only a part of one has come,
  // and after a signal, a timeout or an event on `watched_fd`: an output whose reader may leave, or an input with `events`
  // POLLIN. Buffered frames come first. Requires: disconnect() was not called since send().
  Result<std::optional<boost::json::object>> receive(int timeout_ms = -1, int watched_fd = -1, short events = 0);

  // Sends a request and waits for its single answer. Requires that nothing else is in flight. An `error` frame becomes a
  // Failure with its code. A Ctrl-C becomes an interrupted Failure and closes the connection, since the answer would still
  // arrive.
  Result<boost::json::object> call(boost::json::object request, std::string_view last_event);

  [[nodiscard]] bool in_flight(std::string_view id) const { return last_events_.contains(id); }
  // Closes the connection; the daemon cancels its requests. The next send() connects again.
  void disconnect();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Client(std::string path, Interrupts& interrupts) : path_(std::move(path)), interrupts_(interrupts) {}

  Result<void> open();
  // Connects like open(). Returns 0, or the errno of a connect() whose failure has not been reported yet.
  Result<int> try_open();
  [[nodiscard]] bool is_closed_by_daemon() const;
  Result<void> send_bytes(std::string_view bytes);
  // Returns a frame that has arrived completely, or nullopt.
  Result<std::optional<boost::json::object>> next_frame();
  Result<boost::json::object> check_frame(std::string_view body);
  Result<void> read_more();

  const std::string path_;
  Interrupts& interrupts_;
  int fd_ = -1;
  std::optional<wire::FrameReader> reader_;  // Reader of the open connection.
  std::uint64_t sent_count_ = 0;
  std::map<std::string, std::string, std::less<>> last_events_;  // Last event of each request in flight, by id.
};

// The Failure in an `error` frame, or in an `eos` frame with an error.
[[nodiscard]] Failure failure_of(const boost::json::object& frame);

}  // namespace uma::cli
