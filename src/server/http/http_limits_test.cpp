// Clients that are slow, hostile or many.
#include <chrono>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_generation.h"
#include "server/http/http_server_test_support.h"
#include "wire/openai/response_writer.h"

namespace uma::server {
namespace {

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

TEST_F(HttpServerTest, LongBodiesAreReadApart) {
  start();
  HttpClient one = client();
  const auto ask = [&](std::size_t bytes) {
    one.post(kChat, std::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(bytes, 'x')));
    const FakeService::Generation generation = service_.next_generation();
    EXPECT_EQ(generation.request.input.messages.at(0).content.size(), bytes);
    generation.sink->deliver(eos());
    EXPECT_EQ(one.answer().status, 200);
  };
  ask(1000);
  EXPECT_TRUE(service_.apart().empty());
  ask(100'000);
  ASSERT_EQ(service_.apart().size(), 1u);
  EXPECT_EQ(service_.apart()[0].first, (TenantId{"uid:" + std::to_string(::geteuid())}));
  EXPECT_GE(service_.apart()[0].second, 100'000u);
  one.post("/v1/responses", std::format(R"({{"input":"{}","temperature":"hot"}})", std::string(100'000, 'x')));
  EXPECT_EQ(one.answer().status, 400);
  EXPECT_EQ(service_.apart().size(), 3u) << "the items that it refers to, and all of it";
}

TEST_F(HttpServerTest, WorkOfAConnectionThatHasEndedIsNobodys) {
  start();
  service_.hold_apart();
  std::optional<HttpClient> one(client());
  one->post(kChat, std::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(100'000, 'x')));
  ASSERT_TRUE(becomes([&] { return service_.apart().size() == 1; }));
  one.reset();
  server_.reset();
  EXPECT_GE(service_.request_bytes(), 100'000u) << "the body waits";
  for (auto& work : service_.take_held()) work();
  EXPECT_EQ(service_.request_bytes(), 0u);
}

TEST_F(HttpServerTest, WorkThatIsDroppedEndsItsConnection) {
  start();
  service_.hold_apart();
  HttpClient one = client();
  one.post(kChat, std::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(100'000, 'x')));
  ASSERT_TRUE(becomes([&] { return service_.apart().size() == 1; }));
  (void)service_.take_held();
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
}

TEST_F(HttpServerTest, LongAnswersAreCountedUntilTheyAreRead) {
  start();
  HttpClient one = client();
  one.send("GET /v1/sessions/s HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(one.answer().status, 200);
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
  const RequestShare others = service_.open_share(TenantId{"others"});
  ASSERT_TRUE(others->grow((1ul << 29) - 1));
  const RequestShare own = service_.open_share(TenantId{"uid:" + std::to_string(::geteuid())});
  ASSERT_TRUE(own->grow((1ul << 28)));
  one.send("GET /v1/sessions/s HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: "));
}

// Others hold almost half of a service's memory, and this test's tenant as much as it may, but for `room`.
struct FullMemory {
  explicit FullMemory(FakeService& service, std::uint64_t room = 0)
      : others(service.open_share(TenantId{"others"})),
        own(service.open_share(TenantId{"uid:" + std::to_string(::geteuid())})) {
    EXPECT_TRUE(others->grow((1ul << 29) - 1));
    EXPECT_TRUE(own->grow((1ul << 28) - room));
  }
  const RequestShare others;
  const RequestShare own;
};

std::string many_texts(int count) {
  std::string texts = R"("a")";
  for (int i = 1; i < count; ++i) texts += R"(,"a")";
  return texts;
}

TEST_F(HttpServerTest, NothingIsComputedWhoseAnswerThereIsNoRoomFor) {
  start();
  service_.dimensions = 1024;
  const std::string body = std::format(R"({{"input":[{}]}})", many_texts(100));
  std::optional<HttpClient> leaving(client());
  leaving->post("/v1/embeddings", body);
  const FakeService::Embedding embedding = service_.next_embedding();
  EXPECT_GE(service_.request_bytes(), 100u * 1024 * sizeof(float)) << "the vectors are counted before there are any";
  leaving.reset();
  ASSERT_TRUE(service_.wait_cancelled(1));
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
  const FullMemory full(service_, 400'000);  // For the body, but not for the vectors.
  HttpClient one = client();
  one.post("/v1/embeddings", body);
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: "));
}

TEST_F(HttpServerTest, AnAnswerThatFindsNoRoomIsNotToBeComputedAgain) {
  start();
  HttpClient one = client();
  one.post("/v1/embeddings", R"({"input":"a"})");
  FakeService::Embedding embedding = service_.next_embedding();
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));  // The body is given back.
  const FullMemory full(service_);
  embedding.reply(long_result());
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("x-should-retry: false"));
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_LIMIT_003")"));
}

TEST_F(HttpServerTest, PicturesAreCountedBeforeTheyAreDrawn) {
  start();
  HttpClient one = client();
  one.post("/v1/images/generations", R"({"prompt":"a cat","n":2,"size":"512x512"})");
  FakeService::Drawing drawing = service_.next_drawing();
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 2u * 512 * 512 * 4; }));
  EXPECT_TRUE(drawing.sink->deliver(DrawnPicture{.picture = 0, .seed = 7, .png = std::string(100'000, 'x')}));
  PictureReceipt receipt;
  receipt.pictures = 1;
  drawing.reply(receipt);
  EXPECT_EQ(one.answer().status, 200);
  EXPECT_EQ(service_.apart().size(), 1u) << "the base64 of a long file";
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
}

TEST_F(HttpServerTest, LongListsAreWrittenApartAndKeepTheirETag) {
  start();
  HttpClient one = client();
  one.get("/v1/sessions");
  EXPECT_EQ(one.answer().status, 200);
  EXPECT_TRUE(service_.apart().empty());
  service_.sessions_listed = 1000;
  one.get("/v1/sessions");
  const Answer list = one.answer();
  EXPECT_EQ(list.status, 200);
  ASSERT_EQ(service_.apart().size(), 1u);
  EXPECT_GE(service_.apart()[0].second, kApartBytes);
  const std::size_t at = list.head.find("ETag: ");
  ASSERT_NE(at, std::string::npos);
  const std::string etag = list.head.substr(at + 6, list.head.find("\r\n", at) - at - 6);
  one.get("/v1/sessions", std::format("If-None-Match: {}\r\n", etag));
  const std::string known = one.take_until("\r\n\r\n").value_or("");
  EXPECT_THAT(known, StartsWith("HTTP/1.1 304 "));
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
  const FullMemory full(service_);
  one.get("/v1/sessions");
  EXPECT_EQ(one.answer().status, 503);
}

TEST_F(HttpServerTest, ExportsAreCopiedApart) {
  start();
  HttpClient one = client();
  one.get("/v1/sessions/s/export");
  EXPECT_EQ(one.answer().body, std::string(1'000'000, 's'));
  ASSERT_EQ(service_.apart().size(), 1u);
  EXPECT_EQ(service_.apart()[0].second, 1'000'000u);
}

TEST_F(HttpServerTest, ChoicesThatAreLongTogetherAreWrittenApart) {
  start();
  HttpClient one = client();
  one.post("/v1/completions", R"({"prompt":"a","n":2})");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(service_.apart().empty()) << i;
    const EosEvent end{FinishReason::stop, {}, std::string(40'000, i == 0 ? 'x' : 'y'), std::nullopt};
    service_.next_generation().sink->deliver(end);
  }
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(std::string(40'000, 'x')));
  EXPECT_THAT(answer.body, HasSubstr(std::string(40'000, 'y')));
  ASSERT_EQ(service_.apart().size(), 1u);
  EXPECT_GE(service_.apart()[0].second, 80'000u);
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
}

TEST_F(HttpServerTest, ReferencesToAConversationThatThereIsNoRoomForAreRefused) {
  start();
  const FullMemory full(service_, 400'000);  // For the body, but not for a conversation of a megabyte.
  HttpClient one = client();
  const std::string item = wire::item_id(wire::Item::Kind::message, std::string(32, 'a'), {.turn = 0, .number = 0});
  one.post("/v1/responses",
           std::format(R"({{"input":[{{"type":"item_reference","id":"{}"}},{{"role":"user","content":"{}"}}]}})", item,
                       std::string(100'000, 'x')));
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_LIMIT_003")"));
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

TEST_F(HttpServerTest, RefusesRequestsThatTwoReadersCouldReadDifferently) {
  start();
  const std::string post = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
  for (const char* rest :
       {"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2, 2\r\n\r\n{}", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
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
  bool is_served = false;  // Once the server has noticed that they have left.
  for (int i = 0; i < 10'000 && !is_served; ++i) is_served = Crowd().add(server_->port());
  EXPECT_TRUE(is_served) << "what it has closed is free";
}

TEST_F(HttpServerTest, ATenantHasHalfOfAllConnectionsAndItsOldestIdleOneMakesRoom) {
  start({.connections_max = 4, .keys = {key_named("ci"), key_of("other", "its secret")}});
  constexpr const char* kKey = "Authorization: Bearer secret\r\n";
  HttpClient oldest = client();
  oldest.get("/v1/models", kKey);
  EXPECT_EQ(oldest.answer().status, 200);
  Crowd crowd;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(crowd.add(server_->port(), kKey)) << i;
  EXPECT_TRUE(oldest.has_ended()) << "it has made room";
  EXPECT_EQ(server_->connections_count(), 2U);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Crowd().add(server_->port(), "Authorization: Bearer its secret\r\n")) << i;
}

TEST_F(HttpServerTest, ATenantWhoseConnectionsAreAllInUseIsRefusedAndOthersAreServed) {
  start({.connections_max = 8, .keys = {key_named("ci"), key_of("other", "its secret")}});
  constexpr const char* kKey = "Authorization: Bearer secret\r\n";
  std::vector<HttpClient> readers;
  std::vector<FakeService::Generation> generations;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back(server_->port()).post(kChat, kHelloStream, kKey);
    generations.push_back(service_.next_generation());
  }
  HttpClient more = client();
  more.post(kChat, kHelloStream, kKey);
  const Answer refused = more.answer();
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
  HttpClient other = client();
  other.get("/v1/models", "Authorization: Bearer its secret\r\n");
  EXPECT_EQ(other.answer().status, 200);
  for (FakeService::Generation& each : generations) each.sink->deliver(eos());
  for (HttpClient& each : readers) EXPECT_EQ(each.answer().status, 200);
}

TEST_F(HttpServerTest, AConnectionOfSeveralTenantsCountsForTheLastOne) {
  start({.connections_max = 8, .keys = {key_named("ci"), key_of("other", "its secret")}});
  HttpClient proxy = client();
  for (const char* key : {"secret", "its secret"}) {
    proxy.get("/v1/models", std::format("Authorization: Bearer {}\r\n", key));
    EXPECT_EQ(proxy.answer().status, 200) << key;
  }
  Crowd crowd;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(crowd.add(server_->port(), "Authorization: Bearer secret\r\n")) << i;
  proxy.get("/v1/models", "Authorization: Bearer its secret\r\n");
  EXPECT_EQ(proxy.answer().status, 200) << "it is not the oldest one of those that have made room";
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

}  // namespace
}  // namespace uma::server
