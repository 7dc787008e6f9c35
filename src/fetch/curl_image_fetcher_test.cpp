// Tests of the fetcher with malicious servers on the loopback interface. Every test ends by itself, at the latest by the
// fetcher's limits.
#include "fetch/curl_image_fetcher.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <format>
#include <functional>
#include <future>
#include <map>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

namespace {

// The look-up of the name "held.test" blocks until `release` is set. Never freed, because a look-up may outlive its test.
struct HeldName {
  std::counting_semaphore<> is_asked{0};
  std::promise<void> release;
  const std::shared_future<void> is_released{release.get_future()};
};
HeldName& held_name() {
  static auto* const held = new HeldName;
  return *held;
}

}  // namespace

// Replaces the function of the C library, also for libcurl.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  if (name != nullptr && std::string_view(name) == "held.test") {
    held_name().is_asked.release();
    held_name().is_released.wait();
    return EAI_NONAME;
  }
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(name, service, hints, found);
}

namespace uma::fetch {
namespace {

// A connection whose client has sent its request.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}

  // False: the client has disconnected.
  bool send(std::string_view text) const {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Waits until the client disconnects.
  void wait_for_end() const {
    std::array<char, 256> bytes{};
    while (::recv(fd_, bytes.data(), bytes.size(), 0) > 0) {
    }
  }
  // Whether the client disconnects within this time.
  [[nodiscard]] bool ends_within(std::chrono::milliseconds time) const {
    pollfd wanted{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&wanted, 1, static_cast<int>(time.count())) > 0;
  }

 private:
  const int fd_;
};

// Answers by the path of the request, and counts the requests.
class Server {
 public:
  using Answers = std::map<std::string, std::function<void(const Peer&)>>;

