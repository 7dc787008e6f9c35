// A download: a child process that runs `uma-cli pull`, so that neither another server's answers nor its file are read by the
// daemon (docs/decisions/0053).
#pragma once

#include <functional>
#include <string>

#include "core/error.h"
#include "core/model_library.h"

namespace uma::umad {

// Runs `program pull --folder folder source`. Blocks until the process ends. on_progress() is called at least every second;
// false ends the download: the process has 5 s to end by itself. Returns the path of the file. Errors: E_IO_001 with the
// message of uma-cli; E_PROTO_003 if it refuses the source.
[[nodiscard]] Expected<std::string> run_pull_process(const std::string& program, const std::string& folder,
                                                     const std::string& source,
                                                     const std::function<bool(const PullProgress&)>& on_progress);

}  // namespace uma::umad
