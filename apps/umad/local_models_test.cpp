#include "umad/local_models.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "umad/pull_process.h"

namespace uma::umad {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(PullSource, IsOfAHubOrAUrl) {
  for (const char* good : {"owner/repo", "owner/repo:q4_k_m@main", "hf.co/owner/repo", "https://host.example/m.gguf"}) {
    EXPECT_EQ(why_not_a_source(good), "") << good;
  }
  for (const char* bad : {"", "llama3", "--out=/x/y", "-o/r", "owner/re po", "owner/repo\n", "owner/\xff"}) {
    EXPECT_NE(why_not_a_source(bad), "") << bad;
  }
  EXPECT_THAT(why_not_a_source("a/" + std::string(4000, 'b')), HasSubstr("2048"));
}

// A shell script in place of uma-cli.
class PullProcess : public testing::Test {
 protected:
  PullProcess() { fs::create_directories(folder_); }
  ~PullProcess() override { fs::remove_all(folder_); }

  [[nodiscard]] Expected<std::string> run(const std::string& script, const std::function<bool(const PullProgress&)>& follow) {
    const fs::path program = folder_ / "uma-cli";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    fs::permissions(program, fs::perms::owner_all);
    return run_pull_process(program, "/models", "owner/repo", follow);
  }
  [[nodiscard]] Expected<std::string> run(const std::string& script) {
    return run(script, [](const PullProgress&) { return true; });
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("uma-pull-" + std::to_string(::getpid()));
};

TEST_F(PullProcess, GivesThePathOfTheFile) {
  EXPECT_EQ(run(R"(echo '{"path":"/models/m.gguf"}')").value(), "/models/m.gguf");
  EXPECT_EQ(run(R"(printf '{"path":"%s"}\n' "$*")").value(), "pull --json --folder /models -- owner/repo");
}

TEST_F(PullProcess, TellsTheProgress) {
  const fs::path seen = folder_ / "seen";  // Made once the progress was seen, which the script waits for.
  std::uint64_t total = 0;
  const auto path =
      run("echo '{\"name\":\"m.gguf\",\"done\":5,\"total\":9}'\n"
          "until [ -e '" +
              seen.string() +
              "' ]; do sleep 0.01; done\n"
              "echo '{\"path\":\"/m\"}'",
          [&](const PullProgress& progress) {
            if (progress.file == "m.gguf" && progress.bytes_done == 5) {
              total = progress.bytes_total.value_or(0);
              std::ofstream(seen) << "yes";
            }
            return true;
          });
  EXPECT_EQ(path.value(), "/m");
  EXPECT_EQ(total, 9u);
}

TEST_F(PullProcess, AFailureHasItsMessage) {
  const auto refused = run("echo 'uma-cli: no such file on the hub' >&2; exit 1");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_EQ(refused.error().message, "no such file on the hub");
  const auto broken = run("echo 'uma-cli: the disk is full'; exit 2");
  EXPECT_EQ(broken.error().code, ErrorCode::io_failed);
  EXPECT_EQ(broken.error().message, "the disk is full");
  EXPECT_THAT(run("exit 0").error().message, HasSubstr("status"));
  EXPECT_THAT(run_pull_process("/no/such/program", "/", "a/b", [](const PullProgress&) { return true; }).error().message,
              HasSubstr("cannot be started"));
}

TEST_F(PullProcess, AnUnwantedDownloadIsEnded) {
  const auto cancelled = run("exec sleep 600", [](const PullProgress&) { return false; });
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().code, ErrorCode::limit_wait);
}

TEST_F(PullProcess, OutputThatIsNoLineIsBounded) {
  EXPECT_EQ(run("head -c 1000000 /dev/zero; echo; echo '{\"path\":\"/m\"}'").value(), "/m");
}

}  // namespace
}  // namespace uma::umad
