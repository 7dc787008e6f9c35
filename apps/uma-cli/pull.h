// `uma-cli pull`: fetches a model to this disk. Start with resume.h (the rules), then download.h (the doing).
#pragma once

#include <string>

#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct PullOptions {
  std::string source;
  std::string out;     // empty: the folder of models, under the file's own name
  std::string sha256;  // empty: the hub's, where it says one
  int stall_timeout_s = 30;
  bool is_forced = false;
  bool is_quiet = false;
};

// Ends with the path on `output`, and how to serve the model. Exit codes: server also for a network or a disk that fails,
// protocol also for a file that is not what was asked for.
Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
