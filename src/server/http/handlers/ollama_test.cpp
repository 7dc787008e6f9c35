#include <chrono>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

constexpr const char* kOllamaChat = "/api/chat";
constexpr const char* kOllamaHello = R"({"model":"fake:latest","messages":[{"role":"user","content":"hi"}]})";

class OllamaTest : public HttpServerTest {};

TEST_F(OllamaTest, AnswersWhatProgramsAskFirst) {
  start({.version = "9.8.7"});
  HttpClient one = client();
  for (const auto& [path, text] : {std::pair{"/", "Ollama is running"},
                                   {"/api/version", R"({"version":"0.14.0-uma.9.8.7"})"},
                                   {"/api/tags", R"("name":"fake:latest")"},
                                   {"/api/ps", R"({"models":[]})"}}) {
    one.get(path);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_THAT(answer.body, HasSubstr(text)) << path;
  }
}

TEST_F(OllamaTest, AnswersHeadWithoutABody) {
  start();
  for (const char* path : {"/", "/api/version", "/api/tags"}) {
    HttpClient one = client();
    one.send("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 200")) << path;
    one.get("/api/version");
    EXPECT_EQ(one.answer().status, 200) << path;
  }
}

TEST_F(OllamaTest, StreamsLines) {
  start();
  HttpClient one = client();
  one.post(kOllamaChat, kOllamaHello);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.request.options.stream);
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("Content-Type: application/x-ndjson"));
  EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("message":{"role":"assistant","content":""},"done":false)"));
  EXPECT_TRUE(generation.sink->deliver(token("a")));
  const std::string first = *one.next_chunk();
  EXPECT_THAT(first, HasSubstr(R"("model":"fake:latest")"));
  EXPECT_TRUE(first.ends_with("\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"done\":false}\n")) << first;
  generation.sink->deliver(eos());
  EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("done":true,"done_reason":"stop")"));
  EXPECT_EQ(one.next_chunk(), std::nullopt);
}

TEST_F(OllamaTest, ASilentStreamHasLinesThatClientsSkip) {
  start({.keep_alive_interval = milliseconds(20)});
  HttpClient one = client();
  one.post("/api/generate", R"({"prompt":"hi"})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("Content-Type: application/x-ndjson"));
  for (int i = 0; i < 2; ++i) {
    const std::string line = *one.next_chunk();
    EXPECT_TRUE(line.starts_with("{\"model\":\"fake\"")) << line;
    EXPECT_TRUE(line.ends_with("\"response\":\"\",\"done\":false}\n")) << line;
  }
  generation.sink->deliver(FailureEvent{{ErrorCode::limit_wait, "too late"}});
  std::string last;
  while (const auto chunk = one.next_chunk()) last = *chunk;
  EXPECT_TRUE(last.ends_with("{\"error\":\"too late\"}\n")) << last;
}

TEST_F(OllamaTest, ErrorsAreTexts) {
  start();
  HttpClient one = client();
  one.post(kOllamaChat, kOllamaHello);
  service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::limit_prompt, "prompt is too long"}});
  Answer answer = one.answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body, R"({"error":"prompt is too long"})");
  one.post(kOllamaChat, R"({"messages":7})");
  answer = one.answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, StartsWith(R"({"error":"field \"messages\")"));
  one.get("/api/nothing");
  answer = one.answer();
  EXPECT_EQ(answer.status, 404);
  EXPECT_THAT(answer.body, StartsWith(R"({"error":"no such path)"));
}

TEST_F(OllamaTest, WithoutAPromptTheModelIsLoadedOrUnloaded) {
  start();
  HttpClient one = client();
  one.post("/api/generate", R"({"model":"fake"})");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("response":"","done":true,"done_reason":"load")"));
  one.post("/api/generate", R"({"model":"fake","keep_alive":0})");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("done_reason":"unload")"));
  one.post(kOllamaChat, R"({"model":"other","messages":[]})");
  const Answer unknown = one.answer();
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("not found"));
}

TEST_F(OllamaTest, ShowsAModel) {
  start();
  HttpClient one = client();
  one.post("/api/show", R"({"model":"fake"})");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("capabilities":["completion","tools"])"));
  one.post("/api/show", R"({"model":"other"})");
  EXPECT_EQ(one.answer().status, 404);
}

TEST_F(OllamaTest, EmbedsTexts) {
  start();
  HttpClient one = client();
  one.post("/api/embed", R"({"model":"e","input":["a"]})");
  service_.next_embedding().reply(two_numbers());
  EXPECT_THAT(one.answer().body, StartsWith(R"({"model":"e","embeddings":[[0.5,1]],"total_duration":)"));
  one.post("/api/embeddings", R"({"model":"e","prompt":"a"})");
  service_.next_embedding().reply(two_numbers());
  EXPECT_EQ(one.answer().body, R"({"embedding":[0.5,1]})");
  one.post("/api/embeddings", R"({"model":"fake","prompt":""})");
  EXPECT_EQ(one.answer().body, R"({"embedding":[]})");
  one.post("/api/embed", R"({"model":"gpt-5","input":[]})");
  const Answer unknown = one.answer();
  EXPECT_EQ(unknown.status, 404) << "a request that loads a model means this one";
}

TEST_F(OllamaTest, MakesNoModels) {
  start();
  HttpClient one = client();
  one.post("/api/create", R"({"model":"x"})");
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 501);
  EXPECT_THAT(answer.body, StartsWith(R"({"error":"umad does not make models)"));
}

TEST_F(OllamaTest, HasAPortOfItsOwn) {
  start({.ollama_address = "127.0.0.1"});
  EXPECT_NE(server_->ollama_port(), 0);
  EXPECT_NE(server_->ollama_port(), server_->port());
  for (const std::uint16_t port : {server_->ollama_port(), server_->port()}) {
    HttpClient one(port);
    one.get("/api/version");
    EXPECT_EQ(one.answer().status, 200);
  }
}

TEST_F(OllamaTest, MayHaveTheOnlyPort) {
  start({.address = "", .ollama_address = "127.0.0.1"});
  EXPECT_EQ(server_->port(), 0);
  HttpClient one(server_->ollama_port());
  one.get("/health");
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(OllamaTest, OtherMachinesNeedKeys) {
  const auto refused = HttpServer::start({.ollama_address = "0.0.0.0"}, service_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("http.keys_file"));
}

}  // namespace
}  // namespace uma::server
