// Tests on libllama, with the small models that the build makes beside UMA_TEST_MODEL.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/llama_model.h"

namespace uma::llm {
namespace {

std::shared_ptr<const Model> load(const std::string& name) {
  const char* path = std::getenv("UMA_TEST_MODEL");
  const std::filesystem::path tiny = path != nullptr ? path : "build/release/models/tiny.gguf";
  return load_llama_model(tiny.parent_path() / (name + ".gguf"), {}).value();
}

std::vector<Token> text_of(std::size_t size, Token first) {
  std::vector<Token> text{1};
  for (std::size_t i = 0; i < size; ++i) text.push_back(300 + (first + static_cast<Token>(i) * 7) % 1000);
  text.push_back(2);
  return text;
}

std::vector<float> compute(EmbeddingContext& context, const std::vector<std::vector<Token>>& texts) {
  const std::vector<std::span<const Token>> views(texts.begin(), texts.end());
  std::vector<float> out;
  EXPECT_TRUE(context.compute(views, nullptr, out).value());
  return out;
}

TEST(LlamaEmbedding, ModelsReportTheirCapability) {
  EXPECT_EQ(load("tiny")->facts().capability, Capability::chat);
  EXPECT_EQ(load("tiny")->new_embedding({}).error().code, ErrorCode::model_capability);
  const auto embed = load("tiny-embed");
  EXPECT_EQ(embed->facts().capability, Capability::text_embedding);
  EXPECT_EQ(embed->facts().text_frame.before, std::vector<Token>{1});
  EXPECT_EQ(embed->facts().text_frame.after, std::vector<Token>{2});
  const auto rerank = load("tiny-rerank");
  EXPECT_EQ(rerank->facts().capability, Capability::rerank);
  EXPECT_EQ(rerank->facts().text_frame.between, std::vector<Token>{2});
  EXPECT_EQ(rerank->facts().text_frame.after_pair, std::vector<Token>{2});
}

TEST(LlamaEmbedding, ATextHasTheSameVectorInAnyCompany) {
  const auto model = load("tiny-embed");
  const auto context = model->new_embedding({.threads = 1}).value();
  const EmbeddingShape& shape = context->shape();
  EXPECT_EQ(shape.dimensions, 64);
  EXPECT_EQ(shape.text_tokens_max, 128);
  EXPECT_GE(shape.batch_rows_max, 128);
  EXPECT_EQ(shape.pooling, Pooling::mean);

  std::vector<std::vector<Token>> texts;
  for (std::size_t i = 0; i < 12; ++i) texts.push_back(text_of(1 + 5 * i, static_cast<Token>(i)));
  const std::vector<float> together = compute(*context, texts);
  ASSERT_EQ(together.size(), texts.size() * 64);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> alone = compute(*context, {texts[i]});
    for (std::size_t at = 0; at < 64; ++at) EXPECT_NEAR(alone[at], together[i * 64 + at], 1e-4) << "text " << i;
  }
}

// A generative model: its context has a cache, and long texts are computed in parts.
TEST(LlamaEmbedding, TheLastTokenStandsForAText) {
  const auto model = load("tiny-embed-last");
  EXPECT_EQ(model->facts().capability, Capability::text_embedding);
  const auto context = model->new_embedding({.threads = 1}).value();
  EXPECT_EQ(context->shape().pooling, Pooling::last);
  EXPECT_EQ(context->shape().text_tokens_max, 2048);
  const std::vector<std::vector<Token>> texts{text_of(700, 1), text_of(3, 2), text_of(1000, 3), text_of(40, 1)};
  for (int round = 0; round < 2; ++round) {  // The second round must not depend on the first.
    const std::vector<float> together = compute(*context, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::vector<float> alone = compute(*context, {texts[i]});
      double difference = 0;
      double size = 0;
      for (std::size_t at = 0; at < 64; ++at) {
        difference += std::pow(alone[at] - together[i * 64 + at], 2);
        size += std::pow(alone[at], 2);
      }
      EXPECT_LT(std::sqrt(difference / size), 1e-3) << "text " << i;
    }
  }
}

TEST(LlamaEmbedding, TakesCallsUpToItsLimits) {
  const auto model = load("tiny-embed");
  const auto context = model->new_embedding({.threads = 2}).value();
  const auto longest = static_cast<std::size_t>(context->shape().text_tokens_max);
  std::vector<std::vector<Token>> texts(static_cast<std::size_t>(context->shape().batch_rows_max) / longest,
                                        std::vector<Token>(longest, 300));
  EXPECT_EQ(compute(*context, texts).size(), texts.size() * 64);
  texts.assign(static_cast<std::size_t>(context->shape().batch_texts_max), std::vector<Token>(1, 300));
  EXPECT_EQ(compute(*context, texts).size(), texts.size() * 64);
}

TEST(LlamaEmbedding, AScoreIsOneNumber) {
  const auto context = load("tiny-rerank")->new_embedding({.threads = 1}).value();
  EXPECT_EQ(context->shape().dimensions, 1);
  EXPECT_EQ(context->shape().pooling, Pooling::rank);
  const std::vector<float> scores = compute(*context, {text_of(5, 1), text_of(9, 2), text_of(5, 1)});
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_NE(scores[0], scores[1]);
  EXPECT_NEAR(scores[0], scores[2], 1e-4);
}

TEST(LlamaEmbedding, ACallCanBeEnded) {
  struct Now final : CallMonitor {
    bool wants_end() override { return true; }
  } now;
  const auto context = load("tiny-embed")->new_embedding({.threads = 1}).value();
  const std::vector<Token> text = text_of(100, 1);
  const std::span<const Token> view = text;
  std::vector<float> out;
  EXPECT_FALSE(context->compute({&view, 1}, &now, out).value());
  EXPECT_EQ(compute(*context, {text}).size(), 64u);  // The next computation is complete.
}

}  // namespace
}  // namespace uma::llm
