#include "server/http_server.h"

#include <arpa/inet.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "server/service_test_support.h"

namespace uma::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Answer {
  int status = 0;  // 0: the stream ended before one
  std::string head;
  std::string body;  // of chunks: joined
};

// Speaks HTTP as plain bytes. All waits are bounded; what does not come is a test failure.
class HttpClient {
 public:
  explicit HttpClient(const std::string& socket_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  // `receive_buffer_bytes`: what the kernel may hold for the client; 0: its own choice.
  explicit HttpClient(std::uint16_t port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (receive_buffer_bytes > 0) {
      EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes)), 0);
    }
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // refused meanwhile; the answer tells
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void get(const std::string& path, const std::string& header = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& header = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }

  Answer answer() {
    Answer result;
    const std::optional<std::string> head = take_until("\r\n\r\n");
    if (!head) return result;
    result.head = *head;
    result.status = std::stoi(head->substr(9, 3));
    if (const std::size_t at = head->find("Content-Length: "); at != std::string::npos) {
      result.body = take(std::stoul(head->substr(at + 16)));
    } else if (head->contains("Transfer-Encoding: chunked")) {
      while (std::optional<std::string> chunk = next_chunk()) result.body += *chunk;
    } else if (head->contains("Connection: close")) {
      while (receive()) {
      }
      result.body = std::exchange(in_, "");
    }
    return result;
  }
  std::optional<std::string> take_until(std::string_view end) {
    std::size_t at = in_.find(end);
    while (at == std::string::npos) {
      if (!receive()) return std::nullopt;
      at = in_.find(end);
    }
    std::string taken = in_.substr(0, at + end.size());
    in_.erase(0, at + end.size());
    return taken;
  }
  // Nothing for the last chunk.
  std::optional<std::string> next_chunk() {
    const std::optional<std::string> size = take_until("\r\n");
    if (!size) return std::nullopt;
    const std::size_t bytes = std::stoul(*size, nullptr, 16);
    std::string chunk = take(bytes);
    EXPECT_EQ(take(2), "\r\n");
    if (bytes == 0) return std::nullopt;
    return chunk;
  }
  // So many bytes, or fewer where the stream ends.
  std::string take(std::size_t bytes) {
    while (in_.size() < bytes && receive()) {
    }
    std::string taken = in_.substr(0, bytes);
    in_.erase(0, taken.size());
    return taken;
  }
  [[nodiscard]] bool has_ended() {
    while (receive()) {
    }
    return in_.empty();
  }
  void end_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }

 private:
  bool receive() {
    const std::string received = receive_some(fd_.get());
    in_ += received;
    return !received.empty();
  }

  UniqueFd fd_;
  std::string in_;
};

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kHello = R"({"messages":[{"role":"user","content":"hi"}]})";
constexpr const char* kHelloStream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpServerOptions options = {}) {
    auto server = HttpServer::start(std::move(options), service_);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }
  HttpClient client() { return HttpClient(server_->port()); }
  // The status of the answer to these bytes.
  int status_of(std::string_view bytes) {
    HttpClient one = client();
    one.send(bytes);
    return one.answer().status;
  }

  FakeService service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  start();
  HttpClient one = client();
  for (const auto& [path, status] : std::vector<std::pair<std::string, int>>{{"/health", 200},
                                                                             {"/ready", 503},
                                                                             {"/v1/models", 200},
                                                                             {"/v1/models/fake", 200},
                                                                             {"/v1/models/other", 404},
                                                                             {"/metrics", 200},
                                                                             {"/nothing", 404},
                                                                             {"/v1/chat/completions", 405},
                                                                             {"/health?x=1", 200}}) {
    one.get(path);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, status) << path << ": " << answer.body;
    EXPECT_THAT(answer.head, HasSubstr("keep-alive")) << path;
  }
}

