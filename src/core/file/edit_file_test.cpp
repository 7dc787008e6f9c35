#include "core/file/edit_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma {
namespace {

using ::testing::HasSubstr;

constexpr ::uid_t kNobody = 65534;

class EditFile : public ::testing::Test {
 protected:
  EditFile() : folder_(std::filesystem::path(::testing::TempDir()) / ("uma-edit-" + std::to_string(::getpid()))) {}
  ~EditFile() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return (folder_ / "sub/file").string(); }
  [[nodiscard]] std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path()).rdbuf();
    return all.str();
  }
  [[nodiscard]] Expected<Unit> append(const std::string& more, const EditRules& rules = {}) const {
    return edit_file(path(), rules, [&](const std::string& old) { return old + more; });
  }
  // Files in the folder: no temporary one may stay behind.
  [[nodiscard]] std::ptrdiff_t files() const { return std::distance(std::filesystem::directory_iterator(folder_ / "sub"), {}); }

  const std::filesystem::path folder_;
};

TEST_F(EditFile, MakesAMissingFileUnlessItMustExist) {
  EXPECT_FALSE(append("a", {.makes_missing = false}).has_value());
  ASSERT_TRUE(append("a").has_value());
  EXPECT_EQ(text(), "a");
  ASSERT_TRUE(append("b", {.makes_missing = false}).has_value());
  EXPECT_EQ(text(), "ab");
  EXPECT_EQ(files(), 1);
}

TEST_F(EditFile, TellsThatTheFileIsChangedIfOnlyTheFolderCouldNotBeSynced) {
  ASSERT_TRUE(append("a").has_value());
  const auto folder = folder_ / "sub";
  const bool is_root = ::geteuid() == 0;
  if (is_root) {  // It may read any folder, and nobody else may.
    ASSERT_EQ(::chown(folder.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::chown(path().c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  bool is_written = false;
  // The folder can be changed and not be opened any more.
  const auto edited = edit_file(
      path(), {},
      [&](const std::string& old) -> Expected<std::string> {
        EXPECT_EQ(::chmod(folder.c_str(), 0300), 0);
        return old + "b";
      },
      &is_written);
  EXPECT_EQ(::chmod(folder.c_str(), 0700), 0);
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_FALSE(edited.has_value());
  EXPECT_THAT(edited.error().message, HasSubstr("the file is changed, but a power cut may bring its old text back"));
  EXPECT_TRUE(is_written);
  EXPECT_EQ(text(), "ab");
  is_written = false;
  EXPECT_FALSE(edit_file(path(), {}, [](const std::string&) { return fail(ErrorCode::proto_field, ""); }, &is_written));
  EXPECT_FALSE(is_written);
}

TEST_F(EditFile, KeepsTheModeAndTheLink) {
  ASSERT_TRUE(append("a").has_value());
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::filesystem::rename(path(), folder_ / "real");
  std::filesystem::create_symlink(folder_ / "real", path());
  ASSERT_EQ(::chmod((folder_ / "real").c_str(), 0640), 0);
  ASSERT_TRUE(append("b").has_value());
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(text(), "ab");
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(EditFile, ARefusedEditChangesNothing) {
  ASSERT_TRUE(append("a").has_value());
  const auto refused =
      edit_file(path(), {}, [](const std::string&) -> Expected<std::string> { return fail(ErrorCode::proto_field, "not so"); });
  EXPECT_EQ(refused.error().message, "not so");
  EXPECT_THAT(append(std::string(20, 'x'), {.bytes_max = 20}).error().message, HasSubstr("21 bytes, more than 20"));
  EXPECT_THAT(read_text_file(path(), {.bytes_max = 0}).error().message, HasSubstr("1 bytes, more than 0"));
  EXPECT_EQ(text(), "a");
  EXPECT_EQ(files(), 1);
}

TEST_F(EditFile, LeavesAReadOnlyFileAsItIs) {
  ASSERT_TRUE(append("a").has_value());
  ASSERT_EQ(::chmod(path().c_str(), 0400), 0);
  EXPECT_THAT(append("b").error().message, HasSubstr("the file is read-only"));
  EXPECT_EQ(text(), "a");
  EXPECT_TRUE(append("").has_value()) << "nothing is to be written";
}

TEST_F(EditFile, TakesNoFolderAndNoDevice) {
  ASSERT_TRUE(append("a").has_value());
  for (const std::string& other : {(folder_ / "sub").string(), std::string("/dev/null")}) {
    const auto read = read_text_file(other, {});
    ASSERT_FALSE(read.has_value()) << other;
    EXPECT_EQ(read.error().message, other + ": not a regular file");
  }
}

TEST_F(EditFile, EditsFollowOneAnother) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 10; ++j) EXPECT_TRUE(append("x").has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(text(), std::string(40, 'x'));
}

}  // namespace
}  // namespace uma
