#include "wire/llama_server/llama_server_decoder.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/sampling_fields.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;

TextCall infill_of(std::string_view body) {
  auto call = decode_infill(body);
  if (call) return std::move(*call);
  ADD_FAILURE() << body << ": " << call.error().error.message;
  return {};
}

TEST(LlamaServerDecoder, Tokenizes) {
  const TokenizeRequest plain = decode_tokenize(R"({"content":"a"})").value();
  EXPECT_EQ(plain.text, "a");
  EXPECT_FALSE(plain.adds_special);
  EXPECT_TRUE(plain.parses_special);
  EXPECT_FALSE(plain.wants_texts);
  const TokenizeRequest all =
      decode_tokenize(R"({"content":"","add_special":true,"parse_special":false,"with_pieces":true,"model":"m"})").value();
  EXPECT_EQ(all.model, "m");
  EXPECT_TRUE(all.adds_special);
  EXPECT_FALSE(all.parses_special);
  EXPECT_TRUE(all.wants_texts);
  EXPECT_EQ(decode_tokenize("{}").error().field, "content");
}

TEST(LlamaServerDecoder, Detokenizes) {
  EXPECT_THAT(decode_detokenize(R"({"tokens":[1,2]})").value().tokens, ElementsAre(1, 2));
  for (const auto& [body, field] :
       std::vector<std::pair<std::string_view, std::string_view>>{{"{}", "tokens"},
                                                                  {R"({"tokens":"a"})", "tokens"},
                                                                  {R"({"tokens":[1,-1]})", "tokens[1]"},
                                                                  {R"({"tokens":[2147483648]})", "tokens[0]"}}) {
    EXPECT_EQ(decode_detokenize(body).error().field, field) << body;
  }
}

TEST(LlamaServerDecoder, CompletesTexts) {
  const TextCall call = decode_plain_completion(R"({"prompt":"<|im_start|>a","n_predict":2,"logit_bias":{"7":-1}})").value();
  EXPECT_EQ(call.generate.input.text, "<|im_start|>a");
  EXPECT_TRUE(call.generate.input.parses_special);
  EXPECT_EQ(call.generate.options.max_tokens, 2);
  EXPECT_EQ(call.generate.options.sampling.logit_bias.size(), 1U);
  EXPECT_FALSE(decode_plain_completion(R"({"prompt":"a","parse_special":false})").value().generate.input.parses_special);
  EXPECT_THAT(decode_plain_completion(R"({"prompt":[1,2]})").value().generate.input.tokens, ElementsAre(1, 2));
  EXPECT_EQ(decode_plain_completion(R"({"prompt":"a","json_schema":{"type":"object"}})").value().generate.options.json_schema,
            R"({"type":"object"})");
  for (const std::string_view body :
       {"{}", R"({"prompt":""})", R"({"prompt":[]})", R"({"prompt":["a","b"]})", R"({"prompt":5})"})
    EXPECT_EQ(decode_plain_completion(body).error().field, "prompt") << body;
}

TEST(LlamaServerDecoder, FillsGaps) {
  const TextCall call =
      infill_of(R"({"input_prefix":"a","input_suffix":"b","prompt":"c","n_predict":5,"stop":["x"],"stream":true,
      "input_extra":[{"filename":"f.h","text":"t"},{"text":"u"}],"samplers":["infill"],"cache_prompt":true,"t_max_predict_ms":500})");
  const Input& input = call.generate.input;
  EXPECT_EQ(input.text, "a");
  EXPECT_EQ(input.infill->suffix, "b");
  EXPECT_EQ(input.infill->begun, "c");
  ASSERT_EQ(input.infill->files.size(), 2U);
  EXPECT_EQ(input.infill->files[0].name, "f.h");
  EXPECT_EQ(input.infill->files[1].name, "tmp");
  EXPECT_FALSE(input.empty());
  EXPECT_FALSE(input.parses_special);
  EXPECT_EQ(input.bytes(), 3U + 4U + 4U);
  EXPECT_EQ(call.generate.options.max_tokens, 5);
  EXPECT_TRUE(call.generate.options.stream);
  EXPECT_EQ(infill_of(R"({"n_predict":-1})").generate.options.max_tokens, std::nullopt);
}

TEST(LlamaServerDecoder, WarmsUpWithoutContent) {
  const TextCall call = infill_of(R"({"n_predict":0,"temperature":-1,"top_k":-1,"seed":-1})");
  EXPECT_EQ(call.generate.options.max_tokens, 0);
  EXPECT_EQ(call.generate.options.sampling.temperature, 0);
  EXPECT_EQ(call.generate.options.sampling.top_k, 0);
  EXPECT_EQ(call.generate.options.sampling.seed, std::nullopt);
}

TEST(LlamaServerDecoder, AGapIsSampledAsItsRequestSays) {
  const SamplingParams none = infill_of("{}").generate.options.sampling;
  EXPECT_EQ(none.top_k, 40);
  EXPECT_EQ(none.temperature, 0.8);
  EXPECT_TRUE(none.given.none());
  const SamplingParams all = infill_of(R"({"temperature":0.1,"top_k":5,"top_p":0.5,"min_p":0.2,"repeat_penalty":1.2,
      "presence_penalty":1,"frequency_penalty":1})")
                                 .generate.options.sampling;
  EXPECT_EQ(all.top_k, 5);
  EXPECT_EQ(all.min_p, 0.2);
  EXPECT_EQ(all.given.count(), 7U);
  for (const SamplingField field : {SamplingField::temperature, SamplingField::top_k, SamplingField::top_p,
                                    SamplingField::min_p, SamplingField::repeat_penalty, SamplingField::presence_penalty}) {
    EXPECT_TRUE(is_given(all, field));
  }
}

TEST(LlamaServerDecoder, ErrorsNameTheField) {
  for (const auto& [body, field] : std::vector<std::pair<std::string_view, std::string_view>>{
           {R"({"input_prefix":1})", "input_prefix"},
           {R"({"input_extra":[1]})", "input_extra[0]"},
           {R"({"input_extra":[{"text":"a"},{"filename":"b"}]})", "input_extra[1].text"},
           {R"({"n_probs":5})", "n_probs"},
           {R"({"top_p":2})", "top_p"}}) {
    const auto call = decode_infill(body);
    ASSERT_FALSE(call) << body;
    EXPECT_EQ(call.error().field, field);
  }
}

}  // namespace
}  // namespace uma::wire
