#include "umad/model_path.h"

#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FindModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "uma_model_path_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* file : {"mine/small.gguf", "mine/both.gguf", "shipped/both.gguf", "shipped/notes.txt"}) {
      std::filesystem::create_directories((root_ / file).parent_path());
      std::ofstream(root_ / file) << "GGUF";
    }
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Expected<std::string> find(std::string_view name) const { return find_model(name, {root_ / "mine", root_ / "shipped"}); }

  std::filesystem::path root_;
};

TEST_F(FindModel, APathIsTakenAsItIs) {
  EXPECT_EQ(*find("/nowhere/x.gguf"), "/nowhere/x.gguf") << "whether it can be read, loading it tells";
  EXPECT_EQ(*find("./x.gguf"), "./x.gguf");
}

TEST_F(FindModel, ANameIsLookedForInTheFoldersInTheirOrder) {
  EXPECT_EQ(*find("small"), root_ / "mine/small.gguf");
  EXPECT_EQ(*find("small.gguf"), root_ / "mine/small.gguf");
  EXPECT_EQ(*find("both"), root_ / "mine/both.gguf");
}

TEST_F(FindModel, AnUnknownNameIsToldWhatThereIs) {
  const auto found = find("larg");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::model_unknown);
  EXPECT_THAT(found.error().message,
              AllOf(HasSubstr("no model \"larg\""), HasSubstr("available: both, small"), HasSubstr((root_ / "mine").string())));
  EXPECT_FALSE(find("notes")) << "only models have names";
}

TEST_F(FindModel, AFolderThatIsNotThereHoldsNothing) {
  const auto found = find_model("x", {root_ / "absent"});
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, Not(HasSubstr("there are")));
}

TEST(ShippedModel, LiesBesideTheFolderOfTheExecutable) {
  EXPECT_EQ(shipped_model("/usr/local/bin/umad"), "/usr/local/share/uma-serve/models/uma-tiny.gguf");
}

}  // namespace
}  // namespace uma::umad
