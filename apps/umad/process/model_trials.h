// Model files that have ended a process: files that failed a trial (trial_process.h), and files that a daemon was loading when
// it crashed. Stored in two text files of the data folder:
//
//   model_trials    IDENTITY passed | IDENTITY refused REASON | IDENTITY crashed COUNT     one per line, the latest last
//   model_loads     IDENTITY                                                               one line for each load in progress
//
// Identities are those of llm::trial_identity(), so a change of the file's head, or a new library, voids a verdict. A projector
// is tried with its model. A draft model and a projector that are loaded with a model count as crashed with it.
//
// If a daemon finds loads in progress at its start, its predecessor ended unexpectedly: by a fault, a kill or a power failure.
// Only a fault seen by the supervisor (supervised.h) counts, and only after kCrashesMax in a row, since another thread may have
// caused it. A load that ends resets the count.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "pool/load_guard.h"
#include "umad/process/trial_process.h"

namespace uma::umad {

// The verdicts and their file. Not thread-safe.
class TrialRecord {
 public:
  static constexpr int kCrashesMax = 2;
  static constexpr std::size_t kVerdictsMax = 4096;  // The oldest verdicts beyond this number are forgotten.

  // Reads the stored verdicts; unreadable ones are tried again. `ended_by_fault` describes the end of the previous daemon.
  TrialRecord(std::string folder, bool ended_by_fault);

  [[nodiscard]] bool has_passed(const std::string& identity) const;
  // Why the file must not be loaded; empty: it may be loaded.
  [[nodiscard]] std::string refusal(const std::string& identity) const;
  void note_passed(const std::string& identity);
  void note_refused(const std::string& identity, const std::string& reason);

  // `identities` are those of all files of one load.
  void begin_load(const std::string& identities);
  void end_load(const std::string& identities, bool is_loaded);

 private:
  struct Verdict {
    std::string identity;
    bool has_passed = false;
    std::string reason = {};  // Set for a refusal.
    int crashes = 0;
  };
  [[nodiscard]] const Verdict* find(const std::string& identity) const;
  Verdict& at(const std::string& identity);
  void read_verdicts();
  void count_crashes(bool ended_by_fault);
  void write_verdicts() const;
  void write_loads() const;

  const std::string folder_;
  std::vector<Verdict> verdicts_;   // Oldest first.
  std::vector<std::string> loads_;  // Loads in progress.
};

// Thread-safe.
class ModelTrials final : public pool::LoadGuard {
 public:
  // `program` is umad, for starting trials. `marks_loads` is set under a supervisor, which reports to the next daemon how this
  // one ended.
  ModelTrials(std::string folder, std::string program, bool marks_loads, bool ended_by_fault);
  // Tries a model that will be loaded soon on a thread of its own, which ends with this object. Call it at most once.
  void begin_early(const std::string& path);

  [[nodiscard]] Expected<Unit> check_model(const std::string& path, const pool::LoadControl& control,
                                           const std::function<void()>& on_loadable) override;
  [[nodiscard]] Expected<Unit> check_load(const engine::LoadWorkersOptions& options, const pool::LoadControl& control) override;
  [[nodiscard]] Expected<Unit> check_adapter(const engine::LoadWorkersOptions& options, const llm::AdapterSource& adapter,
                                             const pool::LoadControl& control) override;
  void begin(const engine::LoadWorkersOptions& options) override;
  void end(const engine::LoadWorkersOptions& options, bool is_loaded) override;

 private:
  struct KnownFile {
    std::int64_t bytes = 0;
    std::int64_t modified_ns = 0;
    std::string identity;
  };
  [[nodiscard]] Expected<std::string> identity_of(const std::string& path);
  [[nodiscard]] Expected<std::string> identity_of(const TrialFile& file);
  [[nodiscard]] Expected<Unit> check_file(const TrialFile& file, const pool::LoadControl& control,
                                          const std::function<void()>& on_loadable);
  // Returns the verdict on the file, after the end of a trial of it that others make. Without a value, the caller is to call
  // tried_file().
  [[nodiscard]] std::optional<Expected<Unit>> known_verdict(const std::string& identity, std::string_view what,
                                                            const pool::LoadControl& control,
                                                            const std::function<void()>& on_loadable);
  TrialOutcome tried_file(const TrialFile& file, const std::string& identity, const pool::LoadControl& control,
                          const std::function<void()>& on_loadable);
  [[nodiscard]] std::string identities_of(const engine::LoadWorkersOptions& options);

  const std::string program_;
  const bool marks_loads_;
  Mutex mutex_;
  TrialRecord record_ GUARDED_BY(mutex_);
  std::map<std::string, KnownFile> known_ GUARDED_BY(mutex_);  // Keyed by path; a split model uses the path of its first file.
  std::map<std::string, bool> on_trial_ GUARDED_BY(mutex_);    // Whether the library has read the file, by its identity.
  CondVar trial_changed_;
  std::jthread early_;  // Ends before the rest.
};

}  // namespace uma::umad
