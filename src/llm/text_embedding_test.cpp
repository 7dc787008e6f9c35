#include "llm/text_embedding.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/media/image_tokens.h"
#include "llm/media/projector.h"
#include "testing/fake_model.h"

namespace uma::llm {
namespace {

using ::testing::ElementsAre;
using testing::FakeModel;
using testing::FakeOptions;
using ::testing::HasSubstr;
using testing::kFakeBos;
using testing::kFakeEos;
using testing::kFakeImEnd;
using testing::kFakeImStart;

const EmbeddingShape kShape{.text_tokens_max = 8, .batch_rows_max = 64, .batch_texts_max = 16, .dimensions = 2};

TextEmbedder embedder(Capability capability = Capability::text_embedding, std::map<std::string, std::string> tasks = {}) {
  FakeOptions options;
  options.capability = capability;
  return {std::make_shared<FakeModel>(options), kShape, std::move(tasks)};
}

// A model with a template for pairs.
class TemplateModel final : public Model {
 public:
  explicit TemplateModel(std::string text) {
    facts_.name = "template";
    facts_.capability = Capability::rerank;
    facts_.rerank_template = std::move(text);
  }
  [[nodiscard]] const ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] Expected<std::unique_ptr<Context>> new_context(const ContextOptions&) const override {
    return fail(ErrorCode::model_capability, "none");
  }
  [[nodiscard]] Expected<std::unique_ptr<EmbeddingContext>> new_embedding(const EmbeddingOptions&) const override {
    return fail(ErrorCode::model_capability, "none");
  }
  [[nodiscard]] Expected<std::string> apply_chat_template(std::span<const ChatMessage>, bool) const override {
    return fail(ErrorCode::model_capability, "none");
  }

  [[nodiscard]] Expected<Unit> check_state(std::span<const std::byte>) const override { return Unit{}; }
  [[nodiscard]] Expected<std::unique_ptr<Projector>> load_projector(const std::string&,
                                                                    const ProjectorOptions&) const override {
    return fail(ErrorCode::model_load, "none");
  }

 private:
  ModelFacts facts_;
  testing::FakeVocab vocab_;
};

EmbedRequest request_of(std::vector<EmbedInput> inputs) {
  EmbedRequest request;
  request.inputs = std::move(inputs);
  return request;
}

std::vector<std::vector<Token>> tokens_of(const Expected<EmbedTexts>& texts) {
  std::vector<std::vector<Token>> tokens;
  for (const auto& text : texts.value().texts) tokens.push_back(text.tokens);
  return tokens;
}

TEST(TextEmbedder, TextsGetTheModelsFrameAndTokensDoNot) {
  const auto texts = embedder().texts_of(request_of({"ab", std::vector<Token>{5, 6}}));
  EXPECT_THAT(tokens_of(texts), ElementsAre(ElementsAre(kFakeBos, 'a', 'b', kFakeEos), ElementsAre(5, 6)));
  EXPECT_EQ(texts->tokens, 6);
}

TEST(TextEmbedder, TextOfUsersNeverBecomesSpecialTokens) {
  FakeOptions options;
  options.capability = Capability::text_embedding;
  const TextEmbedder wide(std::make_shared<FakeModel>(options), {.text_tokens_max = 64, .dimensions = 2}, {});
  const auto texts = wide.texts_of(request_of({"<|im_end|>"}));
  EXPECT_EQ(tokens_of(texts)[0].size(), std::string_view("<|im_end|>").size() + 2);
}

TEST(TextEmbedder, ATaskPutsItsPrefixBeforeEachText) {
  const TextEmbedder knows = embedder(Capability::text_embedding, {{"document", "d:"}, {"query", "q:"}});
  EmbedRequest request = request_of({"a"});
  request.task = "query";
  EXPECT_THAT(tokens_of(knows.texts_of(request)), ElementsAre(ElementsAre(kFakeBos, 'q', ':', 'a', kFakeEos)));
  request.task = "cluster";
  EXPECT_THAT(knows.texts_of(request).error().message, HasSubstr("document, query"));
  request.task = "query";
  request.inputs = {std::vector<Token>{1}};
  EXPECT_EQ(knows.texts_of(request).error().code, ErrorCode::proto_field);
}

TEST(TextEmbedder, ALongTextIsRefusedCutOrDivided) {
  EmbedRequest request = request_of({"x", "abcdefghijklm"});
  const auto refused = embedder().texts_of(request);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_prompt);
  EXPECT_THAT(refused.error().message, HasSubstr("text 1 has 15 tokens, the limit of the model is 8"));
  request.options.long_input = LongInput::truncate;
  const auto cut = embedder().texts_of(request);
  ASSERT_EQ(cut->texts.size(), 2u);
  EXPECT_THAT(cut->texts[1].tokens, ElementsAre(kFakeBos, 'a', 'b', 'c', 'd', 'e', 'f', kFakeEos));
  request.options.long_input = LongInput::chunk;
  const auto divided = embedder().texts_of(request);
  ASSERT_EQ(divided->texts.size(), 4u);
  EXPECT_THAT(divided->texts[3].tokens, ElementsAre(kFakeBos, 'm', kFakeEos));
  EXPECT_EQ(divided->texts[3].input, 1u);
  EXPECT_EQ(divided->tokens, 3 + 8 + 8 + 3);
}

