#include "pool/unknown_model.h"

#include <string_view>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

TEST(UnknownModel, HostedModelsAreKnown) {
  for (const char* name : {"claude-sonnet-4-5-20250929", "gpt-5", "openai/gpt-4o-mini", "o3", "o4-mini", "gemini-2.5-pro",
                           "chatgpt-4o-latest", "codex-mini-latest", "text-embedding-3-small", "grok-4", "dall-e-3",
                           "ft:gpt-4o-mini-2024-07-18:org::id", "us.anthropic.claude-sonnet-4-20250514-v1:0"}) {
    EXPECT_TRUE(is_name_of_other_vendor(name)) << name;
  }
}

TEST(UnknownModel, OpenModelsAreNot) {
  for (const char* name : {"", "/", "o", "ollama", "o33", "olmo-2-7b", "gpt-oss-20b", "openai/gpt-oss-120b", "gpt2",
                           "gemma-3-4b-it", "qwen3-8b", "claude", "my-gpt-4"}) {
    EXPECT_FALSE(is_name_of_other_vendor(name)) << name;
  }
}

TEST(Likeness, NamesOfOtherRegistriesHaveTheSameWords) {
  using enum Likeness;
  constexpr std::string_view kLlama = "Llama-3.2-3B-Instruct-Q4_K_M";
  for (const auto& [asked, known, expected] : std::vector<std::tuple<std::string_view, std::string_view, Likeness>>{
           {"llama3.2:3b-instruct-q4_K_M", kLlama, whole},
           {"library/llama3.2:3b-instruct-q4_K_M", kLlama, whole},
           {"hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", kLlama, whole},
           {"https://huggingface.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", kLlama, whole},
           {"hf.co/o/r-GGUF:Q8_0", "o/r-GGUF:Q8_0", whole},
           {"bartowski/Llama-3.2-3B-Instruct-GGUF", kLlama, beginning},
           {"llama3.2:3b", kLlama, beginning},
           {"llama3.2:latest", kLlama, beginning},
           {"deepseek-r1:8b", "DeepSeek-R1-Distill-Llama-8B-Q4_K_M", beginning},
           {"smollm2:135m", "smollm2-135m-instruct-q4_1", beginning},
           {"mistral", "Mistral-7B-Instruct-v0.3.Q4_K_M", beginning},
           {"nomic-embed-text", "nomic-embed-text-v1.5.f16", beginning},
           {"llama3", kLlama, none},
           {"llama3.2:1b", kLlama, none},
           {"llama3.2:3b-instruct-q8_0", kLlama, none},
           {"qwen:0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m", none},
           {"llama", "DeepSeek-R1-Distill-Llama-8B", none},
           {"", kLlama, none},
           {":", kLlama, none},
           {"/", "/", none}}) {
    EXPECT_EQ(likeness(asked, known), expected) << asked << " and " << known;
  }
}

}  // namespace
}  // namespace uma::pool
