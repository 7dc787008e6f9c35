// HTTP GET, one at a time: the only file of this program that sees libcurl's transfers. Redirects are followed here, so that
// the rules for them are ours: at most 5, never from https to http, and the token only for requests to the hub itself. Used by
// one thread; Ctrl-C ends a request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/interrupts.h"
#include "uma-cli/result.h"
#include "uma-cli/url.h"

namespace uma::cli {

// What a server said before its body. Texts are the server's: not safe for a terminal.
struct HttpHead {
  int status = 0;  // 0: the connection ended before there was one
  std::string url{};
  std::string content_type{};
  std::string content_range{};
  std::string content_encoding{};
  std::string etag{};
  std::string last_modified{};
  std::string link{};
  std::optional<std::uint64_t> content_length{};
  bool is_delimited = false;  // a broken connection cannot be taken for the end of the body
  std::int64_t retry_after_s = 0;
};

enum class Flow { more, stop };

// Takes one answer. A failure ends the request and is what get() returns.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Result<Flow> on_head(
      const HttpHead& head) = 0;  // of the last answer, after redirects; `stop`: the body is not wanted
  virtual Result<void> on_body(std::string_view bytes) = 0;
  virtual void on_tick() {}  // at least ten times a second
};

struct HttpEnd {
  HttpHead head;
  std::string broken;  // why the connection ended early; empty: the answer was whole, or stopped by the handler
};

// The token that a hub gave to the user, and the only place it may be sent to.
struct Credentials {
  std::string origin;
  std::string token;  // empty: none
};

class Http {
 public:
  // A connection that brings nothing for `stall_timeout_s` is broken.
  Http(Credentials credentials, int stall_timeout_s, Interrupts& interrupts);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // Blocks. A failure: interrupted, the handler's, or one that asking again will not mend (a certificate, a forbidden
  // redirect).
  Result<HttpEnd> get(const Url& url, const std::vector<std::string>& headers, HttpHandler& handler);

 private:
  struct Hop;
  Result<HttpEnd> get_once(const Url& url, std::vector<std::string> headers, HttpHandler& handler, std::string& redirect);

  const Credentials credentials_;
  const int stall_timeout_s_;
  Interrupts& interrupts_;
  void* multi_ = nullptr;  // libcurl's CURLM; keeps connections open between requests
};

}  // namespace uma::cli