// "[instruction|" before a text and "|]" behind it; an image is one token.
InputFormat chat_format() {
  const auto write = [](const std::string& instruction, const ChatMessage& message) -> Expected<std::vector<Token>> {
    const std::string text = "[" + instruction + "|" + message.content;
    std::vector<Token> tokens(text.begin(), text.end());
    if (!message.extra.empty()) tokens.push_back(kImageTokensBegin);
    tokens.insert(tokens.end(), {'|', ']'});
    return tokens;
  };
  return {.write = write, .is_chat = true, .instruction = "i"};
}

std::string shown(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text += token == kFakeEos ? '$' : is_image_token(token) ? '#' : static_cast<char>(token);
  return text;
}

std::vector<std::string> all_shown(const Expected<EmbedTexts>& texts) {
  std::vector<std::string> all;
  for (const auto& tokens : tokens_of(texts)) all.push_back(shown(tokens));
  return all;
}

TextEmbedder chat_embedder(std::int32_t text_tokens_max) {
  FakeOptions options;
  options.capability = Capability::text_embedding;
  const EmbeddingShape shape{.text_tokens_max = text_tokens_max, .dimensions = 2, .reads_images = true};
  return {std::make_shared<FakeModel>(options), shape, {{"query", "q"}}, chat_format()};
}

TEST(TextEmbedder, AChatTemplateWritesTheInstructionAndTheInput) {
  const TextEmbedder made = chat_embedder(16);
  EXPECT_TRUE(made.reads_images());
  EmbedRequest request = request_of({"ab", ""});
  request.extras = {"", "an image"};
  EXPECT_THAT(all_shown(made.texts_of(request)), ElementsAre("[i|ab|]$", "[i|#|]$"));
  request.task = "query";
  EXPECT_THAT(all_shown(made.texts_of(request)), ElementsAre("[q|ab|]$", "[q|#|]$"));
  EXPECT_THAT(tokens_of(made.texts_of(request_of({std::vector<Token>{7, 8}}))), ElementsAre(ElementsAre(7, 8)));
}

TEST(TextEmbedder, ALongTextIsCutWithinTheFrameOfItsTemplate) {
  const TextEmbedder made = chat_embedder(9);
  EmbedRequest request = request_of({"abcdefgh"});
  EXPECT_EQ(made.texts_of(request).error().code, ErrorCode::limit_prompt);
  request.options.long_input = LongInput::truncate;
  EXPECT_THAT(all_shown(made.texts_of(request)), ElementsAre("[i|abc|]$"));
  request.options.long_input = LongInput::chunk;
  EXPECT_THAT(all_shown(made.texts_of(request)), ElementsAre("[i|abc|]$", "[i|def|]$", "[i|gh|]$"));
  request = request_of({"|||||||||"});  // Looks like the frame.
  request.options.long_input = LongInput::truncate;
  EXPECT_THAT(all_shown(made.texts_of(request)), ElementsAre("[i|||||]$"));
}

TEST(TextEmbedder, AnInputWithAnImageIsNotCut) {
  EmbedRequest request = request_of({"abcdefgh"});
  request.extras = {"an image"};
  request.options.long_input = LongInput::truncate;
  const auto refused = chat_embedder(9).texts_of(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_prompt);
  EXPECT_THAT(refused.error().message, HasSubstr("input 0 has 15 tokens, the limit of the model is 9"));
}

TEST(TextEmbedder, WhatTheModelDoesNotHaveIsRefused) {
  EmbedRequest request = request_of({"a"});
  request.dimensions = 3;
  EXPECT_THAT(embedder().texts_of(request).error().message, HasSubstr("the model's vectors have 2"));
  request = request_of({std::vector<Token>{260}});
  EXPECT_THAT(embedder().texts_of(request).error().message, HasSubstr("0 to 259"));
  EXPECT_EQ(embedder(Capability::rerank).texts_of(request).error().code, ErrorCode::model_capability);
  EXPECT_EQ(embedder().texts_of(RerankRequest{}).error().code, ErrorCode::model_capability);
}

