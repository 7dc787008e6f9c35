// Who is served: hosts, origins, keys and users.
#include <filesystem>
#include <format>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

TEST_F(HttpServerTest, RefusesOtherHostsAndOrigins) {
  start();
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: [::1]:8642\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://evil.example\r\n\r\n"), 403);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost:1\r\nOrigin: null\r\n\r\n"), 403);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\n\r\n"), 200);
  EXPECT_EQ(status_of("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
}

TEST_F(HttpServerTest, RefusesWhatOtherSitesPagesFetchWithoutAnOrigin) {
  start();
  const auto status = [this](std::string_view lines) {
    return status_of(std::format("GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n{}\r\n", lines));
  };
  EXPECT_EQ(status("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"), 403);
  EXPECT_EQ(status("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n"), 403);
  EXPECT_EQ(status("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"), 200);
  EXPECT_EQ(status("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"), 200);
}

TEST_F(HttpServerTest, ServesContainersByTheNameThatIsAllowed) {
  start({.allowed_hosts = {"box.example"}});
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: box.example:8642\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: host.docker.internal:8642\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
}

TEST_F(HttpServerTest, TakesAKeyAsAnthropicsClientsSendIt) {
  start({.keys = {key_named("ci")}});
  for (const auto& [header, status] :
       std::vector<std::pair<const char*, int>>{{"x-api-key: secret\r\n", 200},
                                                {"x-api-key: secret\r\nAuthorization: Bearer secret\r\n", 200},
                                                {"x-api-key: wrong\r\n", 401},
                                                {"x-api-key: secret\r\nAuthorization: Bearer other\r\n", 401},
                                                {"x-api-key: secret\r\nx-api-key: secret\r\n", 401},
                                                {"x-api-key:\r\n", 401}}) {
    HttpClient one = client();
    one.get("/v1/models", header);
    EXPECT_EQ(one.answer().status, status) << header;
  }
}

TEST_F(HttpServerTest, RefusesAWrongKeyBeforeTheBodyIsRead) {
  start({.keys = {key_named("ci")}});
  for (const char* header : {"", "Authorization: Bearer wrong\r\n", "Authorization: Basic secret\r\n",
                             "Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n"}) {
    HttpClient one = client();
    one.send(std::string("POST /v1/chat/completions HTTP/1.1\r\nHost: any.example\r\n") + header +
             "Content-Length: 1000\r\n\r\n");
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 401) << header;
    EXPECT_THAT(answer.head, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_AUTH_001")"));
    EXPECT_TRUE(one.has_ended());
  }
  HttpClient one = client();
  one.get("/health");
  EXPECT_EQ(one.answer().status, 200) << "a probe needs no key";
  one.get("/metrics");
  EXPECT_EQ(one.answer().status, 401);
  one.get("/v1/nothing");
  EXPECT_EQ(one.answer().status, 401) << "who has no key learns nothing";
}

