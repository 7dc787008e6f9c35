// One user of a server: a connection and at most one conversation. The two doors look the same from here.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "measure.h"

namespace uma::bench {

struct Endpoint {
  bool is_http = false;
  std::string address{};  // path of a Unix socket, or host:port
  std::string model{};    // empty: the server's own

  [[nodiscard]] const char* name() const { return is_http ? "http" : "socket"; }
};

// One generation: greedy, with exactly `tokens` new tokens (end-of-generation tokens are ignored).
struct Job {
  int session_id = 0;
  bool interactive = true;
  bool background = false;  // ask for class `background`
  std::string prompt{};     // of a conversation: only what is new
  int tokens = 0;
  std::function<void()> on_token = nullptr;  // called for each token event
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

// Lives on the thread of its executor; one call at a time. What goes wrong is in the record; the next call connects anew.
class Client {
 public:
  virtual ~Client() = default;

  // A request of its own.
  virtual boost::asio::awaitable<StreamRecord> generate(Job job) = 0;
  // The next turn of this client's conversation: a session on the socket, the full history over HTTP.
  virtual boost::asio::awaitable<StreamRecord> converse(Job job) = 0;
  // Closes the connection; the next call connects anew and goes on with the conversation.
  virtual void disconnect() = 0;
  // Forgets the conversation, on the server too.
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
