// One user of a server: a connection and at most one conversation. The interface is the same for the Unix socket and for HTTP.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "uma-bench/measure.h"

namespace uma::bench {

struct Endpoint {
  bool is_http = false;
  std::string address{};  // Path of a Unix socket, or host:port.
  std::string model{};    // Empty: the server's default model.

  [[nodiscard]] const char* name() const { return is_http ? "http" : "socket"; }
};

// One generation: greedy, with exactly `tokens` new tokens (end-of-generation tokens are ignored).
struct Job {
  int session_id = 0;
  bool interactive = true;
  bool background = false;  // Ask for class `background`.
  std::string prompt{};     // In a conversation: only the new text.
  int tokens = 0;
  std::function<void()> on_token = nullptr;  // Called for each token event.
};

// Milliseconds since the run began.
class RunClock {
 public:
  [[nodiscard]] double now_ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Runs on the thread of its executor, one call at a time. A failure is stored in the record, and the next call connects again.
class Client {
 public:
  virtual ~Client() = default;

  // A request without a conversation.
  virtual boost::asio::awaitable<StreamRecord> generate(Job job) = 0;
  // The next turn of this client's conversation: a session on the socket, the full history over HTTP.
  virtual boost::asio::awaitable<StreamRecord> converse(Job job) = 0;
  // Closes the connection. The next call connects again and continues the conversation.
  virtual void disconnect() = 0;
  // Deletes the conversation, also on the server.
  virtual boost::asio::awaitable<void> end_conversation() = 0;
};

// `clock` must outlive the client.
[[nodiscard]] std::unique_ptr<Client> make_client(const boost::asio::any_io_executor& executor, const Endpoint& endpoint,
                                                  const RunClock& clock);
[[nodiscard]] std::unique_ptr<Client> make_socket_client(const boost::asio::any_io_executor& executor, const Endpoint& endpoint,
                                                         const RunClock& clock);
[[nodiscard]] std::unique_ptr<Client> make_http_client(const boost::asio::any_io_executor& executor, const Endpoint& endpoint,
                                                       const RunClock& clock);

}  // namespace uma::bench
