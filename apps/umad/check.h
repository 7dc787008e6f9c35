// The command `umad check`, which examines an installation before or beside a running daemon.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "umad/check_report.h"
#include "umad/config.h"
#include "umad/model_choice.h"

namespace uma::umad {

// Whether the arguments of the program begin this command.
[[nodiscard]] bool is_check(std::span<const std::string> arguments);

// Prints what is well and what is not, and returns the exit status: 0 if there is no problem, else 1. Connects to the
// database and the shared store, writes and removes a trial state there, opens the listeners' addresses and takes the data
// folder's lock for a moment, and changes no file of umad.
[[nodiscard]] int run_check(const Config& config);
// Prints the mistakes of settings, and returns the exit status as run_check() does.
[[nodiscard]] int report_mistakes(const Exit& mistakes, std::span<const std::string> arguments);

// The registered models as other daemons compare them. Reads samples of the default model's file; of the others only the size.
[[nodiscard]] std::vector<ComparedModel> compared_models(const Models& models);

}  // namespace uma::umad