TEST(TextEmbedder, VectorsHaveLengthOneUnlessAskedOtherwise) {
  EmbedRequest request = request_of({"a", "b"});
  const TextEmbedder made = embedder();
  const auto texts = made.texts_of(request).value();
  const std::vector<float> outputs{3, 4, 0, 0};
  EXPECT_THAT(made.result_of(request, texts, outputs)->values, ElementsAre(0.6f, 0.8f, 0, 0));
  request.normalize = false;
  EXPECT_THAT(made.result_of(request, texts, outputs)->values, ElementsAre(3, 4, 0, 0));
  request.normalize = true;
  request.dimensions = 1;
  const auto first = made.result_of(request, texts, outputs);
  EXPECT_EQ(first->dimensions, 1);
  EXPECT_THAT(first->values, ElementsAre(1, 0));
}

TEST(TextEmbedder, PartsOfATextCountByTheirTokens) {
  EmbedRequest request = request_of({"abcdefg"});  // Parts of six tokens and one token, with the frame 8 and 3.
  request.options.long_input = LongInput::chunk;
  request.normalize = false;
  const TextEmbedder made = embedder();
  const auto texts = made.texts_of(request).value();
  ASSERT_EQ(texts.texts.size(), 2u);
  const auto result = made.result_of(request, texts, std::vector<float>{11, 0, 0, 22});
  EXPECT_EQ(result->count(), 1u);
  EXPECT_THAT(result->values, ElementsAre(8, 6));
}

TEST(TextEmbedder, WhatIsNoNumberIsAnError) {
  const EmbedRequest request = request_of({"a"});
  const TextEmbedder made = embedder();
  const auto texts = made.texts_of(request).value();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(made.result_of(request, texts, std::vector<float>{nan, 1}).error().code, ErrorCode::runtime_decode);
}

TEST(TextEmbedder, APairIsTwoTextsInOneFrame) {
  RerankRequest request{.options = {}, .query = "q", .documents = {"a", "", "long one"}};
  request.options.long_input = LongInput::truncate;
  EXPECT_THAT(tokens_of(embedder(Capability::rerank).texts_of(request)),
              ElementsAre(ElementsAre(kFakeBos, 'q', kFakeEos, 'a', kFakeEos), ElementsAre(kFakeBos, 'q', kFakeEos, kFakeEos),
                          ElementsAre(kFakeBos, 'q', kFakeEos, 'l', 'o', 'n', 'g', kFakeEos)));
  request.options.long_input = LongInput::refuse;
  EXPECT_THAT(embedder(Capability::rerank).texts_of(request).error().message, HasSubstr("document 2 has 12 tokens"));
  request.options.long_input = LongInput::truncate;
  request.query = "a query alone that is too long";
  EXPECT_EQ(embedder(Capability::rerank).texts_of(request).error().code, ErrorCode::limit_prompt);
}

TEST(TextEmbedder, ATemplateWritesThePairAndUsersNoneOfItsMarks) {
  const auto model = std::make_shared<TemplateModel>("<|im_start|>{query}|{document}<|im_end|>");
  const TextEmbedder made(model, {.text_tokens_max = 64, .dimensions = 1}, {});
  RerankRequest request{.options = {}, .query = "q", .documents = {"d", "{query}", "<|im_end|>"}};
  const auto tokens = tokens_of(made.texts_of(request));
  EXPECT_THAT(tokens[0], ElementsAre(kFakeImStart, 'q', '|', 'd', kFakeImEnd));
  EXPECT_EQ(tokens[1].size(), 4 + std::string_view("{query}").size());  // A placeholder in a user's text is not replaced.
  EXPECT_EQ(tokens[2].size(), 4 + std::string_view("<|im_end|>").size());
  EXPECT_EQ(std::ranges::count(tokens[2], kFakeImEnd), 1);
}

TEST(TextEmbedder, ScoresComeBestFirst) {
  RerankRequest request{.options = {}, .query = "q", .documents = {"a", "b", "c", "d"}};
  const TextEmbedder made = embedder(Capability::rerank);
  const auto texts = made.texts_of(request).value();
  const std::vector<float> outputs{1, 9, 3, 9, 2, 9, 3, 9};  // Two numbers each; the first is the score.
  const auto all = made.result_of(request, texts, outputs);
  EXPECT_THAT(all->scores, ElementsAre(RerankScore{1, 3}, RerankScore{3, 3}, RerankScore{2, 2}, RerankScore{0, 1}));
  request.top_n = 2;
  EXPECT_THAT(made.result_of(request, texts, outputs)->scores, ElementsAre(RerankScore{1, 3}, RerankScore{3, 3}));
  request.top_n = 9;
  EXPECT_EQ(made.result_of(request, texts, outputs)->scores.size(), 4u);
}

}  // namespace
}  // namespace uma::llm
