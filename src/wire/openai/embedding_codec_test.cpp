#include "wire/openai/embedding_codec.h"

#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "json/json_writer.h"
#include "wire/own/request_codec.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

std::string frame(std::string_view fields) {
  return R"({"id":"1",)" + std::string(fields) + "}";
}

TEST(EmbeddingCodec, ReadsEveryFieldOfAFrame) {
  const auto request = decode_request(frame(
      R"("type":"embed","texts":["a","b"],"task":"query","dimensions":8,"model":"m","encoding_format":"base64","normalize":false,)"
      R"("long_input":"chunk","class":"background","deadline_ms":5)"));
  ASSERT_TRUE(request);
  const auto& call = std::get<EmbeddingCall>(request->body);
  EXPECT_THAT(call.embed.inputs, ElementsAre(EmbedInput("a"), EmbedInput("b")));
  EXPECT_EQ(call.embed.task, "query");
  EXPECT_EQ(call.embed.dimensions, 8);
  EXPECT_EQ(call.embed.options.model, "m");
  EXPECT_EQ(call.encoding, VectorEncoding::base64);
  EXPECT_FALSE(call.embed.normalize);
  EXPECT_EQ(call.embed.options.long_input, LongInput::chunk);
  EXPECT_EQ(call.embed.options.request_class, RequestClass::background);
  EXPECT_EQ(call.embed.options.deadline_ms, 5);
}

TEST(EmbeddingCodec, InputsAreTextsOrTokens) {
  const auto inputs = [](std::string_view json) {
    return decode_embeddings(R"({"input":)" + std::string(json) + "}").value().embed.inputs;
  };
  EXPECT_THAT(inputs(R"("a")"), ElementsAre(EmbedInput("a")));
  EXPECT_THAT(inputs(R"(["a","b"])"), ElementsAre(EmbedInput("a"), EmbedInput("b")));
  EXPECT_THAT(inputs("[1,2]"), ElementsAre(EmbedInput(std::vector<Token>{1, 2})));
  EXPECT_THAT(inputs("[[1,2],[3]]"), ElementsAre(EmbedInput(std::vector<Token>{1, 2}), EmbedInput(std::vector<Token>{3})));
}

TEST(EmbeddingCodec, InputsMayBePartsWithImages) {
  const std::string text = R"({"type":"text","text":"ab"})";
  const std::string image = R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}})";
  const auto read = [](const std::string& json) { return decode_embeddings(R"({"input":)" + json + "}").value().embed; };
  EXPECT_THAT(read(text).inputs, ElementsAre(EmbedInput("ab")));
  const EmbedRequest one = read(image);
  EXPECT_THAT(one.inputs, ElementsAre(EmbedInput("")));
  ASSERT_EQ(one.images.size(), 1u);
  EXPECT_EQ(one.images[0].source.kind, ImageSource::Kind::data);
  EXPECT_EQ(one.images[0].field, "input");

  const EmbedRequest mixed = read("[\"c\"," + image + ",[" + text + "," + image + "," + text + "," + image + "],[1,2]]");
  EXPECT_THAT(mixed.inputs,
              ElementsAre(EmbedInput("c"), EmbedInput(""), EmbedInput("abab"), EmbedInput(std::vector<Token>{1, 2})));
  ASSERT_EQ(mixed.images.size(), 3u);
  EXPECT_EQ(mixed.images[0].message, 1u);
  EXPECT_EQ(mixed.images[0].field, "input[1]");
  EXPECT_EQ(mixed.images[1].message, 2u);
  EXPECT_EQ(mixed.images[1].at, 2u);
  EXPECT_EQ(mixed.images[2].at, 4u);
  EXPECT_EQ(mixed.images[2].field, "input[2][3]");
}

