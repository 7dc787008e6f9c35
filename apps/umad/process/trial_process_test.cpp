#include "umad/process/trial_process.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

namespace fs = std::filesystem;
using Kind = TrialOutcome::Kind;

// Scripts stand for umad.
class TrialProcess : public testing::Test {
 protected:
  ~TrialProcess() override { fs::remove(program_); }
  static pool::LoadControl control(bool is_cancelled, bool has_streams = false) {
    return {.is_cancelled = [is_cancelled] { return is_cancelled; }, .has_streams = [has_streams] { return has_streams; }};
  }
  [[nodiscard]] TrialOutcome run(const std::string& script, bool is_cancelled = false, bool has_streams = false) const {
    std::ofstream(program_, std::ios::trunc) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program_, fs::perms::owner_all);
    return run_trial(program_, file_, control(is_cancelled, has_streams));
  }

  TrialFile file_{.model_path = "/folder/a model.gguf"};
  const std::string program_ = fs::path(testing::TempDir()) / ("uma-trial-" + std::to_string(::getpid()) + ".sh");
};

TEST_F(TrialProcess, ItsLastLineIsTheOutcome) {
  EXPECT_EQ(run("echo something; echo; echo passed").kind, Kind::passed);
  EXPECT_EQ(run("echo passed; echo failed as it should").kind, Kind::failed);
  const TrialOutcome slow = run("echo refused it is slow");
  EXPECT_EQ(slow.kind, Kind::refused);
  EXPECT_EQ(slow.reason, "it is slow");
}

TEST_F(TrialProcess, IsToldTheFile) {
  const std::string is_told = "test \"$1\" = try-model && test \"$3\" = '/folder/a model.gguf' && ";
  EXPECT_EQ(run(is_told + "test $# = 3 && echo passed").kind, Kind::passed);
  file_.other_path = "/folder/an other.gguf";
  for (const auto kind : {TrialFile::Kind::adapter, TrialFile::Kind::projector}) {
    file_.kind = kind;
    const std::string name(trial_kind_name(kind));
    EXPECT_EQ(run(is_told + "test $4 = " + name + " && test \"$5\" = '/folder/an other.gguf' && echo passed").kind,
              Kind::passed);
  }
}

TEST_F(TrialProcess, SaysWhenTheFileIsLoaded) {
  bool is_loadable = false;
  std::ofstream(program_) << "#!/bin/sh\necho loadable; echo $UMA_TRIAL_MARK; echo more; echo passed\n";
  fs::permissions(program_, fs::perms::owner_all);
  EXPECT_EQ(run_trial(program_, file_, control(false), [&] { is_loadable = true; }).kind, Kind::passed);
  EXPECT_TRUE(is_loadable);
  is_loadable = false;
  std::ofstream(program_) << "#!/bin/sh\necho loadable; echo passed\n";
  EXPECT_EQ(run_trial(program_, file_, control(false), [&] { is_loadable = true; }).kind, Kind::passed);
  EXPECT_FALSE(is_loadable) << "it was not the process that said so";
}

TEST_F(TrialProcess, AFaultRefusesTheFile) {
  for (const std::string signal : {"ABRT", "SEGV", "FPE", "XCPU"}) {
    const TrialOutcome outcome = run("echo its last words >&2; kill -" + signal + " $$");
    EXPECT_EQ(outcome.kind, Kind::refused) << signal;
    EXPECT_EQ(outcome.last_words, "its last words");
    EXPECT_FALSE(outcome.reason.contains("/folder")) << outcome.reason;
  }
}

TEST_F(TrialProcess, NothingFollowsFromAnEndThatSomebodyElseMakes) {
  for (const std::string end : {"kill -KILL $$", "kill -TERM $$", "exit 127", "exit 0"}) {
    EXPECT_EQ(run(end).kind, Kind::unknown) << end;
  }
  EXPECT_EQ(run("exec sleep 600", true).kind, Kind::unknown);
  EXPECT_EQ(run_trial("/nonexistent", {.model_path = "x"}, control(false)).kind, Kind::unknown);
}

#ifdef __linux__
TEST_F(TrialProcess, YieldsOnlyToStreams) {
  // Waits until its priority is as expected.
  const auto waits_for = [](const std::string& test) {
    return "while :; do n=$(ps -o ni= -p $$ | tr -d ' '); test \"$n\" " + test + " && echo passed && exit; sleep 0.01; done";
  };
  EXPECT_EQ(run(waits_for("-ge 15"), false, true).kind, Kind::passed);
  EXPECT_EQ(run(waits_for("-lt 15")).kind, Kind::passed);
}
#endif

TEST_F(TrialProcess, TalksAsMuchAsItLikes) {
  EXPECT_EQ(run("i=0; while [ $i -lt 20000 ]; do echo a line of some length; i=$((i + 1)); done; echo passed").kind,
            Kind::passed);
}

TEST_F(TrialProcess, IsForUmadAlone) {
  EXPECT_EQ(run_trial_command({"try-model", "1", "x"}), 1);
  EXPECT_EQ(run_trial_command({"try-model"}), 1);
}

}  // namespace
}  // namespace uma::umad
