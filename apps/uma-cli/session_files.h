// `sessions export` and `sessions import` transfer a session's file in parts of one frame each.
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
  // Written completely or not at all, in place of an existing file; empty: the output, which must not be a terminal.
  std::string path;
  bool with_kv = false;
};
Result<void> export_session(Client& client, const ExportWanted& wanted, Output& output, Interrupts& interrupts);

// Imports from `path` (empty: standard input) and prints the new session. An empty `name` keeps the exported name.
Result<void> import_session(Client& client, const std::string& path, std::string_view name, Output& output,
                            Interrupts& interrupts);

}  // namespace uma::cli
