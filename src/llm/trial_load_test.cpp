#include "llm/trial_load.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

namespace fs = std::filesystem;

class TrialLoad : public ::testing::Test {
 protected:
  TrialLoad() {
    const char* path = std::getenv("UMA_TEST_MODEL");
    EXPECT_NE(path, nullptr);
    model_ = path == nullptr ? "" : path;
  }
  ~TrialLoad() override { fs::remove(copy_); }
  // Writes the model with `change` applied to its bytes.
  template <class ChangeT>
  std::string changed(ChangeT&& change) {
    std::ifstream file(model_, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    change(bytes);
    std::ofstream(copy_, std::ios::binary | std::ios::trunc) << bytes;
    return copy_;
  }

  std::string model_;
  const std::string copy_ = fs::path(::testing::TempDir()) / ("uma-trial-" + std::to_string(::getpid()) + ".gguf");
};

TEST_F(TrialLoad, AGoodModelPasses) {
  const auto tried = try_model(model_);
  EXPECT_TRUE(tried.has_value()) << tried.error().message;
}

TEST_F(TrialLoad, ATokenizerThatIsTooSlowDoesNot) {
  const auto tried = try_model(model_, {.sample_s_max = 1e-12});
  ASSERT_FALSE(tried.has_value());
  EXPECT_EQ(tried.error().code, ErrorCode::model_capability);
  EXPECT_TRUE(tried.error().message.contains("tokenizer takes")) << tried.error().message;
}

TEST_F(TrialLoad, WhatIsNoModelIsRefusedInOrder) {
  const auto tried = try_model(changed([](std::string& bytes) { bytes.resize(100); }));
  ASSERT_FALSE(tried.has_value());
  EXPECT_EQ(tried.error().code, ErrorCode::model_load);
}

TEST_F(TrialLoad, TheIdentityIsThatOfTheHead) {
  const auto identity = trial_identity(model_);
  ASSERT_TRUE(identity.has_value()) << identity.error().message;
  EXPECT_EQ(trial_identity(changed([](std::string&) {})).value(), *identity) << "a copy is the same";
  EXPECT_EQ(trial_identity(changed([](std::string& bytes) { bytes.back() ^= 1; })).value(), *identity)
      << "a weight decides nothing";
  EXPECT_NE(trial_identity(changed([](std::string& bytes) { bytes += '\0'; })).value(), *identity);
  EXPECT_NE(trial_identity(changed([](std::string& bytes) { bytes.replace(bytes.find("</s>"), 4, "</z>"); })).value(),
            *identity);
}

}  // namespace
}  // namespace uma::llm
