#include "umad/process/model_trials.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

namespace fs = std::filesystem;

class TrialRecordTest : public testing::Test {
 protected:
  TrialRecordTest() { fs::create_directories(folder_); }
  ~TrialRecordTest() override { fs::remove_all(folder_); }
  // As a daemon finds it at its start.
  [[nodiscard]] TrialRecord next(bool ended_by_fault = false) const { return {folder_, ended_by_fault}; }
  // A daemon that begins a load and does not come to its end.
  void crash_while_loading(const std::string& identities, bool is_after_fault = true) {
    TrialRecord record = next(is_after_fault);
    record.begin_load(identities);
  }

  const std::string folder_ = fs::path(testing::TempDir()) / ("uma-trials-" + std::to_string(::getpid()));
};

TEST_F(TrialRecordTest, VerdictsAreKept) {
  {
    TrialRecord record = next();
    EXPECT_FALSE(record.has_passed("good"));
    record.note_passed("good");
    record.note_refused("bad", "it ends the process");
  }
  const TrialRecord record = next();
  EXPECT_TRUE(record.has_passed("good"));
  EXPECT_EQ(record.refusal("good"), "");
  EXPECT_EQ(record.refusal("bad"), "it ends the process");
  EXPECT_FALSE(record.has_passed("bad"));
  EXPECT_EQ(record.refusal("other"), "");
}

TEST_F(TrialRecordTest, TwoFaultsInARowWhileItLoadsRefuseAModel) {
  crash_while_loading("load:a", false);
  EXPECT_EQ(next(true).refusal("load:a"), "") << "another thread may be to blame";
  crash_while_loading("load:a", false);
  const TrialRecord record = next(true);
  EXPECT_EQ(record.refusal("load:a"), "the daemon crashed 2 times while loading it");
  EXPECT_EQ(record.refusal("load:b"), "");
  EXPECT_EQ(next().refusal("load:a"), "the daemon crashed 2 times while loading it") << "until it changes";
}

TEST_F(TrialRecordTest, ALoadThatEndsTakesTheCountBack) {
  crash_while_loading("load:a");
  {
    TrialRecord record = next(true);
    record.begin_load("load:a");
    record.end_load("load:a", true);
    record.begin_load("load:a");
  }
  EXPECT_EQ(next(true).refusal("load:a"), "");
}

TEST_F(TrialRecordTest, MeasuringItDoesNotTakeTheCountBack) {
  for (int i = 0; i < 2; ++i) {
    TrialRecord record = next(true);
    record.begin_load("load:a");
    record.end_load("load:a", false);
    record.begin_load("load:a");
  }
  EXPECT_NE(next(true).refusal("load:a"), "");
}

TEST_F(TrialRecordTest, AKillOrAPowerCutCondemnsNothing) {
  for (int i = 0; i < 5; ++i) {
    TrialRecord record = next(false);
    record.begin_load("load:a");
  }
  EXPECT_EQ(next(false).refusal("load:a"), "");
  EXPECT_EQ(next(true).refusal("load:a"), "") << "its mark is gone with the daemon that found it";
}

TEST_F(TrialRecordTest, AFaultOutsideOfLoadsCondemnsNothing) {
  {
    TrialRecord record = next(false);
    record.begin_load("load:a");
    record.begin_load("load:b");
    record.end_load("load:a", true);
    record.end_load("load:b", true);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(true).refusal("load:a"), "");
}

TEST_F(TrialRecordTest, LinesThatAreNoneAreTriedAgain) {
  std::ofstream(folder_ + "/model_trials") << "\ngarbage\nx passed\ny refused \nz crashed many\n\xff\xfe\n";
  const TrialRecord record = next();
  EXPECT_TRUE(record.has_passed("x"));
  EXPECT_EQ(record.refusal("y"), "");
  EXPECT_EQ(record.refusal("z"), "");
}

TEST_F(TrialRecordTest, TheOldestAreForgotten) {
  std::ofstream file(folder_ + "/model_trials");
  for (std::size_t i = 0; i < TrialRecord::kVerdictsMax; ++i) file << i << " passed\n";
  file.close();
  TrialRecord record = next();
  record.note_passed("new");
  EXPECT_FALSE(record.has_passed("0"));
  EXPECT_TRUE(record.has_passed("1"));
  EXPECT_TRUE(record.has_passed("new"));
}

// A script stands for umad, and writes down that it runs.
class ModelTrialsTest : public TrialRecordTest {
 protected:
  [[nodiscard]] ModelTrials trials(const std::string& script) const {
    std::ofstream(program_) << "#!/bin/sh\necho run >>" << folder_ << "/runs\n" << script << "\n";
    fs::permissions(program_, fs::perms::owner_all);
    return {folder_, program_, false, false};
  }
  [[nodiscard]] std::size_t runs() const {
    std::ifstream file(folder_ + "/runs");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }
  const std::string program_ = folder_ + "/umad.sh";
  const std::string model_ = std::getenv("UMA_TEST_MODEL");
  const pool::LoadControl control_{.is_cancelled = [] { return false; }, .has_streams = [] { return false; }};
};

TEST_F(ModelTrialsTest, AFileIsTriedOnceForAllThatWaitForIt) {
  ModelTrials trials = this->trials("while ! test -e " + folder_ + "/go; do sleep 0.01; done; echo passed");
  trials.begin_early(model_);
  std::array<Expected<Unit>, 2> checked{fail(ErrorCode::runtime_decode, "unset"), fail(ErrorCode::runtime_decode, "unset")};
  {
    std::vector<std::jthread> loads;
    for (Expected<Unit>& one : checked) loads.emplace_back([&] { one = trials.check_model(model_, control_, {}); });
    while (runs() == 0) std::this_thread::yield();
    std::ofstream(folder_ + "/go");
  }
  for (const Expected<Unit>& one : checked) EXPECT_TRUE(one.has_value()) << one.error().message;
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ModelTrialsTest, WhoeverWaitsForATrialWithoutAVerdictMakesHisOwn) {
  ModelTrials trials =
      this->trials("test -e " + folder_ + "/again && echo passed || { touch " + folder_ + "/again; kill -KILL $$; }");
  trials.begin_early(model_);
  while (runs() == 0) std::this_thread::yield();
  EXPECT_TRUE(trials.check_model(model_, control_, {}).has_value());
  EXPECT_EQ(runs(), 2U);
}

TEST_F(ModelTrialsTest, ACancelledLoadWaitsForNoTrialOfOthers) {
  ModelTrials trials = this->trials("exec sleep 600");
  trials.begin_early(model_);
  while (runs() == 0) std::this_thread::yield();
  pool::LoadControl cancelled = control_;
  cancelled.is_cancelled = [] { return true; };
  EXPECT_FALSE(trials.check_model(model_, cancelled, {}).has_value());
}

}  // namespace
}  // namespace uma::umad
