// What is known of model files that ended a process: those that failed a trial (trial_process.h), and those that a daemon was
// loading when it crashed. Kept in two text files of the data folder:
//
//   model_trials    IDENTITY passed | IDENTITY refused REASON | IDENTITY crashed COUNT     a line each, the latest last
//   model_loads     IDENTITY                                                               a line for each load under way
//
// Identities are those of llm::trial_identity(), so a verdict ends with any change of the file's head, and with a new library.
// A draft model and a projector that are loaded with a model are part of who crashed, not of who failed a trial.
//
// A daemon that begins and finds loads under way was not ended in order: a fault, a kill, a power cut. Only where the
// supervisor saw a fault (supervised.h) does it count, and kCrashesMax times in a row are needed, since another thread may have
// been to blame. A load that comes to its end takes the count back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "pool/load_guard.h"
#include "umad/trial_process.h"

namespace uma::umad {

// The verdicts, and the file they are in. Not thread-safe.
class TrialRecord {
 public:
  static constexpr int kCrashesMax = 2;
  static constexpr std::size_t kVerdictsMax = 4096;  // beyond it the oldest are forgotten

  // Reads what is kept; what cannot be read is tried again. `ended_by_fault`: how the daemon before this one ended.
  TrialRecord(std::string folder, bool ended_by_fault);

  [[nodiscard]] bool has_passed(const std::string& identity) const;
  // Why it must not be loaded; empty: nothing is known against it.
  [[nodiscard]] std::string refusal(const std::string& identity) const;
  void note_passed(const std::string& identity);
  void note_refused(const std::string& identity, const std::string& reason);

  // `identities`: of the files of one load.
  void begin_load(const std::string& identities);
  void end_load(const std::string& identities, bool is_loaded);

 private:
  struct Verdict {
    std::string identity;
    bool has_passed = false;
    std::string reason = {};  // of a refusal
    int crashes = 0;
  };
  [[nodiscard]] const Verdict* find(const std::string& identity) const;
  Verdict& at(const std::string& identity);
  void read_verdicts();
  void count_crashes(bool ended_by_fault);
  void write_verdicts() const;
  void write_loads() const;

  const std::string folder_;
  std::vector<Verdict> verdicts_;   // the oldest first
  std::vector<std::string> loads_;  // under way
};

// Thread-safe.
class ModelTrials final : public pool::LoadGuard {
 public:
  // `program`: umad, as a trial starts it. `marks_loads`: a supervisor tells the next daemon how this one ended, so that marks
  // are of use.
  ModelTrials(std::string folder, std::string program, bool marks_loads, bool ended_by_fault);

  [[nodiscard]] Expected<Unit> check(const engine::LoadWorkersOptions& options,
                                     const std::function<bool()>& is_cancelled) override;
  void begin(const engine::LoadWorkersOptions& options) override;
  void end(const engine::LoadWorkersOptions& options, bool is_loaded) override;

 private:
  struct KnownFile {
    std::int64_t bytes = 0;
    std::int64_t modified_ns = 0;
    std::string identity;
  };
  [[nodiscard]] Expected<std::string> identity_of(const std::string& path);
  [[nodiscard]] Expected<Unit> check_file(const std::string& path, const std::function<bool()>& is_cancelled);
  [[nodiscard]] std::string identities_of(const engine::LoadWorkersOptions& options);

  const std::string program_;
  const bool marks_loads_;
  Mutex mutex_;
  TrialRecord record_ GUARDED_BY(mutex_);
  std::map<std::string, KnownFile> known_ GUARDED_BY(mutex_);  // by path; of a model in several files by the first one's
};

}  // namespace uma::umad