TEST_F(HttpServerTest, ShowsMetricsWithoutAKeyWhereThatIsAskedFor) {
  start({.keys = {key_named("ci")}, .serves_metrics_without_key = true});
  HttpClient one = client();
  one.get("/metrics");
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(HttpServerTest, ServesAKeyAsItsTenant) {
  start({.keys = {{.name = "other", .digest = sha256("other"), .tenant = {"key:other"}}, key_named("ci")}});
  HttpClient one = client();
  one.post(kChat, kHello, "Authorization: Bearer secret\r\n");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.tenant, TenantId{"key:ci"});
  generation.sink->deliver(eos());
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(HttpServerTest, ServesItsUserOnAUnixSocketWithoutAKey) {
  const std::string path = std::filesystem::temp_directory_path() / ("uma_http_" + std::to_string(::getpid()));
  start({.address = "", .socket_path = path, .keys = {key_named("ci")}});
  EXPECT_EQ(server_->port(), 0);
  struct stat facts{};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  HttpClient one(path);
  one.send("GET /metrics HTTP/1.1\r\nHost: any.example\r\n\r\n");
  EXPECT_EQ(one.answer().status, 200);
  one.post(kChat, kHello);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.tenant, TenantId{"uid:" + std::to_string(::geteuid())});
  generation.sink->deliver(eos());
  EXPECT_EQ(one.answer().status, 200);
  server_->stop_accepting();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A request by the raw socket of another user: the kernel remembers who made a socket.
Answer answer_to_user(uid_t uid, std::uint16_t port, const std::string& path, const std::string& header = "") {
  Answer answer;
  std::thread([&] {
    // The raw call changes this thread alone, the library's would change the process.
    ASSERT_EQ(::syscall(SYS_setresuid, uid, uid, uid), 0);
    HttpClient one(port);
    one.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
    answer = one.answer();
  }).join();
  return answer;
}

TEST_F(HttpServerTest, RefusesOtherUsersWithoutAKeyAndSaysWhatToDo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  start();
  for (const uid_t uid : {kSomebodyElse, uid_t{65'534}}) {
    for (const char* path : {"/v1/models", "/v1/sessions", "/metrics", "/v1/nothing"}) {
      const Answer refused = answer_to_user(uid, server_->port(), path);
      EXPECT_EQ(refused.status, 403) << path;
      EXPECT_THAT(refused.body, HasSubstr("E_AUTH_001"));
      EXPECT_THAT(refused.body, HasSubstr("uid " + std::to_string(uid)));
      EXPECT_THAT(refused.body, HasSubstr("http.local_users"));
    }
    EXPECT_EQ(answer_to_user(uid, server_->port(), "/health").status, 200);
    EXPECT_EQ(answer_to_user(uid, server_->port(), "/ready").status, 503) << "the fake loads for ever";
  }
  HttpClient own = client();
  own.get("/v1/sessions");
  EXPECT_EQ(own.answer().status, 200);
}

TEST_F(HttpServerTest, ShowsMetricsToOtherUsersWhereThatIsAskedFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  start({.serves_metrics_without_key = true});
  EXPECT_EQ(answer_to_user(kSomebodyElse, server_->port(), "/metrics").status, 200);
  EXPECT_EQ(answer_to_user(kSomebodyElse, server_->port(), "/v1/models").status, 403);
}

TEST_F(HttpServerTest, ServesOtherUsersWhereThatIsAskedForAndWithKeys) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  start({.serves_local_users = true});
  EXPECT_EQ(answer_to_user(kSomebodyElse, server_->port(), "/v1/models").status, 200);
  start({.keys = {key_named("ci")}});
  EXPECT_EQ(answer_to_user(kSomebodyElse, server_->port(), "/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(answer_to_user(kSomebodyElse, server_->port(), "/v1/models").status, 401);
}

TEST_F(HttpServerTest, LimitsTheRequestsOfAKey) {
  ApiKey key = key_named("ci");
  key.requests_per_minute = 1;
  start({.keys = {key}});
  HttpClient one = client();
  one.post(kChat, kHello, "Authorization: Bearer secret\r\n");
  service_.next_generation().sink->deliver(eos());
  const Answer first = one.answer();
  EXPECT_EQ(first.status, 200);
  EXPECT_THAT(first.head, HasSubstr("x-ratelimit-limit-requests: 1\r\n"));
  EXPECT_THAT(first.head, HasSubstr("x-ratelimit-remaining-requests: 0\r\n"));
  one.post(kChat, kHello, "Authorization: Bearer secret\r\n");
  const Answer second = one.answer();
  EXPECT_EQ(second.status, 429);
  EXPECT_THAT(second.head, HasSubstr("Retry-After: "));
  EXPECT_THAT(second.body, HasSubstr(R"("type":"rate_limit_error")"));
  HttpClient two = client();
  two.get("/v1/sessions", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(two.answer().status, 429);
  HttpClient three = client();
  three.get("/metrics", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(three.answer().status, 200) << "who looks after the daemon takes none of them";
}

TEST_F(HttpServerTest, LetsPagesOfNamedOriginsAsk) {
  start({.keys = {key_named("ci")}, .cors_origins = {"https://chat.example"}});
  HttpClient one = client();
  one.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
  const Answer preflight = one.answer();
  EXPECT_EQ(preflight.status, 200);
  EXPECT_THAT(preflight.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_THAT(preflight.head, HasSubstr("PATCH"));
  EXPECT_THAT(preflight.head, HasSubstr("Access-Control-Allow-Headers: authorization,x-stainless-os\r\n"));
  one.post(kChat, kHello, "Origin: https://chat.example\r\n");
  const Answer refused = one.answer();
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n")) << "the page may read why";
  for (const char* origin : {"https://evil.example", "https://chat.example.evil.example", "http://chat.example", "null"}) {
    EXPECT_EQ(
        status_of(std::string("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: ") + origin + "\r\n\r\n"),
        403)
        << origin;
  }
}

TEST_F(HttpServerTest, ServesOtherAddressesWithKeysOnly) {
  HttpServerOptions options{.address = "0.0.0.0"};
  EXPECT_FALSE(HttpServer::start(options, service_).has_value());
  options.keys = {key_named("ci")};
  EXPECT_TRUE(HttpServer::start(options, service_).has_value());
}

}  // namespace
}  // namespace uma::server
