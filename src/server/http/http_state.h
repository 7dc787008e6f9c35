// State shared by the connections of one HTTP server. Used only on its thread, unless a comment says otherwise.
#pragma once

#include <cstdint>
#include <format>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include <boost/asio/ssl/context.hpp>

#include "base/clock.h"
#include "core/service.h"
#include "server/connection_shares.h"
#include "server/http/access_log.h"
#include "server/http/account.h"
#include "server/http/handlers/live_responses.h"
#include "server/http/http_server.h"
#include "server/http/key_ring.h"
#include "server/server_state.h"

namespace uma::server {

class HttpConnection;
class PictureState;

struct HttpState : ServerState<HttpConnection> {
  HttpState(Service& served, HttpServerOptions given, AccessLog log)
      : ServerState(served), options(std::move(given)), access_log(std::move(log)) {}

  const HttpServerOptions options;
  bool is_leaving = false;  // The server will stop soon, and still serves.
  const std::int64_t started_s = unix_time_s();
  // The account of callers that need no key.
  const std::shared_ptr<Account> own_account = std::make_shared<Account>(TenantId{std::format("uid:{}", ::geteuid())});
  KeyRing keys{options.keys, options.keys_file, options.shared_keys};
  // The shares of peers that have shown no key, and of tenants.
  ConnectionShares shares{options.connections_max};
  AccessLog access_log;
  // Shared with generations, which may outlive the server.
  const std::shared_ptr<LiveResponses> live = std::make_shared<LiveResponses>();
  // By tenant: the last request for whole pictures, and the model chosen by the API of Stable Diffusion web UI.
  struct Drawing {
    RequestId id;
    std::weak_ptr<PictureState> state;
  };
  std::map<std::string, Drawing> drawing;
  std::map<std::string, std::string> sd_models;
  std::optional<boost::asio::ssl::context> tls;  // TLS of connections that are not local; nullopt: no TLS.
};

}  // namespace uma::server
