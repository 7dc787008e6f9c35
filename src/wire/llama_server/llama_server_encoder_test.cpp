#include "wire/llama_server/llama_server_encoder.h"

#include <memory>
#include <string>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::HasSubstr;

TEST(LlamaServerEncoder, WritesTokensAsIdsOrWithTheirTexts) {
  TokenizedText result{.tokens = {5, 6, 7}};
  EXPECT_EQ(tokens_json(result), R"({"tokens":[5,6,7]})");
  result.text = "Hi\xc3\xa1";
  result.text_ends = {2, 3, 4};
  EXPECT_EQ(tokens_json(result), R"({"tokens":[{"id":5,"piece":"Hi"},{"id":6,"piece":[195]},{"id":7,"piece":[161]}]})");
  EXPECT_EQ(tokens_json({}), R"({"tokens":[]})");
}

TEST(LlamaServerEncoder, WritesTheProperties) {
  ModelInfo model;
  model.name = "m";
  model.state = ModelState::ready;
  model.sequence_tokens_max = 32'768;
  model.slots = 4;
  model.workers = 2;
  model.reads_images = true;
  model.chat_template = std::make_shared<const std::string>("{{ x }}");
  const boost::json::value props = boost::json::parse(props_json(model, "1.2"));
  EXPECT_EQ(props.at("default_generation_settings").at("n_ctx"), 32'768);
  EXPECT_EQ(props.at("total_slots"), 8);
  EXPECT_EQ(props.at("model_path"), "m");
  EXPECT_EQ(props.at("chat_template"), "{{ x }}");
  EXPECT_EQ(props.at("modalities").at("vision"), true);
  EXPECT_EQ(props.at("is_sleeping"), false);
  EXPECT_EQ(boost::json::parse(props_json({}, "1.2")).at("is_sleeping"), true);
}

TEST(LlamaServerEncoder, WritesTheSamplingInForceAndItsSources) {
  ModelInfo model;
  model.sampling.family = "Qwen3";
  model.sampling.values = {{SamplingField::temperature, 0.6, SamplingSource::file},
                           {SamplingField::top_k, 20, SamplingSource::family}};
  model.sampling.dry_sequence_breakers = {"\n"};
  const boost::json::value props = boost::json::parse(props_json(model, "1.2"));
  const boost::json::value& params = props.at("default_generation_settings").at("params");
  EXPECT_EQ(params.at("temperature"), 0.6);
  EXPECT_EQ(params.at("top_k"), 20);
  EXPECT_EQ(params.at("top_p"), 1);
  EXPECT_EQ(params.at("repeat_last_n"), 64);
  EXPECT_EQ(props.at("sampling"), boost::json::parse(R"({"temperature":{"value":0.6,"source":"file"},
      "top_k":{"value":20,"source":"family"},"dry_sequence_breakers":{"value":["\n"],"source":"card"},"family":"Qwen3"})"));
  EXPECT_EQ(boost::json::parse(props_json({}, "1.2")).at("sampling"), boost::json::object());
}

TEST(LlamaServerEncoder, WritesAFillingWholeOrInPieces) {
  EosEvent eos{FinishReason::stop, {}, "b", std::nullopt};
  eos.usage.completion_tokens = 3;
  eos.stop_string = "\n";
  TextAnswer answer("m");
  const boost::json::value whole = boost::json::parse(answer.whole(eos));
  EXPECT_EQ(whole.at("content"), "b");
  EXPECT_EQ(whole.at("stop"), true);
  EXPECT_EQ(whole.at("stop_type"), "word");
  EXPECT_EQ(whole.at("stopping_word"), "\n");
  EXPECT_EQ(whole.at("tokens_predicted"), 3);
  std::string out;
  answer.append_text(out, "a");
  EXPECT_EQ(out, "data: {\"index\":0,\"content\":\"a\",\"stop\":false}\n\n");
  out.clear();
  eos.stop_string.clear();
  eos.reason = FinishReason::length;
  answer.append_last(out, eos);
  EXPECT_THAT(out, HasSubstr(R"("stop_type":"limit")"));
  out.clear();
  eos.error = Error{ErrorCode::runtime_decode, "it broke"};
  answer.append_last(out, eos);
  EXPECT_THAT(out, HasSubstr(R"("message":"it broke")"));
}

}  // namespace
}  // namespace uma::wire
