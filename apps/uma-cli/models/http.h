// HTTP GET, one request at a time. This is the only file of the program that uses libcurl's transfers. Redirects are followed
// here under pull's own rules: at most 5, never from https to http, and the token goes only to the hub itself. Used by one
// thread; Ctrl-C ends a request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/interrupts.h"
#include "uma-cli/models/url.h"
#include "uma-cli/result.h"

namespace uma::cli {

// The head of a server's answer. Its texts come from the server and are not safe for a terminal.
struct HttpHead {
  int status = 0;  // 0: the connection ended before a status arrived.
  std::string url{};
  std::string content_type{};
  std::string content_range{};
  std::string content_encoding{};
  std::string etag{};
  std::string last_modified{};
  std::string link{};
  std::optional<std::uint64_t> content_length{};
  bool is_delimited = false;  // The length is known, so a broken connection cannot look like the end of the body.
  std::int64_t retry_after_s = 0;
};

enum class Flow { more, stop };

// Receives one answer. A failure ends the request, and get() returns it.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Result<Flow> on_head(
      const HttpHead& head) = 0;  // Called with the head of the last answer, after redirects. `stop` skips the body.
  virtual Result<void> on_body(std::string_view bytes) = 0;
  virtual void on_tick() {}  // Called at least ten times a second.
};

struct HttpEnd {
  HttpHead head;
  std::string broken;  // Why the connection ended early; empty: the answer was complete, or the handler stopped it.
};

// The user's token for the hub, and the only host that may receive it.
struct Credentials {
  std::string origin;
  std::string token;  // Empty: no token.
};

class Http {
 public:
  // A connection without data for `stall_timeout_s` counts as broken.
  Http(Credentials credentials, int stall_timeout_s, Interrupts& interrupts);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // Blocks. Fails if interrupted, if the handler fails, or with an error that a retry would meet again, such as a bad
  // certificate or a forbidden redirect.
  Result<HttpEnd> get(const Url& url, const std::vector<std::string>& headers, HttpHandler& handler);

 private:
  struct Hop;
  Result<HttpEnd> get_once(const Url& url, std::vector<std::string> headers, HttpHandler& handler, std::string& redirect);

  const Credentials credentials_;
  const int stall_timeout_s_;
  Interrupts& interrupts_;
  void* multi_ = nullptr;  // A CURLM of libcurl; keeps connections open between requests.
};

}  // namespace uma::cli
