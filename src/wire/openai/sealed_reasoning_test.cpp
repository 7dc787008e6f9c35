#include "wire/openai/sealed_reasoning.h"

#include <string>

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

TEST(SealedReasoning, ComesBackAsItWas) {
  for (const std::string& text :
       {std::string("a"), std::string("Let me think.\n\"Yes\" \u00e9\u20ac"), std::string(100'000, 'x')}) {
    EXPECT_EQ(reasoning_of(sealed_reasoning(text)), text);
  }
}

TEST(SealedReasoning, ADamagedOneHasNoText) {
  const std::string sealed = sealed_reasoning("Let me think");
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string damaged = sealed;
    damaged[i] = damaged[i] == 'A' ? 'B' : 'A';
    EXPECT_EQ(reasoning_of(damaged), "") << i;
    EXPECT_EQ(reasoning_of(sealed.substr(0, i)), "") << i;
  }
  EXPECT_EQ(reasoning_of("gAAAAABmXl0"), "") << "of another server";
}

TEST(SealedReasoning, TextIsChecked) {
  EXPECT_EQ(reasoning_of(sealed_reasoning(std::string("a\0b", 3))), "");
  EXPECT_EQ(reasoning_of(sealed_reasoning("\xff\xfe")), "");
}

}  // namespace
}  // namespace uma::wire
