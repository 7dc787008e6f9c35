#include "pool/family_sampling.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

llm::GgufHeader named(std::string architecture, std::string name, std::string finetune = "") {
  llm::GgufHeader header;
  header.architecture = std::move(architecture);
  header.name = std::move(name);
  header.finetune = std::move(finetune);
  return header;
}

std::string family_of(const llm::GgufHeader& header) {
  const auto known = family_sampling(header);
  return known ? std::string(known->family) : "";
}

TEST(FamilySampling, IsRecognizedByArchitectureAndNames) {
  EXPECT_EQ(family_of(named("gpt-oss", "")), "gpt-oss");
  EXPECT_EQ(family_of(named("qwen3moe", "Qwen3 Coder 30B A3B Instruct")), "Qwen3-Coder");
  EXPECT_EQ(family_of(named("qwen3", "Qwen3-4B-Instruct-2507")), "Qwen3 Instruct");
  EXPECT_EQ(family_of(named("qwen3", "Qwen3 4B", "Instruct-2507")), "Qwen3 Instruct");
  EXPECT_EQ(family_of(named("qwen3", "Qwen3 4B")), "Qwen3");
  EXPECT_EQ(family_of(named("qwen3", "DeepSeek R1 0528 Qwen3 8B")), "DeepSeek-R1");
  EXPECT_EQ(family_of(named("deepseek2", "Kimi K2 Instruct")), "Kimi-K2");
  EXPECT_EQ(family_of(named("deepseek2", "Kimi-K2-Thinking")), "Kimi-K2 Thinking");
  EXPECT_EQ(family_of(named("llama", "Mistral Small 3.2 24B Instruct 2506")), "Mistral Small 3.2");
  EXPECT_EQ(family_of(named("lfm2", "LFM2 1.2B Tool")), "LFM2 Tool");
  EXPECT_EQ(family_of(named("qwen2", "Qwen2.5 Coder 0.5B Instruct")), "Qwen2.5");
  EXPECT_EQ(family_of(named("llama", "Meta Llama 3.1 8B Instruct")), "Llama 3");
  EXPECT_EQ(family_of(named("llama", "SmolLM2 135M", "Instruct")), "SmolLM2");
  EXPECT_EQ(family_of(named("lfm2", "LFM2.5-1.2B-Instruct")), "LFM2.5");
  EXPECT_EQ(family_of(named("granite", "Granite-4.0-micro")), "Granite 4");
  llm::GgufHeader by_base_name = named("phi3", "");
  by_base_name.base_name = "Phi-4";
  EXPECT_EQ(family_of(by_base_name), "Phi-4");
}

TEST(FamilySampling, OfOtherModelsIsUnknown) {
  EXPECT_EQ(family_of(named("llama", "uma tiny")), "");
  EXPECT_EQ(family_of(named("llama", "Llama 3.2 1B")), "") << "not trained for conversations";
  EXPECT_EQ(family_of(named("llama", "Qwen3 4B")), "") << "another architecture";
  EXPECT_EQ(family_of(named("granite", "Granite 3.3 8B")), "");
  EXPECT_EQ(family_of(named("qwen3", "Qwen3 8B Base")), "") << "not trained for conversations";
  EXPECT_EQ(family_of(named("qwen3", "Qwen3-8B-Base", "Base")), "");
  EXPECT_EQ(family_of(named("llama", "Amimo")), "") << "words begin with the name";
  EXPECT_EQ(family_of(named("", "")), "");
}

TEST(FamilySampling, HasOnlyWhatIsRecommended) {
  const auto coder = family_sampling(named("qwen3moe", "Qwen3 Coder 30B"));
  ASSERT_TRUE(coder.has_value());
  SamplingValues expected;
  expected[SamplingField::temperature] = 0.7;
  expected[SamplingField::top_p] = 0.8;
  expected[SamplingField::top_k] = 20;
  expected[SamplingField::repeat_penalty] = 1.05;
  EXPECT_EQ(coder->values, expected);
}

TEST(FamilySampling, EveryValueIsInItsRange) {
  for (const char* name :
       {"gpt-oss", "qwen35", "glm4moe", "minimax-m2", "gemma3", "gemma4", "lfm2", "exaone4", "llama4", "smollm3"}) {
    const auto known = family_sampling(named(name, ""));
    ASSERT_TRUE(known.has_value()) << name;
    for (const SamplingFieldInfo& info : sampling_fields()) {
      const auto& value = known->values[info.field];
      EXPECT_TRUE(!value || info.accepts(*value)) << name << " " << info.name;
    }
  }
}

}  // namespace
}  // namespace uma::pool
