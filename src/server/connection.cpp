#include "server/connection.h"

#include <algorithm>
#include <chrono>
#include <poll.h>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "base/log.h"
#include "wire/event_codec.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// How long a refused client has to read the error, and to end what it was sending.
constexpr std::chrono::seconds kLinger{2};
// A buffer that grew for one large reply is given back, and what one reads is counted beyond that.
constexpr std::size_t kKeptBufferBytesMax = 65'536;
// Written to one client before others have their turn.
constexpr std::size_t kTurnBytes = 1ul << 20;

TimePoint now() {
  return SteadyClock().now();
}

}  // namespace

std::shared_ptr<Connection> Connection::start(Socket socket, TenantId tenant, ServerState& server) {
  const std::shared_ptr<Connection> connection(new Connection(std::move(socket), server));
  connection->open(std::move(tenant));
  return connection;
}

Connection::Connection(Socket socket, ServerState& server)
    : server_(server),
      socket_(std::move(socket)),
      reader_(server.limits.max_frame_bytes),
      linger_timer_(server.io),
      last_byte_at_(now()) {}

void Connection::open(TenantId tenant) {
  // Engine threads copy the weak pointer and never hold the connection: it is destroyed on the io thread.
  outbox_ = std::make_shared<Outbox>(server_.limits.tx_bytes_max,
                                     [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); });
  share_ = server_.service.open_share(tenant);
  requests_ = std::make_unique<ClientRequests>(server_.service, std::move(tenant), outbox_, server_.imports);
  server_.connections.insert(shared_from_this());
  server_.connections_count.add(1);
  error_code problem;
  socket_.non_blocking(true, problem);
  if (problem) {
    close();
    return;
  }
  wait_readable();
}

// --- reading

void Connection::wait_readable() {
  if (waits_readable_ || !is_open_) return;
  waits_readable_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& problem) {
    self->waits_readable_ = false;
    if (!problem && self->is_open_) self->run_or_close([&] { self->read_some(); });
  });
}

void Connection::read_some() {
  error_code problem;
  const std::size_t size = socket_.read_some(asio::buffer(server_.read_buffer), problem);
  const bool has_nothing = problem == asio::error::would_block || problem == asio::error::interrupted;
  if (problem == asio::error::eof) {
    on_read_end();
  } else if (problem && !has_nothing) {
    close();
  } else if (has_nothing || is_refused_) {
    wait_readable();
  } else {
    last_byte_at_ = now();
    reader_.append({server_.read_buffer.data(), size});
    if (auto held = hold_input(); !held) return refuse_stream(held.error());
    start_whole_frames();
  }
}

// Starts the requests that have arrived. While the outbox is full, none: a client that does not read its answers cannot make
// the daemon collect more of them.
void Connection::start_whole_frames() {
  while (!outbox_->is_full()) {
    auto frame = reader_.next();
    if (!frame && std::ranges::any_of(server_.service.models(), &ModelInfo::reads_images)) {
      reader_.raise_limit(kConversationBytesMax);  // images are in it
      frame = reader_.next();
    }
    if (!frame) {
      refuse_stream(frame.error());
      return;
    }
    if (!*frame) {
      (void)hold_input();  // no more than before
      wait_readable();
      update_busy();
      return;
    }
    requests_->start(**frame, server_.draining);
  }
  is_paused_ = true;
  update_busy();
}

// What has come and is not started is counted, where it is more than every connection may have.
Expected<Unit> Connection::hold_input() {
  const std::size_t bytes = reader_.size();
  return share_->resize(bytes > kKeptBufferBytesMax ? bytes : 0);
}

// The client will send nothing more. It may have closed altogether, or only its sending side and wait for its answers.
void Connection::on_read_end() {
  if (has_hung_up()) {
    close();
    return;
  }
  read_ended_ = true;
  requests_->end_input();
  end_if_done();
  if (is_open_) watch_hang_up();
}

// Without reads, this is what notices that the client is gone.
void Connection::watch_hang_up() {
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const error_code& problem) {
    if (!problem && self->is_open_) self->close();
  });
}

bool Connection::has_hung_up() {
  pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

// --- writing

void Connection::flush() {
  if (!is_open_ || waits_writable_) return;
  run_or_close([this] {
    if (!write_waiting_bytes()) {
      close();
      return;
    }
    if (is_paused_ && !outbox_->is_full()) {
      is_paused_ = false;
      start_whole_frames();
    }
    end_if_done();
  });
}

// Writes until nothing waits, the socket takes no more, or others should have their turn. False when the client is gone.
bool Connection::write_waiting_bytes() {
  std::size_t turn_bytes = 0;
  while (true) {
    if (turn_bytes >= kTurnBytes) {
      wait_writable();
      return true;
    }
    if (written_ == writing_.size()) {
      written_ = 0;
      writing_.clear();
      if (writing_.capacity() > kKeptBufferBytesMax) writing_.shrink_to_fit();
      outbox_->take(writing_, finished_ids_);
      requests_->finish(finished_ids_);
      finished_ids_.clear();
      if (writing_.empty()) return true;
    }
    error_code problem;
    const std::size_t size = socket_.write_some(asio::buffer(writing_) + written_, problem);
    if (problem == asio::error::would_block || problem == asio::error::interrupted) {
      wait_writable();
      return true;
    }
    if (problem) return false;
    written_ += size;
    turn_bytes += size;
    last_byte_at_ = now();
    outbox_->mark_written(size);
  }
}

void Connection::wait_writable() {
  waits_writable_ = true;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& problem) {
    self->waits_writable_ = false;
    if (!problem) self->flush();
  });
}

// --- ending

// The stream cannot be read any further. The client gets the error and then the end of the stream; what it still sends is read
// and forgotten for a moment, because a socket closed with unread bytes could take the error with it.
void Connection::refuse_stream(const Error& error) {
  is_refused_ = true;
  requests_->cancel_all();
  outbox_->append([&](std::string& out) { wire::append_error(out, wire::FrameHead(std::nullopt), error); });
  outbox_->seal();
  linger_timer_.expires_after(kLinger);
  linger_timer_.async_wait([self = shared_from_this()](const error_code& problem) {
    if (!problem) self->close();
  });
  wait_readable();
  update_busy();
}

void Connection::end_if_done() {
  if (!is_open_) return;
  update_busy();
  if (is_busy_) return;
  if (read_ended_) {
    close();
  } else if (is_refused_) {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);  // fails only when the client is gone, which the read will notice
  }
}

void Connection::close() {
  if (!is_open_) return;
  is_open_ = false;
  const std::shared_ptr<Connection> self = shared_from_this();  // the set below may hold the last reference
  outbox_->seal();
  requests_->cancel_all();
  linger_timer_.cancel();
  // What is counted is up to date before the client can see the end.
  update_busy();
  server_.connections.erase(self);
  server_.connections_count.add(-1);
  error_code ignored;
  socket_.close(ignored);
}

void Connection::update_busy() {
  const bool busy = is_open_ && (!requests_->empty() || outbox_->bytes_unsent() > 0);
  if (busy == is_busy_) return;
  is_busy_ = busy;
  server_.busy.add(busy ? 1 : -1);
}

}  // namespace uma::server
