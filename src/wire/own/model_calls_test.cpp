#include "wire/own/model_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::HasSubstr;

TEST(ModelCalls, NameAModel) {
  EXPECT_EQ(decode_model_call(R"({"model":"a"})").value(), "a");
  for (const char* body : {R"({})", R"({"model":""})", R"({"model":7})"}) {
    const auto call = decode_model_call(body);
    ASSERT_FALSE(call.has_value()) << body;
    EXPECT_EQ(call.error().field, "model");
  }
}

TEST(ModelCalls, OllamasNamesMayHaveATag) {
  EXPECT_EQ(decode_ollama_delete(R"({"model":"a:latest"})").value(), "a");
  EXPECT_EQ(decode_ollama_delete(R"({"name":"a:8b"})").value(), "a:8b");
  const auto copy = decode_ollama_copy(R"({"source":"a:latest","destination":"b"})");
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(copy->source + " " + copy->destination, "a b");
  EXPECT_EQ(decode_ollama_copy(R"({"source":"a"})").error().field, "destination");
}

TEST(ModelCalls, APullIsAStreamUnlessItSaysOtherwise) {
  EXPECT_TRUE(decode_ollama_pull(R"({"model":"o/r:q4_k_m"})").value().stream);
  EXPECT_FALSE(decode_ollama_pull(R"({"name":"o/r","stream":false})").value().stream);
  EXPECT_EQ(decode_ollama_pull(R"({"name":"o/r:latest"})").value().source, "o/r");
}

TEST(ModelCalls, ProgressHasTheBytesOnceThereAreAny) {
  EXPECT_EQ(ollama_pull_json({}), R"({"status":"pulling manifest"})");
  const std::string line = ollama_pull_json({.file = "m.gguf", .bytes_done = 5, .bytes_total = 9});
  EXPECT_THAT(line, HasSubstr(R"("status":"pulling m.gguf","digest":"sha256:)"));
  EXPECT_THAT(line, HasSubstr(R"("total":9,"completed":5})"));
  EXPECT_THAT(ollama_pull_json({.file = "m.gguf", .bytes_done = 5}), ::testing::Not(HasSubstr("total")));
}

}  // namespace
}  // namespace uma::wire