TEST(EmbeddingCodec, WrongPartsAreNamed) {
  const auto refused = [](const std::string& json) {
    return decode_embeddings(R"({"input":)" + json + "}").error().error.message;
  };
  EXPECT_THAT(refused("{}"), StartsWith("field \"input.type\" must be"));
  EXPECT_THAT(refused(R"([[{"type":"text","text":""}]])"), StartsWith("field \"input[0]\" must not be empty"));
  EXPECT_THAT(refused(R"([[{"type":"text","text":"a"},7]])"), StartsWith("field \"input[0][1]\" must be an object"));
  EXPECT_THAT(refused(R"([{"type":"video","text":"a"}])"), StartsWith("field \"input[0].type\" must be"));
  EXPECT_THAT(refused(R"({"type":"image_url","image_url":{}})"), StartsWith("field \"input.image_url.url\" is required"));
  std::string many = "[";
  for (std::size_t i = 0; i <= kImagesPerRequestMax; ++i) {
    many += std::string(i > 0 ? "," : "") + R"({"type":"image_url","image_url":"data:AA=="})";
  }
  EXPECT_THAT(refused(many + "]"), StartsWith("field \"input\" has 65 images and clips, but the limit is 64"));
}

TEST(EmbeddingCodec, OurOwnOptionsAreAtTheTopAndUnderUmaWhichWins) {
  const auto call = decode_embeddings(
      R"({"input":"a","task":"passage","long_input":"truncate","normalize":false,"class":"background","deadline_ms":5,"uma":{"task":"query"}})");
  ASSERT_TRUE(call) << call.error().error.message;
  EXPECT_EQ(call->embed.task, "query");
  EXPECT_EQ(call->embed.options.long_input, LongInput::truncate);
  EXPECT_FALSE(call->embed.normalize);
  EXPECT_EQ(call->embed.options.request_class, RequestClass::background);
  EXPECT_EQ(call->embed.options.deadline_ms, 5);
  EXPECT_TRUE(call->warnings.empty());
  const auto under = decode_embeddings(R"({"input":"a","normalize":true,"uma":{"normalize":false,"long_input":"chunk"}})");
  EXPECT_FALSE(under->embed.normalize);
  EXPECT_EQ(under->embed.options.long_input, LongInput::chunk);
  EXPECT_EQ(decode_embeddings(R"({"input":"a","input_type":"query"})").error().field, "input_type");
  EXPECT_EQ(decode_rerank(R"({"query":"a","documents":["b"],"long_input":"chunk"})").error().field, "long_input");
}

TEST(EmbeddingCodec, WrongFieldsAreNamed) {
  const auto refused = [](std::string_view body) { return decode_embeddings(body).error().error.message; };
  EXPECT_THAT(refused("{}"), StartsWith("field \"input\" is required"));
  EXPECT_THAT(refused(R"({"input":7})"), StartsWith("field \"input\" must be a text"));
  EXPECT_THAT(refused(R"({"input":""})"), StartsWith("field \"input\" must not be empty"));
  EXPECT_THAT(refused(R"({"input":[]})"), StartsWith("field \"input\" must contain at least one"));
  EXPECT_THAT(refused(R"({"input":["a",""]})"), StartsWith("field \"input[1]\" must not be empty"));
  EXPECT_THAT(refused(R"({"input":[[]]})"), StartsWith("field \"input[0]\" must not be empty"));
  EXPECT_THAT(refused(R"({"input":[1,-1]})"), StartsWith("field \"input\" must contain token ids"));
  EXPECT_THAT(refused(R"({"input":[1,1.5]})"), StartsWith("field \"input\" must contain token ids"));
  EXPECT_THAT(refused(R"({"input":[[4294967296]]})"), StartsWith("field \"input[0]\" must contain token ids"));
  EXPECT_THAT(refused(R"({"input":"a","dimensions":0})"), StartsWith("field \"dimensions\" must be 1"));
  EXPECT_THAT(refused(R"({"input":"a","encoding_format":"int8"})"), StartsWith("field \"encoding_format\""));
  EXPECT_THAT(refused(R"({"input":"a","uma":{"class":"urgent"}})"), StartsWith("field \"uma.class\""));
  std::string many = R"({"input":["a")";
  for (int i = 0; i < 2048; ++i) many += R"(,"a")";
  EXPECT_THAT(refused(many + "]}"), StartsWith("field \"input\" has 2049 inputs, but the limit is 2048"));
}

