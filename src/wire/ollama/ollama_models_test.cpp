#include "wire/ollama/ollama_models.h"

#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

ModelInfo small_model() {
  ModelInfo model;
  model.name = "small";
  model.state = ModelState::ready;
  model.bytes = 5'000;
  model.parameters = 8'190'000'000;
  model.sequence_tokens_max = 8192;
  model.train_tokens = 40'960;
  model.reads_images = true;
  model.reasons = true;
  model.file = {.architecture = "qwen3",
                .title = "Qwen3 8B",
                .quantization = "Q4_K_M",
                .embedding_length = 4096,
                .bytes = 6'000,
                .modified_s = 1'767'268'800};
  return model;
}

TEST(OllamaModels, HaveTags) {
  EXPECT_EQ(with_tag("small"), "small:latest");
  EXPECT_EQ(with_tag("qwen3:8b"), "qwen3:8b");
  EXPECT_EQ(with_tag("host:5000/qwen3"), "host:5000/qwen3:latest");
  EXPECT_EQ(without_latest_tag("small:latest"), "small");
  EXPECT_EQ(without_latest_tag("qwen3:8b"), "qwen3:8b");
}

TEST(OllamaModels, AreListedWithTheirDetails) {
  std::vector<ModelInfo> models = {small_model(), small_model(), small_model(), small_model()};
  models[1].name = "damaged";
  models[1].problem = "the file is truncated";
  models[2].capability = Capability::rerank;
  models[3].name = "vectors:1";
  models[3].capability = Capability::text_embedding;
  const boost::json::value list = boost::json::parse(ollama_tags_json(models)).at("models");
  ASSERT_EQ(list.as_array().size(), 2U);
  const boost::json::value& first = list.at(0);
  EXPECT_EQ(first.at("name"), "small:latest");
  EXPECT_EQ(first.at("model"), "small:latest");
  EXPECT_EQ(first.at("size"), 5'000);
  EXPECT_EQ(first.at("modified_at"), "2026-01-01T12:00:00Z");
  EXPECT_EQ(first.at("digest").as_string().size(), 64U);
  EXPECT_EQ(first.at("details").at("family"), "qwen3");
  EXPECT_EQ(first.at("details").at("parameter_size"), "8.2B");
  EXPECT_EQ(first.at("details").at("quantization_level"), "Q4_K_M");
  EXPECT_EQ(first.at("capabilities"), boost::json::parse(R"(["completion","tools","vision","thinking"])"));
  EXPECT_EQ(list.at(1).at("name"), "vectors:1");
  EXPECT_EQ(list.at(1).at("capabilities"), boost::json::parse(R"(["embedding"])"));
  EXPECT_NE(list.at(1).at("digest"), first.at("digest"));
}

TEST(OllamaModels, ThatAreLoadedSayUntilWhen) {
  std::vector<ModelInfo> models = {small_model(), small_model(), small_model()};
  models[1].state = ModelState::unloaded;
  models[2].idle_unload_s = 60;
  const boost::json::value list = boost::json::parse(ollama_ps_json(models, 1'767'268'800)).at("models");
  ASSERT_EQ(list.as_array().size(), 2U);
  EXPECT_EQ(list.at(0).at("expires_at"), "2200-01-01T00:00:00Z");
  EXPECT_EQ(list.at(1).at("expires_at"), "2026-01-01T12:01:00Z");
  EXPECT_EQ(list.at(0).at("size_vram"), 0);
  EXPECT_EQ(list.at(0).at("context_length"), 8192);
}

TEST(OllamaModels, ShowTheWindowThatARequestCanUse) {
  ModelInfo model = small_model();
  const boost::json::value shown = boost::json::parse(ollama_show_json(model));
  EXPECT_EQ(shown.at("model_info").at("general.architecture"), "qwen3");
  EXPECT_EQ(shown.at("model_info").at("general.basename"), "Qwen3 8B");
  EXPECT_EQ(shown.at("model_info").at("general.parameter_count"), 8'190'000'000);
  EXPECT_EQ(shown.at("model_info").at("qwen3.context_length"), 8192);
  EXPECT_EQ(shown.at("model_info").at("qwen3.embedding_length"), 4096);
  EXPECT_EQ(shown.at("parameters"), "num_ctx 8192");
  EXPECT_TRUE(shown.at("capabilities").is_array());
  model.file.title = "";
  model.sampling.values = {{SamplingField::temperature, 0.6, SamplingSource::file},
                           {SamplingField::top_k, 20, SamplingSource::card}};
  EXPECT_EQ(boost::json::parse(ollama_show_json(model)).at("parameters"), "num_ctx 8192\ntemperature 0.6\ntop_k 20");
  const boost::json::value untitled = boost::json::parse(ollama_show_json(model));
  EXPECT_EQ(untitled.at("model_info").at("general.basename"), "small");
}

TEST(OllamaModels, WithoutFactsAreStillDescribed) {
  ModelInfo model;
  model.name = "fake";
  const boost::json::value shown = boost::json::parse(ollama_show_json(model));
  EXPECT_EQ(shown.at("model_info").at("general.architecture"), "unknown");
  EXPECT_EQ(shown.at("details").at("quantization_level"), "unknown");
}

TEST(OllamaVersion, BeginsWithThreeNumbers) {
  EXPECT_EQ(ollama_version_json("0.1.0"), R"({"version":"0.14.0-uma.0.1.0"})");
  EXPECT_EQ(ollama_version_json(""), R"({"version":"0.14.0"})");
}

}  // namespace
}  // namespace uma::wire
