// `sessions export` and `sessions import`: a session as a file, in parts of one frame each.
#pragma once

#include <string>
#include <string_view>

#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct ExportWanted {
  std::string session;
  std::string path;  // it appears whole or not at all, in the place of what was there; empty: to the output, no terminal
  bool with_kv = false;
};
Result<void> export_session(Client& client, const ExportWanted& wanted, Output& output, Interrupts& interrupts);

// From `path`, empty: standard input. Prints the new session. `name` empty: the one it had.
Result<void> import_session(Client& client, const std::string& path, std::string_view name, Output& output,
                            Interrupts& interrupts);

}  // namespace uma::cli