TEST_F(HttpServerTest, AnswersAGeneration) {
  start();
  HttpClient one = client();
  one.post(kChat, kHello);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_FALSE(generation.request.options.stream);
  EXPECT_EQ(generation.request.input.messages.front().content, "hi");
  EXPECT_NE(generation.request.client, 0U);
  generation.sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("content":"hello")"));
  EXPECT_TRUE(server_->wait_idle(kPatience));
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(HttpServerTest, StreamsAGenerationAndKeepsTheConnection) {
  start();
  HttpClient one = client();
  for (int round = 0; round < 2; ++round) {
    one.post(kChat, kHelloStream);
    const FakeService::Generation generation = service_.next_generation();
    EXPECT_TRUE(generation.sink->deliver(token("a")));
    EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("Content-Type: text/event-stream"));
    const std::string first = *one.next_chunk();
    EXPECT_THAT(first, HasSubstr(R"("role":"assistant")"));
    EXPECT_THAT(first, HasSubstr(R"("content":"a")"));
    EXPECT_TRUE(generation.sink->deliver(token("b")));
    EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("content":"b")"));
    generation.sink->deliver(eos());
    EXPECT_TRUE(one.next_chunk()->ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(one.next_chunk(), std::nullopt);
  }
}

TEST_F(HttpServerTest, StreamsWithoutChunksToHttp10) {
  start();
  HttpClient one = client();
  const std::string body = kHelloStream;
  one.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("a"));
  generation.sink->deliver(eos());
  const Answer answer = one.answer();
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  EXPECT_THAT(answer.body, StartsWith("data: {"));
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpServerTest, SaysAFailureWithItsStatusAlsoWhereAStreamWasAskedFor) {
  start();
  HttpClient one = client();
  for (const char* body : {kHello, kHelloStream}) {
    one.post(kChat, body);
    service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::limit_wait, "too late"}});
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.head, HasSubstr("Retry-After: "));
    EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_LIMIT_003")"));
  }
}

TEST_F(HttpServerTest, SaysAnErrorInsideAStreamAsAnEvent) {
  start();
  HttpClient one = client();
  one.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("a"));
  generation.sink->deliver(EosEvent{FinishReason::error, {}, "", Error{ErrorCode::runtime_decode, "broken"}});
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_RUNTIME_001")"));
}

constexpr const char* kThree = R"({"messages":[{"role":"user","content":"hi"}],"n":3,"seed":5})";
constexpr const char* kThreeStreamed = R"({"messages":[{"role":"user","content":"hi"}],"n":3,"stream":true})";

