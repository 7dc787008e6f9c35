// `umad tune` measures this model on this machine, prints the results and stores the choice as a profile.
#pragma once

#include <string>

#include "umad/config.h"
#include "umad/tune/profile.h"
#include "umad/tune/tune_measure.h"

namespace uma::umad {

// Runs until it is done, or until INT or TERM. Returns the exit code: 0, 1 with an error in the log, or 130 or 143 for the
// signal; a signal leaves nothing stored. Requires blocked signals (signals.h) and a data folder.
[[nodiscard]] int run_tune(const Config& config, const std::string& model_path);

// Parts of run_tune, for tests: the report and the profile of a result.
[[nodiscard]] std::string tune_report(const TuneResult& result);
[[nodiscard]] Profile profile_of(const TuneResult& result, const llm::ModelFacts& model, const Machine& machine);

}  // namespace uma::umad
