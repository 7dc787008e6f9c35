#include "server/unix/unix_connection.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <poll.h>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>

#include "base/thrown.h"
#include "server/awaited_reply.h"
#include "server/within.h"
#include "wire/own/event_codec.h"
#include "wire/own/request_codec.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Time for a refused client to read the error and to end its output.
constexpr std::chrono::seconds kLinger{2};
// A larger buffer is released after use; received bytes beyond this limit are counted.
constexpr std::size_t kKeptBufferBytesMax = 65'536;
// Bytes written to one client before other clients get their turn.
constexpr std::size_t kTurnBytes = 1ul << 20;

TimePoint now() {
  return SteadyClock().now();
}

}  // namespace

void UnixConnection::start(Socket socket, TenantId tenant, ModelLibrary* library, bool is_administrator, UnixState& server) {
  if (server.connections.size() >= server.connections_max) return;  // Returning closes the socket.
  auto place = server.shares.take(tenant.value);
  if (!place) return;
  const std::shared_ptr<UnixConnection> connection(new UnixConnection(std::move(socket), server));
  connection->place_ = std::move(place);
  connection->open(std::move(tenant), library, is_administrator);
}

UnixConnection::UnixConnection(Socket socket, UnixState& server)
    : server_(server),
      socket_(std::move(socket)),
      reader_(server.limits.max_frame_bytes),
      has_answers_(server.io),
      has_room_(server.io),
      has_decoded_(server.io),
      last_byte_at_(now()) {}

void UnixConnection::open(TenantId tenant, ModelLibrary* library, bool is_administrator) {
  // Engine threads copy the weak pointer and never own the connection, which is destroyed on the server's thread.
  outbox_ = std::make_shared<Outbox>(
      server_.limits.tx_bytes_max, [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); },
      server_.service.open_share(tenant));
  tenant_ = tenant;
  share_ = server_.service.open_share(tenant);
  requests_.emplace(server_.service, library, is_administrator, std::move(tenant), outbox_,
                    ClientRequests::Imports{.memory = server_.imports, .file_bytes_max = server_.limits.transfer_bytes_max},
                    ClientRequests::Live{.feed = server_.live,
                                         .wake = [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); },
                                         .http_url = server_.http_url});
  server_.connections.insert(shared_from_this());
  server_.connections_count.add(1);
  error_code problem;
  socket_.non_blocking(true, problem);
  if (problem) return close();
  spawn(read());
  spawn(write());
}

// The end of a coroutine ends the connection and cancels its requests.
void UnixConnection::spawn(Awaitable<void> coroutine) {
  asio::co_spawn(server_.io, std::move(coroutine), [self = shared_from_this()](const std::exception_ptr& problem) {
    if (problem && self->is_open_) run_noting([&] { std::rethrow_exception(problem); });
    self->close();
  });
}

void UnixConnection::close() {
  if (!is_open_) return;
  is_open_ = false;
  const std::shared_ptr<UnixConnection> self = shared_from_this();  // The set below may hold the last reference.
  outbox_->seal();
  requests_->cancel_all();
  // The counters are updated before the client can see the end.
  update_busy();
  server_.connections.erase(self);
  server_.connections_count.add(-1);
  place_.reset();
  error_code ignored;
  socket_.close(ignored);
  has_answers_.notify();
  has_room_.notify();
  has_decoded_.notify();
}

// --- reading

Awaitable<void> UnixConnection::read() {
  const Expected<error_code> input_end = co_await read_frames();
  if (input_end) {
    co_await wait_for_end(*input_end);
  } else {
    refuse_input(input_end.error());
    co_await within(kLinger, wait_for_end(error_code()));
  }
}

// Starts the client's requests until its input ends, and returns the reason. Errors: the stream cannot be read any further.
Awaitable<Expected<error_code>> UnixConnection::read_frames() {
  while (true) {
    if (const error_code end = co_await read_some()) co_return end;
    auto started = hold_input();
    if (started) started = co_await start_whole_frames();
    if (!started) co_return std::unexpected(std::move(started.error()));
  }
}

// Waits for bytes and passes them to the reader. An error means the end of the input.
Awaitable<error_code> UnixConnection::read_some() {
  while (true) {
    auto [problem] = co_await socket_.async_wait(Socket::wait_read, kAwait);
    if (problem) co_return problem;
    const std::size_t size = socket_.read_some(asio::buffer(server_.read_buffer), problem);
    if (problem == asio::error::would_block || problem == asio::error::interrupted) continue;
    if (!problem && input_ == Input::open) {
      last_byte_at_ = now();
      reader_.append({server_.read_buffer.data(), size});
    }
    co_return problem;
  }
}

// Starts the requests that have arrived, unless the outbox is full: a client that does not read its answers cannot make the
// daemon collect more.
Awaitable<Expected<Unit>> UnixConnection::start_whole_frames() {
  while (is_open_) {
    if (outbox_->is_full()) {
      update_busy();
      co_await has_room_.wait();
      continue;
    }
    const auto frame = next_frame();
    if (!frame) co_return std::unexpected(frame.error());
    if (!*frame) break;
    auto request = co_await decode(**frame);
    if (!request) co_return std::unexpected(std::move(request.error()));
    requests_->start(std::move(*request), server_.draining);
  }
  update_busy();
  co_return hold_input();  // Not more than before.
}

