// The HTTP server: its listeners, its connections and their thread "uma-http". docs/protocol/http.md describes the protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/system/unique_fd.h"
#include "core/key_store.h"
#include "core/limits.h"
#include "core/model_library.h"
#include "core/service.h"
#include "server/http/handlers/api_keys.h"
#include "server/http/handlers/page_files.h"
#include "server/live_feed.h"
#include "server/server.h"
#include "wire/own/administration.h"

namespace uma::server {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // A numeric address; without keys it must be a loopback address; empty: no TCP listener.
  std::uint16_t port = 0;             // 0: any free port.
  std::string tls_certificate = {};   // PEM file with the certificate chain; empty: no TLS.
  std::string tls_key = {};           // PEM file.
  std::string socket_path = {};       // A Unix socket for this user, served without keys; empty: none.
  std::string ollama_address = {};    // Address of a second TCP listener, where Ollama's clients look for one; empty: none.
  std::uint16_t ollama_port = 0;      // 0: any free port.
  int backlog = 1024;
  std::size_t connections_max = 1024;
  std::size_t header_bytes_max = 16'384;
  Duration idle_timeout = std::chrono::seconds(75);    // Time between two requests of a connection.
  Duration header_timeout = std::chrono::seconds(10);  // Time from the first byte of a request to the end of its header.
  Duration body_timeout = std::chrono::seconds(30);
  Duration keep_alive_interval = std::chrono::seconds(10);  // The longest silence of a stream.
  Duration write_timeout = std::chrono::seconds(30);        // Time for a client to read a part of its answer, which has 64 KiB.
  Limits limits = {};                                       // limits.max_frame_bytes bounds a body.
  std::vector<ApiKey> keys = {};                            // At the start. Empty: callers are this process's user.
  std::string keys_file = {};                               // Where they came from; empty: they cannot be changed.
  KeyStore* shared_keys = nullptr;  // Has the keys in place of the file, and outlives the server; null: nobody shares them.
  bool serves_local_users = false;  // Without keys, serves every user of this machine; false: only this user and root.
  bool serves_metrics_without_key = false;
  bool imports_kv = false;                        // Imports the KV of session files; false: ignores it.
  std::vector<std::string> allowed_hosts = {};    // Names in Host besides those of this machine; for use without keys.
  std::vector<std::string> cors_origins = {};     // Origins of pages that may send requests, besides the server's own.
  std::string access_log = "off";                 // See AccessLog::open().
  std::string version = {};                       // umad's; empty: not told.
  std::string node = {};                          // Its name in x-uma-node; empty: not told.
  std::vector<wire::SettingValue> settings = {};  // The daemon's settings, for its administrator.
  PageFiles page = {};                            // Empty: no page at /.
  ModelLibrary* library = nullptr;  // Outlives the server; null: models cannot be pulled, named, deleted or changed.
  LiveFeed* live = nullptr;         // Outlives the server; null: the daemon cannot be watched.
};

// stop_accepting() also ends connections that wait for a request.
class HttpServer : public Server {
 public:
  // Accepts connections when it returns. `service` outlives the server. `listener` is an open socket that listens at the
  // address and port, `local` one that listens at socket_path, `twin` one at [::1] and the port; without them the server opens
  // its own. At 127.0.0.1 it listens at [::1], too, unless the system has no IPv6 or another program has that port. Errors: a
  // port is in use, an address is not a loopback address although there are no keys, or the access log cannot be opened.
  [[nodiscard]] static Expected<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Service& service,
                                                                   UniqueFd listener = UniqueFd(), UniqueFd local = UniqueFd(),
                                                                   UniqueFd twin = UniqueFd());

  [[nodiscard]] virtual std::uint16_t port() const = 0;  // 0: no address.
  [[nodiscard]] virtual std::uint16_t ollama_port() const = 0;
};

}  // namespace uma::server
