// `uma-cli pull` downloads a model: its file or all of its pieces, and its projector. resume.h has the rules and download.h the
// transfer.
#pragma once

#include <string>

#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct PullOptions {
  std::string source;
  std::string out;     // For a model in one file, without its projector. Empty: the models folder, under the file's own name.
  std::string folder;  // Folder for the file, without `out`; empty: the models folder.
  std::string sha256;  // Empty: the hub's checksum, if it lists one.
  int stall_timeout_s = 30;
  bool is_forced = false;
  bool has_projector = true;  // The projector is fetched, too.
  bool is_quiet = false;
  bool as_json = false;  // Prints progress and path as lines of JSON.
};

// Downloads the model and prints its path and how to serve it. ExitCode::server also stands for network and disk errors,
// ExitCode::protocol for a file that differs from the requested one.
Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts);
// Downloads the model with progress on standard error and returns the path of its first file.
[[nodiscard]] Result<std::string> pull_file(const PullOptions& options, Interrupts& interrupts);

}  // namespace uma::cli
