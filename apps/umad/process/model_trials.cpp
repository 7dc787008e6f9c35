#include "umad/process/model_trials.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <format>
#include <fstream>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/log.h"
#include "base/system/file_calls.h"
#include "base/system/thread_name.h"
#include "base/thrown.h"
#include "core/model_file_name.h"
#include "llm/file/trial_load.h"
#include "umad/data_dir.h"

namespace uma::umad {
namespace {

constexpr const char* kTrialsFile = "/model_trials";
constexpr const char* kLoadsFile = "/model_loads";

TrialFile projector_of(const engine::LoadWorkersOptions& options) {
  return {.model_path = options.path, .kind = TrialFile::Kind::projector, .other_path = options.projector_path};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

std::unexpected<Error> refusal_of(std::string_view what, const std::string& reason) {
  return fail(ErrorCode::model_load, std::format("this {0}'s file is refused: {1}; try another file of the {0}", what, reason));
}

}  // namespace

TrialRecord::TrialRecord(std::string folder, bool ended_by_fault) : folder_(std::move(folder)) {
  read_verdicts();
  count_crashes(ended_by_fault);
}

void TrialRecord::read_verdicts() {
  for (const std::string& line : lines_of(folder_ + kTrialsFile)) {
    std::istringstream words(line);
    Verdict verdict;
    std::string kind;
    words >> verdict.identity >> kind >> std::ws;
    if (kind == "passed") {
      verdict.has_passed = true;
    } else if (kind == "refused") {
      std::getline(words, verdict.reason);
    } else if (kind == "crashed") {
      words >> verdict.crashes;
    }
    if (verdict.has_passed || !verdict.reason.empty() || verdict.crashes > 0) verdicts_.push_back(std::move(verdict));
  }
}

void TrialRecord::count_crashes(bool ended_by_fault) {
  const std::vector<std::string> loads = lines_of(folder_ + kLoadsFile);
  if (ended_by_fault) {
    for (const std::string& identities : loads) {
      const int crashes = ++at(identities).crashes;
      log_warning("models: the previous daemon crashed while it loaded a model, {} time(s) in a row{}", crashes,
                  crashes >= kCrashesMax ? ": this model is refused from now on" : "");
    }
    if (!loads.empty()) write_verdicts();
  }
  ::unlink((folder_ + kLoadsFile).c_str());
}

const TrialRecord::Verdict* TrialRecord::find(const std::string& identity) const {
  const auto found = std::ranges::find(verdicts_, identity, &Verdict::identity);
  return found == verdicts_.end() ? nullptr : &*found;
}

// Returns the verdict of `identity`, moved to the latest position.
TrialRecord::Verdict& TrialRecord::at(const std::string& identity) {
  const auto found = std::ranges::find(verdicts_, identity, &Verdict::identity);
  if (found != verdicts_.end()) {
    std::rotate(found, found + 1, verdicts_.end());
  } else {
    if (verdicts_.size() >= kVerdictsMax) verdicts_.erase(verdicts_.begin());
    verdicts_.push_back({.identity = identity});
  }
  return verdicts_.back();
}

bool TrialRecord::has_passed(const std::string& identity) const {
  const Verdict* verdict = find(identity);
  return verdict != nullptr && verdict->has_passed;
}

std::string TrialRecord::refusal(const std::string& identity) const {
  const Verdict* verdict = find(identity);
  if (verdict == nullptr) return {};
  if (verdict->crashes >= kCrashesMax) return std::format("the daemon crashed {} times while loading it", verdict->crashes);
  return verdict->reason;
}

void TrialRecord::note_passed(const std::string& identity) {
  at(identity).has_passed = true;
  write_verdicts();
}

void TrialRecord::note_refused(const std::string& identity, const std::string& reason) {
  at(identity).reason = reason;
  write_verdicts();
}

void TrialRecord::begin_load(const std::string& identities) {
  loads_.push_back(identities);
  write_loads();
}

void TrialRecord::end_load(const std::string& identities, bool is_loaded) {
  const auto found = std::ranges::find(loads_, identities);
  if (found != loads_.end()) loads_.erase(found);
  write_loads();
  const auto verdict = std::ranges::find(verdicts_, identities, &Verdict::identity);
  if (!is_loaded || verdict == verdicts_.end() || verdict->crashes == 0) return;
  verdict->crashes = 0;
  write_verdicts();
}

void TrialRecord::write_verdicts() const {
  std::string text;
  for (const Verdict& verdict : verdicts_) {
    if (verdict.crashes > 0) {
      text += std::format("{} crashed {}\n", verdict.identity, verdict.crashes);
    }
    if (!verdict.reason.empty()) {
      text += std::format("{} refused {}\n", verdict.identity, verdict.reason);
    } else if (verdict.has_passed) {
      text += std::format("{} passed\n", verdict.identity);
    }
  }
  if (const auto written = write_file_durably(folder_ + kTrialsFile, text); !written) {
    log_warning("models: verdicts about files could not be stored: {}", written.error().message);
  }
}

// Not synced, because loads after a power cut are not counted.
void TrialRecord::write_loads() const {
  const std::string path = folder_ + kLoadsFile;
  if (loads_.empty()) {
    ::unlink(path.c_str());
    return;
  }
  std::string text;
  for (const std::string& identities : loads_) text += identities + "\n";
  if (const auto written = write_file_atomically(path, text); !written) {
    log_warning("models: a load could not be marked: {}", written.error().message);
  }
}

void ModelTrials::begin_early(const std::string& path) {
  early_ = std::jthread([this, path](const std::stop_token& end) {
    set_thread_name("uma-load");
    // The load that needs the file reports what was found.
    (void)contain([&] {
      return check_model(path, {.is_cancelled = [&] { return end.stop_requested(); }, .has_streams = [] { return false; }}, {});
    });
  });
}

ModelTrials::ModelTrials(std::string folder, std::string program, bool marks_loads, bool ended_by_fault)
    : program_(std::move(program)), marks_loads_(marks_loads), record_(std::move(folder), ended_by_fault) {}

Expected<Unit> ModelTrials::check_model(const std::string& path, const pool::LoadControl& control,
                                        const std::function<void()>& on_loadable) {
  return check_file({.model_path = path}, control, on_loadable);
}

Expected<Unit> ModelTrials::check_load(const engine::LoadWorkersOptions& options, const pool::LoadControl& control) {
  if (!options.draft_path.empty()) {
    if (auto checked = check_model(options.draft_path, control, {}); !checked) return checked;
  }
  if (!options.projector_path.empty()) {
    if (auto checked = check_file(projector_of(options), control, {}); !checked) return checked;
  }
  const std::string identities = identities_of(options);
  const MutexLock lock(mutex_);
  const std::string refusal = record_.refusal(identities);
  if (refusal.empty()) return Unit{};
  return fail(ErrorCode::model_load, std::format("this model is refused: {}; try another file of the model", refusal));
}

Expected<Unit> ModelTrials::check_adapter(const engine::LoadWorkersOptions& options, const llm::AdapterSource& adapter,
                                          const pool::LoadControl& control) {
  return check_file({.model_path = options.path, .kind = TrialFile::Kind::adapter, .other_path = adapter.path}, control, {});
}

std::optional<Expected<Unit>> ModelTrials::known_verdict(const std::string& identity, std::string_view what,
                                                         const pool::LoadControl& control,
                                                         const std::function<void()>& on_loadable) {
  constexpr std::chrono::milliseconds kLookAgain{20};
  bool is_told = !on_loadable;
  const MutexLock lock(mutex_);
  for (;;) {
    if (const std::string refusal = record_.refusal(identity); !refusal.empty()) return refusal_of(what, refusal);
    if (record_.has_passed(identity)) return Unit{};
    const auto [trial, is_mine] = on_trial_.try_emplace(identity, false);
    if (is_mine) return std::nullopt;
    if (trial->second && !std::exchange(is_told, true)) on_loadable();
    if (control.is_cancelled()) return fail(ErrorCode::model_load, "the load was cancelled while its file was tried");
    trial_changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kLookAgain);
  }
}

TrialOutcome ModelTrials::tried_file(const TrialFile& file, const std::string& identity, const pool::LoadControl& control,
                                     const std::function<void()>& on_loadable) {
  const auto tell = [&] {
    {
      const MutexLock lock(mutex_);
      on_trial_[identity] = true;
    }
    trial_changed_.notify_all();
    if (on_loadable) on_loadable();
  };
  auto outcome = contain([&]() -> Expected<TrialOutcome> { return run_trial(program_, file, control, tell); });
  if (!outcome) outcome = TrialOutcome{.kind = TrialOutcome::Kind::unknown, .reason = outcome.error().message};
  {
    const MutexLock lock(mutex_);
    on_trial_.erase(identity);
    if (outcome->kind == TrialOutcome::Kind::passed) record_.note_passed(identity);
    if (outcome->kind == TrialOutcome::Kind::refused) record_.note_refused(identity, outcome->reason);
  }
  trial_changed_.notify_all();
  return *outcome;
}

Expected<Unit> ModelTrials::check_file(const TrialFile& file, const pool::LoadControl& control,
                                       const std::function<void()>& on_loadable) {
  const auto identity = identity_of(file);
  if (!identity) return Unit{};  // The load reports the problem.
  const std::string_view what = trial_kind_name(file.kind);
  if (auto known = known_verdict(*identity, what, control, on_loadable)) return *std::move(known);
  const std::string& tried = file.path();
  log_debug("models: {} is tried in a separate process", tried);
  const TrialOutcome outcome = tried_file(file, *identity, control, on_loadable);
  switch (outcome.kind) {
    case TrialOutcome::Kind::refused:
      log_error("models: {} is refused until it changes: {}{}{}", tried, outcome.reason, outcome.last_words.empty() ? "" : ": ",
                outcome.last_words);
      return refusal_of(what, outcome.reason);
    case TrialOutcome::Kind::passed:
    case TrialOutcome::Kind::failed:
      return Unit{};
    case TrialOutcome::Kind::unknown:
      break;
  }
  log_warning("models: {} could not be tried: {}{}{}", tried, outcome.reason, outcome.last_words.empty() ? "" : ": ",
              outcome.last_words);
  return fail(ErrorCode::model_load,
              std::format("this {}'s file could not be tried: {}; repeat the request", what, outcome.reason));
}

void ModelTrials::begin(const engine::LoadWorkersOptions& options) {
  if (!marks_loads_) return;
  const std::string identities = identities_of(options);
  const MutexLock lock(mutex_);
  record_.begin_load(identities);
}

void ModelTrials::end(const engine::LoadWorkersOptions& options, bool is_loaded) {
  if (!marks_loads_) return;
  const std::string identities = identities_of(options);
  const MutexLock lock(mutex_);
  record_.end_load(identities, is_loaded);
}

// Hashes a file once, until its size or time changes.
Expected<std::string> ModelTrials::identity_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return fail(ErrorCode::model_load, "no such file");
  const std::int64_t changed_ns = modified_ns(status);
  {
    const MutexLock lock(mutex_);
    const auto known = known_.find(path);
    const bool is_same =
        known != known_.end() && known->second.bytes == status.st_size && known->second.modified_ns == changed_ns;
    // The other files of a split model may have changed.
    if (is_same && !parse_split_name(path)) return known->second.identity;
  }
  auto identity = llm::trial_identity(path);
  if (!identity) return identity;
  const MutexLock lock(mutex_);
  known_[path] = {.bytes = status.st_size, .modified_ns = changed_ns, .identity = *identity};
  return identity;
}

Expected<std::string> ModelTrials::identity_of(const TrialFile& file) {
  switch (file.kind) {
    case TrialFile::Kind::adapter:
      return llm::adapter_trial_identity(file.model_path, file.other_path);
    case TrialFile::Kind::projector:
      return llm::projector_trial_identity(file.model_path, file.other_path);
    case TrialFile::Kind::model:
      break;
  }
  return identity_of(file.model_path);
}

std::string ModelTrials::identities_of(const engine::LoadWorkersOptions& options) {
  std::string identities;
  const auto add = [&](const TrialFile& file) {
    if (file.path().empty()) return;
    identities += std::format("{}{}", identities.empty() ? "load:" : "+", identity_of(file).value_or("none"));
  };
  add({.model_path = options.path});
  add({.model_path = options.draft_path});
  add(projector_of(options));
  return identities;
}

}  // namespace uma::umad
