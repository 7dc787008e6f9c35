#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <chrono>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"
#include "server/tcp_listener.h"

namespace uma::server {
namespace {

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

TEST_F(HttpServerTest, AStreamBeginsWhenItsPromptIsReady) {
  start();
  HttpClient one = client();
  one.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
  EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("role":"assistant")"));
  generation.sink->deliver(FailureEvent{{ErrorCode::runtime_decode, "it broke"}});
  EXPECT_THAT(*one.next_chunk(), HasSubstr("it broke")) << "an event, because the status is sent";
  EXPECT_EQ(one.next_chunk(), std::nullopt);
}

TEST_F(HttpServerTest, TheHeaderNamesWhatIsLeftOutOfSchemas) {
  start();
  for (const char* const body : {kHelloStream, kHello}) {
    HttpClient one = client();
    one.post(kChat, body);
    const FakeService::Generation generation = service_.next_generation();
    EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3, .schema_left_out = {"f#/a", "f#/\r\né"}}));
    generation.sink->deliver(eos());
    EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("x-uma-schema-left-out: f#/a, f#/????\r\n"));
  }
}

TEST_F(HttpServerTest, ASilentStreamGetsSignsOfLife) {
  start({.keep_alive_interval = milliseconds(1)});
  HttpClient one = client();
  one.post(kChat, kHelloStream);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(*one.next_chunk(), ": waiting\n\n") << "the prompt is not ready";
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
  std::string chunk = *one.next_chunk();
  while (chunk == ": waiting\n\n") chunk = *one.next_chunk();
  EXPECT_THAT(chunk, HasSubstr(R"("role":"assistant")"));
  EXPECT_THAT(*one.next_chunk(), StartsWith(": keep-alive\n\n"));
  generation.sink->deliver(eos());
}

