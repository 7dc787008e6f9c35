#include "server/http/access_log.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

using ::testing::EndsWith;

const AccessRecord kRecord{.method = "POST",
                           .path = "/v1/chat/completions",
                           .status = 200,
                           .bytes = 1234,
                           .took = std::chrono::microseconds(15'340),
                           .tenant = "key:ci",
                           .key = "ci",
                           .request_id = "abc",
                           .tokens = AccessTokens{.prompt = 12, .completion = 34}};
constexpr const char* kLine = "POST /v1/chat/completions 200 1234B 15.3ms tenant=key:ci key=ci id=abc tokens=12+34";

TEST(AccessLog, SaysWhoAskedForWhatAndWhatItCost) {
  EXPECT_EQ(access_line(kRecord), kLine);
  EXPECT_EQ(access_line({.status = 400}), "- - 400 0B 0.0ms tenant=- key=- id=-");
  EXPECT_EQ(access_line({.status = 200, .agent = {.program = "codex", .id = "a\nb"}}),
            "- - 200 0B 0.0ms tenant=- key=- id=- agent=codex:a?b");
  EXPECT_EQ(access_line({.status = 200, .agent = {.id = "a"}}), "- - 200 0B 0.0ms tenant=- key=- id=- agent=a");
  EXPECT_EQ(access_line({.status = 200, .bytes = 12, .is_cut = true}), "- - 200 12B 0.0ms tenant=- key=- id=- cut");
}

TEST(AccessLog, HasOneLineForOneRequestWhateverItHolds) {
  EXPECT_EQ(access_line({.method = "GET", .path = "/\n2026 fake\x1b", .status = 404}),
            "GET /?2026?fake? 404 0B 0.0ms tenant=- key=- id=-");
}

TEST(AccessLog, AppendsToAFileOfItsUserAlone) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("uma_access_log_test_" + std::to_string(::getpid()));
  for (int round = 0; round < 2; ++round) {
    auto log = AccessLog::open(path);
    ASSERT_TRUE(log.has_value()) << log.error().message;
    log->write(kRecord);
  }
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
  EXPECT_THAT(text, EndsWith(std::string("Z ") + kLine + "\n"));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::remove(path);
}

TEST(AccessLog, IsNoFolderAndNoMissingOne) {
  EXPECT_FALSE(AccessLog::open("/").has_value());
  EXPECT_FALSE(AccessLog::open("/nowhere/access.log").has_value());
  EXPECT_TRUE(AccessLog::open("off").has_value());
}

}  // namespace
}  // namespace uma::server
