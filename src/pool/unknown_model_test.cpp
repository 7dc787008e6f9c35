#include "pool/unknown_model.h"

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

TEST(UnknownModel, HostedModelsAreKnown) {
  for (const char* name : {"claude-sonnet-4-5-20250929", "gpt-5", "openai/gpt-4o-mini", "o3", "o4-mini", "gemini-2.5-pro",
                           "chatgpt-4o-latest", "codex-mini-latest", "text-embedding-3-small", "grok-4"}) {
    EXPECT_TRUE(is_name_of_other_vendor(name)) << name;
  }
}

TEST(UnknownModel, OpenModelsAreNot) {
  for (const char* name : {"", "/", "o", "ollama", "o33", "olmo-2-7b", "gpt-oss-20b", "openai/gpt-oss-120b", "gpt2",
                           "gemma-3-4b-it", "qwen3-8b", "claude", "my-gpt-4"}) {
    EXPECT_FALSE(is_name_of_other_vendor(name)) << name;
  }
}

}  // namespace
}  // namespace uma::pool
