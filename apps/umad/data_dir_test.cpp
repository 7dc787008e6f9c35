#include "umad/data_dir.h"

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

class DataDir : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "uma_data_dir_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static std::string read(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static unsigned mode(const std::filesystem::path& path) {
    struct stat facts{};
    EXPECT_EQ(::stat(path.c_str(), &facts), 0);
    return facts.st_mode & 0777U;
  }

  std::filesystem::path root_;
};

TEST_F(DataDir, IsMadeForItsOwnerAloneWithItsParents) {
  const std::string path = root_ / "state" / "uma";
  ASSERT_TRUE(prepare_data_dir(path));
  EXPECT_EQ(mode(path), 0700U);
  EXPECT_TRUE(prepare_data_dir(path)) << "a second start finds it";
}

TEST_F(DataDir, OthersMayWriteToItNoMore) {
  const std::string path = root_ / "uma";
  ASSERT_TRUE(prepare_data_dir(path));
  for (const mode_t given : {0777U, 0770U, 0702U, 02775U}) {
    ASSERT_EQ(::chmod(path.c_str(), given), 0);
    ASSERT_TRUE(prepare_data_dir(path));
    EXPECT_EQ(mode(path), given & 0755U);
  }
}

TEST_F(DataDir, AFileInItsPlaceIsAnError) {
  const std::string path = root_ / "uma";
  std::ofstream(path) << "in the way";
  const auto result = prepare_data_dir(path);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr(path + ": Not a directory"));
  EXPECT_FALSE(prepare_data_dir(path + "/below"));
}

TEST_F(DataDir, FilesAreReplacedWholeAndLeaveNoTemporaryOnes) {
  const std::string path = root_ / "metrics.json";
  for (const auto& write : {write_file_atomically, write_file_durably}) {
    ASSERT_TRUE(write(path, "first, and longer"));
    ASSERT_TRUE(write(path, "second"));
    EXPECT_EQ(read(path), "second");
    EXPECT_EQ(mode(path), 0600U);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_), {}), 1);
  }
}

TEST_F(DataDir, AFailedWriteLeavesWhatWasThere) {
  const std::string path = root_ / "metrics.json";
  std::filesystem::create_directories(std::filesystem::path(path) / "occupied");
  const auto result = write_file_atomically(path, "content");
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr(path));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_), {}), 1) << "the temporary file was removed";
}

TEST_F(DataDir, AMissingFolderIsAnErrorWithItsPath) {
  const auto result = write_file_atomically(root_ / "gone" / "metrics.json", "content");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::io_failed);
  EXPECT_THAT(result.error().message, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace uma::umad
