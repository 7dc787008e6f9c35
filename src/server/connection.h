// One client on the Unix socket: bytes in, frames to ClientRequests, bytes of the outbox out. Io thread only.
//
// A connection ends when the client closes it (what runs is cancelled), when it is idle for too long, when its bytes are no
// frames, or when the server stops. A client that only ends its sending side still gets its answers; then the connection ends.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
#include "base/thrown.h"
#include "core/error.h"
#include "core/ids.h"
#include "server/client_requests.h"
#include "server/flush_queue.h"
#include "server/outbox.h"
#include "server/server_state.h"
#include "wire/frame.h"

namespace uma::server {

// Owned by ServerState::connections and by its own pending operations. `server` outlives it.
class Connection final : public Flushable, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  static std::shared_ptr<Connection> start(Socket socket, TenantId tenant, ServerState& server);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Writes what the outbox holds, as far as the socket takes it.
  void flush() override;
  // Cancels what runs and closes the socket. Later calls do nothing.
  void close();
  // True when no byte moved since `time`, and none moves before the client does something: nothing is in flight, the rest of a
  // file has to come from it, or it has to read.
  [[nodiscard]] bool is_idle_since(TimePoint time) const {
    return last_byte_at_ <= time && (requests_->empty() || requests_->awaits_file() || waits_writable_);
  }

 private:
  Connection(Socket socket, ServerState& server);
  void open(TenantId tenant);

  // Work that throws ends the connection, and with it what its client has asked for.
  template <class Work>
  void run_or_close(Work&& work) {
    try {
      std::forward<Work>(work)();
    } catch (...) {
      note_thrown();
      close();
    }
  }
  void wait_readable();
  void read_some();
  void start_whole_frames();
  [[nodiscard]] Expected<Unit> hold_input();
  void on_read_end();
  void watch_hang_up();
  [[nodiscard]] bool has_hung_up();

  bool write_waiting_bytes();
  void wait_writable();
  void refuse_stream(const Error& error);
  void end_if_done();
  void update_busy();

  ServerState& server_;
  Socket socket_;
  std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<ClientRequests> requests_;
  wire::FrameReader reader_;
  RequestShare share_;  // of memory, for frames that are coming
  boost::asio::steady_timer linger_timer_;

  std::string writing_;  // taken from the outbox; the first written_ bytes have left
  std::size_t written_ = 0;
  std::vector<std::string> finished_ids_;
  TimePoint last_byte_at_;

  bool is_open_ = true;
  bool waits_readable_ = false;
  bool waits_writable_ = false;
  bool is_paused_ = false;   // the outbox is full: no further request is started
  bool read_ended_ = false;  // the client sends nothing more
  bool is_refused_ = false;  // the bytes are no frames: they are read and forgotten until the client has the error
  bool is_busy_ = false;     // as counted in server_.busy
};

}  // namespace uma::server