TEST(EmbeddingCodec, DocumentsAreTextsOrObjectsWithOne) {
  const auto call = decode_rerank(R"({"query":"q","documents":["a",{"text":"b"}],"top_n":1,"return_documents":true})");
  ASSERT_TRUE(call);
  EXPECT_THAT(call->rerank.documents, ElementsAre("a", "b"));
  EXPECT_EQ(call->rerank.top_n, 1);
  EXPECT_TRUE(call->returns_documents);
  const auto refused = [](std::string_view body) { return decode_rerank(body).error().error.message; };
  EXPECT_THAT(refused(R"({"documents":["a"]})"), StartsWith("field \"query\" is required"));
  EXPECT_THAT(refused(R"({"query":"q"})"), StartsWith("field \"documents\" is required"));
  EXPECT_THAT(refused(R"({"query":"q","documents":[{"title":"b"}]})"), StartsWith("field \"documents[0].text\" is required"));
  EXPECT_THAT(refused(R"({"query":"q","documents":["a"],"uma":{"long_input":"chunk"}})"),
              StartsWith("field \"uma.long_input\""));
}

EmbedResult two_vectors() {
  EmbedResult result;
  result.model = "m";
  result.dimensions = 2;
  result.values = {0.5f, -0.25f, 1, 1e-7f};
  result.tokens = 5;
  return result;
}

TEST(EmbeddingCodec, WritesVectorsAsNumbersOrBase64) {
  EXPECT_EQ(
      embeddings_json(two_vectors(), VectorEncoding::numbers),
      R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.25]},)"
      R"({"object":"embedding","index":1,"embedding":[1,1e-07]}],"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}})");
  EXPECT_THAT(embeddings_json(two_vectors(), VectorEncoding::base64),
              StartsWith(R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAPwAAgL4="})"));
  std::string out;
  append_embedding(out, FrameHead("7"), two_vectors(), VectorEncoding::numbers);
  EXPECT_EQ(out.substr(4), R"({"id":"7","event":"embedding","embeddings":[[0.5,-0.25],[1,1e-07]],"model":"m","dimensions":2,)"
                           R"("usage":{"prompt_tokens":5,"total_tokens":5}})");
}

TEST(EmbeddingCodec, WritesScoresWithTheirDocumentsWhereAsked) {
  RerankCall call;
  call.rerank.documents = {"a", "b"};
  const RerankResult result{.model = "m", .scores = {{1, 2.5f}, {0, -3}}, .tokens = 9};
  EXPECT_EQ(rerank_json(result, call),
            R"({"object":"list","model":"m","results":[{"index":1,"relevance_score":2.5},{"index":0,"relevance_score":-3}],)"
            R"("usage":{"prompt_tokens":9,"total_tokens":9}})");
  call.returns_documents = true;
  std::string out;
  append_rerank(out, FrameHead("7"), result, call);
  EXPECT_EQ(out.substr(4),
            R"({"id":"7","event":"rerank","results":[{"index":1,"score":2.5,"document":{"text":"b"}},)"
            R"({"index":0,"score":-3,"document":{"text":"a"}}],"model":"m","usage":{"prompt_tokens":9,"total_tokens":9}})");
}

TEST(EmbeddingCodec, AFloatIsReadBackAsItself) {
  for (const float value : {0.1f, -1.0f / 3, std::numeric_limits<float>::min(), std::numeric_limits<float>::max()}) {
    std::string out;
    json::append_float(out, value);
    EXPECT_EQ(std::stof(out), value) << out;
  }
  std::string out;
  json::append_float(out, std::numeric_limits<float>::infinity());
  EXPECT_EQ(out, "null");
}

}  // namespace
}  // namespace uma::wire
