// llama-server's paths.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

class LlamaServerTest : public HttpServerTest {};

TEST_F(LlamaServerTest, ConvertsTextsAndTokens) {
  start();
  HttpClient one = client();
  one.post("/tokenize", R"({"content":"ab"})");
  EXPECT_EQ(one.answer().body, R"({"tokens":[97,98]})");
  one.post("/tokenize", R"({"content":"ab","with_pieces":true})");
  EXPECT_EQ(one.answer().body, R"({"tokens":[{"id":97,"piece":"a"},{"id":98,"piece":"b"}]})");
  one.post("/detokenize", R"({"tokens":[97,98]})");
  EXPECT_EQ(one.answer().body, R"({"content":"ab"})");
  one.post("/apply-template", kHello);
  EXPECT_EQ(one.answer().body, R"({"prompt":"[hi]"})");
}

TEST_F(LlamaServerTest, RefusesATemplateOfImages) {
  service_.reads_images = true;
  start();
  HttpClient one = client();
  one.post(
      "/apply-template",
      R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}]})");
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr(R"("param":"messages")"));
}

TEST_F(LlamaServerTest, FillsAGap) {
  start();
  HttpClient one = client();
  one.post("/infill", R"({"input_prefix":"int a","input_suffix":"return a;"})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.input.text, "int a");
  EXPECT_EQ(generation.request.input.infill->suffix, "return a;");
  EosEvent end{FinishReason::stop, {}, " = 1;", std::nullopt};
  end.usage.prompt_tokens = 7;
  generation.sink->deliver(end);
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, StartsWith(R"({"index":0,"content":" = 1;","stop":true,"model":"fake","tokens_predicted":0,)"));
  EXPECT_THAT(answer.body, HasSubstr(R"("tokens_evaluated":7,)"));
}

TEST_F(LlamaServerTest, StreamsAFilling) {
  start();
  HttpClient one = client();
  one.post("/infill", R"({"input_prefix":"int a","input_suffix":"return a;","stream":true})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("text/event-stream"));
  EXPECT_THAT(*one.next_chunk(), StartsWith(":"));
  EXPECT_TRUE(generation.sink->deliver(token(" = 1;")));
  EXPECT_EQ(*one.next_chunk(), "data: {\"index\":0,\"content\":\" = 1;\",\"stop\":false}\n\n");
  generation.sink->deliver(eos());
  EXPECT_THAT(*one.next_chunk(), StartsWith(R"(data: {"index":0,"content":"","stop":true,)"));
}

TEST_F(LlamaServerTest, TellsThePropertiesOfAModel) {
  start({.version = "9.8.7"});
  HttpClient one = client();
  for (const char* path : {"/props", "/props?model=fake&autoload=false"}) {
    one.get(path);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, StartsWith(R"({"default_generation_settings":{"n_ctx":)")) << path;
    EXPECT_THAT(answer.body, HasSubstr(R"("is_sleeping":true)"));
  }
  one.get("/props?model=other");
  EXPECT_EQ(one.answer().status, 404);
}

}  // namespace
}  // namespace uma::server
