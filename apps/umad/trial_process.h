// A trial: a child process of umad that loads one model file and exits (llm/trial_load.h), so that a crash of the library on
// that file harms no other process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

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

// Runs `program try-model path`, or, for an adapter of this model, `program try-model path adapter_path`. Blocks until the
// process ends, is_cancelled() returns true, or ten minutes have passed; polls every few milliseconds.
[[nodiscard]] TrialOutcome run_trial(const std::string& program, const std::string& path,
                                     const std::function<bool()>& is_cancelled, const std::string& adapter_path = "");

// main() of a trial process; `arguments` excludes the program's name.
[[nodiscard]] int run_trial_command(const std::vector<std::string>& arguments);

}  // namespace uma::umad
