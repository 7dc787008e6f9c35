// One client on the Unix socket, with two coroutines on the server's thread: one reads frames and starts their requests, the
// other writes the outbox.
//
// A connection ends when the client closes it (its requests are cancelled), after too long an idle time, when its bytes are no
// frames, or when the server stops. A client that ends only its sending side still gets its answers; then the connection ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string_view>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/system/error_code.hpp>

#include "base/clock.h"
#include "core/error.h"
#include "core/ids.h"
#include "server/awaitable.h"
#include "server/flush_queue.h"
#include "server/outbox.h"
#include "server/unix/client_requests.h"
#include "server/unix/unix_state.h"
#include "server/wakeup.h"
#include "wire/own/frame.h"

namespace uma::server {

// Owned by UnixState::connections and by its coroutines. `server` outlives the connection.
class UnixConnection final : public Flushable, public std::enable_shared_from_this<UnixConnection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  // Closes the socket at once beyond the limit of connections or the user's share. `library` is null if models cannot be
  // pulled. `is_administrator`: whether the client may pull and unload models.
  static void start(Socket socket, TenantId tenant, ModelLibrary* library, bool is_administrator, UnixState& server);
  UnixConnection(const UnixConnection&) = delete;
  UnixConnection& operator=(const UnixConnection&) = delete;

  // Called when the outbox has bytes to write, or a long frame was decoded.
  void flush() override {
    has_answers_.notify();
    has_decoded_.notify();
  }
  // Cancels the requests in flight and closes the socket, which ends the coroutines. Later calls do nothing.
  void close();
  // True if no byte moved since `time` and the next step is the client's: nothing is in flight, or the client has to send the
  // rest of a file, or has to read.
  [[nodiscard]] bool is_idle_since(TimePoint time) const {
    return last_byte_at_ <= time && !is_decoding_ && (requests_->empty() || requests_->awaits_file() || is_held_up_);
  }

 private:
  // State of the client's input. Refused: the input was no frame; further bytes are read and dropped.
  enum class Input : std::uint8_t { open, refused, ended };

  UnixConnection(Socket socket, UnixState& server);
  void open(TenantId tenant, ModelLibrary* library, bool is_administrator);
  void spawn(Awaitable<void> coroutine);

  Awaitable<void> read();
  Awaitable<Expected<boost::system::error_code>> read_frames();
  Awaitable<boost::system::error_code> read_some();
  Awaitable<Expected<Unit>> start_whole_frames();
  [[nodiscard]] Expected<std::optional<std::string_view>> next_frame();
  using Decoded = std::expected<wire::Request, wire::RejectedRequest>;
  // Errors: there is no room for it, or the connection was closed meanwhile.
  Awaitable<Expected<Decoded>> decode(std::string_view frame);
  [[nodiscard]] Expected<Unit> hold_input();
  void refuse_input(const Error& error);
  Awaitable<Unit> wait_for_end(boost::system::error_code input_end);
  [[nodiscard]] bool has_hung_up();

  Awaitable<void> write();
  void end_if_done();
  void update_busy();

  UnixState& server_;
  Socket socket_;
  // Constant after open().
  TenantId tenant_;
  std::shared_ptr<Outbox> outbox_;
  std::optional<ClientRequests> requests_;
  RequestShare share_;  // Reserved memory for incomplete frames.
  std::optional<ConnectionShares::Place> place_;

  wire::FrameReader reader_;
  Wakeup has_answers_;
  Wakeup has_room_;     // Notified when the outbox has space,
  Wakeup has_decoded_;  // and when a long frame was decoded.
  TimePoint last_byte_at_;

  Input input_ = Input::open;
  bool is_open_ = true;
  bool is_held_up_ = false;   // The client has to read first.
  bool is_decoding_ = false;  // A frame is decoded apart.
  bool is_busy_ = false;      // Counted in server_.busy.
};

}  // namespace uma::server