  explicit Server(Answers answers) : answers_(std::move(answers)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    UMA_CHECK(fd_ >= 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  Server(const Server&) = delete;

  [[nodiscard]] std::string host() const { return std::format("127.0.0.1:{}", port_); }
  [[nodiscard]] std::string url(std::string_view path) const { return std::format("http://{}{}", host(), path); }
  [[nodiscard]] int connections() const { return connections_.load(); }
  [[nodiscard]] std::string last_request() {
    const MutexLock lock(mutex_);
    return request_;
  }

 private:
  void serve() {
    for (;;) {
      const int fd = ::accept(fd_, nullptr, nullptr);
      if (fd < 0) return;
      connections_.fetch_add(1);
      std::string request;
      std::array<char, 4'096> bytes{};
      while (!request.contains("\r\n\r\n")) {
        const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
        if (got <= 0) break;
        request.append(bytes.data(), static_cast<std::size_t>(got));
      }
      {
        const MutexLock lock(mutex_);
        request_ = request;
      }
      const std::size_t begin = request.find(' ') + 1;
      const auto answer = answers_.find(request.substr(begin, request.find(' ', begin) - begin));
      if (answer != answers_.end()) answer->second(Peer(fd));
      ::close(fd);
    }
  }

  Answers answers_;
  int fd_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  Mutex mutex_;
  std::string request_ GUARDED_BY(mutex_);
  std::thread thread_;
};

auto response(std::string text) {
  return [text = std::move(text)](const Peer& peer) { (void)peer.send(text); };
}
std::string whole(std::string_view body, std::string_view header = "") {
  return std::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n{}", body.size(), header, body);
}
std::string leads_to(std::string_view location) {
  return std::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", location);
}

Fetched fetch(ImageFetcher& fetcher, std::vector<std::string> urls, TimePoint deadline = kNever) {
  std::promise<Fetched> result;
  fetcher.fetch(TenantId{"t"}, std::move(urls), deadline, {}, [&](Fetched fetched) { result.set_value(std::move(fetched)); });
  return result.get_future().get();
}
std::string text_of(const Bytes& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

class ImageFetcherTest : public ::testing::Test {
 protected:
  void SetUp() override { init_log(LogLevel::error); }

  static ImageUrlRules rules_for(const Server& server, std::chrono::milliseconds time_max = std::chrono::seconds(20)) {
    return {.allows_public = false, .hosts = {server.host()}, .bytes_max = 1'000, .time_max = time_max};
  }
  // The error message for a single URL.
  static std::string refusal(const Server& server, std::string_view path,
                             std::chrono::milliseconds time_max = std::chrono::seconds(20)) {
    CurlImageFetcher fetcher(rules_for(server, time_max), 1 << 20);
    const Fetched fetched = fetch(fetcher, {server.url(path)});
    EXPECT_FALSE(fetched);
    if (fetched) return "";
    EXPECT_EQ(fetched.error().error.code, ErrorCode::proto_field);
    return fetched.error().error.message;
  }
};

TEST_F(ImageFetcherTest, GetsFilesInTheirOrder) {
  const Server server({{"/a.png?x=1", response(whole("one"))},
                       {"/b", response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n")},
                       {"/c", response("HTTP/1.1 200 OK\r\n\r\nuntil the end")},
                       {"/d", response(leads_to("/a.png?x=1"))}});
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  const Fetched fetched =
      fetch(fetcher, {server.url("/a.png?x=1#part"), server.url("/b"), server.url("/c"), server.url("/d"), server.url("/b")});
  ASSERT_TRUE(fetched) << fetched.error().error.message;
  std::string all;
  for (const Bytes& file : *fetched) all += text_of(file) + ",";
  EXPECT_EQ(all, "one,two,until the end,one,two,");
}

TEST_F(ImageFetcherTest, SendsNothingAboutTheClient) {
  Server server({{"/a", response(whole("one"))}});
  ::setenv("http_proxy", "http://127.0.0.1:1/", 1);
  ::setenv("ALL_PROXY", "http://127.0.0.1:1/", 1);
  {
    CurlImageFetcher fetcher(rules_for(server), 1 << 20);
    EXPECT_TRUE(fetch(fetcher, {server.url("/a")})) << "a proxy of the environment is not asked";
  }
  ::unsetenv("http_proxy");
  ::unsetenv("ALL_PROXY");
  const std::string request = server.last_request();
  EXPECT_TRUE(request.starts_with("GET /a HTTP/1.1\r\nHost: " + server.host() + "\r\n")) << request;
  EXPECT_FALSE(request.contains("Cookie") || request.contains("Authorization") || request.contains("Referer")) << request;
}

TEST_F(ImageFetcherTest, EveryAnswerIsBounded) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const Server server({
      {"/gone", response("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")},
      {"/empty", response("HTTP/1.1 204 No Content\r\n\r\n")},
      {"/announced", response(head + "Content-Length: 1001\r\n\r\n")},
      {"/absurd", response(head + "Content-Length: 99999999999999999999\r\n\r\n")},
      {"/endless",
       [&](const Peer& peer) {
         if (!peer.send(head + "\r\n")) return;
         while (peer.send(std::string(500, 'x'))) {
         }
       }},
      {"/chunks",
       [&](const Peer& peer) {
         if (!peer.send(head + "Transfer-Encoding: chunked\r\n\r\n")) return;
         while (peer.send("64\r\n" + std::string(100, 'x') + "\r\n")) {
         }
       }},
      {"/header",
       [&](const Peer& peer) {
         if (!peer.send(head)) return;
         while (peer.send("X-More: " + std::string(500, 'x') + "\r\n")) {
         }
       }},
      {"/cut", response(head + "Content-Length: 100\r\n\r\nten bytes.")},
      {"/nothing", response("")},
      {"/noise", response("\x16\x03\x01 what?\r\n\r\n")},
      {"/trailer",
       [&](const Peer& peer) {
         if (!peer.send(head + "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n")) return;
         while (peer.send("X-More: " + std::string(500, 'x') + "\r\n")) {
         }
       }},
      {"/transfer", response(head + "Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nzip\r\n0\r\n\r\n")},
      {"/packed", response(whole("zip", "Content-Encoding: gzip\r\n"))},
  });
  const std::pair<std::string_view, std::string_view> expected[] = {{"/gone", "status 404"},
                                                                    {"/empty", "status 204"},
                                                                    {"/announced", "more than 1000 bytes"},
                                                                    {"/absurd", "more than 1000 bytes"},
                                                                    {"/endless", "more than 1000 bytes"},
                                                                    {"/chunks", "more than 1000 bytes"},
                                                                    {"/header", "failed: "},
                                                                    {"/cut", "ended too early"},
                                                                    {"/nothing", "failed: "},
                                                                    {"/noise", "failed: "},
                                                                    {"/trailer", "failed: "},
                                                                    {"/transfer", "compressed"},
                                                                    {"/packed", "compressed"}};
  for (const auto& [path, why] : expected) {
    const std::string message = refusal(server, path);
    EXPECT_TRUE(message.contains(why)) << path << ": " << message;
  }
}

TEST_F(ImageFetcherTest, InterimResponsesAreSkipped) {
  const Server server({{"/hints", response("HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" + whole("a picture"))}});
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  const Fetched fetched = fetch(fetcher, {server.url("/hints")});
  ASSERT_TRUE(fetched) << fetched.error().error.message;
  EXPECT_EQ(fetched->size(), 1u);
}

TEST_F(ImageFetcherTest, DropsASlowServer) {
  const Server server({{"/silent", [](const Peer& peer) { peer.wait_for_end(); }},
                       {"/drips", [](const Peer& peer) {
                          if (!peer.send("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")) return;
                          while (!peer.ends_within(std::chrono::milliseconds(5)) && peer.send("x")) {
                          }
                        }}});
  for (const std::string_view path : {"/silent", "/drips"}) {
    const std::string message = refusal(server, path, std::chrono::milliseconds(100));
    EXPECT_TRUE(message.contains("longer than 100 ms")) << path << ": " << message;
  }
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  const Fetched late = fetch(fetcher, {server.url("/silent")}, SteadyClock().now() + std::chrono::milliseconds(50));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().error.code, ErrorCode::limit_wait) << "the request's own deadline";
}

TEST_F(ImageFetcherTest, RedirectsLeadOnlyWhereAUrlMay) {
  const Server hidden({{"/secret", response(whole("secret"))}});
  const Server server({{"/loop", response(leads_to("/loop"))},
                       {"/other", response(leads_to(hidden.url("/secret")))},
                       {"/name", response(leads_to("http://localhost:1/"))},
                       {"/mapped", response(leads_to("http://[::ffff:127.0.0.1]/"))},
                       {"/file", response(leads_to("file:///etc/passwd"))},
                       {"/key", response(leads_to("http://me:key@127.0.0.1/"))},
                       {"/twice", response("HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n")},
                       {"/nowhere", response("HTTP/1.1 301 Moved\r\n\r\n")}});
  const std::pair<std::string_view, std::string_view> expected[] = {{"/loop", "redirects"},
                                                                    {"/other", "vision.url_hosts"},
                                                                    {"/name", "vision.url_hosts"},
                                                                    {"/mapped", "vision.url_hosts"},
                                                                    {"/file", "must begin with"},
                                                                    {"/key", "password"},
                                                                    {"/twice", "has no single target"},
                                                                    {"/nowhere", "has no single target"}};
  for (const auto& [path, why] : expected) {
    const std::string message = refusal(server, path);
    EXPECT_TRUE(message.contains(why)) << path << ": " << message;
  }
  EXPECT_EQ(hidden.connections(), 0);
  // The loopback interface is not public, so it stays refused.
  ImageUrlRules rules = rules_for(server);
  rules.allows_public = true;
  CurlImageFetcher fetcher(rules, 1 << 20);
  for (const std::string_view path : {"/other", "/name", "/mapped"}) {
    const Fetched fetched = fetch(fetcher, {server.url(path)});
    ASSERT_FALSE(fetched) << path;
    EXPECT_EQ(fetched.error().error.code, ErrorCode::proto_field);
  }
  EXPECT_EQ(hidden.connections(), 0);
}

TEST_F(ImageFetcherTest, NoSpellingOfThisMachineIsPublic) {
  CurlImageFetcher fetcher({.allows_public = true, .hosts = {}, .bytes_max = 1'000}, 1 << 20);
  for (const std::string url :
       {"http://127.0.0.1/", "http://localhost/", "http://LOCALHOST./", "http://[::1]/", "http://0/", "http://0.0.0.0/",
        "http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://[::ffff:7f00:1]/",
        "http://[::]/", "http://169.254.169.254/latest/", "https://10.0.0.1/", "http://192.168.0.1/", "http://[fe80::1]/",
        "http://[64:ff9b::7f00:1]/", "http://224.0.0.1/", "http://255.255.255.255/"}) {
    const Fetched fetched = fetch(fetcher, {url});
    ASSERT_FALSE(fetched) << url;
    // Some resolvers refuse some of these spellings as names.
    const std::string& message = fetched.error().error.message;
    EXPECT_TRUE(message.contains("no public address")) << url << ": " << message;
  }
}

TEST_F(ImageFetcherTest, AHostIsAskedAtItsNextAddressWhereOneTakesNoConnection) {
  const Server server({{"/a", response(whole("one"))}});
  const std::string port = server.host().substr(server.host().rfind(':'));
  ImageUrlRules rules = rules_for(server);
  rules.hosts = {"localhost" + port, "127.0.0.1:1"};
  CurlImageFetcher fetcher(rules, 1 << 20);
  EXPECT_TRUE(fetch(fetcher, {"http://localhost" + port + "/a"})) << "::1 and 127.0.0.1, where the server is";
  const Fetched none = fetch(fetcher, {"http://127.0.0.1:1/a"});
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().error.message.contains(": Connection refused")) << none.error().error.message;
}

TEST_F(ImageFetcherTest, ReportsWhichImageFailed) {
  const Server server({{"/a", response(whole("one"))}});
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  Fetched fetched = fetch(fetcher, {server.url("/a"), "http://127.0.0.1:1/", server.url("/a")});
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().index, 1u);
  EXPECT_TRUE(fetched.error().error.message.starts_with("the image's URL")) << fetched.error().error.message;
}

TEST_F(ImageFetcherTest, BoundsTheMemoryOfTransfers) {
  const Server server({{"/a", response(whole("one"))}, {"/b", response("HTTP/1.1 200 OK\r\n\r\ntwo")}});
  CurlImageFetcher fetcher(rules_for(server), 900);  // Less than the limit of one image.
  EXPECT_TRUE(fetch(fetcher, {server.url("/a"), server.url("/a")}));
  const Fetched unknown = fetch(fetcher, {server.url("/b")});
  ASSERT_FALSE(unknown) << "the response has no length";
  EXPECT_EQ(unknown.error().error.code, ErrorCode::limit_wait);
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")}));
}

TEST_F(ImageFetcherTest, ARequestThatEndsEndsItsFetch) {
  std::promise<void> is_asked;
  std::promise<void> is_left;
  const Server server({{"/silent",
                        [&](const Peer& peer) {
                          is_asked.set_value();
                          peer.wait_for_end();
                          is_left.set_value();
                        }},
                       {"/a", response(whole("one"))}});
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  std::stop_source request;
  std::atomic<bool> is_done{false};
  fetcher.fetch(TenantId{"t"}, {server.url("/silent")}, kNever, request.get_token(),
                [&](const Fetched&) { is_done.store(true); });
  is_asked.get_future().wait();
  request.request_stop();
  is_left.get_future().wait();
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")})) << "others go on";
  fetcher.fetch(TenantId{"t"}, {server.url("/a")}, kNever, request.get_token(), [&](const Fetched&) { is_done.store(true); });
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")}));
  EXPECT_FALSE(is_done.load());
}

TEST_F(ImageFetcherTest, ALookUpBlocksNoOtherRequest) {
  const Server server({{"/a", response(whole("one"))}});
  ImageUrlRules rules = rules_for(server);
  rules.hosts.emplace_back("held.test:80");
  CurlImageFetcher fetcher(rules, 1 << 20);
  std::stop_source request;
  fetcher.fetch(TenantId{"t"}, {"http://held.test/"}, kNever, request.get_token(), [](const Fetched&) { FAIL(); });
  held_name().is_asked.acquire();
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")}));
  request.request_stop();
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")})) << "also not when the request ends";
  const Fetched late = fetch(fetcher, {"http://held.test/"}, SteadyClock().now() + std::chrono::milliseconds(20));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().error.code, ErrorCode::limit_wait);
  EXPECT_TRUE(fetch(fetcher, {server.url("/a")}));
  fetcher.stop();
  held_name().release.set_value();
}

TEST_F(ImageFetcherTest, AnswersRunningRequestsWhenItStops) {
  std::promise<void> is_asked;
  const Server server({{"/silent", [&](const Peer& peer) {
                          is_asked.set_value();
                          peer.wait_for_end();
                        }}});
  CurlImageFetcher fetcher(rules_for(server), 1 << 20);
  std::promise<Fetched> running;
  fetcher.fetch(TenantId{"t"}, {server.url("/silent")}, kNever, {},
                [&](Fetched fetched) { running.set_value(std::move(fetched)); });
  is_asked.get_future().wait();
  fetcher.stop();
  const Fetched ended = running.get_future().get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().error.code, ErrorCode::limit_wait);
  const Fetched late = fetch(fetcher, {server.url("/silent")});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().error.code, ErrorCode::limit_wait);
}

}  // namespace
}  // namespace uma::fetch
