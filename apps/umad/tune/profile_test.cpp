#include "umad/tune/profile.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Machine kMachine{.cpu = "Some(R) CPU @ 2.00GHz", .cores = 6, .library = "libllama 0.7.0"};
constexpr char kIdentity[] = "0123456789abcdef0123456789abcdef";

Profile a_profile() {
  return {.model_identity = kIdentity,
          .model_name = "it's a \"model\" \\ #1: x",
          .machine = kMachine,
          .decode_threads = 3,
          .prefill_threads = 6,
          .ubatch_rows = 256,
          .flash_attention = llm::FlashAttention::off,
          .kv_layout = llm::KvLayout::unified,
          .kv_types = llm::KvTypes(),
          .lanes = true,
          .decode_threads_beside_prefill = 2,
          .prefill_threads_beside_decode = 4};
}

std::string problem_of(const std::string& text) {
  const auto parsed = parse_profile(text, kIdentity, kMachine);
  return parsed ? "none" : parsed.error();
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(Profile, ComesBackAsItWasWritten) {
  EXPECT_EQ(parse_profile(profile_text(a_profile()), kIdentity, kMachine).value(), a_profile());
  Profile other = a_profile();
  other.flash_attention = llm::FlashAttention::on;
  other.kv_layout = llm::KvLayout::split;
  other.kv_types = llm::KvTypes::both(llm::KvType::q8_0);
  other.lanes = false;
  EXPECT_EQ(parse_profile(profile_text(other), kIdentity, kMachine).value(), other);
}

TEST(Profile, EveryCutOfTheFileIsNoticed) {
  const std::string whole = profile_text(a_profile());
  for (std::size_t bytes = 0; bytes + 1 < whole.size(); ++bytes) {
    // Cut inside the library's version it is a profile of another library.
    EXPECT_NE(problem_of(whole.substr(0, bytes)), "none") << bytes;
  }
}

TEST(Profile, WhatIsMissingTooMuchOrOutOfRangeIsDamage) {
  const std::string whole = profile_text(a_profile());
  EXPECT_THAT(problem_of(""), StartsWith("it is damaged"));
  EXPECT_THAT(problem_of("- a\n- b\n"), StartsWith("it is damaged"));
  EXPECT_THAT(problem_of("{{{{"), StartsWith("it is damaged"));
  EXPECT_THAT(problem_of(replaced(whole, "  ubatch: 256\n", "")), HasSubstr("ubatch is missing"));
  EXPECT_THAT(problem_of(replaced(whole, "decode_threads: 3", "decode_threads: 0")), HasSubstr("an integer from 1 to 256"));
  EXPECT_THAT(problem_of(replaced(whole, "lanes: on", "lanes: perhaps")), HasSubstr("expected on or off"));
  EXPECT_THAT(problem_of(replaced(whole, "lanes: on", "lanes: on\n  speed: 9")), HasSubstr("unknown keys"));
  EXPECT_THAT(problem_of(whole + "more: 1\n"), HasSubstr("unknown keys"));
  EXPECT_THAT(problem_of(replaced(whole, "type: f16", "type: q8_0")), HasSubstr("needs flash attention"));
}

TEST(Profile, OfANewerVersionIsNotGuessedAt) {
  EXPECT_THAT(problem_of("version: 2\nsomething: else\n"), HasSubstr("newer umad (format 2; this version reads 1)"));
}

TEST(Profile, ForAnotherModelMachineOrLibraryIsForeign) {
  const std::string text = profile_text(a_profile());
  EXPECT_EQ(parse_profile(text, "ff", kMachine).error(), "it is for another model");
  EXPECT_THAT(parse_profile(text, kIdentity, {"Other CPU", 6, kMachine.library}).error(),
              HasSubstr("another machine (Some(R)"));
  EXPECT_THAT(parse_profile(text, kIdentity, {kMachine.cpu, 4, kMachine.library}).error(), HasSubstr("6 cores"));
  EXPECT_THAT(parse_profile(text, kIdentity, {kMachine.cpu, 6, "libllama 0.8.1"}).error(), HasSubstr("run umad tune again"));
}

TEST(Profile, ThePathNamesModelAndMachine) {
  EXPECT_EQ(profile_path("/data", "abc", kMachine), "/data/profiles/abc-some-r-cpu-2-00ghz-6.yaml");
  EXPECT_EQ(profile_path("/data", "abc", {"../../etc", 1, ""}), "/data/profiles/abc-etc-1.yaml");
}

class ProfileFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "uma_profile_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    path_ = profile_path(root_, kIdentity, kMachine);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string root_;
  std::string path_;
};

TEST_F(ProfileFile, IsItsOwnersAloneAndReplacedWhole) {
  EXPECT_EQ(read_profile(path_, kIdentity, kMachine).value(), std::nullopt);
  ASSERT_TRUE(write_profile(path_, a_profile()));
  Profile second = a_profile();
  second.ubatch_rows = 64;
  ASSERT_TRUE(write_profile(path_, second));
  EXPECT_EQ(read_profile(path_, kIdentity, kMachine).value(), second);
  struct stat facts{};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_ + "/profiles"), {}), 1) << "no temporary file is left";
}

TEST_F(ProfileFile, WhatIsNoSmallFileIsNotRead) {
  std::filesystem::create_directories(path_);
  EXPECT_THAT(read_profile(path_, kIdentity, kMachine).error(), HasSubstr("not a small regular file"));
  std::filesystem::remove(path_);
  std::ofstream(path_) << std::string(100'000, ' ');
  EXPECT_THAT(read_profile(path_, kIdentity, kMachine).error(), HasSubstr("not a small regular file"));
}

}  // namespace
}  // namespace uma::umad
