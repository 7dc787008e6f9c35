// `umad tune`: measures this model on this machine, prints what it found, and keeps the choice as a profile.
#pragma once

#include <string>

#include "umad/config.h"
#include "umad/profile.h"
#include "umad/tune_measure.h"

namespace uma::umad {

// Runs to its end, or until INT or TERM. Returns the exit code: 0, 1 with an error in the log, 130 or 143 for the signal, in
// which case nothing is written. Requires blocked signals (signals.h) and a data folder.
[[nodiscard]] int run_tune(const Config& config, const std::string& model_path);

// The parts, for tests: the tables and the choices as text, and what is kept of them.
[[nodiscard]] std::string tune_report(const TuneResult& result);
[[nodiscard]] Profile profile_of(const TuneResult& result, const llm::ModelFacts& model, const Machine& machine);

}  // namespace uma::umad