// A long frame is decoded apart, so that it does not delay other connections. The work owns a copy and its share, since the
// connection may end before.
Awaitable<Expected<UnixConnection::Decoded>> UnixConnection::decode(std::string_view frame) {
  if (frame.size() < kKeptBufferBytesMax) co_return wire::decode_request(frame);
  RequestShare share = server_.service.open_share(tenant_);
  if (const auto held = share->grow(frame.size()); !held) co_return std::unexpected(held.error());
  AwaitedReply<Decoded> answer;
  is_decoding_ = true;
  update_busy();
  server_.service.run_apart(
      tenant_, frame.size(),
      [text = std::string(frame), share = std::move(share), reply = answer.reply(server_.flushes, weak_from_this())]() mutable {
        reply(contain([&]() -> Expected<Decoded> { return wire::decode_request(text); }));
      });
  auto decoded = co_await answer.wait(has_decoded_, is_open_);
  is_decoding_ = false;
  if (!decoded) co_return fail(ErrorCode::limit_wait, "the connection was closed");
  co_return std::move(*decoded);
}

Expected<std::optional<std::string_view>> UnixConnection::next_frame() {
  auto frame = reader_.next();
  if (!frame && std::ranges::any_of(server_.service.models(), &ModelInfo::reads_files)) {
    reader_.raise_limit(kConversationBytesMax);  // The frame holds images.
    frame = reader_.next();
  }
  return frame;
}

// Counts received bytes of requests that have not started, beyond the allowance of every connection.
Expected<Unit> UnixConnection::hold_input() {
  const std::size_t bytes = reader_.size();
  return share_->resize(bytes > kKeptBufferBytesMax ? bytes : 0);
}

// Sends the error and then the end of the stream. The client's further bytes are read and dropped for a moment, because closing
// a socket with unread bytes could destroy the error on its way.
void UnixConnection::refuse_input(const Error& error) {
  input_ = Input::refused;
  requests_->cancel_all();
  outbox_->append([&](std::string& out) { wire::append_error(out, wire::FrameHead(std::nullopt), error); });
  outbox_->seal();
  update_busy();
}

// Returns when the client is gone. It may have closed the connection, or only its sending side and still wait for answers.
Awaitable<Unit> UnixConnection::wait_for_end(error_code input_end) {
  while (!input_end) input_end = co_await read_some();
  if (input_end != asio::error::eof || has_hung_up()) co_return Unit{};
  input_ = Input::ended;
  requests_->end_input();
  end_if_done();
  // Without reads, only this wait notices that the client is gone.
  if (is_open_) co_await socket_.async_wait(Socket::wait_error, kAwait);
  co_return Unit{};
}

bool UnixConnection::has_hung_up() {
  pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

// --- writing

// Writes the outbox until the connection is closed or the client is gone.
Awaitable<void> UnixConnection::write() {
  std::string bytes;
  std::vector<std::string> finished_ids;
  std::size_t turn_bytes = 0;
  while (is_open_) {
    bytes.clear();
    if (bytes.capacity() > kKeptBufferBytesMax) bytes.shrink_to_fit();
    outbox_->take(bytes, finished_ids);
    requests_->finish(finished_ids);
    finished_ids.clear();
    std::size_t from_outbox = bytes.size();
    requests_->append_live(bytes);
    if (bytes.empty()) {
      end_if_done();
      if (!is_open_) co_return;
      co_await has_answers_.wait();
      turn_bytes = 0;
    }
    for (std::string_view rest = bytes; !rest.empty();) {
      error_code problem = asio::error::would_block;
      const std::size_t size = turn_bytes < kTurnBytes ? socket_.write_some(asio::buffer(rest), problem) : 0;
      if (problem == asio::error::would_block || problem == asio::error::interrupted) {
        is_held_up_ = true;
        co_await socket_.async_wait(Socket::wait_write, kAwait);
        is_held_up_ = false;
        turn_bytes = 0;
        continue;
      }
      if (problem) co_return;
      rest.remove_prefix(size);
      turn_bytes += size;
      last_byte_at_ = now();
      outbox_->mark_written(std::min(size, from_outbox));
      from_outbox -= std::min(size, from_outbox);
      has_room_.notify();
    }
  }
}

void UnixConnection::end_if_done() {
  update_busy();
  if (!is_open_ || is_busy_ || !requests_->empty()) return;
  if (input_ == Input::ended) {
    close();
  } else if (input_ == Input::refused) {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);  // Fails only if the client is gone, which the read will notice.
  }
}

void UnixConnection::update_busy() {
  const bool busy = is_open_ && (is_decoding_ || requests_->has_work() || outbox_->bytes_unsent() > 0);
  if (busy == is_busy_) return;
  is_busy_ = busy;
  server_.busy->add(busy ? 1 : -1);
}

}  // namespace uma::server
