#include "llm/library_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::llm {
namespace {

using ::testing::HasSubstr;

TEST(LibraryVersion, ATestedMinorVersionNeedsNoRemark) {
  EXPECT_EQ(library_remark({.running = "0.7.0", .built = "0.7.0", .tested = "0.7"}), "");
  EXPECT_EQ(library_remark({.running = "0.7.12", .built = "0.7.0", .tested = "0.7"}), "");
}

TEST(LibraryVersion, AnUntestedMinorVersionIsNamed) {
  const std::string remark = library_remark({.running = "0.70.1", .built = "0.70.0", .tested = "0.7"});
  EXPECT_THAT(remark, HasSubstr("tested with libllama 0.7, this is 0.70.1"));
}

TEST(LibraryVersion, AnotherVersionThanThatOfTheBuildIsNamed) {
  const std::string remark = library_remark({.running = "0.8.0", .built = "0.7.0", .tested = "0.7"});
  EXPECT_THAT(remark, HasSubstr("libllama 0.8.0 is installed, but umad was built with 0.7.0"));
}

TEST(LibraryVersion, ThisBuildKnowsItsVersions) {
  EXPECT_FALSE(library_versions().running.empty());
  EXPECT_FALSE(library_versions().built.empty());
  EXPECT_FALSE(library_versions().tested.empty());
}

}  // namespace
}  // namespace uma::llm