TEST_F(HttpServerTest, ASilentResponseSaysThatItIsInProgress) {
  start({.keep_alive_interval = milliseconds(1)});
  HttpClient one = client();
  one.post("/v1/responses", R"({"input":"hi","stream":true,"store":false})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
  EXPECT_THAT(*one.take_until("event: response.created"), HasSubstr("HTTP/1.1 200"));
  // The first one is part of the beginning.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(one.take_until("event: response.in_progress"));
  generation.sink->deliver(eos());
}

TEST_F(HttpServerTest, AnotherVendorsModelNameMeansTheDefaultModel) {
  start();
  HttpClient one = client();
  one.post(kChat, R"({"model":"gpt-5","messages":[{"role":"user","content":"hi"}]})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.model, "fake");
  generation.sink->deliver(eos());
  const Answer answer = one.answer();
  EXPECT_THAT(answer.head, HasSubstr("x-uma-warning: model gpt-5 is unknown here; fake answers\r\n"));
  EXPECT_THAT(answer.body, HasSubstr(R"("model":"fake")"));
}

TEST_F(HttpServerTest, InAConversationAnotherVendorsNameMeansTheModelOfTheConversation) {
  start();
  HttpClient one = client();
  one.post("/v1/responses", R"({"model":"gpt-5","conversation":"conv_0123456789abcdef0123456789abcdef","input":"hi"})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.model, "");
  generation.sink->deliver(ResponseBegunEvent{.session = {"s"}, .model = "other"});
  generation.sink->deliver(eos());
  const Answer answer = one.answer();
  EXPECT_THAT(answer.head, HasSubstr("x-uma-warning: model gpt-5 is unknown here; the model of the conversation answers\r\n"));
  EXPECT_THAT(answer.body, HasSubstr(R"("model":"other")"));
}

TEST_F(HttpServerTest, PathsWithoutTheirBaseAreServed) {
  start();
  HttpClient one = client();
  for (const std::string path : {"/models", "//v1/models", "/v1/models/", "/v1/v1/models", "/api/v1/models"}) {
    one.get(path);
    EXPECT_THAT(one.answer().body, HasSubstr(R"("object":"list")")) << path;
  }
  one.get("/v1/models/owner%2Fname");
  EXPECT_EQ(one.answer().status, 404);
  one.get("/messages");
  EXPECT_THAT(one.answer().body, HasSubstr("/v1/messages accepts only POST, not GET"));
  one.get("/v1/modells");
  EXPECT_THAT(one.answer().body, HasSubstr("no such path /v1/modells: did you mean /v1/models?"));
}

UniqueFd connect_to_twin(std::uint16_t port) {
  UniqueFd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = in6addr_loopback;
  if (!six.is_open() || ::connect(six.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return UniqueFd();
  return six;
}

bool has_twin() {
  const auto opened = listen_at_twin(0, 1);
  return opened && opened->is_open();
}

TEST_F(HttpServerTest, LocalhostIsBothLoopbackAddresses) {
  if (!has_twin()) GTEST_SKIP() << "this system has no IPv6";
  start();
  HttpClient one(connect_to_twin(server_->port()));
  one.send("GET /v1/models HTTP/1.1\r\nHost: [::1]:8642\r\n\r\n");
  EXPECT_EQ(one.answer().status, 200) << "the user of the connection is known there, too";
  one.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(one.answer().status, 403);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), 200);
}

TEST_F(HttpServerTest, ServesWithoutATwinThatAnotherProgramHas) {
  if (!has_twin()) GTEST_SKIP() << "this system has no IPv6";
  const auto others = listen_at_twin(0, 1);
  sockaddr_in6 address{};
  socklen_t size = sizeof(address);
  ASSERT_EQ(::getsockname(others->get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  start({.port = ntohs(address.sin6_port)});
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), 200);
}

TEST_F(HttpServerTest, AnotherLoopbackAddressHasNoTwin) {
  if (!has_twin()) GTEST_SKIP() << "this system has no IPv6";
  start({.address = "127.0.0.2"});
  EXPECT_FALSE(connect_to_twin(server_->port()).is_open());
}

TEST_F(HttpServerTest, AWarningIsOneLine) {
  start();
  HttpClient one = client();
  one.post(kChat, R"({"model":"gpt-\r\nSet-Cookie: x","messages":[{"role":"user","content":"hi"}]})");
  service_.next_generation().sink->deliver(eos());
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, Not(HasSubstr("\nSet-Cookie")));
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

TEST_F(HttpServerTest, ARequestThatMayBeStoredIsNotToBeSentAgain) {
  start();
  HttpClient one = client();
  for (const char* body : {kHello, kHelloStream}) {
    one.post(kChat, body);
    service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::outcome_unknown, "it may be stored"}});
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 500) << "a router sends 503 again";
    EXPECT_THAT(answer.head, HasSubstr("x-should-retry: false\r\n"));
    EXPECT_THAT(answer.body, HasSubstr(R"("code":"E_IO_002")"));
    EXPECT_THAT(answer.head, Not(HasSubstr("Retry-After")));
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

TEST_F(HttpServerTest, SessionsAreChangedAndForkedAtATurn) {
  start();
  HttpClient one = client();
  const auto call = [&](const std::string& line, const std::string& body) {
    one.send(std::format("{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", line, body.size(), body));
    return one.answer();
  };
  const Answer changed = call("PATCH /v1/sessions/a", R"({"name":"tale","metadata":{"title":null,"tags":"x"}})");
  EXPECT_EQ(changed.status, 200);
  EXPECT_THAT(changed.body, HasSubstr(R"("name":"tale")"));
  EXPECT_THAT(changed.body, HasSubstr(R"("metadata":{"tags":"x"})"));
  const Answer taken = call("PATCH /v1/sessions/a", R"({"name":"taken"})");
  EXPECT_EQ(taken.status, 409);
  EXPECT_THAT(taken.body, HasSubstr("E_PROTO_003"));
  EXPECT_EQ(call("PATCH /v1/sessions/a", "{}").status, 400);
  const Answer fork = call("POST /v1/sessions/a/fork", R"({"name":"b","turn":1,"metadata":{"k":"v"}})");
  EXPECT_EQ(fork.status, 200);
  EXPECT_THAT(fork.body, HasSubstr(R"("parent_id":"id-of-a","fork_turn":2,"metadata":{"k":"v"})"));
  const Answer replaced = call("POST /v1/conversations/conv_" + std::string(32, '0'), R"({"metadata":{"k":"v"}})");
  EXPECT_THAT(replaced.body, HasSubstr(R"("metadata":{"k":"v"})"));
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
  EXPECT_EQ(get("?order=desc&q=a%20%C3%A4").status, 200);
  EXPECT_EQ(get("?order=new").status, 400);
  for (const char* limit : {"0", "10001", "-1", "x", "99999999999999999999"}) {
    const Answer refused = get("?limit=" + std::string(limit));
    EXPECT_EQ(refused.status, 400) << limit;
    EXPECT_THAT(refused.body, HasSubstr(R"("param":"limit")"));
  }
}

TEST_F(HttpServerTest, ListsThatAClientHasAreNotSentAgain) {
  start();
  HttpClient one = client();
  for (const std::string path : {"/v1/sessions", "/v1/models"}) {
    one.get(path);
    const Answer first = one.answer();
    const std::size_t at = first.head.find("ETag: ");
    ASSERT_NE(at, std::string::npos) << path;
    const std::string etag = first.head.substr(at + 6, first.head.find("\r\n", at) - at - 6);
    one.get(path, "If-None-Match: " + etag + "\r\n");
    const Answer again = one.answer();
    EXPECT_EQ(again.status, 304) << path;
    EXPECT_EQ(again.body, "");
    one.get(path, "If-None-Match: \"another\"\r\n");
    EXPECT_EQ(one.answer().body, first.body);
  }
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
  embedding.reply(two_numbers());  // To nobody.
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

// Monitors and health checks of containers send HEAD.
TEST_F(HttpServerTest, AnswersHeadAsGetWithoutABody) {
  start();
  for (const auto& [path, status] : {std::pair{"/health", "HTTP/1.1 200"},
                                     {"/v1/models", "HTTP/1.1 200"},
                                     {"/metrics", "HTTP/1.1 200"},
                                     {"/v1/chat/completions", "HTTP/1.1 405"}}) {
    HttpClient one = client();
    one.send(std::format("HEAD {} HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
    EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith(status)) << path;
    EXPECT_EQ(one.answer().status, 200) << path;
  }
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

TEST_F(HttpServerTest, SaysWhetherItIsReadyWithItsDatabase) {
  start();
  HttpClient one = client();
  const auto expect = [&](const char* path, int status, const char* part) {
    one.get(path);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, status) << path;
    EXPECT_THAT(answer.body, HasSubstr(part)) << path;
  };
  expect("/ready", 503, R"("reason":"model")");
  service_.has_started = true;
  expect("/ready?database=required", 200, R"("ready")");
  service_.has_database = false;
  expect("/ready?database=required", 503, R"("reason":"database")");
  expect("/ready?database=optional", 200, R"("ready")");
  expect("/ready", 200, R"("ready")");
  expect("/ready?database=maybe", 400, "required");
  server_->announce_stop();
  HttpClient two = client();
  two.get("/ready?database=required");
  EXPECT_THAT(two.answer().body, HasSubstr(R"("reason":"stopping")"));
}

TEST_F(HttpServerTest, ServesOnWhenItHasSaidThatItWillStop) {
  service_.has_started = true;
  start();
  HttpClient before = client();
  before.get("/ready");
  EXPECT_EQ(before.answer().status, 200);
  server_->announce_stop();
  HttpClient one = client();
  one.get("/ready");
  const Answer readiness = one.answer();
  EXPECT_EQ(readiness.status, 503);
  EXPECT_THAT(readiness.head, HasSubstr("Connection: close"));  // The next request goes to another server.
  HttpClient two = client();
  two.post(kChat, kHello);
  service_.next_generation().sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  EXPECT_EQ(two.answer().status, 200);
}

TEST_F(HttpServerTest, NamesItsNodeAndTheSessionForARouter) {
  const std::string session(32, 'a');
  start({.node = "box-1"});
  HttpClient one = client();
  one.post(kChat, kHello);
  service_.next_generation().sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  const Answer chat = one.answer();
  EXPECT_THAT(chat.head, HasSubstr("x-uma-node: box-1\r\n"));
  EXPECT_THAT(chat.head, Not(HasSubstr("x-uma-session")));
  for (const char* const stream : {"false", "true"}) {
    one.post("/v1/responses", std::format(R"({{"input":"hi","stream":{}}})", stream));
    const FakeService::Generation generation = service_.next_generation();
    generation.sink->deliver(ResponseBegunEvent{.session = {session}});
    generation.sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
    EXPECT_THAT(one.answer().head, HasSubstr("x-uma-session: " + session + "\r\n")) << stream;
  }
  one.get("/v1/conversations/conv_" + session);
  EXPECT_THAT(one.answer().head, HasSubstr("x-uma-session: " + session + "\r\n"));
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
