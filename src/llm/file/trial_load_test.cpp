#include "llm/file/trial_load.h"

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
  ~TrialLoad() override { fs::remove(copy_); }
  [[nodiscard]] std::string at(const std::string& name) const { return folder_ / name; }
  // Writes the model with `change` applied to its bytes.
  template <class ChangeT>
  std::string changed(ChangeT&& change) {
    std::ifstream file(model_, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    change(bytes);
    std::ofstream(copy_, std::ios::binary | std::ios::trunc) << bytes;
    return copy_;
  }

  std::string model_ = std::getenv("UMA_TEST_MODEL");
  const fs::path folder_ = fs::path(model_).parent_path();
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

TEST_F(TrialLoad, AGoodProjectorPasses) {
  const auto tried = try_projector(at("tiny-register.gguf"), at("mmproj-tiny-register.gguf"));
  EXPECT_TRUE(tried.has_value()) << tried.error().message;
}

TEST_F(TrialLoad, AProjectorOfSoundPasses) {
  const auto tried = try_projector(at("tiny.gguf"), at("mmproj-tiny-sound.gguf"));
  EXPECT_TRUE(tried.has_value()) << tried.error().message;
}

TEST_F(TrialLoad, AProjectorThatTakesLongPasses) {
  EXPECT_TRUE(try_projector(at("tiny-register.gguf"), at("mmproj-tiny-register.gguf"), {.encoding_s_max = 0}));
}

TEST_F(TrialLoad, AProjectorWhoseRowsAreNotFiniteDoesNot) {
  model_ = at("mmproj-tiny-register.gguf");
  const std::string damaged = changed([](std::string& bytes) { bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\x7f"); });
  const auto tried = try_projector(at("tiny-register.gguf"), damaged);
  ASSERT_FALSE(tried.has_value());
  EXPECT_EQ(tried.error().code, ErrorCode::model_capability);
  EXPECT_TRUE(tried.error().message.contains("32 by 32 pixels")) << tried.error().message;
}

TEST_F(TrialLoad, WhatIsNoProjectorIsRefusedInOrder) {
  const auto tried = try_projector(at("tiny-register.gguf"), at("tiny-register.gguf"));
  ASSERT_FALSE(tried.has_value());
  EXPECT_EQ(tried.error().code, ErrorCode::model_load);
}

TEST_F(TrialLoad, TheIdentityOfAProjectorIsThatOfBothHeads) {
  const auto identity = projector_trial_identity(model_, at("mmproj-tiny-register.gguf"));
  ASSERT_TRUE(identity.has_value()) << identity.error().message;
  EXPECT_NE(projector_trial_identity(model_, at("mmproj-tiny-grid.gguf")).value(), *identity);
  EXPECT_NE(projector_trial_identity(at("tiny-register.gguf"), at("mmproj-tiny-register.gguf")).value(), *identity);
  EXPECT_FALSE(projector_trial_identity(model_, at("none.gguf")).has_value());
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