TEST_F(HttpServerTest, AnswersWithEveryChoice) {
  start();
  HttpClient one = client();
  one.post(kChat, kThree);
  std::vector<FakeService::Generation> generations;
  for (std::uint64_t i = 0; i < 3; ++i) {
    generations.push_back(service_.next_generation());
    EXPECT_EQ(generations.back().request.options.sampling.seed, 5u) << "the service counts up from it";
  }
  for (const std::size_t i : {2u, 0u, 1u}) {
    generations[i].sink->deliver(EosEvent{FinishReason::stop, {}, "said" + std::to_string(i), std::nullopt});
  }
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  std::size_t at = 0;
  for (const char* said : {"said0", "said1", "said2"}) {
    const std::size_t found = answer.body.find(said);
    EXPECT_GE(found, at) << said;
    EXPECT_NE(found, std::string::npos) << said;
    at = found;
  }
  EXPECT_TRUE(server_->wait_idle(kPatience));
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(HttpServerTest, ABodyIsCountedUntilTheServiceIsAsked) {
  start();
  HttpClient one = client();
  const std::string body = std::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(100'000, 'x'));
  one.send(std::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.size()) +
           body.substr(0, 50'000));
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() >= 50'000; }));
  EXPECT_EQ(service_.request_bytes(), 50'000u) << "what has come, not what was announced";
  one.send(body.substr(50'000));
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
  generation.sink->deliver(eos());
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(HttpServerTest, BodiesThatThereIsNoRoomForAreRefused) {
  start();
  const RequestShare others = service_.open_share(TenantId{"others"});
  ASSERT_TRUE(others->grow((1ul << 29) - 1));
  const RequestShare own = service_.open_share(TenantId{"uid:" + std::to_string(::geteuid())});
  ASSERT_TRUE(own->grow(1ul << 28));
  HttpClient one = client();
  one.post(kChat, std::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(1000, 'x')));
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: "));
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_LIMIT_003")"));
}

TEST_F(HttpServerTest, StreamsEveryChoiceAndEndsWithTheLast) {
  start();
  HttpClient one = client();
  one.post(kChat, kThreeStreamed);
  std::vector<FakeService::Generation> generations;
  for (int i = 0; i < 3; ++i) generations.push_back(service_.next_generation());
  for (const std::size_t i : {1u, 2u, 0u}) EXPECT_TRUE(generations[i].sink->deliver(token("t" + std::to_string(i))));
  for (const std::size_t i : {2u, 0u, 1u}) generations[i].sink->deliver(eos());
  const std::string body = one.answer().body;
  for (const char* said : {R"("index":0,"delta":{"content":"t0"})", R"("index":1,"delta":{"content":"t1"})",
                           R"("index":2,"delta":{"content":"t2"})"}) {
    EXPECT_THAT(body, HasSubstr(said));
  }
  EXPECT_EQ(body.find("[DONE]"), body.size() - std::string_view("[DONE]\n\n").size());
}

TEST_F(HttpServerTest, FailsAsAWholeWhereOneChoiceDoes) {
  start();
  for (const char* body : {kThree, kThreeStreamed}) {
    const std::size_t cancelled_before = service_.cancelled().size();
    HttpClient one = client();
    one.post(kChat, body);
    std::vector<FakeService::Generation> generations;
    for (int i = 0; i < 3; ++i) generations.push_back(service_.next_generation());
    generations[1].sink->deliver(FailureEvent{{ErrorCode::proto_field, "no", "tools[0]"}});
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.body, HasSubstr(R"("param":"tools[0]")"));
    EXPECT_TRUE(service_.wait_cancelled(cancelled_before + 2)) << "the others end with it";
    for (const std::size_t i : {0u, 2u}) generations[i].sink->deliver(eos(FinishReason::cancelled));
  }
}

TEST_F(HttpServerTest, AChoiceThatFailsInTheMiddleEndsTheStream) {
  start();
  HttpClient one = client();
  one.post(kChat, kThreeStreamed);
  std::vector<FakeService::Generation> generations;
  for (int i = 0; i < 3; ++i) generations.push_back(service_.next_generation());
  generations[0].sink->deliver(token("a"));
  generations[2].sink->deliver(EosEvent{FinishReason::error, {}, "", Error{ErrorCode::runtime_decode, "broken"}});
  generations[0].sink->deliver(token("too late"));
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_RUNTIME_001")"));
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(service_.wait_cancelled(2));
}

TEST_F(HttpServerTest, CancelsEveryChoiceThatAClientLeaves) {
  start();
  HttpClient one = client();
  one.post(kChat, kThreeStreamed);
  std::vector<FakeService::Generation> generations;
  for (int i = 0; i < 3; ++i) generations.push_back(service_.next_generation());
  one.close();
  EXPECT_TRUE(service_.wait_cancelled(3));
  for (const FakeService::Generation& generation : generations) generation.sink->deliver(eos(FinishReason::cancelled));
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

TEST_F(HttpServerTest, CancelsWhatAClientLeaves) {
  start();
  for (const char* body : {kHello, kHelloStream}) {
    HttpClient one = client();
    one.post(kChat, body);
    const FakeService::Generation generation = service_.next_generation();
    one.close();
    ASSERT_TRUE(service_.wait_cancelled(generation.id.value));
    EXPECT_EQ(service_.cancelled().back(), generation.id);
    generation.sink->deliver(token("nobody reads this"));
    generation.sink->deliver(eos(FinishReason::cancelled));
  }
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  HttpClient one = client();
  const std::string body = kHello;
  one.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body +
           "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  EXPECT_THAT(one.answer().body, HasSubstr("hello"));
  EXPECT_THAT(one.answer().body, HasSubstr("ok"));
  EXPECT_EQ(one.answer().status, 404);
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(HttpServerTest, EndsAStreamThatNobodyReadsAndNeverBlocksItsProducer) {
  HttpServerOptions options;
  options.limits.tx_bytes_max = 10'000;
  options.write_timeout = milliseconds(200);
  start(options);
  HttpClient one = client();
  one.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  const std::string text(1'000, 'x');
  // More than the kernel holds for a connection on any machine.
  int taken = 0;
  while (taken < 100'000 && generation.sink->deliver(token(text))) ++taken;
  EXPECT_LT(taken, 100'000);
  generation.sink->deliver(eos(FinishReason::slow_consumer));
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

// An answer of more bytes than the kernel holds for a connection on any machine.
EmbedResult long_result() {
  EmbedResult result;
  result.model = "fake";
  result.dimensions = 1 << 23;
  result.values.assign(static_cast<std::size_t>(result.dimensions), 1);
  return result;
}
constexpr std::size_t kLongBytes = 1 << 24;  // at least, as JSON
constexpr int kSmallBuffer = 65'536;

TEST_F(HttpServerTest, GivesASlowReaderItsTimeForEachPartOfAnAnswer) {
  constexpr std::chrono::seconds kWriteTimeout{2};
  start({.write_timeout = kWriteTimeout});
  HttpClient one(server_->port(), kSmallBuffer);
  one.post("/v1/embeddings", R"({"input":"a"})");
  service_.next_embedding().reply(long_result());
  const std::string head = one.take_until("\r\n\r\n").value_or("");
  const std::size_t bytes = std::stoul(head.substr(head.find("Content-Length: ") + 16));
  ASSERT_GT(bytes, kLongBytes);
  std::size_t taken = 0;
  // In steps that take longer together than any part may, and then at once.
  for (const auto end = std::chrono::steady_clock::now() + 2 * kWriteTimeout; std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(20));
    taken += one.take(kSmallBuffer / 2).size();
  }
  EXPECT_LT(taken, bytes / 2) << "the server still writes";
  EXPECT_EQ(taken + one.take(bytes - taken).size(), bytes);
}

TEST_F(HttpServerTest, ClosesWhoStopsReadingAndLogsWhatWasWritten) {
  const std::string path = std::filesystem::temp_directory_path() / ("uma_http_cut_test_" + std::to_string(::getpid()));
  start({.write_timeout = milliseconds(200), .access_log = path});
  HttpClient one(server_->port(), kSmallBuffer);
  one.post("/v1/embeddings", R"({"input":"a"})");
  service_.next_embedding().reply(long_result());
  EXPECT_TRUE(server_->wait_idle(kPatience));
  const std::string head = one.take_until("\r\n\r\n").value_or("");
  const std::size_t taken = head.size() + one.take(kLongBytes).size();
  EXPECT_LT(taken, kLongBytes) << "it was closed";
  server_->stop();
  std::ifstream file(path);
  const std::string line(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  EXPECT_THAT(line, HasSubstr(std::format("POST /v1/embeddings 200 {}B ", taken))) << "what was written, not what was meant";
  EXPECT_THAT(line, ::testing::EndsWith(" cut\n"));
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndAsksForThemWhereTheClientWaits) {
  start();
  HttpClient one = client();
  one.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(one.take_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  const std::string body = kHello;
  for (const char byte : body) one.send(std::string("1\r\n") + byte + "\r\n");
  one.send("0\r\n\r\n");
  service_.next_generation().sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  EXPECT_EQ(one.answer().status, 200);
}

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

// The key is "secret".
ApiKey key_named(const std::string& name) {
  return {.name = name, .digest = sha256("secret"), .tenant = {"key:" + name}};
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

constexpr uid_t kSomebodyElse = 12'345;

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

TEST_F(HttpServerTest, ListsSessionsInPages) {
  start();
  HttpClient one = client();
  const auto get = [&](const std::string& query) {
    one.get("/v1/sessions" + query);
    return one.answer();
  };
  EXPECT_THAT(get("").body, HasSubstr(R"("has_more":false)"));
  const Answer page = get("?after=a%20tale&limit=1");
  EXPECT_THAT(page.body, HasSubstr(R"("name":"behind a tale")"));
  EXPECT_THAT(page.body, HasSubstr(R"("has_more":true)"));
  for (const char* limit : {"0", "10001", "-1", "x", "99999999999999999999"}) {
    const Answer refused = get("?limit=" + std::string(limit));
    EXPECT_EQ(refused.status, 400) << limit;
    EXPECT_THAT(refused.body, HasSubstr(R"("param":"limit")"));
  }
}

EmbedResult two_numbers() {
  EmbedResult result;
  result.model = "fake";
  result.dimensions = 2;
  result.values = {0.5f, 1};
  result.tokens = 900;
  return result;
}

TEST_F(HttpServerTest, AnswersEmbeddingsAndChargesTheirTokens) {
  ApiKey key = key_named("ci");
  key.tokens_per_minute = 100;
  start({.keys = {key}});
  HttpClient one = client();
  one.post("/v1/embeddings", R"({"input":["a"]})", "Authorization: Bearer secret\r\n");
  FakeService::Embedding embedding = service_.next_embedding();
  EXPECT_EQ(embedding.tenant, key.tenant);
  EXPECT_NE(embedding.request.options.client, 0U);
  embedding.reply(two_numbers());
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("embedding":[0.5,1])"));
  one.post("/v1/embeddings", R"({"input":["a"]})", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(one.answer().status, 429);
}

TEST_F(HttpServerTest, AnswersRerankingWithTheDocuments) {
  start();
  HttpClient one = client();
  for (const char* path : {"/v1/rerank", "/v2/rerank", "/rerank"}) {
    one.post(path, R"({"query":"q","documents":["a","b"],"return_documents":true})");
    service_.next_reranking().reply(RerankResult{.model = "fake", .scores = {{1, 2}}, .tokens = 3});
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_THAT(answer.body, HasSubstr(R"("results":[{"index":1,"relevance_score":2,"document":{"text":"b"}}])"));
  }
}

TEST_F(HttpServerTest, SaysWhyThereAreNoEmbeddings) {
  start();
  HttpClient one = client();
  one.post("/v1/embeddings", R"({"input":"a"})");
  service_.next_embedding().reply(fail(ErrorCode::limit_wait, "too late"));
  const Answer late = one.answer();
  EXPECT_EQ(late.status, 503);
  EXPECT_THAT(late.head, HasSubstr("Retry-After: "));
  one.post("/v1/embeddings", R"({"input":""})");
  const Answer empty = one.answer();
  EXPECT_EQ(empty.status, 400);
  EXPECT_THAT(empty.body, HasSubstr(R"("param":"input")"));
}

TEST_F(HttpServerTest, CancelsEmbeddingsThatAClientLeaves) {
  start();
  HttpClient one = client();
  one.post("/v1/embeddings", R"({"input":"a"})");
  FakeService::Embedding embedding = service_.next_embedding();
  one.close();
  ASSERT_TRUE(service_.wait_cancelled(1));
  EXPECT_EQ(service_.cancelled().back(), embedding.id);
  embedding.reply(two_numbers());  // to nobody
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

TEST_F(HttpServerTest, ChargesTheTokensOfWhatAClientLeft) {
  ApiKey key = key_named("ci");
  key.tokens_per_minute = 100;
  start({.keys = {key}});
  HttpClient one = client();
  one.post(kChat, kHelloStream, "Authorization: Bearer secret\r\n");
  const FakeService::Generation generation = service_.next_generation();
  one.close();
  ASSERT_TRUE(service_.wait_cancelled(1));
  generation.sink->deliver(
      EosEvent{FinishReason::cancelled, {.prompt_tokens = 900, .completion_tokens = 100}, "", std::nullopt});
  HttpClient two = client();
  two.post(kChat, kHello, "Authorization: Bearer secret\r\n");
  const Answer answer = two.answer();
  EXPECT_EQ(answer.status, 429);
  EXPECT_THAT(answer.head, HasSubstr("x-ratelimit-remaining-tokens: 0\r\n"));
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

TEST_F(HttpServerTest, NamesEveryRequest) {
  start();
  HttpClient one = client();
  one.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n\r\n");
  EXPECT_THAT(one.answer().head, HasSubstr("x-request-id: mine-1\r\n"));
  one.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: not (mine)\r\n\r\n");
  const Answer second = one.answer();
  EXPECT_THAT(second.head, HasSubstr("x-request-id: "));
  EXPECT_THAT(second.head, Not(HasSubstr("mine")));
  one.post(kChat, kHelloStream, "X-Request-Id: stream-1\r\n");
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("a"));
  generation.sink->deliver(eos());
  EXPECT_THAT(one.answer().head, HasSubstr("x-request-id: stream-1\r\n"));
}

TEST_F(HttpServerTest, LogsEveryRequestAndNothingThatWasSaid) {
  const std::string path = std::filesystem::temp_directory_path() / ("uma_http_server_test_" + std::to_string(::getpid()));
  start({.keys = {key_named("ci")}, .access_log = path});
  HttpClient one = client();
  one.post(kChat, R"({"messages":[{"role":"user","content":"a secret thought"}]})",
           "X-Request-Id: r1\r\nAuthorization: Bearer secret\r\n");
  service_.next_generation().sink->deliver(
      EosEvent{FinishReason::stop, {.prompt_tokens = 7, .completion_tokens = 3}, "a secret reply", std::nullopt});
  EXPECT_EQ(one.answer().status, 200);
  one.send("GET /v1/models?key=secret HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r2\r\n\r\n");
  EXPECT_EQ(one.answer().status, 401);
  one.send("nonsense\r\n\r\n");
  EXPECT_EQ(one.answer().status, 400);
  server_->stop();
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "POST /v1/chat/completions 200 [0-9]+B [0-9.]+ms tenant=key:ci key=ci id=r1 tokens=7\\+3\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("GET /v1/models 401 [0-9]+B [0-9.]+ms tenant=- key=- id=r2\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("- - 400 "));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST_F(HttpServerTest, SendsNoBodyToHead) {
  start();
  HttpClient one = client();
  one.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(HttpServerTest, ServesOtherAddressesWithKeysOnly) {
  HttpServerOptions options{.address = "0.0.0.0"};
  EXPECT_FALSE(HttpServer::start(options, service_).has_value());
  options.keys = {key_named("ci")};
  EXPECT_TRUE(HttpServer::start(options, service_).has_value());
}

TEST_F(HttpServerTest, ServesOnASocketThatListensAlready) {
  UniqueFd managers(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(managers.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(managers.get(), 8), 0);
  ASSERT_EQ(::getsockname(managers.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  for (int life = 0; life < 2; ++life) {
    auto server = HttpServer::start({.port = ntohs(address.sin_port)}, service_, UniqueFd(::dup(managers.get())));
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
    EXPECT_EQ(server_->port(), ntohs(address.sin_port));
    HttpClient one = client();
    one.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(one.answer().status, 200) << "life " << life;
    server_.reset();
  }
}

TEST_F(HttpServerTest, RefusesRequestsThatTwoReadersCouldReadDifferently) {
  start();
  const std::string post = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
  for (const char* rest :
       {"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "Content-Length: -1\r\n\r\n",
        "Content-Length: 2x\r\n\r\n{}", "Content-Length : 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Content-Length: 99999999999999999999999\r\n\r\n"}) {
    HttpClient one = client();
    one.send(post + rest);
    EXPECT_EQ(one.answer().status, 400) << rest;
    EXPECT_TRUE(one.has_ended()) << rest;
  }
}

TEST_F(HttpServerTest, RefusesHostileFramingWhileAStreamGoesOn) {
  using namespace std::string_literals;
  start();
  HttpClient reader = client();
  reader.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  const std::string get = "GET /health HTTP/1.1\r\n";
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  struct Case {
    const char* what;
    std::string bytes;
    int status;
  };
  for (const Case& each : std::vector<Case>{
           {"two hosts", get + "Host: localhost\r\nhost: localhost\r\n\r\n", 400},
           {"an absolute target of another host", "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
           {"an authority as target", "GET localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
           {"an asterisk as target", "GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
           {"CONNECT", "CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
           {"a bare LF after the request line", "GET /health HTTP/1.1\nHost: localhost\r\n\r\n", 400},
           {"a bare LF after a field", get + "Host: localhost\nX: y\r\n\r\n", 400},
           {"a bare CR in a value", get + "Host: localhost\r\nX: a\rb\r\n\r\n", 400},
           {"a NUL in a name", get + "Host: localhost\r\nX\0Y: a\r\n\r\n"s, 400},
           {"a NUL in a value", get + "Host: localhost\r\nX: a\0b\r\n\r\n"s, 400},
           {"a name with a blank", get + "Host: localhost\r\nX Y: a\r\n\r\n", 400},
           {"no name", get + "Host: localhost\r\n: a\r\n\r\n", 400},
           {"a line that is no field", get + "Host: localhost\r\nnonsense\r\n\r\n", 400},
           {"a length with a sign", post + "Content-Length: +2\r\n\r\n{}", 400},
           {"a list of lengths", post + "Content-Length: 2, 3\r\n\r\n{}", 400},
           {"a length in hexadecimal", post + "Content-Length: 0x2\r\n\r\n{}", 400},
           {"a folded length", post + "Content-Length: 1\r\n 0\r\n\r\n{}", 400},
           {"chunked twice", post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
           {"chunked in disguise", post + "Transfer-Encoding: x\r\n chunked\r\n\r\n0\r\n\r\n", 400},
           {"a coding in HTTP/1.0", "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
           {"a chunk's size with a sign", chunked + "-1\r\n{}\r\n0\r\n\r\n", 400},
           {"a chunk's size with 0x", chunked + "0x2\r\n{}\r\n0\r\n\r\n", 400},
           {"a chunk's size beyond 64 bits", chunked + "10000000000000002\r\n{}\r\n0\r\n\r\n", 400},
           {"a chunk that is longer than it says", chunked + "2\r\n{}{}\r\n0\r\n\r\n", 400},
           {"a chunk's size with a bare LF", chunked + "2\n{}\r\n0\r\n\r\n", 400},
       }) {
    HttpClient one = client();
    one.send(each.bytes);
    one.end_sending();
    EXPECT_EQ(one.answer().status, each.status) << each.what;
  }
  HttpClient garbage = client();
  garbage.send(get + "Host: localhost\r\n\r\n\x16\x03\x01nonsense\r\n\r\n");
  EXPECT_EQ(garbage.answer().status, 200) << "what came before garbage is answered";
  EXPECT_EQ(garbage.answer().status, 400);
  EXPECT_TRUE(garbage.has_ended());
  EXPECT_TRUE(generation.sink->deliver(token("a")));
  generation.sink->deliver(eos());
  EXPECT_THAT(reader.answer().body, HasSubstr(R"("content":"a")"));
}

TEST_F(HttpServerTest, TakesChunkExtensionsForNothingAndBoundsThem) {
  start();
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  HttpClient one = client();
  const std::string body = kHello;
  one.send(head + std::format("{:x};name=\"value\"\r\n", body.size()) + body + "\r\n0\r\n\r\n");
  service_.next_generation().sink->deliver(eos());
  EXPECT_EQ(one.answer().status, 200);
  HttpClient endless = client();
  endless.send(head + "2;" + std::string(1'000'000, 'x'));
  EXPECT_EQ(endless.answer().status, 431);
}

TEST_F(HttpServerTest, BoundsHeadersAndBodies) {
  HttpServerOptions options;
  options.limits.max_frame_bytes = 1'000;
  start(options);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                      std::string(1'001, 'x') + "\r\n0\r\n\r\n"),
            413);
  EXPECT_EQ(
      status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
      415);
}

TEST_F(HttpServerTest, EndsRequestsThatDoNotCome) {
  HttpServerOptions options;
  options.header_timeout = milliseconds(100);
  options.body_timeout = milliseconds(100);
  options.idle_timeout = milliseconds(100);
  start(options);
  EXPECT_EQ(status_of("GET /health HT"), 408);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"), 408);
  EXPECT_TRUE(client().has_ended());
}

TEST_F(HttpServerTest, SaysThatABodyEndsTooEarly) {
  start();
  HttpClient one = client();
  one.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
  one.end_sending();
  EXPECT_EQ(one.answer().status, 400);
}

TEST_F(HttpServerTest, BoundsItsConnections) {
  HttpServerOptions options;
  options.connections_max = 1;
  start(options);
  HttpClient first = client();
  first.get("/health");
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_TRUE(client().has_ended());
  first.get("/health");
  EXPECT_EQ(first.answer().status, 200);
}

// Keeps connections open, of which the server has answered one request each.
class Crowd {
 public:
  // Whether one more was served; false: the server closed it.
  bool add(std::uint16_t port, const std::string& header = "") {
    HttpClient& one = clients_.emplace_back(port);
    one.send("GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
    return one.answer().status == 200;
  }
  void leave() { clients_.clear(); }

 private:
  std::vector<HttpClient> clients_;
};

TEST_F(HttpServerTest, BoundsTheConnectionsOfAPeerThatHasShownNoKey) {
  start({.connections_max = 4, .keys = {key_named("ci")}});
  Crowd crowd;
  EXPECT_TRUE(crowd.add(server_->port()));
  EXPECT_TRUE(crowd.add(server_->port()));
  EXPECT_FALSE(crowd.add(server_->port())) << "it has its half";
  HttpClient socket = client();
  EXPECT_TRUE(socket.has_ended());
  crowd.leave();
  bool is_served = false;  // once the server has noticed that they have left
  for (int i = 0; i < 10'000 && !is_served; ++i) is_served = Crowd().add(server_->port());
  EXPECT_TRUE(is_served) << "what it has closed is free";
}

TEST_F(HttpServerTest, LetsWhoShowsAKeyHaveEveryConnection) {
  start({.connections_max = 4, .keys = {key_named("ci")}});
  Crowd crowd;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(crowd.add(server_->port(), "Authorization: Bearer secret\r\n")) << i;
}

TEST_F(HttpServerTest, LetsItsOwnUserHaveEveryConnectionWhereThereAreNoKeys) {
  start({.connections_max = 4});
  Crowd crowd;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(crowd.add(server_->port())) << i;
}

TEST_F(HttpServerTest, LeavesConnectionsToOthersWhenOneUserWantsAll) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  for (const bool serves_all : {false, true}) {
    start({.connections_max = 4, .serves_local_users = serves_all});
    Crowd crowd;
    std::thread([&] {
      ASSERT_EQ(::syscall(SYS_setresuid, kSomebodyElse, kSomebodyElse, kSomebodyElse), 0);
      for (const bool is_served : {true, true, false, false}) EXPECT_EQ(crowd.add(server_->port()), is_served);
    }).join();
    EXPECT_TRUE(crowd.add(server_->port())) << "another user is served";
  }
}

TEST_F(HttpServerTest, FinishesWhatRunsWhileItDrains) {
  start();
  HttpClient idle = client();
  idle.get("/health");
  EXPECT_EQ(idle.answer().status, 200);
  HttpClient one = client();
  one.post(kChat, kHello);
  const FakeService::Generation generation = service_.next_generation();
  server_->stop_accepting();
  EXPECT_FALSE(server_->wait_idle(milliseconds(1)));
  EXPECT_TRUE(idle.has_ended());
  generation.sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  EXPECT_THAT(one.answer().body, HasSubstr("hello"));
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

TEST_F(HttpServerTest, CancelsWhatRunsWhenItStops) {
  start();
  HttpClient one = client();
  one.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  server_->stop();
  EXPECT_EQ(service_.cancelled(), std::vector<RequestId>{generation.id});
  EXPECT_TRUE(one.has_ended());
  EXPECT_EQ(server_->connections_count(), 0U);
  server_.reset();
  generation.sink->deliver(token("nobody reads this"));
  generation.sink->deliver(eos(FinishReason::cancelled));
}

TEST_F(HttpServerTest, SaysThatAPortIsTaken) {
  start();
  HttpServerOptions options;
  options.port = server_->port();
  const auto second = HttpServer::start(options, service_);
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(options.port)));
}

}  // namespace
}  // namespace uma::server
