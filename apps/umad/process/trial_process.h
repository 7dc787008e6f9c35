// A trial: a child process of umad that loads one model file, or one with an adapter or a projector, and exits
// (llm/trial_load.h), so that a crash of the library on that file harms no other process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "pool/load_guard.h"

namespace uma::umad {

// First argument of a trial process; not a command for users.
inline constexpr const char* kTrialCommand = "try-model";

struct TrialOutcome {
  enum class Kind : std::uint8_t {
    passed,
    refused,  // The file ends the process or exceeds the limits. `reason` is for a person and omits the path.
    failed,   // The library rejects the file regularly; a load reports the reason.
    unknown,  // No verdict: the process could not be started or was ended from outside. See `reason`.
  };
  Kind kind = Kind::unknown;
  std::string reason = {};
  std::string last_words = {};  // Last output of the process, for the log.
};

// The file that is tried: a model's, or another one with its model.
struct TrialFile {
  enum class Kind : std::uint8_t { model, adapter, projector };
  std::string model_path;
  Kind kind = Kind::model;
  std::string other_path = {};  // The path of the adapter or the projector.

  [[nodiscard]] const std::string& path() const { return kind == Kind::model ? model_path : other_path; }
};
// For example "adapter".
[[nodiscard]] std::string_view trial_kind_name(TrialFile::Kind kind);

// Runs `program try-model PID MODEL`, followed by `adapter FILE` or `projector FILE`, at a low priority while there are
// streams. Blocks until the process ends, the load is cancelled, or ten minutes have passed; polls every few milliseconds.
// `on_loadable` is called when the process has loaded the file and goes on to try its tokenizer.
[[nodiscard]] TrialOutcome run_trial(const std::string& program, const TrialFile& file, const pool::LoadControl& control,
                                     const std::function<void()>& on_loadable = {});

// main() of a trial process; `arguments` excludes the program's name.
[[nodiscard]] int run_trial_command(const std::vector<std::string>& arguments);

}  // namespace uma::umad
