// `uma-cli pull` downloads a model. resume.h has the rules and download.h the transfer.
#pragma once

#include <string>

#include "uma-cli/chat/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct PullOptions {
  std::string source;
  std::string out;     // Empty: the models folder, under the file's own name.
  std::string folder;  // Folder for the file, without `out`; empty: the models folder.
  std::string sha256;  // Empty: the hub's checksum, if it lists one.
  int stall_timeout_s = 30;
  bool is_forced = false;
  bool is_quiet = false;
  bool as_json = false;  // Prints progress and path as lines of JSON.
};

// Downloads the file and prints its path and how to serve the model. ExitCode::server also stands for network and disk errors,
// ExitCode::protocol for a file that differs from the requested one.
Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts);
// Downloads the file with progress on standard error and returns its path.
[[nodiscard]] Result<std::string> pull_file(const PullOptions& options, Interrupts& interrupts);

}  // namespace uma::cli
