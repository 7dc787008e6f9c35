// The HTTP door: OpenAI's API, its listeners, its connections and their thread, "uma-http". docs/protocol/http.md is
// what it speaks. To be stopped like UnixServer: stop_accepting(), wait_idle(limit), stop().
// `service` must outlive the server; after stop() the server calls it no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "core/limits.h"
#include "core/service.h"
#include "server/api_keys.h"

namespace uma::server {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // as a number; without keys of the loopback; empty: none
  std::uint16_t port = 0;             // 0: any that is free
  std::string tls_certificate = {};   // PEM file, with its chain; empty: no TLS
  std::string tls_key = {};           // PEM file
  std::string socket_path = {};       // of a Unix socket to listen on too, for this user, without keys; empty: none
  int backlog = 1024;
  std::size_t connections_max = 1024;
  std::size_t header_bytes_max = 16'384;
  Duration idle_timeout = std::chrono::seconds(75);    // between two requests of a connection
  Duration header_timeout = std::chrono::seconds(10);  // from the first byte of a request to the end of its header
  Duration body_timeout = std::chrono::seconds(30);
  Duration write_timeout = std::chrono::seconds(30);  // for a client to take a part of its answer, of 64 KiB
  Limits limits = {};                                 // max_frame_bytes bounds a body
  std::vector<ApiKey> keys = {};                      // none: callers are this process's user
  bool serves_local_users = false;                    // without keys: every user of this machine; false: its own and root
  bool serves_metrics_without_key = false;
  bool imports_kv = false;                     // of session files; false: it is left out
  std::vector<std::string> cors_origins = {};  // of pages that may ask, beside the server's own
  std::string access_log = "off";              // AccessLog::open()
};

// Thread-safe, but not to be called from the service's replies and events.
class HttpServer {
 public:
  // Listens and accepts when it returns. Errors: the port is taken, the address is none of the loopback though there are no
  // keys, or the access log cannot be opened.
  // `listener` is a socket that listens at the address and port already, `local` one that does at socket_path; none: the
  // server opens its own.
  [[nodiscard]] static Expected<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Service& service,
                                                                   UniqueFd listener = UniqueFd(), UniqueFd local = UniqueFd());
  ~HttpServer();  // as stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;  // 0: no address
  [[nodiscard]] std::size_t connections_count() const;

  // Closes the listeners; connected clients get the rest of their answers, and their new generations are refused.
  void stop_accepting();
  // Waits until no request is in flight and every answer is written; false when `limit` passes first.
  [[nodiscard]] bool wait_idle(Duration limit);
  // Closes every connection, cancels what runs, ends the thread.
  void stop();

 private:
  class Impl;  // keeps Asio out of this header
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace uma::server
