// A process on trial: umad itself, started as a child that loads one model's file and ends (llm/trial_load.h). What the library
// does to it happens to nobody else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace uma::umad {

// The first argument of such a process; it is no command for people.
inline constexpr const char* kTrialCommand = "try-model";

struct TrialOutcome {
  enum class Kind : std::uint8_t {
    passed,
    refused,  // the file ends the process, or takes more than the limits: `reason`, for a person, without the file's path
    failed,   // the library refuses the file in order; a load says how
    unknown,  // nothing follows for the file: the process could not be started, or was ended by somebody; `reason`
  };
  Kind kind = Kind::unknown;
  std::string reason = {};
  std::string last_words = {};  // what the process wrote before its end, for the log
};

// Runs `program try-model path`. Blocks until it has ended, or is_cancelled() says true, or for ten minutes; looks every few
// milliseconds.
[[nodiscard]] TrialOutcome run_trial(const std::string& program, const std::string& path,
                                     const std::function<bool()>& is_cancelled);

// main() of such a process: arguments after its name.
[[nodiscard]] int run_trial_command(const std::vector<std::string>& arguments);

}  // namespace uma::umad
