#include "base/system/new_file.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma {
namespace {

namespace fs = std::filesystem;

class NewFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("uma-new-file-" + std::to_string(::getpid()));
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }

  fs::path folder_;
};

TEST_F(NewFileTest, TheNameHasTheOldFileUntilTheNewOneIsWhole) {
  std::ofstream(path("a")) << "old";
  {
    NewFile file(path("a"));
    file.write("new");
    EXPECT_EQ(text("a"), "old");
  }
  EXPECT_EQ(text("a"), "old");
  EXPECT_EQ(files(), 1);
  NewFile file(path("a"));
  file.write("ne");
  file.write("w");
  file.sync();
  EXPECT_EQ(file.publish(), 0);
  EXPECT_EQ(text("a"), "new");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, TheFirstFailureIsReportedAndLeavesNothing) {
  NewFile nowhere(path("no folder/a"));
  nowhere.write("x");
  nowhere.sync();
  EXPECT_EQ(nowhere.publish(), ENOENT);
  {
    NewFile file(path("a"));
    file.note(ENOSPC);
    file.write("x");
    file.note(EIO);
    EXPECT_EQ(file.publish(), ENOSPC);
  }
  fs::create_directory(path("folder"));
  {
    NewFile file(path("folder"));
    EXPECT_EQ(file.publish(), EISDIR);
  }
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, ALinkInItsPlaceIsNotFollowed) {
  std::ofstream(path("other")) << "other";
  fs::create_symlink(path("other"), path("a.tmp"));
  NewFile file(path("a"), path("a.tmp"));
  file.write("new");
  EXPECT_EQ(file.publish(), 0);
  EXPECT_EQ(text("other"), "other");
  EXPECT_FALSE(fs::is_symlink(path("a")));
}

TEST_F(NewFileTest, AFullDeviceIsReported) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full.is_open()) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(write_all(full.get(), "x"), ENOSPC);
}

}  // namespace
}  // namespace uma
