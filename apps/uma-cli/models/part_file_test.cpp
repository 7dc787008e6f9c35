#include "uma-cli/models/part_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

namespace fs = std::filesystem;

class PartFiles : public ::testing::Test {
 protected:
  PartFiles() { fs::create_directories(folder); }
  ~PartFiles() override { fs::remove_all(folder); }
  [[nodiscard]] bool exists(const std::string& name) const { return fs::exists(folder / name); }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(folder / name).rdbuf();
    return text.str();
  }

  const fs::path folder = fs::path(::testing::TempDir()) / ("uma-part-" + std::to_string(getpid()));
  const std::string target = folder / "m.gguf";
  Interrupts interrupts;
};

TEST_F(PartFiles, MakeTheTargetInOneStep) {
  auto part = PartFile::open(target).value();
  ASSERT_TRUE(part->begin({.url = "u"}));
  ASSERT_TRUE(part->append("abc"));
  EXPECT_FALSE(exists("m.gguf"));
  EXPECT_EQ(part->sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  ASSERT_TRUE(part->publish(false));
  part.reset();
  EXPECT_EQ(content("m.gguf"), "abc");
  EXPECT_FALSE(exists("m.gguf.part"));
  EXPECT_FALSE(exists("m.gguf.part.json"));
}

TEST_F(PartFiles, GoOnInAnotherRun) {
  {
    auto part = PartFile::open(target).value();
    ASSERT_TRUE(part->begin({.url = "u", .etag = "e"}));
    ASSERT_TRUE(part->append("ab"));
  }
  auto part = PartFile::open(target).value();
  ASSERT_NE(part->state(), nullptr);
  EXPECT_EQ(part->state()->etag, "e");
  EXPECT_EQ(part->size(), 2u);
  ASSERT_TRUE(part->load(interrupts, [](std::uint64_t) {}));
  ASSERT_TRUE(part->append("c"));
  EXPECT_EQ(part->head(), "abc");
  EXPECT_EQ(part->sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(PartFiles, ForgetWhatWasThereWhenTheyBeginAnew) {
  auto part = PartFile::open(target).value();
  ASSERT_TRUE(part->begin({.url = "u"}));
  ASSERT_TRUE(part->append("something long"));
  ASSERT_TRUE(part->begin({.url = "v"}));
  ASSERT_TRUE(part->append("abc"));
  EXPECT_EQ(part->head(), "abc");
  EXPECT_EQ(part->sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(content("m.gguf.part"), "abc");
}

TEST_F(PartFiles, AreFetchedByOneAtATime) {
  auto part = PartFile::open(target).value();
  const auto second = PartFile::open(target);
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, ::testing::HasSubstr("another uma-cli"));
}

TEST_F(PartFiles, LeaveNothingBehindWhenEmptyOrDiscarded) {
  PartFile::open(target).value().reset();
  EXPECT_TRUE(fs::is_empty(folder));
  auto part = PartFile::open(target).value();
  ASSERT_TRUE(part->begin({.url = "u"}));
  ASSERT_TRUE(part->append("abc"));
  part->discard();
  part.reset();
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(PartFiles, ReplaceNothingUnasked) {
  auto part = PartFile::open(target).value();
  ASSERT_TRUE(part->begin({.url = "u"}));
  ASSERT_TRUE(part->append("abc"));
  std::ofstream(target) << "theirs";
  EXPECT_FALSE(part->publish(false));
  EXPECT_EQ(content("m.gguf"), "theirs");
  EXPECT_TRUE(part->publish(true));
  EXPECT_EQ(content("m.gguf"), "abc");
}

TEST_F(PartFiles, FollowNoLink) {
  std::ofstream(folder / "precious") << "data";
  fs::create_symlink(folder / "precious", target + ".part");
  EXPECT_FALSE(PartFile::open(target).has_value());
  EXPECT_EQ(content("precious"), "data");
}

TEST_F(PartFiles, KnowWhenTheDiskIsTooSmall) {
  auto part = PartFile::open(target).value();
  EXPECT_TRUE(part->check_room(1));
  EXPECT_FALSE(part->check_room(std::uint64_t{1} << 60));
}

}  // namespace
}  // namespace uma::cli
