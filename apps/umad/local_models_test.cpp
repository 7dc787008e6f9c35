#include "umad/local_models.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "pool/model_pool.h"
#include "umad/process/pull_process.h"

namespace uma::umad {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(PullSource, IsOfAHubOrAUrl) {
  for (const char* good : {"owner/repo", "owner/repo:q4_k_m@main", "hf.co/owner/repo", "https://host.example/m.gguf"}) {
    EXPECT_EQ(why_not_a_source(good), "") << good;
  }
  for (const char* bad : {"", "llama3", "--out=/x/y", "-o/r", "owner/re po", "owner/repo\n", "owner/\xff",
                          "https://me:secret@host.example/m.gguf", "ftp://host.example/m.gguf"}) {
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

TEST_F(PullProcess, AnErrorMayHaveSeveralLines) {
  const auto refused = run("echo 'uma-cli: which one?' >&2; echo '  a' >&2; echo '  b' >&2; echo '{\"name\":\"x\"}'; exit 1");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "which one?\n  a\n  b");
  const auto long_one = run("echo 'uma-cli: which one?'; yes 0123456789 | head -n 1000; exit 1");
  EXPECT_LE(long_one.error().message.size(), 4096u);
}

TEST_F(PullProcess, WhatTheCallerThrowsEndsTheProcess) {
  EXPECT_THROW((void)run("exec sleep 600", [](const PullProgress&) -> bool { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST_F(PullProcess, AnUnwantedDownloadIsEnded) {
  const auto cancelled = run("exec sleep 600", [](const PullProgress&) { return false; });
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().code, ErrorCode::limit_wait);
}

TEST_F(PullProcess, OutputThatIsNoLineIsBounded) {
  EXPECT_EQ(run("head -c 1000000 /dev/zero; echo; echo '{\"path\":\"/m\"}'").value(), "/m");
}

class KeptEnd final : public PullSink {
 public:
  bool update(const PullProgress&) override { return true; }
  void end(Expected<std::string> model) override { end_.set_value(std::move(model)); }
  [[nodiscard]] Expected<std::string> wait() { return end_.get_future().get(); }

 private:
  std::promise<Expected<std::string>> end_;
};

// A library whose folder is empty, with one model elsewhere: "two words".
class Library : public PullProcess {
 protected:
  // `script` runs in place of uma-cli.
  void start(const std::string& script) {
    const fs::path program = folder_ / "uma-cli";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    fs::permissions(program, fs::perms::owner_all);
    const std::string aliases = (folder_ / "model_aliases").string();
    auto registry = pool::ModelRegistry::read({.cards_file = "",
                                               .model_path = (folder_ / "two words.gguf").string(),
                                               .folders = {folder_.string()},
                                               .aliases_file = aliases});
    pool_ = std::make_unique<pool::ModelPool>(pool::PoolOptions{}, *registry, clock_);
    models_ = std::make_unique<LocalModels>(
        LocalModelsOptions{.folder = folder_.string(), .program = program.string(), .aliases_file = aliases}, *pool_);
  }
  std::shared_ptr<KeptEnd> pull(const std::string& source) {
    auto sink = std::make_shared<KeptEnd>();
    models_->pull(source, sink);
    return sink;
  }

  const SteadyClock clock_;
  std::unique_ptr<pool::ModelPool> pool_;
  std::unique_ptr<LocalModels> models_;
};

TEST_F(Library, WhoPullsTheSameSourceFollowsTheSameDownload) {
  const std::string runs = (folder_ / "runs").string();
  start("echo \"$6\" >> '" + runs + "'; until [ -e '" + (folder_ / "go").string() +
        "' ]; do sleep 0.01; done; echo 'uma-cli: no'; exit 1\n");
  const auto first = pull("owner/repo");
  const auto second = pull("owner/repo");
  const auto other = pull("https://host.example/m.gguf?token=secret");
  const std::vector<PullInProgress> all = models_->pulls();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].source, "owner/repo");
  EXPECT_EQ(all[1].source, "https://host.example/m.gguf");
  std::ofstream(folder_ / "go") << "yes";
  for (const auto& each : {first, second, other}) EXPECT_EQ(each->wait().error().message, "no");
  EXPECT_TRUE(models_->pulls().empty());
  EXPECT_EQ(pull("owner/repo")->wait().error().message, "no") << "it may be tried again";
  std::ifstream file(runs);
  std::vector<std::string> sources;
  for (std::string line; std::getline(file, line);) sources.push_back(line);
  EXPECT_EQ(std::ranges::count(sources, "owner/repo"), 2);
  EXPECT_EQ(sources.size(), 3u);
}

TEST_F(Library, AnErrorShowsNeitherTheFolderNorTheSourcesSecrets) {
  start("echo \"uma-cli: $4/m.gguf already exists\"; exit 1\n");
  EXPECT_EQ(pull("owner/repo")->wait().error().message, "m.gguf already exists");
  const std::string refused = pull("https://me:secret@host.example/m.gguf")->wait().error().message;
  EXPECT_THAT(refused, HasSubstr("user name"));
  EXPECT_THAT(refused, testing::Not(HasSubstr("secret")));
}

TEST_F(Library, AModelWhoseNameHasBlanksGetsNoOther) {
  start("exit 1");
  std::promise<Expected<Unit>> named;
  models_->add_alias("two words", "two", [&](Expected<Unit> result) { named.set_value(std::move(result)); });
  EXPECT_EQ(named.get_future().get().error().code, ErrorCode::proto_field);
  EXPECT_FALSE(fs::exists(folder_ / "model_aliases"));
}

TEST_F(Library, ANameIsGivenAndTaken) {
  start("exit 1");
  fs::copy_file(UMA_SHIPPED_MODEL, folder_ / "a.gguf");
  const auto change = [&](auto call) {
    std::promise<Expected<Unit>> done;
    call([&](Expected<Unit> result) { done.set_value(std::move(result)); });
    return done.get_future().get();
  };
  EXPECT_TRUE(change([&](Promise<Unit> reply) { models_->add_alias("a", "b", std::move(reply)); }));
  EXPECT_EQ(pool_->resolve("b").value(), "a");
  EXPECT_TRUE(change([&](Promise<Unit> reply) { models_->remove("b", std::move(reply)); }));
  EXPECT_FALSE(pool_->resolve("b"));
  models_->cancel();
  const auto late = change([&](Promise<Unit> reply) { models_->add_alias("a", "c", std::move(reply)); });
  EXPECT_EQ(late.error().code, ErrorCode::limit_wait);
}

}  // namespace
}  // namespace uma::umad
